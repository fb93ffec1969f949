"""The command that deploys an index anew, which is printed to be pasted."""

from __future__ import annotations

import shlex

import pytest

from hybridr.cluster.record import IndexInfo, Record
from hybridr.cluster.record_parts import Deployment, Experiment, Ranking, Remembered, Tuned
from hybridr.indexing.switching import deploy_command, tuned_predecessor

BAD = "http://a$(touch pwned)#; rm -rf '~'"


@pytest.mark.attack(11)
@pytest.mark.parametrize("where", ["name", "way", "server"])
def test_11_nothing_in_a_record_reaches_the_shell(where: str) -> None:
    values = {"name": "docs", "way": "neural", "server": "http://127.0.0.1:8080", where: BAD}
    info = IndexInfo(values["name"], {}, {}, {})
    command = deploy_command(info, Deployment(way=values["way"], pipeline="p", server=values["server"]))
    expected = ["hybridr", "deploy", values["name"], "--way", values["way"], "--server", values["server"]]
    assert shlex.split(command) == expected


def test_a_deployment_is_repeated_with_what_it_finds() -> None:
    """Without --recall the printed command found less than the deployment that it was to repeat."""
    deployment = Deployment(way="transparent", pipeline="p", recall="all")
    command = deploy_command(IndexInfo("docs", {}, {}, {}), deployment)
    assert command == "hybridr deploy docs --way transparent --recall all"


RUNNING = Experiment(
    id="0123abcd", at="now", names=("today", "learnt"), a=Ranking(), b=Ranking(), before=Ranking()
)
"""An experiment, which keeps what was learnt in its own rankings."""


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (Record(), False),
        (Record(tuning=Tuned()), False),
        (Record(tuning=Tuned(search={"dense_weight": 0.4})), True),
        (Record(experiment=RUNNING), True),
        (Record(experiment=RUNNING.model_copy(update={"ended": "stopped"})), False),
        (Record(memory=Remembered(queries=9, encoder="f", job="1")), True),
    ],
)
def test_what_was_tuned_or_learnt_is_said_to_stay(record: Record, told: bool) -> None:
    held = IndexInfo("docs-hybridr-1", {}, {"_meta": {"hybridr": record.to_json()}}, {})
    assert tuned_predecessor(held, "docs-hybridr-2") == ("docs-hybridr-1" if told else None)
    assert tuned_predecessor(held, "docs-hybridr-1") is None
    assert tuned_predecessor(None, "docs-hybridr-1") is None
