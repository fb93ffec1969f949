"""Where vectors go: settings and records name their target, and a new one is a new file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster
from hybridr.cluster.record import IndexInfo, Record
from hybridr.errors import AccessDenied, NotFound
from hybridr.families import member_names
from hybridr.indexing import targets
from hybridr.indexing.recipe import TextRecipe
from hybridr.indexing.reindexing import plan, reindex
from hybridr.indexing.targets import target_of
from hybridr.indexing.targets.beside import AliasMove, delete_indices
from hybridr.indexing.verification import verify
from hybridr.settings import resolve_stage
from hybridr.status.standing import remove, status
from support.hashing import HashingEncoder

THROWN_AWAY = """
from hybridr.indexing.job import Filling
from hybridr.indexing.planning import Plan, Proposal
from hybridr.indexing.targets import Ending, Finding, Round, State

class Memory:
    name = "throwaway"
    is_separate = False
    kept = {}
    def plan(self, cluster, name, encoder, settings):
        info = cluster.index_info(name)
        wanted = Proposal(cluster, info, encoder, settings, 2, ("text",))
        record = info.record.changed(**wanted.record_fields("job"), state="complete")
        return Plan(wanted, name, record, False, False, [], None, ["kept in memory"], {"in": "memory"})
    def begin(self, cluster, todo):
        self.kept.clear()
        cluster.info_.mappings["_meta"] = cluster.info_.meta_with(todo.record)
        return cluster.index_info("docs")
    def fill(self, job, *, since=None, once=False, progress=None):
        texts = ["anchor", "basket"]
        self.kept.update(zip(texts, job.encoder.encode_documents(texts), strict=True))
        return Filling(encoded=len(texts))
    def complete(self, job, todo, filling, progress):
        return Ending(0)
    def sync(self, job, info, progress):
        return Round(0, 0, 0, 0, 0)
    def findings(self, cluster, info, encoder, extent):
        return [Finding("in memory", len(self.kept))]
    def state(self, cluster, info):
        return State(len(self.kept))
    def remove(self, cluster, source, made, last_look=lambda: None, *, dry_run=False):
        self.kept.clear()
        return {"indices": [], "actions": []}
"""


class OneIndex(Cluster):
    """A cluster that is not there: one index of two documents."""

    patience_s, url = 0.0, "nowhere"
    segmented: set[str] = set()

    def __init__(self) -> None:
        mappings = {"properties": {"text": {"type": "text"}}}
        self.info_ = IndexInfo("docs", {"index.uuid": "u1", "index.number_of_shards": "1"}, mappings, {})

    def indices(self, pattern: str) -> list[IndexInfo]:
        return [IndexInfo("docs", self.info_.settings, self.info_.mappings, {})] if pattern == "docs" else []

    def count(self, name: str) -> int:
        return 2

    def exists(self, name: str) -> bool:
        return name == "docs"

    def request(self, method: str, path: str, *_: object, **__: object) -> dict[str, Any]:
        if path.endswith("*"):
            return {}  # what patterns stand for
        raise NotFound(f"there is no {path}")

    def search(self, *_: object, **__: object) -> dict[str, Any]:
        return {"hits": {"hits": []}}

    def msearch(self, _: object, bodies: Sequence[object], *__: object) -> list[dict[str, Any]]:
        return [self.search() for _ in bodies]

    @property
    def nodes(self) -> list[dict[str, Any]]:
        return []


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target in a file of its own, which is all that there is to it."""
    (tmp_path / "throwaway.py").write_text(THROWN_AWAY)
    monkeypatch.setattr(targets, "__path__", [*targets.__path__, str(tmp_path)])


def test_settings_and_records_name_their_target() -> None:
    assert set(member_names("indexing.targets")) >= {"beside", "in_place"}
    assert target_of(ReindexSettings()).name == target_of(Record()).name == "beside"
    assert target_of(ReindexSettings(in_place=True)).name == "in_place"
    assert target_of(Record(in_place=True)).name == "in_place"
    assert target_of(ReindexSettings(target="in_place")).name == "in_place"
    assert target_of(ReindexSettings()).is_separate
    assert not target_of(Record(in_place=True)).is_separate


@pytest.mark.usefixtures("memory")
def test_a_new_target_is_a_new_file() -> None:
    cluster, encoder = OneIndex(), HashingEncoder()
    settings, origin = resolve_stage(ReindexSettings, {"target": "throwaway"})
    assert (settings.target, origin["target"]) == ("throwaway", "flag")
    todo = plan(cluster, "docs", encoder, settings)
    assert (todo.remarks, todo.details) == (["kept in memory"], {"in": "memory"})
    done = reindex(cluster, "docs", encoder, settings)
    assert (done.destination, done.encoded, done.switched) == ("docs", 2, False)
    info: Any = cluster.index_info("docs")
    assert info.record.target == "throwaway"
    assert target_of(info.record).name == "throwaway"
    assert TextRecipe.of(info.record, encoder).settings.target == "throwaway"
    assert [found.name for found in verify(cluster, "docs", encoder).findings] == ["in memory"]
    (holding,) = status(cluster, "docs").holdings
    assert holding.current == 2
    assert remove(cluster, "docs")["removed"]
    assert status(cluster, "docs").holdings[0].current == 0


class WithoutDeletes(OneIndex):
    """A cluster that moves aliases and refuses to delete an index."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[list[dict[str, Any]]] = []

    def request(self, method: str, path: str, body: Any = None, *rest: Any, **options: Any) -> Any:
        self.sent.append(body["actions"])
        if any("remove_index" in action for action in body["actions"]):
            raise AccessDenied("no permissions for [indices:admin/delete]")
        return {"acknowledged": True}


def test_a_refused_deletion_moves_the_aliases_back() -> None:
    cluster, info = WithoutDeletes(), IndexInfo("docs-hybridr-1", {}, {}, {"docs-hybridr": {}})
    moves = [AliasMove(info, "docs-hybridr", "docs")]
    with pytest.raises(AccessDenied, match="admin/delete"):
        delete_indices(cluster, [info], moves, lambda: None, dry_run=False)
    assert cluster.sent[-1] == moves[0].undo()
    assert [next(iter(action)) for action in cluster.sent[-1]] == ["remove", "add"]
