"""Where a cluster is: the address in a cloud id."""

from __future__ import annotations

import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridr import connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.embedded.state import with_address
from hybridr.cluster.settings import ClusterSettings
from hybridr.errors import SettingsError, Unreachable
from hybridr.settings import resolve_stage
from hybridr_cli import main
from support.certificates import certificate
from support.hostile_cluster import INDEX, ROOT, Given, hostile
from support.node_states import state_of


def cloud_id(text: str) -> str:
    return f"mine:{b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("eu-west-1.aws.found.io$abc123$def", "https://abc123.eu-west-1.aws.found.io:443"),
        ("cloud.example.com:9243$es$", "https://es.cloud.example.com:9243"),
    ],
)
def test_a_cloud_id_is_an_address(text: str, url: str) -> None:
    assert with_address(ClusterSettings(cloud_id=cloud_id(text))).url == url


@pytest.mark.parametrize(
    "wrong",
    ["mine:no base64", cloud_id("nothing"), cloud_id("$"), cloud_id("a b$c$"), cloud_id("h:x$c"), "ü"],
)
def test_what_is_no_cloud_id_is_refused(wrong: str) -> None:
    with pytest.raises(SettingsError, match="this is not a cloud id"):
        with_address(ClusterSettings(cloud_id=wrong))


def test_two_addresses_are_one_too_many() -> None:
    with pytest.raises(SettingsError, match="an address and a cloud id"):
        with_address(ClusterSettings(cloud_id=cloud_id("a$b"), url="http://localhost:9200"))


@pytest.fixture
def deployment(tmp_path, monkeypatch) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A deployment by https, whose host only this process knows: its cloud id and the requests it gets."""
    monkeypatch.chdir(tmp_path)
    host = "es.cloud.example"
    files = certificate(tmp_path, host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["tls_cert"], files["tls_key"])
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda name, *rest, **options: resolve("127.0.0.1" if name == host else name, *rest, **options),
    )
    monkeypatch.setenv("HYBRIDR_CA_CERTS", str(files["tls_cert"]))
    with hostile({"/": Given(ROOT), "/docs": Given(INDEX)}, context) as (url, requests):
        yield cloud_id(f"cloud.example:{url.rpartition(':')[2]}$es$kibana"), requests


KEY = "aWQ6a2V5"


@pytest.mark.attack(133)
def test_a_cloud_id_connects(deployment: tuple[str, list[tuple[str, str | None]]]) -> None:
    settings = connect(cloud_id=deployment[0], api_key=KEY).settings
    assert settings is not None
    cluster = Cluster.connect(with_address(with_address(settings)))  # once more changes nothing
    assert cluster.url.startswith("https://es.cloud.example:")
    assert {key for _, key in deployment[1]} == {f"ApiKey {KEY}"}


@pytest.mark.attack(133)
@pytest.mark.parametrize("place", ["environment", "file", "named file"])
def test_a_cloud_id_connects_the_command_line(deployment, monkeypatch, capsys, place):
    options = []
    if place == "environment":
        monkeypatch.setenv("HYBRIDR_CLOUD_ID", deployment[0])
        monkeypatch.setenv("HYBRIDR_API_KEY", KEY)
    else:
        from_file = f'[cluster]\ncloud_id = "{deployment[0]}"\napi_key = "{KEY}"\n'
        file = Path("hybridr.toml" if place == "file" else "cloud.toml")
        file.write_text(from_file)
        options = [] if place == "file" else ["--config", str(file)]
    if not options:
        assert connect().url.startswith("https://es.cloud.example:")
    main(["status", "docs", "--json", *options])
    assert "a cloud id" not in capsys.readouterr().err
    assert ("/docs,docs-hybridr-*", f"ApiKey {KEY}") in deployment[1]


@pytest.mark.attack(133)
def test_the_upper_layer_of_settings_names_the_cluster(tmp_path, monkeypatch) -> None:
    """Not both of them: an address on the command line replaces the cloud id of the environment."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hybridr.toml").write_text('[cluster]\nurl = "http://file:9200"\n')
    monkeypatch.setenv("HYBRIDR_CLOUD_ID", cloud_id("a$b"))

    def resolved(flags: dict[str, Any]) -> tuple[str | None, str | None]:
        settings = resolve_stage(ClusterSettings, flags)[0]
        return settings.url, settings.cloud_id

    assert resolved({}) == (None, cloud_id("a$b"))
    assert resolved({"url": "http://flag:9200"}) == ("http://flag:9200", None)
    monkeypatch.setenv("HYBRIDR_URL", "http://environment:9200")
    with pytest.raises(SettingsError, match="an address and a cloud id"):
        connect()
    with pytest.raises(Unreachable, match="127.0.0.1:9"):
        connect("http://127.0.0.1:9")


@pytest.mark.attack(133)
def test_an_api_key_keeps_the_user_of_an_own_node_away(monkeypatch, tmp_path) -> None:
    """The same kind: what one step fills in must not contradict what was set."""
    node = state_of("default", 1, 1.0, user="admin", password_file=str(tmp_path / "password"), running=True)
    monkeypatch.setattr("hybridr.cluster.embedded.state.running_node", lambda: node)
    monkeypatch.setattr("hybridr.cluster.embedded.state.node_states", lambda: [node])
    assert with_address(ClusterSettings()).user == "admin"
    for settings in (ClusterSettings(api_key=KEY), ClusterSettings(api_key=KEY, url=node.url)):
        assert with_address(with_address(settings)).user is None
