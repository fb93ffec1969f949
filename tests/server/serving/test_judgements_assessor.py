"""A language model as one more judge: an API of OpenAI's form, a real node, and what people said before."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve
from hybridr.errors import SettingsError, Unreachable
from hybridr.serving.page import judgements
from hybridr.serving.page.judgements import Judgements, assess, last_grade, query_id_of
from hybridr.serving.settings import AssessorSettings
from support.corpus import filled_and_reindexed
from support.hashing import HashingEncoder
from support.servers import Quiet, serving

INDEX, TOKEN = "t-assessor", "s3cret-token"
LOG = ["n3 candle", "n7 anchor"]


class Model(Quiet):
    """Finds a passage relevant that holds the number of the query; keeps what it was asked."""

    asked: list[dict[str, Any]]
    answer: str
    status: int

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({"body": body, "token": self.headers["Authorization"], "path": self.path})
        query, passage = re.findall(r"<(?:query|passage)>(.*?)</", body["messages"][0]["content"], re.S)
        number = query.split()[0]
        said = self.answer or f"I think so. Grade: {3 if number in passage.split() else 0}"
        sent = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)


@pytest.fixture
def model() -> Iterator[type[Model]]:
    kind = type("Kind", (Model,), {"asked": [], "answer": "", "status": 200})
    with serving(kind) as url:
        kind.url = f"{url}/v1"  # type: ignore[attr-defined]
        yield kind


@pytest.fixture(scope="module")
def index(cluster: Cluster) -> Iterator[str]:
    with filled_and_reindexed(cluster, INDEX, 30, HashingEncoder()) as name:
        yield name


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path / "home"))
    (tmp_path / "log").write_text("\n".join(LOG))
    return tmp_path / "log"


def settings(model: Any, log: Path) -> AssessorSettings:
    return AssessorSettings(endpoint=model.url, model="org/judge:7b", queries=log, token=TOKEN)


def test_it_judges_what_is_found_once_and_agrees_with_people(cluster, index, model, log):
    judgements = Judgements.of(resolve(cluster, index))
    judgements.add_queries(LOG)
    judgements.store_grades("ada", query_id_of(LOG[0]), {"d3": 1, "d21": 0, "d22": 1})
    found = assess(cluster, index, settings(model, log), encoder=HashingEncoder())
    assert found.judge == "model-org-judge-7b"
    assert (found.queries, found.unread) == (2, 0)
    said = judgements.grades_by(found.judge)
    assert {doc for doc, grade in said[query_id_of(LOG[0])].items() if grade} == {"d3"}
    assert {"d21", "d22"} <= said[query_id_of(LOG[0])].keys(), "what people judged is judged too"
    [agreement] = found.agreement
    assert (agreement["judges"], agreement["documents"]) == (["ada", found.judge], 3)
    assert agreement["kappa"] == pytest.approx(0.4)
    assert len(model.asked) == found.asked > 20
    assert {one["token"] for one in model.asked} == {f"Bearer {TOKEN}"}
    assert {one["path"] for one in model.asked} == {"/v1/chat/completions"}
    assert model.asked[0]["body"]["temperature"] == 0
    again = assess(cluster, index, settings(model, log), encoder=HashingEncoder())
    assert again.asked == 0
    assert len(model.asked) == found.asked


def test_learn_takes_what_it_judged(cluster, index, model, log, monkeypatch, cli):
    monkeypatch.setattr(judgements, "encoder_for", lambda *_, **__: HashingEncoder())
    monkeypatch.setattr("hybridr.relevance.learning.encoder_for", lambda *_, **__: HashingEncoder())
    monkeypatch.setenv("HYBRIDR_ASSESSOR_TOKEN", TOKEN)
    command = ["learn", index, "--url", cluster.url, "--endpoint", model.url, "--model", "m"]
    said = cli.typed([*command, "--queries", str(log)])
    assert "model-m: 2 queries judged, 2 documents relevant" in said.out
    assert "2 queries with 2 relevant documents learnt" in said.out
    assert TOKEN not in said.out + said.err
    cli(cluster, f"learn {index} --forget")


def test_what_it_says_without_a_grade_is_counted_and_asked_again(cluster, index, model, log):
    model.answer = "I cannot tell."
    found = assess(cluster, index, settings(model, log), encoder=HashingEncoder())
    assert found.unread == found.asked == len(model.asked) > 0
    assert found.relevant == 0
    model.answer = "3"
    assert assess(cluster, index, settings(model, log), encoder=HashingEncoder()).relevant == found.asked


@pytest.mark.parametrize(("status", "answer"), [(401, "3"), (302, "3")])
def test_an_api_that_refuses_is_a_clear_error(cluster, index, model, log, status, answer):
    model.status, model.answer = status, answer
    with pytest.raises(Unreachable, match=f"answers {status}") as error:
        assess(cluster, index, settings(model, log), encoder=HashingEncoder())
    assert TOKEN not in str(error.value)


def test_nothing_is_asked_without_an_endpoint(cluster, index, log):
    with pytest.raises(SettingsError, match="no language model"):
        assess(cluster, index, AssessorSettings(queries=log), encoder=HashingEncoder())


@pytest.mark.parametrize(
    ("said", "grade"),
    [("2", 2), ("Grade: 3", 3), ("not 0 or 1 but\n##final score: 2", 2), ("10", None), ("good", None)],
)
def test_the_last_grade_counts(said, grade):
    assert last_grade(said) == grade
