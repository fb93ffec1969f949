"""Aliases of indices with vectors: which index they point to, which move together, and how they are moved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote
from typing import Any

from ..errors import ClusterError, DataError, NotFound
from .connection import Cluster, IndexLookup, json_bytes
from .destinations import (
    claiming_indices,
    default_alias,
    destination_pattern,
    destinations,
    has_readable_record,
    is_destination,
    is_destination_of,
    is_unlisted,
    reindex_command,
    resolve,
)
from .record import IndexInfo


def alias_target(cluster: IndexLookup, alias: str) -> IndexInfo | None:
    """Return the one index that an alias points to; None if there is no such alias.

    Raises ClusterError if the name is an index, or the alias points to several indices.
    """
    infos = cluster.indices(alias)
    if not infos:
        return None
    if any(info.name == alias for info in infos):
        raise ClusterError(f"'{alias}' is an index, not an alias", hint="--alias NAME chooses another name")
    if len(infos) > 1:
        names = ", ".join(info.name for info in infos)
        raise ClusterError(
            f"alias '{alias}' points to several indices: {names}",
            hint=undoing_rollover(cluster, infos[0])
            or "remove it from all but one of them, or choose another --alias",
        )
    return infos[0]


def resolve_complete(cluster: IndexLookup, name: str, *, whole_index: bool = True) -> IndexInfo:
    """Return the index that a search of `name` uses, as `resolve` does.

    Raises what `resolve` raises, and DataError unless the index has all its vectors.
    """
    info = resolve(cluster, name, whole_index=whole_index)
    if is_destination(info):
        if info.record.state != "complete":
            raise DataError(f"'{name}' has no complete vectors", hint=reindex_command(info))
        return info
    complete = [unused.name for unused in destinations(cluster, info) if unused.record.state == "complete"]
    if complete:
        raise DataError(
            f"'{name}' has complete vectors, but no alias points to them: {', '.join(complete)}",
            hint=undoing_rollover(cluster, info)
            or f"hybridr reindex {quote(name)}   brings them up to date and moves the alias",
        )
    raise DataError(f"'{name}' has no complete vectors", hint=way_to_vectors(cluster, info, name))


def way_to_vectors(cluster: IndexLookup, info: IndexInfo, name: str) -> str:
    """Return the hint for an index that clients search without vectors: a reindex, unless its alias was
    rolled over.
    """
    return undoing_rollover(cluster, info) or f"hybridr reindex {quote(name)}"


def require_no_rollover(cluster: IndexLookup, info: IndexInfo) -> None:
    """Raise ClusterError if an index without vectors got the alias of this one with vectors by a rollover."""
    if way := undoing_rollover(cluster, info):
        raise ClusterError(f"an index without vectors has the alias '{info.record.alias}'", hint=way)


def undoing_rollover(cluster: IndexLookup, info: IndexInfo) -> str:
    """Return the hint that brings a rolled-over alias back to its index with vectors; "" without a rollover.

    `_rollover`, or a lifecycle policy, makes an index that is named after the one with vectors and has none
    itself, and moves the alias there. `info` is the source, the index with vectors or the new one.
    """
    rolled = re.fullmatch(r"(.+)-hybridr-\d{6}", info.name)
    source = rolled[1] if rolled else info.record.source or info.name
    new_name = re.compile(rf"{re.escape(source)}-hybridr-\d{{6}}")
    infos = [info for info in cluster.indices(destination_pattern(source)) if has_readable_record(info)]
    newer = [info for info in infos if new_name.fullmatch(info.name) and not is_destination(info)]
    for former in reversed(claiming_indices(cluster, source)):
        alias = former.record.alias
        if not any(alias in info.aliases for info in newer):
            continue
        copies = [{"source": {"index": info.name}, "dest": {"index": former.name}} for info in newer]
        moves = [{"remove": {"index": info.name, "alias": alias}} for info in newer if alias in info.aliases]
        actions = [*moves, {"add": {"index": former.name, "alias": alias}}]
        requests = [f"POST /_reindex?refresh=true {json_bytes(copy).decode()}" for copy in copies]
        requests.append(f"POST /_aliases {json_bytes({'actions': actions}).decode()}")
        return (
            f"a rollover moved '{alias}' from '{former.name}' on: what clients wrote since is only in "
            f"{', '.join(info.name for info in newer)}; take the rollover out of its policy, then "
            f"{', then '.join(requests)}, then hybridr sync {quote(source)}"
        )
    return ""


def switch_alias(
    cluster: Cluster, alias: str, old: IndexInfo | None, new: str, source: IndexInfo | None = None
) -> None:
    """Move an alias and its `companion_aliases` from the index `old` to the index `new` in one request.

    The aliases keep their filter and routing. If `source` is given, they do so only if `old` is related to it
    (`is_related`). Raises ClusterError if the alias was meanwhile removed or moved to another index.
    """
    try:
        cluster.request("POST", "/_aliases", {"actions": switch_actions(alias, old, new, source)})
    except NotFound:
        target = alias_target(cluster, alias)
        if target is None or target.name != new:
            change = (
                f"moved the alias '{alias}' to '{target.name}'" if target else f"removed the alias '{alias}'"
            )
            raise ClusterError(
                f"somebody else has {change} meanwhile", hint="run the same command again"
            ) from None


def switch_actions(
    alias: str, old: IndexInfo | None, new: str, source: IndexInfo | None = None
) -> list[dict[str, Any]]:
    """Return the actions of the `_aliases` request by which `switch_alias` moves an alias."""
    aliases = {} if old is None or not is_related(old, source) else old.aliases
    names = (alias, *companion_aliases(alias, old, new, source))
    actions: list[dict[str, Any]] = []
    is_hidden = source is not None and source.settings.get("index.hidden") == "true"  # and so are its copies
    if old is None and source is not None and not is_hidden:
        # If two runs create the alias at once, the later one gets it. Patterns do not match hidden indices.
        other_copies = {"index": destination_pattern(source.name), "alias": alias, "must_exist": False}
        actions += [{"remove": other_copies}]
    elif old is not None and old.name != new:
        actions += [{"remove": {"index": old.name, "alias": alias, "must_exist": True}} for alias in names]
    return [*actions, *({"add": {"index": new, "alias": alias, **aliases.get(alias, {})}} for alias in names)]


def is_related(old: IndexInfo, source: IndexInfo | None) -> bool:
    """Return whether an index is the source, or says that it holds vectors of it or of the index that it
    replaced.

    Always True without a source.
    """
    if source is None or old.uuid == source.uuid:
        return True
    return is_destination_of(old, source) or is_unlisted(old, source)


def companion_aliases(
    alias: str, old: IndexInfo | None, new: str, source: IndexInfo | None = None
) -> tuple[str, ...]:
    """Return the other aliases that move together with an alias: those that show only a part of `old`.

    In a rollback (without a source) these are also the aliases that reindexes moved from `new` to `old`. With
    an alias that hybridr named itself, no other alias leaves the source.
    """
    if old is None or old.name == new or not is_related(old, source):
        return ()
    if alias.endswith(default_alias("")) and not is_destination(old):
        return ()
    names = set(partial_aliases(old))
    if source is None:
        names |= {name for name in moved_aliases(old) if previous_index(old, name) == new}
    return tuple(sorted(names - {alias}))


def moved_aliases(info: IndexInfo) -> list[str]:
    """Return the aliases that an index with vectors got from reindexes and still has."""
    return [alias for alias in info.record.aliases if alias in info.aliases]


def previous_index(info: IndexInfo, alias: str) -> str:
    """Return the name of the index to which a rollback moves an alias of an index with vectors."""
    switches = [event for event in info.record.history if event["event"] == "switched"]
    names = [event["back_to"] for event in switches if event.get("alias") == alias and "back_to" in event]
    return str(names[-1] if names else info.record.previous)


def moving_command(info: IndexInfo, alias: str) -> str:
    """Return the command or request that moves an alias which a rollback leaves on an index with vectors."""
    if alias in info.record.aliases:
        return f"hybridr rollback {quote(alias)}"
    source = info.record.source
    moves = [{"remove": {"index": info.name, "alias": alias}}, {"add": {"index": source, "alias": alias}}]
    return f"POST /_aliases {json_bytes({'actions': moves}).decode()}"


def partial_aliases(info: IndexInfo) -> dict[str, list[str]]:
    """Return alias -> its `narrowing_keys`, for the aliases that show only a part of an index."""
    keys = {name: narrowing_keys(definition) for name, definition in sorted(info.aliases.items())}
    return {name: narrowing for name, narrowing in keys.items() if narrowing}


def narrowing_keys(definition: Mapping[str, Any]) -> list[str]:
    """Return which of "filter", "index_routing" and "search_routing" limit an alias to part of its index."""
    return [part for part in ("filter", "index_routing", "search_routing") if definition.get(part)]
