"""An index to search."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.indexing.reindexing import reindex
from support.corpus import drop_indices, fill_index
from support.hashing import HashingEncoder


@pytest.fixture(scope="session")
def searchable(cluster: Cluster) -> Any:
    """Give an index that no test changes, and its encoder."""
    fill_index(cluster, "t-searchable", 300)
    encoder = HashingEncoder(dim=32)
    reindex(cluster, "t-searchable", encoder)
    yield "t-searchable", encoder
    drop_indices(cluster, "t-searchable*")
