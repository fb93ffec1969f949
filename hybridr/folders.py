"""Where hybridr keeps what it downloads, what its nodes store, and what it remembers.

`HYBRIDR_HOME` moves all three; else they are the platform's own (XDG on Linux).
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Name the folder of downloads and unpacked programs, which can be deleted at any time."""
    return _home("cache") or platformdirs.user_cache_path("hybridr")


def data_folder() -> Path:
    """Name the folder of the embedded nodes' data."""
    return _home("data") or platformdirs.user_data_path("hybridr")


def state_folder() -> Path:
    """Name the folder of small state files: running nodes, promoted encoders."""
    return _home("state") or platformdirs.user_state_path("hybridr")


def _home(part: str) -> Path | None:
    home = os.environ.get("HYBRIDR_HOME")
    return Path(home).expanduser() / part if home else None
