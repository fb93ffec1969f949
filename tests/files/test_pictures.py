"""Pictures: what cannot be drawn is said before anything is written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hybridr.errors import MissingExtra, SettingsError
from hybridr.files.pictures import svg


def test_pictures_are_svg_and_need_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="written as SVG"), svg(tmp_path / "a.png", (4, 3)):
        pass
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match="a picture needs the package 'matplotlib'"):
        with svg(tmp_path / "a.svg", (4, 3)):
            pass
    assert not list(tmp_path.iterdir())
