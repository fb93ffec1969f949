"""Names that checks from outside type: no release drops one of these."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer

from hybridr_cli.verbs import Verb, app

PROMISED = """
load FOLDER --index NAME --fields title,text
adapt --index NAME --out DIR --base minilm --rem REM --objective mlm --steps 10 --max-documents 1000
export DIR --precision int8
reindex NAME --encoder DIR --alias other --dry-run --workers 2
rollback NAME
search NAME text --mode hybrid --k 10 --encoder DIR --json
search NAME text --mode lexical
search NAME text --mode dense
evaluate NAME --beir FOLDER --split test --systems bm25,rm3,dense,hybrid --runs DIR --json
tune NAME
deploy NAME
clicks NAME
learn NAME
serve --encoder DIR --port 8080
node start
node stop
node status
demo --product elasticsearch
node start --product elasticsearch
search NAME text --at-least .95
rules NAME
experiment start NAME --a today --b learnt
experiment report NAME
mcp NAME
"""


CHANGING = (
    "load reindex import-vectors sync rollback remove tune learn rules deploy undeploy "
    "experiment-start experiment-stop experiment-promote"
).split()
READING = (
    "adapt clicks compare dam-train doctor evaluate experiment-report export-text inspect mcp rem-train "
    "search serve shadow status verify"
).split()


def clustered(group: Any = app, before: str = "") -> dict[str, Verb]:
    found: dict[str, Verb] = {}
    for name, command in group.commands.items():
        if isinstance(command, Verb):
            found |= {before + name: command} if command.cluster else {}
        else:
            found |= clustered(command, f"{name}-")
    return found


def test_every_change_to_a_cluster_can_be_tried_without_it() -> None:
    verbs = clustered()
    assert sorted(verbs) == sorted([*CHANGING, *READING])
    for name in CHANGING:
        parameters = verbs[name].get_params(typer.Context(app))
        assert "--dry-run" in [spelling for option in parameters for spelling in option.opts], name


@pytest.mark.parametrize("line", PROMISED.strip().splitlines())
def test_a_promised_command_line_is_understood(line: str) -> None:
    command: Any = app
    arguments = shlex.split(line)
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    assert command.make_context(line, arguments).params
