"""Labels made from an index on a real node: queries of its documents, found again, and a REM of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hybridr_cli
from hybridr.cluster.connection import Cluster
from hybridr.errors import DataError
from hybridr.files.formats import read_lines
from hybridr.files.remembered import texts
from hybridr.search.search import Search
from hybridr.training.made_labels import FOUND_AMONG, LabelSource, make_labels
from support.corpus import fill_index, text_number
from support.dam_training import tiny_dam

pytestmark = pytest.mark.node


@pytest.fixture
def source(cluster: Cluster, index_name: str) -> str:
    fill_index(cluster, index_name, 60)
    return index_name


def test_queries_of_documents_find_them_again(cluster: Cluster, source: str, tmp_path: Path) -> None:
    made = make_labels(cluster, source, LabelSource(tmp_path / "made", 30, 5))
    assert 10 <= len(made.judgements.queries) <= 30
    for query_id, (own,) in made.judgements.positives.items():
        number = int(own[1:])
        assert {*made.judgements.queries[query_id].lower().split()} <= {*text_number(number).split()}
    for _, line in read_lines(made.negatives):
        query_id, _, listed = line.partition("\t")
        assert len(listed.split()) <= 5
        assert made.judgements.positives[query_id][0] not in listed.split()
    assert str(tmp_path / "made") in {str(one.path) for one in texts(source)}
    before = made.negatives.stat().st_mtime_ns
    assert (
        make_labels(cluster, source, LabelSource(tmp_path / "made", 30, 5)).negatives.stat().st_mtime_ns
        == before
    )


def test_a_log_takes_its_best_hits(cluster: Cluster, source: str, tmp_path: Path) -> None:
    log = tuple(text_number(number)[:20] for number in range(12))
    found = make_labels(cluster, source, LabelSource(tmp_path / "log", 30, 5, log=log)).judgements
    assert [*found.queries.values()] == [*log]


def test_queries_that_find_nothing_are_no_labels(
    cluster: Cluster, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Search, "run", lambda self, queries, k: {query.query_id: {} for query in queries})
    with pytest.raises(DataError, match=f"0 of .* queries find their document again among {FOUND_AMONG}"):
        make_labels(cluster, source, LabelSource(tmp_path / "none", 30, 5))


def test_the_command_trains_without_labels(
    cluster: Cluster, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "hybridr.toml"
    settings.write_text("[rem]\nmined = 4\nmax_queries = 20\nrank = 4\nnegatives_per_query = 2\n")
    words = ["rem", "train", "--dam", str(tiny_dam(tmp_path / "dam")), "--steps", "2"]
    words += ["--index", source, "--out", str(tmp_path / "rem")]
    words += ["--batch-size", "4", "--json", "--url", cluster.url, "--config", str(settings)]
    assert hybridr_cli.main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == 2
    assert told["queries"] >= 10
    assert hybridr_cli.main(words) == 0
    assert json.loads(capsys.readouterr().out)["reused"]
