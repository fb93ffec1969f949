"""The registry: known encoders by language and size, and the published checkpoints of DDR and COCO-DR.

The rows are in `registry.toml` and `checkpoints.toml`. The facts of encoders are from the models' cards on
the hub. No revision is pinned there: the one fetched first is used from then on
(`encoders/export/fetched_models.py`). Packaged encoders are also pinned in a package registry. All are opened
without torch (`encoders/export/weights.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..files.local import read_manifest, read_toml, read_within
from .contract import model_name

ANY = "multilingual"
"""Stands for any language; such an encoder knows about a hundred."""
CARD = "README.md"


@dataclass(frozen=True)
class Package:
    """A copy of an encoder in a package registry: `size` in bytes, and the `fingerprint` of the encoder.

    `layers` and `heads` are for a quantised graph, which lacks them.
    """

    registry: str
    coordinates: str
    """Coordinates in the registry: `name==version`, or `group:name:version:packaging`."""
    sha256: str
    size: int
    fingerprint: str
    layers: int = 0
    heads: int = 0


@dataclass(frozen=True)
class KnownEncoder:
    """A known encoder: `languages` as ISO 639-1 codes, `millions` of parameters, prefixes.

    `max_tokens` is the limit used here, with [CLS] and [SEP].
    """

    name: str
    owner: str
    languages: tuple[str, ...]
    dim: int
    millions: int
    pooling: str = "mean"
    max_tokens: int = 512
    licence: str = "MIT"
    query: str = ""
    document: str = ""
    similarity: str = "cosine"
    package: Package | None = None

    @property
    def repository(self) -> str:
        """Return the name of the repository on the hub."""
        return f"{self.owner}/{self.name}"


PACKAGED, ALIAS = "all-MiniLM-L6-v2", "minilm"
"""The default, and its short name."""


def rows_of(file: str) -> list[dict[str, Any]]:
    """Return the rows of a table beside this file; an array is a tuple."""
    [rows] = read_toml(Path(__file__).with_name(file)).values()
    return [
        {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
        for row in rows
    ]


ENCODERS = tuple(
    KnownEncoder(**row | ({"package": Package(**row["package"])} if "package" in row else {}))
    for row in rows_of("registry.toml")
)
DEFAULT = next(entry for entry in ENCODERS if entry.name == PACKAGED)
PACKAGED_LANGUAGES, MAX_TOKENS = DEFAULT.languages, DEFAULT.max_tokens
assert DEFAULT.package is not None
MINILM_WHEEL = DEFAULT.package


def known_encoder(name: str) -> KnownEncoder | None:
    """Return the known encoder for a name or a repository on the hub; None for others."""
    name = PACKAGED if name == ALIAS else name
    return next((entry for entry in ENCODERS if name in (entry.name, entry.repository)), None)


def encoder_by_fingerprint(fingerprint: str) -> KnownEncoder | None:
    """Return the known encoder whose packaged copy has this fingerprint; None for others."""
    packaged = ((entry, entry.package) for entry in ENCODERS)
    return next((entry for entry, copy in packaged if copy and copy.fingerprint == fingerprint), None)


def is_default(name: str) -> bool:
    """Return whether a name means the default encoder, MiniLM."""
    entry = known_encoder(name)
    return entry is not None and entry.name == PACKAGED


def knows_language(languages: tuple[str, ...], language: str) -> bool:
    """Return whether an encoder of these languages knows a language; True if its languages are unknown."""
    return not languages or ANY in languages or language in languages


def encoder_languages(encoder: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the languages in the `encoder` record of a manifest, else the registry's; empty if unknown."""
    if languages := encoder.get("languages"):
        return tuple(languages)
    entry = known_encoder(str(encoder.get("base") or ""))
    return entry.languages if entry else ()


def languages_by_fingerprint(fingerprint: str, folder: Path | None) -> tuple[str, ...]:
    """Return the languages of the encoder with this fingerprint: a packaged one, or the one in `folder`."""
    if packaged := encoder_by_fingerprint(fingerprint):
        return packaged.languages
    if folder is None:
        return ()
    return encoder_languages((read_manifest(folder) or {}).get("encoder") or {})


def declared_languages(folder: Path | None) -> tuple[str, ...]:
    """Return the languages of a sentence-transformers folder, from its manifest, the registry or its card."""
    if folder is None:
        return ()
    declared = encoder_languages((read_manifest(folder) or {}).get("encoder") or {"base": model_name(folder)})
    if declared or not (folder / CARD).is_file():
        return declared
    card = read_within(folder / CARD).decode(errors="replace")
    head = re.match(r"---\n(.*?)\n---", card, re.DOTALL)
    header = re.search(r"^language:[ \t]*(.*(?:\n[ \t]*-.*)*)", head[1], re.MULTILINE) if head else None
    codes = re.findall(r"[a-z]{2,}", header[1].lower()) if header else []
    return (ANY,) if ANY in codes else tuple(codes)


def suggested_encoders(language: str) -> str:
    """Return a hint that names the two smallest encoders for a language, multilingual ones last."""
    candidates = [entry for entry in ENCODERS if knows_language(entry.languages, language)]
    candidates.sort(key=lambda entry: (ANY in entry.languages, entry.millions))
    names = " or ".join(entry.name for entry in candidates[:2])
    return f"--encoder {names}, or a sentence-transformers folder; all: hybridr models"


@dataclass(frozen=True)
class Published:
    """A published checkpoint of DDR or COCO-DR."""

    name: str
    kind: str
    """"dam", "rem", or "full": a baseline with all weights trained, which takes no REM."""
    ranker: str
    """"dense", "unicoil", "splade", "colbert" or "rerank"; "any" for a DAM."""
    language: str
    """"en" or "zh"."""
    pooling: str = "mean"
    """Like `similarity`, which a checkpoint does not contain."""
    similarity: str = "ip"
    partner: str = ""
    """Models it can be assembled with: names of this table, * stands for anything; empty for a full model."""
    owner: str = "jingtao"

    @property
    def repository(self) -> str:
        """Return the name of the repository on the hub."""
        return f"{self.owner}/{self.name}"


@cache
def checkpoints() -> tuple[Published, ...]:
    """Return the 48 checkpoints of DDR, and the 8 of COCO-DR: full encoders with [CLS], inner product, no
    projection.
    """
    return tuple(Published(**row) for row in rows_of("checkpoints.toml"))


def published_checkpoint(source: Path | str) -> Published | None:
    """Return the published checkpoint for a name, a repository or a folder's name; None for others."""
    name = str(source).rstrip("/").rsplit("/", 1)[-1]
    return next((entry for entry in checkpoints() if entry.name == name), None)
