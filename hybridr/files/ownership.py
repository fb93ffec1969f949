"""Who runs the node: the user, or, because OpenSearch refuses root, an account without rights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypedDict

from ..errors import NodeError
from .folders import is_root, reachable

UNPRIVILEGED = 60939  # a number without an account: nobody else owns files or processes under it


class Account(TypedDict, total=False):
    """Arguments for `subprocess` that change who runs; empty for an ordinary user."""

    user: int
    group: int
    extra_groups: list[int]


def account() -> Account:
    """Name who is to run the node."""
    if not is_root():
        return {}
    return {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": []}


def make_reachable(path: Path) -> None:
    """Make a folder that the node's account can enter; raises NodeError when one above it is closed."""
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in created if is_root() else ():
        folder.chmod(0o755)  # whatever root's umask says
    if not reachable(path):
        raise NodeError(
            f"OpenSearch does not run as root, and other users cannot enter {path}",
            hint="set HYBRIDR_HOME to a folder that they can enter, or run hybridr as an ordinary user",
        )


def give(path: Path) -> None:
    """Make the node's account the owner of `path` and of all below it."""
    owner = account()
    if not owner:
        return
    for folder, _, names in os.walk(path):
        for entry in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(entry, owner["user"], owner["group"], follow_symlinks=False)


def open_to_all(folder: Path) -> None:
    """Let every user read a program: nodes may run under another account than the one that unpacked it."""
    for entry in (folder, *folder.rglob("*")):
        mode = entry.stat().st_mode
        entry.chmod(mode | (0o755 if entry.is_dir() or mode & 0o100 else 0o644))
