"""The limits that docs/serve.md tells are those of the settings."""

from __future__ import annotations

import re
from pathlib import Path

from hybridr.serving.settings import ServeSettings

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
LIMIT = re.compile(r"^\|[^|]*\| `(\w+)` \| ([\d.,]+)( MiB)?", re.MULTILINE)


def test_every_limit_is_told_as_it_is() -> None:
    told = {
        name: float(number.replace(",", "")) * (2**20 if unit else 1)
        for name, number, unit in LIMIT.findall(PAGE.read_text(encoding="utf-8"))
    }
    assert len(told) > 6
    settings = ServeSettings()
    assert told == {name: getattr(settings, name) for name in told}
