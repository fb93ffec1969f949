"""Indices with vectors, in place and beside."""

from __future__ import annotations

import pytest

from hybridr.cluster.connection import Cluster
from support.corpus import reindexed_alias
from support.in_place_index import filled_index


@pytest.fixture
def index(cluster: Cluster, index_name: str) -> str:
    return filled_index(cluster, index_name)


@pytest.fixture
def alias(cluster: Cluster, index_name: str) -> str:
    return reindexed_alias(cluster, index_name, 40)
