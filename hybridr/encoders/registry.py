"""The registry: encoders that are worth a try, by language and size, and what each one's languages are.

Facts are those of the models' own cards on the hub. No revision is pinned: the one that is fetched first
stays (`encoders/export/exporting.py`). All are of a kind that needs no torch here
(`encoders/export/weights.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..files.foreign import read_within
from ..files.manifest import read_manifest
from .contract import model_name

ANY = "multilingual"
"""Stands for every language: about a hundred in fact."""
CARD = "README.md"


@dataclass(frozen=True)
class KnownEncoder:
    """An encoder by name: `languages` as ISO 639-1 codes, `millions` of parameters, what is put before texts.

    `max_tokens` are those that are read here, with [CLS] and [SEP]. `fingerprint` is known of the packaged
    one alone.
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
    fingerprint: str = ""

    @property
    def repository(self) -> str:
        """Its name on the model hub."""
        return f"{self.owner}/{self.name}"

    def to_json(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        return asdict(self) | {"repository": self.repository}


E5: dict[str, Any] = {"query": "query: ", "document": "passage: "}
BGE_EN: dict[str, Any] = {
    "pooling": "cls",
    "query": "Represent this sentence for searching relevant passages: ",
}
BGE_ZH: dict[str, Any] = {"pooling": "cls", "query": "为这个句子生成表示以用于检索相关文章："}
SBERT, APACHE = "sentence-transformers", "Apache-2.0"
PACKAGED, E5_NAME = "all-MiniLM-L6-v2", "e5-small-v2"
MAX_TOKENS = 256  # of the packaged one, with [CLS] and [SEP]
ITS_FINGERPRINT = "7f420236e890b3d677f687d82e5bc90be2cb98009eb19395c356ec40808f325f"
ENCODERS = (
    KnownEncoder(
        PACKAGED, SBERT, ("en",), 384, 23, max_tokens=MAX_TOKENS, licence=APACHE, fingerprint=ITS_FINGERPRINT
    ),
    KnownEncoder(E5_NAME, "intfloat", ("en",), 384, 33, **E5),
    KnownEncoder("bge-small-en-v1.5", "BAAI", ("en",), 384, 33, **BGE_EN),
    KnownEncoder("bge-small-zh-v1.5", "BAAI", ("zh",), 512, 24, **BGE_ZH),
    KnownEncoder("bge-base-zh-v1.5", "BAAI", ("zh",), 768, 102, **BGE_ZH),
    KnownEncoder("multilingual-e5-small", "intfloat", (ANY,), 384, 118, **E5),
    KnownEncoder("multilingual-e5-base", "intfloat", (ANY,), 768, 278, **E5),
    KnownEncoder(
        "paraphrase-multilingual-MiniLM-L12-v2", SBERT, (ANY,), 384, 118, max_tokens=128, licence=APACHE
    ),
)


def known_as(name: str) -> KnownEncoder | None:
    """Find the encoder that a name, or a repository on the hub, stands for."""
    return next((entry for entry in ENCODERS if name in (entry.name, entry.repository)), None)


def reads(languages: tuple[str, ...], language: str) -> bool:
    """Tell whether an encoder of these languages knows one; of none it is not known."""
    return not languages or ANY in languages or language in languages


def languages_of(encoder: Mapping[str, Any]) -> tuple[str, ...]:
    """Give the languages of an encoder by the `encoder` record of its manifest; empty where nobody said."""
    if languages := encoder.get("languages"):
        return tuple(languages)
    entry = known_as(str(encoder.get("base") or ""))
    return entry.languages if entry else ()


def languages_by_fingerprint(fingerprint: str, folder: Path | None) -> tuple[str, ...]:
    """Give the languages of the encoder with this fingerprint, which may lie in `folder`."""
    packaged = next((entry.languages for entry in ENCODERS if entry.fingerprint == fingerprint), ())
    if packaged or folder is None:
        return packaged
    return languages_of((read_manifest(folder) or {}).get("encoder") or {})


def declared_languages(folder: Path | None) -> tuple[str, ...]:
    """Give the languages of a sentence-transformers folder: its manifest's, the registry's, its card's."""
    if folder is None:
        return ()
    declared = languages_of((read_manifest(folder) or {}).get("encoder") or {"base": model_name(folder)})
    if declared or not (folder / CARD).is_file():
        return declared
    card = read_within(folder / CARD).decode(errors="replace")
    head = re.match(r"---\n(.*?)\n---", card, re.DOTALL)
    header = re.search(r"^language:[ \t]*(.*(?:\n[ \t]*-.*)*)", head[1], re.MULTILINE) if head else None
    codes = re.findall(r"[a-z]{2,}", header[1].lower()) if header else []
    return (ANY,) if ANY in codes else tuple(codes)


def suggestion(language: str) -> str:
    """Name the two smallest encoders that know a language, its own before those of all, and where all are."""
    fitting = [entry for entry in ENCODERS if reads(entry.languages, language)]
    fitting.sort(key=lambda entry: (ANY in entry.languages, entry.millions))
    names = " or ".join(entry.name for entry in fitting[:2])
    return f"--encoder {names}, or a sentence-transformers folder; all: hybridr models"
