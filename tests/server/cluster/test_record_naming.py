"""Names that stand for no single open index are refused by what they are, in every verb."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridr.cluster.connection import Cluster, path_of
from support.corpus import beir_folder, drop_indices, fill_index

MANY, ROLLED, STREAM, CLOSED, NARROW = (
    f"t-odd-{kind}" for kind in ("many", "rolled", "stream", "closed", "closed-as")
)
REFUSALS = {
    MANY: ("stands for several indices: t-odd-1, t-odd-2", "name one of them, or copy"),
    "t-odd-1,t-odd-2": ("stands for several indices", "name one of them, or copy"),
    ROLLED: ("stands for several indices: t-odd-rolled-000001, t-odd-rolled-000002", "name one of them"),
    STREAM: ("is a data stream", "copy it into an index first: POST /_reindex"),
    CLOSED: ("index 't-odd-closed' is closed", "open it: POST /t-odd-closed/_open"),
    NARROW: ("index 't-odd-closed' is closed", "open it: POST /t-odd-closed/_open"),
}
VERBS = (
    "adapt --index {name} --out {folder}/adapted; clicks {name}; "
    "compare {name} --encoders all-MiniLM-L6-v2; deploy {name}; deploy {name} --dry-run; "
    "deploy {name} --explain {folder}/requests; experiment promote {name}; experiment report {name}; "
    "experiment start {name}; experiment stop {name}; "
    "evaluate {name} --beir {folder}/beir; export-text {name} --out {folder}/texts; "
    "import-vectors {name} {folder}/texts; inspect {name}; learn {name} --beir {folder}/beir; "
    "learn {name} --forget; mcp {name}; rules {name}; rules {name} add sale --text basket --pin d1; "
    "rules {name} remove sale; shadow {name}; shadow {name} --queries {folder}/requests; "
    "load {folder}/beir --index {name}; "
    "load {folder}/beir --index {name} --replace; reindex {name}; reindex {name} --dry-run; "
    "reindex {name} --in-place; remove {name} --yes; rollback {name}; search {name} anchor; "
    "search {name} anchor --mode lexical; serve --index {name} --port 0; status {name}; sync {name}; "
    "sync {name} --every 1s; tune {name} --beir {folder}/beir; tune {name} --reset; undeploy {name}; "
    "verify {name}; verify {name} --recall"
).split("; ")


@pytest.fixture(scope="module")
def folder(cluster: Cluster, minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One name of each kind, and a collection to judge by."""
    for number in (1, 2):
        fill_index(cluster, f"t-odd-{number}", 3, aliases={MANY: {"is_write_index": number == 2}})
    fill_index(cluster, f"{ROLLED}-000001", 3, aliases={ROLLED: {"is_write_index": True}})
    cluster.request("POST", path_of(ROLLED, "_rollover"))
    fill_index(cluster, CLOSED, 3, aliases={NARROW: {}})
    cluster.request("POST", path_of(CLOSED, "_close"))
    body = {"index_patterns": [STREAM], "data_stream": {}}
    cluster.request("PUT", path_of("_index_template", STREAM), body)
    cluster.request("PUT", path_of("_data_stream", STREAM))
    place = tmp_path_factory.mktemp("odd")
    beir_folder(place / "beir")
    (place / "requests").write_text('{"query": "anchor"}\n')
    yield place
    cluster.request("DELETE", path_of("_data_stream", STREAM))
    cluster.request("DELETE", path_of("_index_template", STREAM))
    drop_indices(cluster, "t-odd-*")


@pytest.mark.attack(45)
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_what_is_not_one_open_index(cluster, folder, verb, cli):
    for name, (reason, hint) in REFUSALS.items():
        before = cluster.request("GET", "/_all/_mapping")
        told = cli(cluster, verb.format(name=name, folder=folder), code=1).err
        assert (reason in told, hint in told) == (True, True), (name, told)
        assert cluster.request("GET", "/_all/_mapping") == before
