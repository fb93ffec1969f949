from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybridr.errors import NodeError
from hybridr.files import programs


def test_a_folder_that_the_account_of_the_node_cannot_enter(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    if os.geteuid() == 0:
        with pytest.raises(NodeError, match="does not run as root") as caught:
            programs.make_reachable(closed / "below")
        assert "HYBRIDR_HOME" in str(caught.value.hint)
    else:
        programs.make_reachable(closed / "below")
        assert (closed / "below").is_dir()
