"""What `hybridr tune` found for an index, as its record keeps it, and as a search takes it up."""

from __future__ import annotations

from typing import Any, Literal

from .cluster import IndexInfo
from .encoder import Encoder
from .known_encoders import folder_of_map
from .query_map import MappedEncoder, load_query_map
from .settings import SearchSettings

NAMES_A_PIPELINE = {"normalization", "combination", "rank_constant"}
NAMES_A_FUSION = {"fusion", *NAMES_A_PIPELINE}


def tuning_of(info: IndexInfo) -> dict[str, Any]:
    """Read the record of `tune`; all of it may be missing.

    It has settings for `search` and `pipeline`, the `query_map`, and under `bm25` the k1 and b that the index
    was given with those it had `before`.
    """
    found: dict[str, Any] = info.meta.get("tuning") or {}
    return found


def with_tuning(
    settings: SearchSettings,
    info: IndexInfo,
    part: Literal["search", "pipeline"] = "search",
    *,
    feedback: str | None = None,
) -> SearchSettings:
    """Fill settings that were not given with those that `tune` found for searches, or for stored pipelines.

    Whoever names a fusion gets that one with its own defaults: a weight found for one means nothing for
    another. So does whoever asks for a `feedback` that the fusion which was found cannot do.
    """
    found = tuning_of(info).get(part) or {}
    if "rm3" in (feedback, settings.feedback) and found.get("fusion") == "absolute":
        return settings
    if not settings.tuned or not found or settings.model_fields_set & NAMES_A_FUSION:
        return settings
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    return SearchSettings(**{**found, **given})


def mapped(encoder: Encoder, info: IndexInfo, settings: SearchSettings) -> Encoder:
    """Put the query map that the settings name before an encoder; none, or one that is gone: the encoder.

    Raises ModelError for a folder that is no map, FingerprintMismatch for the map of another encoder.
    """
    if settings.query_map == "none" or isinstance(encoder, MappedEncoder):
        return encoder
    folder: Any = settings.query_map
    if folder == "auto":
        fitted = tuning_of(info).get("query_map") if settings.tuned else None
        folder = folder_of_map(fitted["fingerprint"]) if fitted else None
    return encoder if folder is None else MappedEncoder(encoder, load_query_map(folder))
