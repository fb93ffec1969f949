"""Every exception hybridr raises.

HybridrError                 a message (what was found, what was needed) and a hint (what to run next)
├── SettingsError            a flag, variable or file with a value that cannot be used; exit code 2
├── DataError                documents, topics, qrels or runs that cannot be read or used
├── ModelError               an encoder folder or checkpoint that is damaged or does not fit
│   └── FingerprintMismatch  the vectors in the index were written by another encoder
├── ClusterError             the cluster refused or failed
│   ├── Unreachable          nothing answers at the url, or not yet
│   ├── AccessDenied         wrong password or missing rights
│   └── NotFound             index, alias, pipeline or document is missing
├── NodeError                the embedded node could not be installed, started or stopped
├── DownloadError            a file could not be fetched, stored, or has the wrong checksum
└── MissingExtra             an optional package is not installed
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
    # Joiners spell words of Arabic's and India's scripts and draw families; elsewhere nobody sees them.
    "|(?<![\u0600-\u0dff\u2600-\ufe0f\U0001f000-\U0001faff])[\u200c\u200d]"
)
"""Characters that a terminal acts on or does not show: control characters (C0 except tab and line end, C1),
marks of bidirectional text, zero-width characters; and lone surrogates, which cannot be encoded."""


def printable(text: str) -> str:
    """Return a text with control characters, such as ESC, written as in JSON: `\\u001b`."""
    return UNPRINTABLE.sub(lambda match: json.dumps(match[0])[1:-1], text)


def on_one_line(text: str) -> str:
    """Return a text for one line of output: control characters, tabs and line ends are written as in JSON."""
    return printable(text).replace("\t", "\\t").replace("\n", "\\n")


def without_password(address: str) -> str:
    """Return a text with user and password of its addresses masked."""
    return re.sub(r"//[^/@\s]*@", "//***@", address)


def indented(text: str) -> str:
    """Return a printable text, with lines after the first indented so that they do not look like messages."""
    return re.sub(r"\n(?! )", "\n  ", printable(text))


def quantity(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 query" or "2,000 queries"."""
    if count == 1:
        return f"1 {noun}"
    plural = re.sub("ch$", "che", re.sub("y$", "ie", noun))
    return f"{count:,} {plural}s"


def install_command(extra: str) -> str:
    """Return the command that installs an extra from a checkout of hybridr, which is on no package index."""
    return f'in a clone of hybridr: pip install ".[{extra}]"'


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, or the error's type if it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class HybridrError(Exception):
    """An error that says what was found and what was needed; `hint` says what to run next."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SettingsError(HybridrError):
    """A setting has an unknown name or a value out of its range."""

    exit_code = 2


class DataError(HybridrError):
    """Documents, topics, qrels or runs cannot be read or used."""


class ModelError(HybridrError):
    """An encoder folder or checkpoint is damaged or does not fit."""


class FingerprintMismatch(ModelError):
    """The query encoder is not the one that wrote the vectors."""


class ClusterError(HybridrError):
    """The cluster refused or failed a request; `status` is the HTTP status, 0 without one.

    `kind` is the server's type of the error, or one of hybridr's (see `cluster/failures.py`). `wait_s` is the
    number of seconds in the answer's `Retry-After`, 0 without one.
    """

    def __init__(self, message: str, *, hint: str | None = None, status: int = 0, kind: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.kind = kind
        self.wait_s = 0.0


class Unreachable(ClusterError):
    """Nothing answers at the url, or the node is not ready yet."""


class AccessDenied(ClusterError):
    """The user is unknown, the password is wrong, or a right is missing."""


class NotFound(ClusterError):
    """The index, alias, pipeline or document does not exist."""


class NodeError(HybridrError):
    """The embedded node could not be installed, started or stopped."""


class DownloadError(HybridrError):
    """A file could not be fetched or stored, or its checksum is wrong."""


class MissingExtra(HybridrError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str, verb: str) -> None:
        super().__init__(
            f"{verb} needs the package '{package}', which is not installed", hint=install_command(extra)
        )


@contextmanager
def extra(name: str, verb: str) -> Iterator[None]:
    """Turn an ImportError of the block into MissingExtra: `with extra("train", "training a model"):`."""
    try:
        yield
    except ImportError as missing:
        raise MissingExtra(missing.name or name, name, verb) from missing
