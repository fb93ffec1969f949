"""What one request told of several indices, for work that must see them in one state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .connection import Cluster, path_of
from .failures import understood
from .record import IndexInfo, as_described, require_name, sole_index

PATTERNS = {"flat_settings": "true", "ignore_unavailable": "true", "allow_no_indices": "true"}


@dataclass(frozen=True)
class IndexView:
    """Indices as they were when the cluster described them; it answers what `Cluster` answers of their names.

    What was not looked at then is asked of the cluster. A name or alias that was not there may have been on a
    node that did not know its state yet: `index_info` asks once more, `indices` does not.
    """

    cluster: Cluster
    names: tuple[str, ...]
    infos: tuple[IndexInfo, ...]

    @classmethod
    def of(cls, cluster: Cluster, *names: str) -> IndexView:
        """Describe all indices that these names, aliases and patterns (`docs-*`) stand for, in one request.

        What cannot be a name is left out.
        """
        names = tuple(name for name in dict.fromkeys(names) if is_nameable(name.removesuffix("*")))
        if not names:
            return cls(cluster, (), ())
        path = path_of(",".join(names))
        response = cluster.request("GET", path, params=PATTERNS)
        with understood(cluster.url, f"GET {path}"):
            infos = [as_described(name, index) for name, index in sorted(response.items())]
        return cls(cluster, names, tuple(infos))

    def indices(self, pattern: str) -> list[IndexInfo]:
        """Return the indices that a name, alias or pattern stands for."""
        if pattern not in self.names:
            return self.cluster.indices(pattern)
        return [info for info in self.infos if any(is_meant(pattern, n) for n in (info.name, *info.aliases))]

    def index_info(self, name: str) -> IndexInfo:
        """Return the one index behind a name or alias. Raises as `Cluster.index_info`."""
        infos = self.indices(name) if name in self.names else []
        return sole_index(name, infos) if infos else self.cluster.index_info(name)


def is_nameable(name: str) -> bool:
    """Tell whether an index or alias can be called so."""
    try:
        return bool(require_name(name))
    except ValueError:
        return False


def is_meant(pattern: str, name: str) -> bool:
    """Tell whether a name, or a pattern that ends in `*`, stands for this name."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


Describing: TypeAlias = Cluster | IndexView
"""What `indices` and `index_info` can be asked of."""
