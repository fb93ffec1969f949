"""The command that deploys an index anew, which is printed to be pasted."""

from __future__ import annotations

import shlex

import pytest

from hybridr.cluster.record import Deployment, IndexInfo
from hybridr.reindexing.switching import command_of

BAD = "http://a$(touch pwned)#; rm -rf '~'"


@pytest.mark.attack(11)
@pytest.mark.parametrize("where", ["name", "way", "server"])
def test_11_nothing_in_a_record_reaches_the_shell(where: str) -> None:
    values = {"name": "docs", "way": "neural", "server": "http://127.0.0.1:8080", where: BAD}
    info = IndexInfo(values["name"], {}, {}, {})
    command = command_of(info, Deployment(way=values["way"], pipeline="p", server=values["server"]))
    expected = ["hybridr", "deploy", values["name"], "--way", values["way"], "--server", values["server"]]
    assert shlex.split(command) == expected
