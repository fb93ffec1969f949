"""The relay: a stranger's request reaches the cluster as it was written, and nothing of ours goes with it."""

from __future__ import annotations

import pytest

from hybridr.cluster.client import BoundsExceeded
from hybridr.cluster.embedded.process import free_port
from hybridr.cluster.relay import ClientRequest, Relay, relay_errors
from hybridr.cluster.settings import ClusterSettings
from hybridr.errors import ClusterError, Unreachable
from support.recorder import recording

ASKED = ClientRequest(
    "POST",
    "/docs%20x/_search?filter_path=hits.hits._id&q=%22a%22",
    (("Authorization", "ApiKey eA=="), ("Connection", "keep-alive"), ("Host", "proxy.example.com")),
    b'{"size":  1}',
)


def test_a_request_goes_on_as_it_was_with_none_of_our_rights() -> None:
    with recording() as cluster:
        settings = ClusterSettings(url=cluster.url, user="ours", password="secret")
        answer = Relay(settings).send(ASKED)
    [heard] = cluster.heard
    assert (heard.line, heard.body) == (f"POST {ASKED.target}", ASKED.body)
    assert heard.headers == {
        "host": cluster.url.removeprefix("http://"),
        "authorization": "ApiKey eA==",
        "content-length": str(len(ASKED.body)),
    }
    assert (answer.status, answer.body) == (200, cluster.answers[0][1])
    assert ("X-elastic-product", "Elasticsearch") in answer.headers


def test_another_host_is_asked_where_the_first_is_away() -> None:
    away = f"http://127.0.0.1:{free_port()}"
    with recording() as cluster:
        assert Relay(ClusterSettings(url=f"{away},{cluster.url}")).send(ASKED).status == 200
    with pytest.raises(Unreachable, match="nothing answers at 127"):
        Relay(ClusterSettings(url=away)).send(ASKED)


def test_errors_of_the_cluster_are_answers() -> None:
    with recording() as cluster:
        cluster.answers = [(429, b'{"error":"busy"}')]
        answer = Relay(ClusterSettings(url=cluster.url)).send(ASKED)
    assert (answer.status, answer.body) == (429, b'{"error":"busy"}')


@pytest.mark.attack(106)
@pytest.mark.parametrize(
    "target",
    [
        *("/_bulk#/_search", "/docs/../_bulk", "/docs/./_search", "/docs/_search?q=a#b", "docs/_search"),
        *("//other/_search", "/docs/_search?q=a b", "@other/_bulk", ":1/_bulk", "/docs\\_search"),
    ],
)
def test_106_a_target_that_would_be_sent_as_another_one_is_not_sent(target: str) -> None:
    with recording() as cluster:
        for prefix in ("", "/behind"):
            relay = Relay(ClusterSettings(url=f"{cluster.url}{prefix}"))
            with pytest.raises((ClusterError, Unreachable)):
                relay.send(ASKED._replace(target=target))
            assert relay.send(ASKED).status == 200
        lines = [heard.line for heard in cluster.heard]
    assert lines == [f"POST {ASKED.target}", f"POST /behind{ASKED.target}"]


@pytest.mark.parametrize("cause", ["bytes", "seconds"])
def test_an_answer_beyond_its_bounds_is_named_by_what_there_is_too_much_of(cause: str) -> None:
    with pytest.raises(ClusterError, match=f"the answer of h:9200 takes too many {cause}"):
        with relay_errors("http://h:9200"):
            raise BoundsExceeded(cause)
