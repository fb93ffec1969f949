"""The examples in the docstrings of the public functions, run one after the other on a real node."""

from __future__ import annotations

import doctest
import inspect
import json
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import hybridr
from hybridr import Index, index
from hybridr.cluster.connection import Cluster
from hybridr.files.formats import write_beir
from hybridr.index import IndexExperiment, IndexRules
from hybridr.records import Document, Query
from hybridr.relevance.clicks.ubi import EVENTS, QUERIES, ready_time_field
from support.click_logs import people
from support.corpus import drop_indices

IN_ORDER = (
    *("connect", "read_beir", "load_encoder", "Connection.index", "Index", "Index.load", "Index.inspect"),
    *("Index.compare", "Index.plan_reindex", "Index.reindex", "Index.status", "Index.verify", "Index.sync"),
    *("Search", "Index.open_search", "Index.search", "Index.explain", "Index.evaluate", "Index.shadow"),
    *("Index.tune", "Index.learn", "IndexExperiment.start", "IndexExperiment.report", "IndexExperiment.stop"),
    *("IndexExperiment.promote", "Index.forget", "Index.reset_tuning", "IndexRules.add", "IndexRules.list"),
    "IndexRules.remove",
    *("Index.clicks", "Index.deploy", "Index.undeploy", "Index.adapt", "Index.rollback", "Index.remove"),
)
WITHOUT_EXAMPLE = {
    *("export_text", "plan_import", "import_vectors", "sync_every", "measure_recall", "judgements"),
    *("assess", "changes_since_learnt", "plan_deploy", "deployment_problems", "explain_requests"),
    "unfinished",
}
"""Methods of `Index` that need more than an index: files, a model, an endless loop, a reindex under way."""
WORDS = "basket candle dragon engine forest garden harbor island jacket kettle ladder marble needle".split()


@pytest.fixture
def docs(
    cluster: Cluster, minilm_encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A folder with what the examples name, and no index `docs`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYBRIDR_URL", cluster.url)
    Path("docs-encoder").symlink_to(minilm_encoder_folder)
    labelled_folder(Path("docs-beir"))
    lines = [record for n, word in enumerate(WORDS) for record in seen_by_people(n, f"which {word} is near")]
    Path("clicks.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    texts = [{"query": f"which {word} is near"} for word in WORDS[:3]]
    Path("requests.jsonl").write_text("\n".join(map(json.dumps, texts)))
    for name in (QUERIES, EVENTS):
        ready_time_field(cluster, name)
    yield
    drop_indices(cluster, f"docs,docs-hybridr-*,{QUERIES},{EVENTS}")


def seen_by_people(n: int, text: str) -> Iterator[dict[str, Any]]:
    """Give what 40 people do who ask for the document of a number and see nine others besides."""
    return people(text, [f"d{(n + step) % 120}" for step in range(10)], [f"d{n}"], 40)


def labelled_folder(folder: Path) -> None:
    """Write 120 documents in English, and 13 queries that one of them answers each."""
    texts = [
        f"The {WORDS[n % 13]} that stands near the old {WORDS[n % 11]} has the number {n}. "
        f"Whoever looks for it walks around the {WORDS[n % 7]}, and then up to the gate of the house {n}."
        for n in range(120)
    ]
    corpus = [Document(f"d{n}", text) for n, text in enumerate(texts)]
    queries = [Query(f"q{n}", f"which {word} is near") for n, word in enumerate(WORDS)]
    write_beir(folder, corpus, queries, {f"q{n}": {f"d{n}": 1} for n in range(len(WORDS))})


def test_every_public_function_has_an_example():
    functions = {name for name in hybridr.__all__ if inspect.isfunction(getattr(hybridr, name))}
    methods = {
        f"{kind.__name__}.{name}"
        for kind in (Index, IndexRules, IndexExperiment)
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and not name.startswith("_") and name not in WITHOUT_EXAMPLE
    }
    assert functions | methods | {"Connection.index", "Index", "Search"} == set(IN_ORDER)


def test_the_examples_hold(docs):
    known: dict[str, object] = {"hybridr": hybridr}
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    for name in IN_ORDER:
        documented = attrgetter(name)(hybridr if hasattr(hybridr, name.split(".")[0]) else index)
        found = parser.get_doctest(inspect.getdoc(documented) or "", known, name, None, 0)
        assert found.examples, name
        outcome = runner.run(found, clear_globs=False)
        known = found.globs
        assert not outcome.failed, name
