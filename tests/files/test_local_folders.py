"""A name that somebody else chose names what lies in one folder, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridr import connect
from hybridr.cluster.connection import path_of
from hybridr.cluster.embedded.state import node_folder, state_file
from hybridr.errors import ClusterError, DataError, HybridrError
from hybridr.evaluation.evaluation import Evaluation
from hybridr.files.formats import qrels_file
from hybridr.files.local import child_path, data_folder, delete_child
from hybridr.files.remembered import REJECTS, file_of_index
from hybridr.serving.page.judgements import Judgements
from support.hostile_cluster import INDEX, ROOT, Given, hostile

ODD = ["", ".", "..", "...", ". ", "a/b", "../x", "/no-such-folder/x", "..\\x", "a\nb", "a\0b", "\x7f"]


@pytest.mark.attack(84)
@pytest.mark.parametrize("name", ODD)
def test_what_is_no_plain_name_names_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot be the name of a file"):
        child_path(tmp_path, name)
    with pytest.raises(DataError, match="cannot be the name of a file"):
        delete_child(tmp_path, name)


@pytest.mark.parametrize("name", ["docs", ".hidden", "産品-1", "a b", "a:b", "docs.v2", "..docs", "x" * 300])
def test_a_plain_name_is_that_of_a_file_in_the_folder(tmp_path: Path, name: str) -> None:
    assert child_path(tmp_path, name) == tmp_path / name


def test_deleting_takes_the_folder_and_nothing_beside_it(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "inner").mkdir(parents=True)
    delete_child(tmp_path, "one")
    delete_child(tmp_path, "gone")
    assert [path.name for path in tmp_path.iterdir()] == ["two"]


def test_of_a_link_the_link_is_deleted_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("text")
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "abc").symlink_to(tmp_path / "victim")
    delete_child(tables, "abc")
    assert not (tables / "abc").is_symlink()
    assert (tmp_path / "victim" / "file").read_text() == "text"


def runs_of(name: str) -> Evaluation:
    return Evaluation(**{**dict.fromkeys(Evaluation.__dataclass_fields__), "runs": {name: {}}})  # type: ignore[arg-type]


NAMING: dict[str, Callable[[str], Any]] = {
    "an index whose documents were refused": lambda name: file_of_index(REJECTS, name, "u1"),
    "a node's data": node_folder,
    "a node's state": state_file,
    "a split of qrels": lambda name: qrels_file(data_folder(), name),
    "a system's run": lambda name: runs_of(name).write_runs(data_folder()),
    "a judge": lambda name: Judgements(data_folder() / "judged").grades_by(name),
}


@pytest.mark.attack(84)
@pytest.mark.parametrize("what", NAMING)
@pytest.mark.parametrize("name", ["../victim", "/victim", "x/../../victim"])
def test_nobodys_name_leads_out_of_its_folder(what: str, name: str) -> None:
    with pytest.raises(HybridrError, match=r"name|split") as caught:
        NAMING[what](name)
    assert "no qrels" not in str(caught.value)


@pytest.mark.attack(84)
@pytest.mark.parametrize("name", ["../../x", "..", "a/b"])
def test_a_cluster_has_no_index_whose_name_is_a_path(name: str) -> None:
    answers = {"/": Given(ROOT), "/docs": Given({name: INDEX["docs"]})}
    with hostile(answers) as (url, _), pytest.raises(ClusterError, match="no answer"):
        connect(url).index_info("docs")


@pytest.mark.attack(84)
@pytest.mark.parametrize("name", [".", ".."])
def test_no_name_walks_up_in_a_request(name: str) -> None:
    """What sends requests takes `..` for the path above: DELETE /_search/pipeline/.. is another request."""
    with pytest.raises(DataError, match="are not names"):
        path_of("docs", "_doc", name)
    assert path_of(".hidden", "a..b", "../x") == "/.hidden/a..b/..%2Fx"
