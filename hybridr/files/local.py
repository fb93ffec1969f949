"""Local files: hybridr's folders on this machine, safe paths, atomic writing, safe reading of foreign files.
Also the fingerprints and manifests of files that hybridr makes.

`HYBRIDR_HOME` moves all folders and `HYBRIDR_CACHE` the cache; otherwise they are the platform's own (XDG on
Linux). OpenSearch does not run as root, so root's node runs under another account. If that account cannot
enter root's folders, the system's folders are used. Assets are the files of `opensearch/`, installed as
`hybridr/assets`, or next to the package in a checkout.

Only `child_path` turns a name from a cluster, document, record, manifest, file or client into a path
(tests/hostile/test_paths.py checks that). Files are opened for reading here, or after a call of
`require_regular` (tests/hostile/test_opening.py checks that). Checks of contents (links, size, depth of JSON,
unpacked size) raise ValueError; each reader turns it into its own error with the name of the file.
`HYBRIDR_LINE_MB`, `HYBRIDR_MODEL_GB` and `HYBRIDR_MEMORY_GB` move the limits that a real file may meet.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import math
import os
import platform
import re
import shutil
import stat
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import IO, Any

import platformdirs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from ..errors import DataError, DownloadError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

FILE_NAME = re.compile(r"[^/\\\x00-\x1f\x7f]+")


def cache_folder() -> Path:
    """Return the folder of downloads and unpacked programs, which can be deleted at any time."""
    if location := os.environ.get("HYBRIDR_CACHE"):
        return Path(location).expanduser().absolute()
    return _folder("cache", platformdirs.user_cache_path("hybridr"), "/var/cache/hybridr")


def data_folder() -> Path:
    """Return the folder of the embedded nodes' data."""
    return _folder("data", platformdirs.user_data_path("hybridr"), "/var/lib/hybridr/data")


def state_folder() -> Path:
    """Return the folder of small state files: running nodes, promoted encoders."""
    return _folder("state", platformdirs.user_state_path("hybridr"), "/var/lib/hybridr/state")


def _folder(part: str, user_folder: Path, system_folder: str) -> Path:
    """Return the folder `part` of HYBRIDR_HOME, else the user's, or the system's if that is closed (root)."""
    if home := os.environ.get("HYBRIDR_HOME"):
        return Path(home).expanduser().absolute() / part
    return user_folder if is_reachable(user_folder) else Path(system_folder)


def is_file_name(name: str) -> bool:
    """Return whether a name names a single file: no path, no drive, neither `.` nor `..`."""
    return FILE_NAME.fullmatch(name) is not None and name.strip(". ") != "" and Path(name).name == name


def child_path(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder; the name may come from an untrusted source.

    Raises DataError for a name that could lead out of the folder.
    """
    if not is_file_name(name):
        raise DataError(
            f"{name[:100]!a} cannot be the name of a file in {folder}",
            hint="choose a name without '/', '\\' and control characters",
        )
    return folder / name


def delete_child(folder: Path, name: str) -> None:
    """Delete the folder of this name in `folder`, if it exists, or a link. Raises as `child_path`."""
    path = child_path(folder, name)
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def asset_path(*parts: str) -> Path:
    """Return the path of an asset such as `("pipelines", "hybrid.json")`."""
    package = Path(str(resources.files("hybridr")))
    installed = package / "assets"
    root = installed if installed.is_dir() else package.parent / "opensearch"
    return root.joinpath(*parts)


def load_asset(*parts: str) -> dict[str, Any]:
    """Return a JSON asset as a new dictionary that the caller may change."""
    value: dict[str, Any] = json.loads(asset_path(*parts).read_text(encoding="utf-8"))
    return value


def is_reachable(path: Path) -> bool:
    """Return whether the node's account can enter `path`; if this process is not root, always True."""
    if not is_root():
        return True
    folders = [folder for folder in (path, *path.parents) if folder.is_dir()]
    return all(folder.stat().st_mode & 0o001 for folder in folders)


def is_root() -> bool:
    """Return whether this process runs as root."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


@contextmanager
def storing(path: Path, hint: str | None = None) -> Iterator[None]:
    """Run the block; turn an OSError in it into DownloadError with `path` in the message and a `hint`."""
    try:
        yield
    except OSError as error:
        problem, advice = error.strerror or str(error), "choose a folder you may write to"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            problem, advice = "the disk is full", "free some space or choose another folder"
        raise DownloadError(f"cannot write {path}: {problem}", hint=hint or advice) from error


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise DownloadError if the disk of `folder` has less than `needed_bytes` free."""
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise DownloadError(
            f"{folder} has {free_bytes / 1e6:,.0f} MB free, {needed_bytes / 1e6:,.0f} MB are needed",
            hint="free some space, or set HYBRIDR_CACHE to a folder on a larger disk",
        )


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to `path`; rename it to `path` if the block succeeds.

    `private` files, which hold text of documents, are readable by their owner only.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o600 if private else 0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def final_name(path: Path) -> str:
    """Return the name that a temporary file or folder gets in the end; for any other path, its own name."""
    return re.sub(r"^\.(.+)\.[a-z0-9_]{8}$", r"\1", path.name)


def append_private(path: Path, line: str) -> None:
    """Append a line to a file, which only its owner can read afterwards; create it if missing. Raises
    OSError.

    The file is locked meanwhile, because a line that another process is writing looks torn. If the last line
    does not end with a newline, because its writer was killed or the disk was full, one is written first.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    path.chmod(0o600)  # one that was there may have been readable by others
    with acquire_lock(path), path.open("a+b", buffering=0) as file:
        if end := file.seek(0, os.SEEK_END):
            file.seek(end - 1)
        is_torn = end > 0 and file.read(1) != b"\n"
        content = (b"\n" if is_torn else b"") + line.encode() + b"\n"
        if file.write(content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_json(path: Path, value: Any, *, private: bool = False) -> None:
    """Write `value` as indented JSON atomically."""
    with replacing(path, private=private) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def acquire_lock(path: Path, *, wait: bool = True) -> IO[str]:
    """Open and lock the file `path`; return the open file. Closing it releases the lock. Raises OSError.

    While another thread or process holds the lock, this waits; without `wait` it raises BlockingIOError. If
    that one has deleted the file meanwhile, the new file of this name is locked. On Windows nothing is
    locked.
    """
    while True:
        file = path.open("a")
        if fcntl is None:
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
        except BaseException:
            file.close()
            raise
        file.close()


MAX_JSON_BYTES = 128 << 20
"""Limit on a configuration or tokenizer, in bytes; the largest in use, with 250,000 words, have 17 MB."""
MAX_SETTINGS_BYTES = 1 << 20
"""Limit on files that people write by hand (a password, settings), in bytes."""
MAX_HEADER_BYTES = 4 << 20
"""Limit on the header of a safetensors file, in bytes; 500 tensors need 50,000."""
AT_ONCE = 1 << 18  # bytes
GROWTH = 50
"""Largest ratio of an archive's unpacked size to its packed size; weights shrink to half at most."""


def max_model_bytes() -> int:
    """Return the size in bytes of the largest model file (weights, graph) that is opened."""
    return int(_number_setting("HYBRIDR_MODEL_GB", 16) * 1e9)


def max_graph_bytes() -> int:
    """Return the limit on the memory of all open ONNX graphs together, in bytes."""
    return int(_number_setting("HYBRIDR_MEMORY_GB", 6) * 1e9)


def _number_setting(name: str, default: float) -> float:
    """Return an environment variable as a number of at least 0, else the default. Raises ValueError."""
    text = os.environ.get(name) or default
    with suppress(ValueError):
        if math.isfinite(number := float(text)):
            return max(number, 0.0)
    raise ValueError(f"{name} is {text!r}; a number is needed")


def require_own_files(folder: Path) -> None:
    """Raise ValueError if `folder` holds a link out of it, or an entry that is neither file nor folder.

    Links of the model hub's cache into its own `blobs` folder are allowed.
    """
    root = folder.resolve()
    repository, roots = root.parent.parent, [root]
    if root.parent.name == "snapshots" and repository.name.startswith("models--"):
        roots.append(repository / "blobs")
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            name = path.relative_to(folder).as_posix()
            if not path.is_symlink():
                if not stat.S_ISREG(mode := path.lstat().st_mode) and not stat.S_ISDIR(mode):
                    raise ValueError(f"{name} is neither a file nor a folder")
                continue
            try:
                target = path.resolve()
            except (OSError, RuntimeError):  # a loop of links
                raise ValueError(f"{name} is a broken link") from None
            if target.is_dir() or not any(target.is_relative_to(allowed) for allowed in roots):
                raise ValueError(f"{name} is a link that leads out of the folder, which is not followed")


def require_regular(path: Path) -> Path:
    """Return the path unchanged. Raises OSError, and ValueError for a pipe or device, which may never end."""
    if not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
        raise ValueError(f"{path.name} is a pipe or a device; a regular file is needed")
    return path


def read_within(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """Return the bytes of a file of at most `limit` bytes. Raises ValueError, OSError."""
    content = bytearray()
    with require_regular(path).open("rb") as file:
        # In parts: `read(limit)` allocates that much memory even for a small file.
        while len(content) <= limit and (part := file.read(min(AT_ONCE, limit + 1 - len(content)))):
            content += part
    if len(content) > limit:
        raise ValueError(f"{path.name} has more than {limit / 1e6:,.0f} MB")
    return bytes(content)


def text_within(path: Path, limit: int = MAX_JSON_BYTES) -> str:
    """Return a file of at most `limit` bytes as UTF-8 text. Raises ValueError, OSError."""
    return read_within(path, limit).decode()


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises OSError, ValueError, and RecursionError for deep nesting."""
    return tomllib.loads(text_within(path, MAX_SETTINGS_BYTES))


def require_size(path: Path) -> None:
    """Raise ValueError if a model file is too large, or if a safetensors file lists too many tensors."""
    if (size := path.stat().st_size) > max_model_bytes():
        raise ValueError(
            f"{path.name} has {size / 1e9:,.1f} GB; the limit is {max_model_bytes() / 1e9:g} GB "
            "(HYBRIDR_MODEL_GB)"
        )
    if path.suffix == ".safetensors":
        with require_regular(path).open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
        if MAX_HEADER_BYTES < header < size:
            raise ValueError(f"{path.name} has a list of {header / 1e6:,.0f} MB of its tensors")


def parsed_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError, also for JSON that is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def numbered_lines(
    path: Path, encoding: str = "utf-8", newline: str | None = None, errors: str = "strict"
) -> Iterator[tuple[int, str]]:
    """Yield each line of a plain or gzip file with its number, from 1. Raises OSError.

    Raises ValueError for damage, and for a line of more than HYBRIDR_LINE_MB million characters.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    limit, number = int(_number_setting("HYBRIDR_LINE_MB", 64) * 1e6), 0  # characters
    try:
        with opened(require_regular(path), "rt", encoding=encoding, errors=errors, newline=newline) as lines:
            while line := lines.readline(limit + 1):
                if len(line) > limit:  # before the rest of the line is read
                    raise ValueError(f"it has a line of more than {limit:,} characters (HYBRIDR_LINE_MB)")
                number += 1
                yield number, line
    except (EOFError, zlib.error) as error:
        raise ValueError(str(error)) from error


def read_members(archive: zipfile.ZipFile, names: list[str], size: int) -> dict[str, bytes]:
    """Return name -> bytes of members of a zip archive of `size` bytes.

    Raises ValueError if they unpack to more than `GROWTH` times that size. The declared sizes are checked
    before unpacking, and `zipfile` reads no more than declared.
    """
    limit = min(GROWTH * size, max_model_bytes())
    declared = sum(archive.getinfo(name).file_size for name in names)
    if declared > limit:
        raise ValueError(
            f"it would unpack {size / 1e6:,.1f} MB to {declared / 1e6:,.0f} MB; "
            f"the limit is {limit / 1e6:,.0f} MB"
        )
    return {name: archive.read(name) for name in names}


MANIFEST_FILE = "manifest.json"
MANIFEST_PARTS = ("settings", "inputs", "outputs", "encoder", "adaptation", "assembly", "dam", "rem")
"""Entries of a manifest that must be objects, if present."""
VERSIONED = "numpy onnxruntime opensearch-py peft pyarrow tokenizers torch transformers".split()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, 64 hex digits."""
    digest = hashlib.sha256()
    with require_regular(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(value: Any) -> str:
    """Return the sha256 of a JSON value, 64 hex digits; the order of keys does not matter."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


@cache
def release() -> str:
    """Return hybridr's version and 12 hex digits of its code's digest, which may change within a version."""
    return f"{metadata.version('hybridr')} ({code_digest()[:12]})"


def code_digest(*packages: str) -> str:
    """Return the sha256 of the Python modules of these packages of hybridr, or of all; 64 hex digits."""
    root = Path(__file__).parents[1]
    folders = [root / package for package in packages] or [root]
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return fingerprint([(path.relative_to(root).as_posix(), sha256_of(path)) for path in files])


def versions() -> dict[str, str]:
    """Return the version of Python and of each installed package on which results depend, by name."""
    releases = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            releases[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return releases


def write_manifest(
    folder: Path,
    *,
    stage: str,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Any],
    outputs: Sequence[str] = (),
    parents: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the manifest of an artifact's `folder` (settings, inputs, versions) and return it.

    `outputs` are names of files in the folder, stored with their sha256.
    """
    record = {
        "stage": stage,
        "hybridr": metadata.version("hybridr"),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "settings": dict(settings),
        "inputs": dict(inputs),
        "outputs": {name: sha256_of(folder / name) for name in sorted(outputs)},
        "parents": list(parents),
        "versions": versions(),
        "machine": {"system": platform.system(), "cpu": platform.machine(), "cores": os.cpu_count()},
        **(extra or {}),
    }
    write_json(folder / MANIFEST_FILE, record)
    return record


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read a folder's manifest; None if there is none. Raises DataError if it is damaged."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        return None
    try:
        record = parsed_json(read_within(path))
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON: {error}", hint="make the artifact again") from error
    if not isinstance(record, dict):
        raise DataError(f"{path} is not a JSON object", hint="make the artifact again")
    malformed = [name for name in MANIFEST_PARTS if not isinstance(record.get(name, {}), dict)]
    if malformed:
        raise DataError(f"{path}: '{malformed[0]}' is not an object", hint="make the artifact again")
    return record
