"""The libraries with which ml-commons runs a model, laid where a node looks before it downloads them.

They are unpacked once for all nodes; a node's data hold links to them.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
import zipfile
from pathlib import Path

from ..errors import SettingsError
from ..folders import cache_folder
from ..manifest import fingerprint
from ..progress import Progress, silent
from .artifacts import PYTORCH, PYTORCH_BRIDGE
from .fetching import explaining_storage, fetch, require_space
from .locking import locked
from .ownership import make_reachable, open_to_all

MACHINE = ("Linux", "x86_64")
PLACE = Path("ml_cache", "pytorch", "2.5.1-cpu-precxx11-linux-x86_64")  # in a node's data; DJL's names
LIBRARIES = "pytorch/cpu/linux-x86_64/"
BRIDGE, BRIDGE_NAME = "jnilib/linux-x86_64/cpu/libdjl_torch.so", "0.31.1-libdjl_torch.so"
UNPACKED_BYTES = 450_000_000


def require_machine() -> None:
    """Raise SettingsError where the repository has no libraries for this kind of machine."""
    found = (platform.system(), platform.machine())
    if found != MACHINE:
        raise SettingsError(
            f"[node] with_natives: the libraries can be had for {' '.join(MACHINE)} only, "
            f"this machine is {' '.join(found)}",
            hint="leave --with-natives out; `hybridr deploy --way neural` needs none",
        )


def ensure_natives(*, progress: Progress = silent) -> Path:
    """Give the folder of the libraries (441 MB), fetched (115 MB) and unpacked on first use.

    Raises DownloadError.
    """
    mark = fingerprint([PYTORCH.sha256, PYTORCH_BRIDGE.sha256])
    folder = cache_folder() / "node" / f"pytorch-{PYTORCH.version}-{mark[:12]}"
    with explaining_storage(folder.parent):
        make_reachable(folder.parent)
        with locked(folder.parent / f".{folder.name}.lock"):
            if not folder.is_dir():
                unpack(folder, progress)
    return folder


def unpack(folder: Path, progress: Progress) -> None:
    """Lay the libraries out in a temporary folder, then rename it."""
    for left in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(left)  # of a start that was killed; this process holds the lock
    files = fetch([PYTORCH, PYTORCH_BRIDGE], progress=progress)
    require_space(folder.parent, UNPACKED_BYTES)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        made = Path(temporary) / folder.name
        made.mkdir()
        with zipfile.ZipFile(files[PYTORCH]) as packed:
            for name in packed.namelist():
                if name.startswith(LIBRARIES) and not name.endswith("/"):
                    extract(packed, name, made / name.removeprefix(LIBRARIES))
        with zipfile.ZipFile(files[PYTORCH_BRIDGE]) as packed:
            extract(packed, BRIDGE, made / BRIDGE_NAME)
        open_to_all(made)
        made.rename(folder)


def extract(packed: zipfile.ZipFile, name: str, target: Path) -> None:
    """Extract one member to a path."""
    with packed.open(name) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)


def link_natives(data: Path, natives: Path) -> None:
    """Put links to the libraries where a node with these data looks for them; again changes nothing."""
    place = data / PLACE
    place.mkdir(parents=True, exist_ok=True)
    for library in natives.iterdir():
        link = place / library.name
        link.unlink(missing_ok=True)  # it may lead to a cache that is gone
        link.symlink_to(library)
