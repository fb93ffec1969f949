"""How hits are shown: those that are pinned, or ranked by one part only, have fewer scores than others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.records import Hit
from hybridr_cli.commands.search import show_hits, show_parts
from hybridr_cli.output import Output

PINNED = Hit("p", 0.0, 1, parts={"lexical": 0.0})
RANKED = Hit("r", 1.5, 2, scores={"lexical": 2.0, "cross": 0.25}, parts={"lexical": 1.25, "cross": 0.25})


@pytest.mark.parametrize("hits", [[PINNED, RANKED], [RANKED._replace(rank=1), PINNED._replace(rank=2)]])
def test_a_hit_without_a_score_leaves_its_column_empty(hits: list[Hit], capsys: Any) -> None:
    session: Any = SimpleNamespace(output=Output())
    show_hits(session, hits)
    show_parts(session, hits)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["rank", "document", "score", "lexical", "cross", "text"] in rows
    assert [*next(row for row in rows if row[1:2] == ["p"])[2:]] == ["0.0000", "-", "-"]
    assert [row[3:] for row in rows if row[1:2] == ["r"]] == [["2.000", "0.250"], ["1.2500", "0.2500"]]
    assert [row[3:] for row in rows if row[1:2] == ["p"]][1] == ["0.0000", "0.0000"]
