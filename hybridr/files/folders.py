"""Where hybridr keeps what it downloads, what its nodes store, and what it remembers.

`HYBRIDR_HOME` moves all three and `HYBRIDR_CACHE` the first; else they are the platform's own (XDG on
Linux). Root's are the system's where other users cannot enter root's own: OpenSearch does not run as
root, so its node runs under another account.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Name the folder of downloads and unpacked programs, which can be deleted at any time."""
    chosen = os.environ.get("HYBRIDR_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return _home("cache") or _open(platformdirs.user_cache_path("hybridr"), "/var/cache/hybridr")


def data_folder() -> Path:
    """Name the folder of the embedded nodes' data."""
    return _home("data") or _open(platformdirs.user_data_path("hybridr"), "/var/lib/hybridr/data")


def state_folder() -> Path:
    """Name the folder of small state files: running nodes, promoted encoders."""
    return _home("state") or _open(platformdirs.user_state_path("hybridr"), "/var/lib/hybridr/state")


def reachable(path: Path) -> bool:
    """Tell whether the account of a node can enter `path`: any folder's for a user, open ones for root."""
    if not is_root():
        return True
    folders = [folder for folder in (path, *path.parents) if folder.is_dir()]
    return all(folder.stat().st_mode & 0o001 for folder in folders)


def is_root() -> bool:
    """Tell whether this process runs as root."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _home(part: str) -> Path | None:
    home = os.environ.get("HYBRIDR_HOME")
    return Path(home).expanduser().absolute() / part if home else None


def _open(own: Path, system: str) -> Path:
    return own if reachable(own) else Path(system)
