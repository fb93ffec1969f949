"""The folders of hybridr on this machine (cache, node data, state), its packaged assets, and safe paths by
given names.

`HYBRIDR_HOME` moves all three folders and `HYBRIDR_CACHE` the cache; else they are the platform's own (XDG on
Linux). For root the system's folders are used if other users cannot enter root's own: OpenSearch does not run
as root, so its node runs under another account. Assets are the files of `opensearch/`, installed as
`hybridr/assets`, or beside the package in a checkout.

A name that a cluster, a document, a record, a manifest, a file or a client chose becomes a path by `below`
alone; tests/hostile/test_paths.py holds all of hybridr to that.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import platformdirs

from ..errors import DataError

PLAIN = re.compile(r"[^/\\\x00-\x1f\x7f]+")


def cache_folder() -> Path:
    """Return the folder of downloads and unpacked programs, which can be deleted at any time."""
    if chosen := os.environ.get("HYBRIDR_CACHE"):
        return Path(chosen).expanduser().absolute()
    return _folder("cache", platformdirs.user_cache_path("hybridr"), "/var/cache/hybridr")


def data_folder() -> Path:
    """Return the folder of the embedded nodes' data."""
    return _folder("data", platformdirs.user_data_path("hybridr"), "/var/lib/hybridr/data")


def state_folder() -> Path:
    """Return the folder of small state files: running nodes, promoted encoders."""
    return _folder("state", platformdirs.user_state_path("hybridr"), "/var/lib/hybridr/state")


def _folder(part: str, own: Path, system: str) -> Path:
    """Return the folder `part` of HYBRIDR_HOME, else the user's `own`, else (root, if closed to others) the
    `system` one.
    """
    if home := os.environ.get("HYBRIDR_HOME"):
        return Path(home).expanduser().absolute() / part
    return own if reachable(own) else Path(system)


def is_file_name(name: str) -> bool:
    """Return whether a name is that of a single file: no path, no drive, neither `.` nor `..`."""
    return PLAIN.fullmatch(name) is not None and name.strip(". ") != "" and Path(name).name == name


def below(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder, by a name that somebody else may have chosen.

    Raises DataError for a name that could lead out of the folder.
    """
    if not is_file_name(name):
        raise DataError(
            f"{name[:100]!a} cannot be the name of a file in {folder}",
            hint="one without '/', '\\' and control characters",
        )
    return folder / name


def delete_below(folder: Path, name: str) -> None:
    """Delete the file or folder of this name in a folder, if it exists; of a link only the link. Raises as
    `below`.
    """
    path = below(folder, name)
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def asset_path(*parts: str) -> Path:
    """Return the path of an asset such as `("pipelines", "hybrid.json")`."""
    package = Path(str(files("hybridr")))
    installed = package / "assets"
    root = installed if installed.is_dir() else package.parent / "opensearch"
    return root.joinpath(*parts)


def load_asset(*parts: str) -> dict[str, Any]:
    """Return a JSON asset as a new dictionary that the caller may change."""
    value: dict[str, Any] = json.loads(asset_path(*parts).read_text(encoding="utf-8"))
    return value


def reachable(path: Path) -> bool:
    """Return whether the node's account can enter `path`; if this process is not root, always True."""
    if not is_root():
        return True
    folders = [folder for folder in (path, *path.parents) if folder.is_dir()]
    return all(folder.stat().st_mode & 0o001 for folder in folders)


def is_root() -> bool:
    """Return whether this process runs as root."""
    return hasattr(os, "geteuid") and os.geteuid() == 0
