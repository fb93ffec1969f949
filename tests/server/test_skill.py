"""The skill for agents, skills/hybridr/SKILL.md, is done word by word, and each command ends as it says."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import hybridr_cli
from hybridr.cluster.connection import Cluster
from hybridr.errors import HybridrError
from hybridr.files.formats import write_beir
from support.corpus import bulk, drop_indices, fill_index, judged_by_number, text_number
from support.places import ROOT

PAGE = (ROOT / "skills" / "hybridr" / "SKILL.md").read_text(encoding="utf-8")
INDEX, DOCUMENTS, JUDGED = "t-skill", 40, 5
COMMAND = re.compile(r"^hybridr (.*?) +# exit (\d+)(?: or (\d+))?(?:; (.*))?$")


def commands() -> Iterator[tuple[str, str]]:
    """Yield the heading of each command, and its line."""
    for part in PAGE.split("\n## ")[1:]:
        for block in re.findall(r"^```bash\n(.*?)^```$", part, re.M | re.S):
            for line in block.splitlines():
                yield part.partition("\n")[0], line


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The index, with judged queries and requests in the folder of whoever types."""
    fill_index(cluster, INDEX, DOCUMENTS)
    texts = [text_number(number) for number in range(JUDGED)]
    write_beir(tmp_path / "judged", [], *judged_by_number(range(JUDGED)))
    (tmp_path / "requests.jsonl").write_text("\n".join(json.dumps({"query": text}) for text in texts))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYBRIDR_URL", cluster.url)
    monkeypatch.setenv("HYBRIDR_REINDEX_PRECISION", "fp32")
    yield tmp_path
    drop_indices(cluster, f"{INDEX}*")


def test_the_skill_is_done_from_start_to_finish(cluster, folder):
    before, codes, heading = cluster.index_info(INDEX), set(), ""
    for title, line in commands():
        assert (match := COMMAND.match(line)), line
        if title != heading and "Keep it current" in title:
            write(cluster)
        heading, (command, *expected, says) = title, match.groups()
        words = shlex.split(command.replace("docs", INDEX))
        code, answer = run(words)
        if command == "doctor":  # what it says of this machine is its own
            assert code in (0, 1)
            continue
        assert str(code) in expected, (line, code, answer)
        for key, value in re.findall(r"(\w+) = ([^,]+)", says or ""):
            assert answer[key] == json.loads(value.replace("docs", INDEX)), (line, key, answer[key])
        codes.add(code)
        if command.startswith("status") and "Keep it current" in title:
            assert answer["holdings"][-1]["lag"] == {"inserts": 1, "updates": 0, "deletes": 1, "refused": 0}
        if command.startswith("status") and "Verify" in title:
            holding = answer["holdings"][-1]
            assert (holding["state"], holding["current"]) == ("complete", answer["documents"])
        named = re.findall(r"`(documents|seconds|disk|notes|cautions)`", PAGE)
        assert "--dry-run" not in words or "reindex" not in words or set(named) <= answer.keys()
    assert codes == {0, 1, 4}, "a document that goes costs a judged query its answer"
    assert cluster.index_info(INDEX).aliases == before.aliases
    assert [info.name for info in cluster.indices(f"{INDEX}*")] == [INDEX]


def write(cluster: Cluster) -> None:
    """Write a document and delete a relevant one, as clients of the source do."""
    bulk(cluster, INDEX, [{"index": {"_id": "new"}}, {"text": "a new boat"}, {"delete": {"_id": "d0"}}])


def run(words: list[str]) -> tuple[int, dict[str, object]]:
    """Run `hybridr …`; give its exit code and its JSON."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = hybridr_cli.main(words)
    assert "--json" not in words or out.getvalue(), (words, code, err.getvalue())
    return code, json.loads(out.getvalue()) if "--json" in words else {}


def test_its_front_matter_is_what_agents_read():
    front = yaml.safe_load(PAGE.split("---\n")[1])
    assert front.keys() == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9-]{1,64}", front["name"])
    assert 100 < len(front["description"]) <= 1024
    assert len(PAGE.splitlines()) < 500


def test_its_exit_codes_are_those_of_the_command_line():
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.M)}
    said = " ".join((ROOT / "docs" / "commands.md").read_text(encoding="utf-8").split())
    assert codes == {0, 1, 2, 3, 4, 130}
    assert "0 done, 1 error, 2 usage, 3 finished with rejected documents, 4 a bar was not met, 130" in said
    assert HybridrError("x").exit_code == 1
