"""Ids of parts are what somebody wrote into a shared index: none of them is a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridr import connect
from hybridr.cluster.record import IndexInfo
from hybridr.cluster.record_parts import VERSION
from hybridr.errors import DataError
from hybridr.files.local import data_folder
from hybridr.indexing.terms.storage import HOME, drop_term_tables, folder_of_table, local_table
from support.hostile_cluster import ROOT, Given, hostile

META = {"hybridr": {"source": "docs", "version": VERSION}}
INFO = IndexInfo("docs-hybridr-1", {"index.uuid": "u"}, {"_meta": META}, {})
INDEX = f"{HOME}docs"
OWN = "ab" * 32
ODD = ["../victim", "../../../victim", "../victim-0", f"../{'a' * 61}-0", ".", "..", "", "x", OWN, OWN + "-x"]
ODD += [f"{OWN}-0\n", f"{OWN.upper()}-0", f"{OWN}/../../victim-0", "ab" * 31 + "/.-0"]


def folder_with_a_file(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file").write_text("text")
    return folder


@pytest.mark.attack(81)
def test_a_cluster_that_answers_with_paths_has_nothing_deleted() -> None:
    tables = data_folder() / "term-tables"
    victims = [tables.parent / "victim", tables / "other", tables.parent / "x", tables / "x"]
    for folder in victims:
        folder_with_a_file(folder)
    own = folder_with_a_file(folder_of_table(OWN))
    hits = [{"_id": one} for one in (*ODD, f"{OWN}-0")]
    answers = {
        "/": Given(ROOT),
        f"/{INDEX}": Given({}),
        f"/{INDEX}/_refresh": Given({}),
        f"/{INDEX}/_search": Given({"hits": {"hits": hits, "total": {"value": 7}}}),
        f"/{INDEX}/_bulk": Given({}),
        "/*": Given({}),
    }
    with hostile(answers) as (url, _):
        assert drop_term_tables(connect(url), [INFO]) == [OWN]
    assert all((folder / "file").is_file() for folder in victims)
    assert not own.exists(), "what was made for the index goes"


@pytest.mark.attack(81)
@pytest.mark.parametrize(
    "fingerprint", ["../victim", "", "..", "/no-such-folder", "A" * 64, "ab", OWN + "0", OWN + "\n"]
)
def test_what_is_no_fingerprint_names_no_folder(fingerprint: str) -> None:
    with pytest.raises(DataError, match="no fingerprint"):
        folder_of_table(fingerprint)
    with pytest.raises(DataError, match="no fingerprint"):
        local_table(fingerprint)
