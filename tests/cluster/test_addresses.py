"""Where a cluster is: the address in a cloud id."""

from __future__ import annotations

from base64 import b64encode

import pytest

from hybridr.cluster.addresses import addressed
from hybridr.cluster.settings import ClusterSettings
from hybridr.errors import SettingsError


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
    assert addressed(ClusterSettings(cloud_id=cloud_id(text))).url == url


@pytest.mark.parametrize(
    "wrong",
    ["mine:no base64", cloud_id("nothing"), cloud_id("$"), cloud_id("a b$c$"), cloud_id("h:x$c"), "ü"],
)
def test_what_is_no_cloud_id_is_refused(wrong: str) -> None:
    with pytest.raises(SettingsError, match="this is no cloud id"):
        addressed(ClusterSettings(cloud_id=wrong))


def test_two_addresses_are_one_too_many() -> None:
    with pytest.raises(SettingsError, match="an address and a cloud id"):
        addressed(ClusterSettings(cloud_id=cloud_id("a$b"), url="http://localhost:9200"))
