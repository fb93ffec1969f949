"""Computes, as OpenSearch does, which shard a routing value leads to, and chooses which copy of each shard
answers.

The shard may be wrong for an index that was shrunk or split; `placement` asks the cluster.

Source: OperationRouting.generateShardId, Murmur3HashFunction and MetadataCreateIndexService of OpenSearch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count
from typing import Any
from zlib import crc32

from .record import IndexInfo, parse_index_info

SPLITS = 10  # default number of times that an index can be split in two, up to 1,024 shards
PLACES, SPREAD = "number_of_routing_shards", "routing_partition_size"
RESIZED = ("index.resize.", "index.shrink.")
"""Prefixes of settings of an index made by `_shrink`, `_split` or `_clone`; it routes like its original."""
SAME_SINCE, SAME_BEFORE = 7_000_000, 9_000_000
"""Elasticsearch computes shards differently for indices of versions outside this range. All versions of
OpenSearch have numbers above `OPENSEARCH`."""
OPENSEARCH = 1 << 27


def shards_for(routing: str, info: IndexInfo) -> list[int]:
    """Return the shards that a routing value leads to: several if `index.routing_partition_size` is set."""
    default = info.shards << max(1, SPLITS - (info.shards - 1).bit_length())
    places = int(info.settings.get(f"index.{PLACES}", default))
    spread = int(info.settings.get(f"index.{SPREAD}", 1))
    hash_value = murmur3(routing.encode("utf-16-le"))
    return [((hash_value + offset) % places) // (places // info.shards) for offset in range(spread)]


def routing_values(info: IndexInfo) -> list[str]:
    """Return one routing value for each shard in an index's scope, in the order of the shards."""
    routed, by_shard = info.scope.routing, dict[int, str]()
    shards = {shard for value in routed.split(",") for shard in shards_for(value, info)} if routed else None
    for number in count():
        if len(by_shard) == info.shards:
            break
        by_shard.setdefault(shards_for(str(number), info)[0], str(number))
    return [by_shard[shard] for shard in sorted(shards or range(info.shards))]


def has_same_layout(info_a: IndexInfo, info_b: IndexInfo) -> bool:
    """Return whether the settings of two indices prove that both put a document into the same shard."""

    def layout(info: IndexInfo) -> tuple[Any, ...]:
        """Return the settings that decide the shard of a document."""
        places, spread = (info.settings.get(f"index.{name}") for name in (PLACES, SPREAD))
        created = int(info.settings.get("index.version.created", OPENSEARCH))
        is_usual = created >= OPENSEARCH or SAME_SINCE <= created < SAME_BEFORE
        return info.shards, places, int(spread or 1), is_usual or created

    is_resized = any(name.startswith(RESIZED) for info in (info_a, info_b) for name in info.settings)
    return layout(info_a) == layout(info_b) and not is_resized


def text_preference(text: str) -> dict[str, str]:
    """Return the search parameter `preference` that sends equal texts to the same copies of shards.

    Copies score differently, since each counts deleted documents until it has merged them away.
    """
    return {"preference": f"hybridr-{crc32(text.encode('utf-8', 'surrogatepass')):08x}"}


def parse_index_infos(response: Mapping[str, Any], segmented: set[str]) -> list[IndexInfo]:
    """Return the index descriptions in the cluster's answer to GET /INDEX, sorted by name.

    Adds to `segmented` the names and aliases of indices with segment replication, whose replicas show
    documents later than the primary. Raises like `parse_index_info`.
    """
    infos = [parse_index_info(name, index) for name, index in sorted(response.items())]
    for info in infos:
        if info.settings.get("index.replication.type") == "SEGMENT":
            segmented |= {info.name, *info.aliases}
    return infos


def copies_preference(segmented: Collection[str], name: str, preference: str | None = None) -> dict[str, str]:
    """Return the search parameter `preference`. It asks for primaries if the index is among the `segmented`,
    since a refresh does not reach their replicas.
    """
    if name not in segmented:
        return {"preference": preference} if preference else {}
    shards = [preference] if preference and preference.startswith("_shards:") else []
    return {"preference": "|".join([*shards, "_primary"])}


def murmur3(data: bytes) -> int:
    """Return the MurmurHash3 (x86, 32 bits, seed 0; Appleby 2011) of bytes, as a signed number."""

    def rotated(value: int, bits: int) -> int:
        """Return a 32-bit value rotated to the left."""
        return (value << bits | value >> 32 - bits) & 0xFFFFFFFF

    hashed = 0
    for start in range(0, len(data), 4):
        block = data[start : start + 4]
        hashed ^= (
            rotated(int.from_bytes(block, "little") * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
        )
        if len(block) == 4:
            hashed = (rotated(hashed, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    hashed ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashed = ((hashed ^ hashed >> shift) * factor) & 0xFFFFFFFF
    hashed ^= hashed >> 16
    return hashed - (hashed >> 31 << 32)
