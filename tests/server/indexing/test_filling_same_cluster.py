"""A worker reaches the cluster that its driver means, or says which way it lacks."""

from __future__ import annotations

import socket

import pytest

from hybridr.cluster.settings import ClusterSettings
from hybridr.errors import SettingsError, Unreachable
from hybridr.indexing.filling import SameCluster


def test_the_same_cluster_is_reached_with_the_patience_of_the_work(cluster):
    found = SameCluster.of(cluster).connect(7.0)
    assert (found.url, found.patience_s) == (cluster.url, 7.0)


def test_another_cluster_at_the_same_address_is_refused(cluster):
    with pytest.raises(SettingsError, match="is not the cluster that the driver uses") as caught:
        SameCluster.of(cluster)._replace(uuid="of-another").connect(0.0)
    assert "localhost is a different machine on each" in str(caught.value.hint)


def test_a_cluster_that_does_not_tell_its_name_is_taken(cluster):
    assert SameCluster.of(cluster)._replace(uuid=None).connect(0.0).info["cluster_uuid"]


def test_where_nothing_answers_another_address_is_asked_for():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening
        settings = ClusterSettings(url=f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(Unreachable) as caught:
            SameCluster(settings, "of-the-driver").connect(0.0)
    assert "give a --url that every machine can reach" in str(caught.value.hint)
