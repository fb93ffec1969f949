"""A shop from start to finish: docs/shop.md is done, command by command, and says what happened."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.errors import NotFound
from hybridr.files.formats import write_beir
from hybridr.records import Query
from support.corpus import add_alias, drop_indices
from support.deployed import serving_index
from support.diary import Diary, alike
from support.places import ROOT
from support.store import IN_STOCK, fill_store, others, searches

pytestmark = [pytest.mark.node, pytest.mark.ml, pytest.mark.model, pytest.mark.usefixtures("few_probes")]
PAGE = ROOT / "docs" / "shop.md"
INDEX, ALIASES = "products-v1", {"shop": {}, "shop-instock": {"filter": IN_STOCK}}
NEEDS = {
    "reading lamp": "something to read by in the evening",
    "floor lamp": "a high lamp next to the couch",
    "armchair": "comfortable to sit in with arm rests",
    "office chair": "desk chair that is good for the back",
    "frying pan": "fry eggs for breakfast",
    "tea kettle": "boil water quickly",
    "blanket": "something warm for a cold night",
    "bedside table": "where to put my glasses and book at night",
    "bookshelf": "a place for all my books",
    "coat rack": "hang up jackets in the hall",
}
Block = tuple[str, list[str]]


def blocks() -> list[Block]:
    """Give the commands of the page, each with the lines that it says."""
    found = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return [(command, said.splitlines()) for command, said in found]


@pytest.fixture
def shop(ml_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The shop as it was before anybody came."""
    fill_store(ml_cluster, INDEX, 300)
    for alias, definition in ALIASES.items():
        add_alias(ml_cluster, INDEX, alias, **definition)
    monkeypatch.setenv("HYBRIDR_URL", ml_cluster.url)
    monkeypatch.setenv("HYBRIDR_REINDEX_PRECISION", "fp32")  # to find out what is faster takes seconds
    yield ml_cluster
    drop_indices(ml_cluster, f"{INDEX}*")


def test_the_page_is_done_from_start_to_finish(shop, minilm_encoder_folder, tmp_path):
    diary, before = Diary(), shop.index_info(INDEX)
    diary.name("$HYBRIDR_URL", shop.url)
    diary.name("requests.jsonl", str(requests_file(tmp_path / "requests.jsonl")))
    diary.name("judged", str(judged_folder(tmp_path / "labels")))
    with contextlib.ExitStack() as running:
        for command, said in blocks():
            if "--way transparent" in command:
                server = running.enter_context(serving_index(shop, "shop", minilm_encoder_folder))
                diary.name("http://127.0.0.1:8080", server.url)
            compare(run(diary, command), said, command)
    after = shop.index_info(INDEX)
    assert after.aliases == before.aliases
    assert [info.name for info in shop.indices(f"{INDEX}*")] == [INDEX]
    with pytest.raises(NotFound):
        shop.request("GET", f"/_search/pipeline/hybridr-{INDEX}-hybridr-1")


def run(diary: Diary, command: str) -> list[str]:
    """Run a command of the page, and give what it says without what belongs to this machine."""
    if command.startswith("hybridr "):
        found = diary.run(command.removeprefix("hybridr "))
    else:
        words = [diary.real(word) for word in shlex.split(command)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        found = done.stdout
        assert "error" not in found
    return [diary.masked(line) for line in found.splitlines()]


def compare(found: list[str], said: list[str], command: str) -> None:
    """Find what the page says in what the command said, in its order; all of it unless `…` is there."""
    left = iter(found)
    for line in [line for line in said if line != "…"]:
        assert any(alike(one, line) for one in left), (command, line, found)
    assert "…" in said or len(found) == len(said), (command, found)


def requests_file(file: Path) -> Path:
    """Write the page's own request, and a third of what the shop sends: each new form is measured."""
    [own] = re.findall(r'^    (\{"path": .*)$', PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    sent = [*searches(), *others()][::3]
    lines = [{"path": f"/shop/{one.api}?{urlencode(one.params)}", "body": one.body} for one in sent]
    file.write_text("".join(f"{line}\n" for line in [own, *map(json.dumps, lines)]))
    return file


def judged_folder(folder: Path) -> Path:
    """Write what customers need as the page says: every product of the right kind is relevant."""
    queries = [Query(f"q{number}", text) for number, text in enumerate(NEEDS.values())]
    products = {n: range(n, 300, len(NEEDS)) for n in range(len(NEEDS))}
    write_beir(folder, [], queries, {f"q{n}": {f"p{one}": 1 for one in products[n]} for n in products})
    return folder
