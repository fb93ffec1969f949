"""How aliases move: which index one stands for, and what goes along with it to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ClusterError, NotFound
from .connection import Cluster, Describing
from .destinations import is_destination, is_known_by
from .record import IndexInfo


def default_alias(name: str) -> str:
    """Name the alias of a source when the user gives none."""
    return f"{name}-hybridr"


def alias_target(cluster: Describing, alias: str) -> IndexInfo | None:
    """Give the one index behind an alias, None when there is no such alias.

    Raises ClusterError when the name is an index, or the alias stands for several.
    """
    infos = cluster.indices(alias)
    if not infos:
        return None
    if any(info.name == alias for info in infos):
        raise ClusterError(f"'{alias}' is an index, not an alias", hint="--alias NAME chooses another name")
    if len(infos) > 1:
        names = ", ".join(info.name for info in infos)
        raise ClusterError(
            f"alias '{alias}' stands for several indices: {names}",
            hint="take it off all but one of them, or choose another --alias",
        )
    return infos[0]


def switch(
    cluster: Cluster, alias: str, old: IndexInfo | None, new: str, source: IndexInfo | None = None
) -> None:
    """Point the alias and its `companions` to `new` in one atomic step, keeping filter and routing.

    With `source` it keeps them only where they were given to the source, or to what holds its vectors.

    `must_exist` makes the whole step fail if somebody moved the alias meanwhile; without it the alias
    would end on two indices. Raises ClusterError unless it was moved to `new`: by another process with the
    same work, or by this very request, whose answer was lost.
    """
    try:
        cluster.request("POST", "/_aliases", {"actions": switch_actions(alias, old, new, source)})
    except NotFound:
        target = alias_target(cluster, alias)
        if target is None or target.name != new:
            where = f"moved to '{target.name}'" if target else "removed"
            raise ClusterError(
                f"somebody else has {where} the alias '{alias}' meanwhile", hint="run the same command again"
            ) from None


def switch_actions(
    alias: str, old: IndexInfo | None, new: str, source: IndexInfo | None = None
) -> list[dict[str, Any]]:
    """Build the actions of `switch`."""
    aliases = {} if old is None or is_strange(old, source) else old.aliases
    moved = (alias, *companions(alias, old, new, source))
    actions: list[dict[str, Any]] = []
    if old is not None and old.name != new:
        actions += [{"remove": {"index": old.name, "alias": alias, "must_exist": True}} for alias in moved]
    return [*actions, *({"add": {"index": new, "alias": alias, **aliases.get(alias, {})}} for alias in moved)]


def is_strange(old: IndexInfo, source: IndexInfo | None) -> bool:
    """Tell whether an index is neither a source nor holds its vectors, so that nothing of it is kept."""
    return source is not None and old.uuid != source.uuid and not is_known_by(old, source)


def companions(
    alias: str, old: IndexInfo | None, new: str, source: IndexInfo | None = None
) -> tuple[str, ...]:
    """Name the aliases that go along when an alias leaves an index: those that show a part of it.

    They are the application's: none leaves its source along with an alias that hybridr named.
    """
    if old is None or old.name == new or is_strange(old, source):
        return ()
    if alias.endswith(default_alias("")) and not is_destination(old):
        return ()
    return tuple(name for name in partial_aliases(old) if name != alias)


def partial_aliases(info: IndexInfo) -> dict[str, list[str]]:
    """Name the aliases that show a part of an index only, each with what narrows it."""
    return {
        name: narrowed
        for name, definition in sorted(info.aliases.items())
        if (narrowed := narrowing(definition))
    }


def narrowing(definition: Mapping[str, Any]) -> list[str]:
    """Say by what an alias shows or writes a part of its index only."""
    return [part for part in ("filter", "index_routing", "search_routing") if definition.get(part)]
