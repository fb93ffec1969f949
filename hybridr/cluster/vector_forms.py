"""The forms in which an index can store vectors (engine, values, compression), with needs and costs."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ClusterError, SettingsError
from .connection import Cluster
from .dialects import Version
from .embedded.state import node_states
from .settings import VectorSettings

BYTES_PER_NEIGHBOUR = 8  # 2 m links of 4 bytes each
OVERHEAD = 1.1
# Compressed JSON bytes per value in the stored source, measured on 2.19.1 and 3.6.0 with unit vectors.
TEXT_BYTES = {"byte": 2}
FLOAT_TEXT_BYTES = 9
DERIVED_SOURCE: Version = (3, 0, 0)  # since then only the copy for recovery holds vectors as text
ESTIMATE = "1.1 x (bytes of a vector + 8 m) each, the estimate of OpenSearch's documentation (HNSW memory)"


@dataclass(frozen=True)
class Form:
    """One way to store vectors, by OpenSearch's own names.

    `bits` per value must be in memory for a search. `disk_bits` per value are on disk, where engines keep the
    floats and a compressed copy. `native` forms need libraries that an embedded node lacks.
    """

    vectors: str
    compression: str | None
    engine: str
    bits: int
    disk_bits: int
    since: Version
    native: bool

    def __str__(self) -> str:
        """Return the form as options of `hybridr reindex`."""
        level = f" --compression {self.compression}" if self.compression else ""
        return f"--engine {self.engine} --vectors {self.vectors}{level}"


# The default level of on_disk comes first. faiss keeps a second copy next to Lucene's floats.
FORMS = (
    Form("float", None, "lucene", 32, 32, (0, 0, 0), False),
    Form("byte", None, "lucene", 8, 8, (2, 9, 0), False),
    Form("sq", None, "lucene", 8, 40, (2, 16, 0), False),
    Form("on_disk", "4x", "lucene", 8, 40, (2, 17, 0), False),
    Form("on_disk", "32x", "lucene", 1, 33, (3, 6, 0), True),
    Form("float", None, "faiss", 32, 64, (0, 0, 0), True),
    Form("sq", None, "faiss", 16, 48, (2, 13, 0), True),
    Form("on_disk", "32x", "faiss", 1, 33, (2, 17, 0), True),
    Form("on_disk", "16x", "faiss", 2, 34, (2, 17, 0), True),
    Form("on_disk", "8x", "faiss", 4, 36, (2, 17, 0), True),
    Form("on_disk", "2x", "faiss", 16, 48, (2, 17, 0), True),
    Form("on_disk", "1x", "faiss", 32, 64, (3, 1, 0), True),
)


@dataclass(frozen=True)
class Cost:
    """The bytes that a form takes: for one vector in memory, and for all vectors with their graph per copy of
    the index.

    `memory_bytes` is an estimate (`ESTIMATE`); `disk_bytes` includes the vectors as JSON text, which the
    engine keeps for recovery until merges drop it and, before 3.0, in `_source`.
    """

    engine: str
    vectors: str
    compression: str | None
    chosen: bool
    bytes_per_vector: int
    memory_bytes: int
    disk_bytes: int


def form_of(settings: VectorSettings) -> Form:
    """Return the form that the settings name. Raises SettingsError if their engine lacks it."""
    if settings.compression and settings.vectors != "on_disk":
        raise SettingsError(
            f"--compression is a level of on_disk, not of {settings.vectors}", hint="--vectors on_disk"
        )
    matches = [f for f in FORMS if f.engine == settings.engine and f.vectors == settings.vectors]
    forms = [f for f in matches if settings.compression in (None, f.compression)]
    if not forms:
        wish = f"{settings.vectors} {settings.compression or ''}".strip()
        alternatives = [form for form in FORMS if form.vectors == settings.vectors]
        same_level = [str(form) for form in alternatives if settings.compression in (None, form.compression)]
        hint = " or ".join(same_level) or str(alternatives[0])
        raise SettingsError(f"--engine {settings.engine} has no {wish} vectors", hint=hint)
    return forms[0]


def is_embedded(cluster: Cluster) -> bool:
    """Return whether the cluster is an embedded node of hybridr."""
    is_marked = any("hybridr_embedded" in node.get("attributes", {}) for node in cluster.nodes)
    return is_marked or any(node.running and node.url == cluster.url for node in node_states())


def lacks_native_libraries(cluster: Cluster) -> bool:
    """Return whether the cluster is an embedded node without the native libraries that faiss needs."""
    has_libraries = any(node.get("attributes", {}).get("hybridr_faiss") == "true" for node in cluster.nodes)
    return is_embedded(cluster) and not has_libraries


def obstacle(form: Form, similarity: str, version: Version, *, bare: bool) -> str | None:
    """Return why a cluster of this version cannot store vectors in this form; None if it can.

    `bare` means an embedded node without native libraries.
    """
    if version < form.since:
        minimum, actual = (".".join(map(str, number)) for number in (form.since, version))
        return f"{form} needs OpenSearch {minimum}, this is {actual}"
    if form.native and bare:
        return f"{form} would kill this embedded node: its k-NN plugin has no native library"
    if form.vectors == "byte" and similarity != "cosine":
        return "--vectors byte keeps directions, not lengths: this encoder compares by inner product"
    return None


def require_form(form: Form, similarity: str, version: Version, *, bare: bool) -> None:
    """Raise ClusterError, with a form that would work, if `obstacle` finds a reason."""
    reason = obstacle(form, similarity, version, bare=bare)
    if reason is None:
        return
    usable = [f for f in FORMS if obstacle(f, similarity, version, bare=bare) is None]
    best = [f for f in usable if f.vectors == form.vectors] or [f for f in usable if f.bits < 32] or usable
    default = " (the default)" if best[0] == FORMS[0] else ""
    raise ClusterError(reason, hint=f"{best[0]}{default}")


def cost_of(form: Form, count: int, dim: int, m: int, version: Version, *, is_chosen: bool = False) -> Cost:
    """Return the estimated cost of `count` vectors of `dim` values and their graph (see `ESTIMATE`)."""
    size, links = -(-dim * form.bits // 8), BYTES_PER_NEIGHBOUR * m
    text = dim * TEXT_BYTES.get(form.vectors, FLOAT_TEXT_BYTES) * (1 if version >= DERIVED_SOURCE else 2)
    on_disk = -(-dim * form.disk_bits // 8) + links + text
    memory = round(count * OVERHEAD * (size + links))
    return Cost(form.engine, form.vectors, form.compression, is_chosen, size, memory, count * on_disk)
