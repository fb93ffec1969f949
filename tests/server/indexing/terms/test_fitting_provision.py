from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster
from hybridr.cluster.record import IndexInfo
from hybridr.errors import AccessDenied
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.terms import fitting, storage
from hybridr.indexing.terms.fitting import fit_term_table, provide_term_table
from hybridr.indexing.terms.storage import HOME, open_term_table
from hybridr.status.sidecars.term_tables import TermTables
from support.corpus import bulk, fill_index, having, reindexed
from support.hashing import HashingEncoder
from support.hidden_tables import forbidding
from support.places import with_support

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("small_parts")]
IN_PLACE = {"settings": {"knn": True, "number_of_replicas": 0, "number_of_shards": 3}}


def parts_of(cluster: Cluster, info: IndexInfo) -> list[str]:
    return storage.stored_parts(cluster, storage.hidden_index(info), {info.uuid})


@pytest.fixture
def bare(cluster: Cluster, index_name: str) -> str:
    """An index with vectors and no table, as one made before there were tables."""
    done = reindexed(cluster, index_name, 60, HashingEncoder(), ReindexSettings(term_table=False))
    assert done.term_table is None
    return done.destination


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The indices that tables are fitted to."""
    found: list[str] = []
    fit = fitting.fit_term_table

    def noted(cluster: Cluster, info: Any, *rest: Any, **options: Any) -> Any:
        found.append(info.name)
        return fit(cluster, info, *rest, **options)

    monkeypatch.setattr(fitting, "fit_term_table", noted)
    return found


@pytest.mark.parametrize(("in_place", "workers"), [(True, 1), (False, 3)])
def test_a_reindex_fits_a_table_once_of_the_states_that_made_the_vectors(
    cluster, index_name, fits, in_place, workers
):
    fill_index(cluster, index_name, 60, **IN_PLACE)
    settings = ReindexSettings(in_place=in_place, workers=workers, fields=("text",))
    done = reindex(cluster, index_name, HashingEncoder(), settings)
    assert (done.term_table.fitted, done.term_table.heard, done.term_table.note) == (True, True, "")
    info = cluster.index_info(done.destination)
    assert info.record.term_table == done.term_table.table
    assert done.to_json()["term_table"]["table"]["documents"] == 60
    again = reindex(cluster, index_name, HashingEncoder(), settings)
    assert (again.term_table.fitted, again.term_table.table) == (False, info.record.term_table)
    assert fits == []
    heard, read = open_term_table(cluster, info), fit_term_table(cluster, info, HashingEncoder())
    assert set(heard.terms) == set(read.terms)
    rows = read.rows[[read.places[term] for term in heard.terms]]
    np.testing.assert_allclose((heard.rows * rows).sum(axis=1), 1, atol=1e-3)
    assert heard.own_cosine == pytest.approx(read.own_cosine, abs=1e-3)


def test_a_run_that_encoded_little_of_the_index_reads_a_sample_and_says_so(cluster, bare, fits):
    source = cluster.index_info(bare).record.source
    lines = [line for number in range(7) for line in ({"index": {}}, {"text": f"new words {number}"})]
    bulk(cluster, source, lines)
    done = reindex(cluster, source, HashingEncoder())
    assert done.encoded == 7
    assert fits == [bare]
    assert not done.term_table.heard
    assert "67 documents, from a second read of them" in done.term_table.described


def test_what_the_listener_fails_with_stops_no_filling(cluster, index_name, fits, monkeypatch):
    asked, words = [], fitting.read_occurrences

    def failing_once(*given: Any) -> Any:
        asked.append(given)
        if len(asked) == 1:
            raise AccessDenied("the cluster forbids it (403)", status=403)
        return words(*given)

    monkeypatch.setattr(fitting, "read_occurrences", failing_once)
    done = reindexed(cluster, index_name, 20)
    assert done.encoded == 20
    assert (done.term_table.fitted, done.term_table.heard) == (True, False)
    assert fits == [done.destination]


def test_a_new_encoder_gets_a_table_of_its_own_and_leaves_the_first(cluster, index_name):
    fill_index(cluster, index_name, 30)
    made = [reindex(cluster, index_name, HashingEncoder(salt=salt)).destination for salt in ("", "b")]
    for info in map(cluster.index_info, made):
        table = open_term_table(cluster, info)
        assert table.encoder == info.record.encoder
        assert parts_of(cluster, info)


def test_a_table_of_other_fields_is_fitted_anew_and_the_old_parts_go(cluster, bare, fits, monkeypatch):
    first = provide_term_table(cluster, bare, HashingEncoder()).table
    assert first is not None
    origin = fitting.table_origin(cluster, cluster.index_info(bare))
    other = origin | {"inputs": origin["inputs"] | {"fields": ["title", "text"]}}
    monkeypatch.setattr(fitting, "table_origin", lambda *_: other)
    second = provide_term_table(cluster, bare, HashingEncoder())
    assert second.fitted
    assert fits == [bare, bare]
    info = cluster.index_info(bare)
    assert info.record.term_table == second.table
    assert {part.partition("-")[0] for part in parts_of(cluster, info)} == {
        info.record.term_table.fingerprint
    }


def test_killed_between_parts_it_is_whole_after_the_next_run(cluster, bare, other_machine, monkeypatch):
    request, written = Cluster.request, []

    def killed(self: Cluster, method: str, path: str, *rest: Any, **options: Any) -> Any:
        if method == "PUT" and path.startswith(f"/{HOME}") and "/_doc/" in path:
            if written:
                raise KeyboardInterrupt
            written.append(path)
        return request(self, method, path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "request", killed)
        with pytest.raises(KeyboardInterrupt):
            provide_term_table(cluster, bare, HashingEncoder())
    other_machine()
    info = cluster.index_info(bare)
    assert open_term_table(cluster, info) is None
    found = provide_term_table(cluster, bare, HashingEncoder())
    other_machine()
    table = open_term_table(cluster, cluster.index_info(bare))
    assert table.fingerprint == found.table.fingerprint
    assert len(parts_of(cluster, info)) == found.table.parts


PROVIDE = """
import sys
from hybridr import connect
from hybridr.indexing.terms import storage
from hybridr.indexing.terms.fitting import provide_term_table
from support.hashing import HashingEncoder
storage.PART_BYTES, storage.MIN_TERMS = 700, 1
found = provide_term_table(connect(sys.argv[1]), sys.argv[2], HashingEncoder())
assert found.table and not found.note, found
"""


def test_two_processes_at_once_leave_one_whole_table(cluster, bare, other_machine):
    command = [sys.executable, "-c", PROVIDE, cluster.url, bare]
    both = [
        subprocess.Popen(command, env=with_support(), stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for one in both:
        assert one.communicate()[1] is not None
        assert one.returncode == 0
    other_machine()
    info = cluster.index_info(bare)
    assert open_term_table(cluster, info) is not None
    assert len(parts_of(cluster, info)) == info.record.term_table.parts


def test_without_rights_for_the_hidden_index_it_stays_on_this_machine(cluster, bare, fits, monkeypatch):

    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "request", forbidding(Cluster.request))
        found = provide_term_table(cluster, bare, HashingEncoder())
        assert found.table is not None
        assert "kept on this machine only: the cluster forbids it" in found.described
        info = cluster.index_info(bare)
        assert open_term_table(cluster, info) is not None
        storage._open.clear()
        assert open_term_table(cluster, info) is not None
        assert TermTables.state(cluster, info).places == ("machine",)  # type: ignore[union-attr]
    # Somebody with the rights runs it here: it goes into the cluster as it is.
    later = provide_term_table(cluster, bare, HashingEncoder())
    assert (later.fitted, later.note, later.table) == (False, "", found.table)
    assert fits == [bare]
    assert storage.is_in_cluster(cluster, cluster.index_info(bare))


def test_a_failure_leaves_the_reindex_whole_and_is_told(cluster, index_name):
    class Ill(HashingEncoder):
        def read_documents(self, texts: Any, *, max_tokens: int | None = None) -> Any:
            raise RuntimeError("out of memory")

    done = reindexed(cluster, index_name, 20, Ill())
    assert done.switched
    assert done.term_table.table is None
    assert done.term_table.described == (
        "none, RuntimeError('out of memory'): searches go on without soft terms"
    )
    assert cluster.index_info(done.destination).record.term_table is None


def test_where_it_cannot_be_used_none_is_fitted(cluster, index_name):
    done = reindexed(cluster, index_name, 20, HashingEncoder(), ReindexSettings(passages=True))
    assert done.term_table.to_json() == {
        "table": None,
        "fitted": False,
        "note": "its documents have a vector for each passage",
        "heard": False,
    }


def test_where_no_table_can_be_kept_it_is_told(cluster, bare, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(storage, "MIN_TERMS", 10_000)
        found = provide_term_table(cluster, bare, HashingEncoder())
    assert found.table is None
    assert found.described.startswith("none, the index has too few words, ")
    info = cluster.index_info(bare)
    assert info.record.term_table is None
    assert parts_of(cluster, info) == []

    # A mapping that takes no record is told.
    with having(cluster, {"index.blocks.metadata": True}, bare):
        found = provide_term_table(cluster, bare, HashingEncoder())
    assert found.table is None
    assert found.note

    # A read only disk here still fills the cluster.
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(storage, "data_folder", lambda: tmp_path / "file")
    found = provide_term_table(cluster, bare, HashingEncoder())
    assert (found.fitted, found.note) == (True, "")
    storage._open.clear()
    assert open_term_table(cluster, cluster.index_info(bare)) is not None
