"""What sends requests: its failures, addresses, keys and signatures."""

from __future__ import annotations

import traceback
from types import SimpleNamespace

import pytest
from opensearchpy import exceptions

from hybridr.cluster.client import Client
from hybridr.cluster.settings import ClusterSettings
from hybridr.errors import AccessDenied, ClusterError, NotFound, SettingsError, Unreachable
from support.recorder import recording
from support.sigv4 import signer_of


def given(status: int, reason: str) -> dict[str, object]:
    return {"error": {"type": "some_exception", "reason": reason}, "status": status}


@pytest.mark.parametrize(
    ("raised", "kind", "told"),
    [
        (("ConnectionError", "N/A", "refused", OSError("refused")), Unreachable, "nothing answers at"),
        (("ConnectionTimeout", "TIMEOUT", "slow", OSError("slow")), Unreachable, "did not answer in time"),
        (("SSLError", "N/A", "self-signed", OSError("self-signed")), Unreachable, "could not be verified"),
        (("NotFoundError", 404, "missing", given(404, "no such index")), NotFound, "no such index"),
        (("AuthenticationException", 401, "who", "Unauthorized"), AccessDenied, "does not know this user"),
        (("AuthorizationException", 403, "no", given(403, "not you")), AccessDenied, "forbids it .*not you"),
        (("RequestError", 400, "bad", given(400, "unknown query")), ClusterError, "refused .*unknown query"),
        (("TransportError", 503, "busy", given(503, "starting")), Unreachable, "not ready yet .*starting"),
        (("SerializationError", "not JSON"), ClusterError, "not JSON"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_failures_of_the_package_become_our_own(raised, kind, told, monkeypatch):
    client = Client("http://here:1", ClusterSettings())
    error = getattr(exceptions, raised[0])(*raised[1:])

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(client.transport, "perform_request", fails)
    with pytest.raises(kind, match=told) as caught:
        client.send("GET", "/", None, None, None)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("url", "told"),
    [("localhost:9200", "not a cluster address"), ("http://me:secret@here:9200", "holds a user or password")],
)
def test_an_unusable_address_is_refused_before_anything_is_sent(url: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told) as caught:
        Client(url, ClusterSettings())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("https://abc.eu-west-1.aoss.amazonaws.com", {}),
        ("https://abc.eu-west-1.es.amazonaws.com", {"aws_region": "eu-west-1", "aws_service": "aoss"}),
    ],
)
def test_serverless_is_refused_with_what_it_lacks(url: str, settings: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=r"Serverless \(aoss\) cannot be used.*_seq_no") as refused:
        Client(url, ClusterSettings(url=url, **settings))  # type: ignore[arg-type]
    assert "Amazon OpenSearch Service (es)" in str(refused.value.hint)


def test_a_request_to_be_signed_without_credentials_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(get_credentials=lambda: None)
    monkeypatch.setattr("botocore.session.get_session", lambda: session)
    settings = ClusterSettings(url="https://abc.es.amazonaws.com", aws_region="eu-west-1")
    with pytest.raises(SettingsError, match="no AWS credentials were found") as refused:
        Client("https://abc.es.amazonaws.com", settings)
    assert "AWS_ACCESS_KEY_ID" in str(refused.value.hint)


def test_requests_for_amazon_are_signed_as_aws_documents_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    with recording() as domain:
        client = Client(domain.url, ClusterSettings(url=domain.url, aws_region="eu-west-1"))
        client.send("GET", "/", None, None, None)
        params = {"flat_settings": "true", "preference": "a/ü"}
        client.send("POST", "/docs%20x,other/_search", b'{"size": 0}', params, None)
        client.send("POST", "/_bulk", b'{"index":{}}\n{}\n', None, None)
    keys = {"AKIDEXAMPLE": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}
    assert [signer_of(one, keys) for one in domain.heard] == ["AKIDEXAMPLE"] * 3
    assert "/eu-west-1/es/aws4_request" in domain.heard[0].headers["authorization"]
    assert signer_of(domain.heard[1]._replace(body=b'{"size": 1}'), keys) is None
    assert signer_of(domain.heard[1], {"AKIDEXAMPLE": "another"}) is None


@pytest.mark.parametrize(("key", "sent"), [("aWQ6a2V5", "aWQ6a2V5"), ("id:key", "aWQ6a2V5")])
def test_an_api_key_is_sent_and_told_to_nobody(key: str, sent: str) -> None:
    with recording() as cluster:
        settings = ClusterSettings(url=cluster.url, api_key=key)
        opened = Client(cluster.url, settings)
        opened.send("GET", "/", None, None, None)
        cluster.answers = [(403, b'{"error":{"type":"security_exception","reason":"no right"}}')]
        with pytest.raises(AccessDenied, match="no right") as denied:
            opened.send("GET", "/docs", None, None, None)
    assert cluster.heard[0].headers["authorization"] == f"ApiKey {sent}"
    told = "".join(traceback.format_exception(denied.value)) + repr(settings) + str(settings.record())
    assert key not in told
    assert sent not in told


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"api_key": "a\nb"}, "holds no API key"),
        ({"api_key": "aWQ6a2V5", "user": "me"}, "an API key and user 'me'"),
        ({"api_key": "aWQ6a2V5", "aws_region": "eu-west-1"}, "an API key and an AWS region"),
    ],
)
def test_an_api_key_stands_alone(settings: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as refused:
        Client("https://x", ClusterSettings(url="https://x", **settings))  # type: ignore[arg-type]
    assert "aWQ6a2V5" not in str(refused.value)
