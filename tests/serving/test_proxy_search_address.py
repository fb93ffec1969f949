"""Addresses of searches: one reading is judged and sent, whatever others would read in them."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from urllib3.util import parse_url

from hybridr.serving.proxy import SearchAddress, read_address
from hybridr.serving.requests import Refused

HOST = "http://cluster:9200"
ODD = st.sampled_from(
    [*"#?;&=%/\\.,*:<>{}|@ +-_~", "..", "%2f", "%23", "%3F", "%2e%2e", "%00", "%0d%0a", "_bulk", "_search"]
)
PARTS = st.lists(ODD | st.sampled_from(["docs", "a", "é", "%C3%A9"]), max_size=6).map("".join)


@pytest.mark.parametrize(
    ("path", "query", "target"),
    [
        ("/docs/_search", "", "/docs/_search"),
        ("/_msearch", "", "/_msearch"),
        ("/a,b*,-c/_search", "q=x", "/a,b*,-c/_search?q=x"),
        ("/far:docs/_search", "", "/far:docs/_search"),
        ("/%64ocs/_search", "", "/docs/_search"),
        ("/d%C3%A9j%C3%A0/_search", "", "/d%C3%A9j%C3%A0/_search"),
        ("/_all/_search", "", "/_all/_search"),
        ("/docs/_search/", "", "/docs/_search"),
        ("/_msearch//", "x", "/_msearch?x="),
        ("/docs,more,/_search", "", "/docs,more/_search"),
        ("/docs%2C%2c/_search", "", "/docs/_search"),
        ("/%3Clogs-%7Bnow%2Fd%7D%3E/_search", "", "/%3Clogs-%7Bnow%2Fd%7D%3E/_search"),
        ("/docs/_search", "typed_keys&filter_path=a.b,c", "/docs/_search?typed_keys=&filter_path=a.b,c"),
        ("/docs/_search", "q=a+b%2Bc&&x=%e9", "/docs/_search?q=a%20b%2Bc&x=%EF%BF%BD"),
        ("/docs/_search", "q=a=b?c", "/docs/_search?q=a%3Db%3Fc"),
    ],
)
def test_an_address_is_written_anew_from_its_parts(path: str, query: str, target: str) -> None:
    assert read_address(path.encode(), query.encode()).target == target


@pytest.mark.attack(106)
@pytest.mark.parametrize(
    "path",
    [
        *("/_bulk#/_search", "/_aliases#/_search", "/_reindex#x/_msearch", "/docs#/_search"),
        *("/#/_search", "/_bulk?/_search", "/_bulk;/_search", "/_bulk\\/_search", "/docs/_search#"),
        *("/docs/_search;x", "/_bulk%23/_search", "/_bulk%3F/_search", "/_bulk%2F/_search"),
        *("/_bulk%5C/_search", "/%2F/_search", "//_search", "//docs/_search", "/docs//_search"),
        *("/docs//_search/", "/docs/./_search", "docs/_search", "/./_search", "/../_search"),
        *("/%2e/_search", "/%2E%2e/_search", "/docs/../_search", "/a,../_search"),
        *("/docs/_doc/_search", "/docs/_search/_search", "/docs/_search/scroll"),
        *("/docs/_search/template", "/_bulk/_search", "/_scripts/_search", "/_snapshot/_msearch"),
        *("/_nodes/_search", "/docs,_bulk/_search", "/%5Fbulk/_search", "/_ALL/_search"),
        *("/_all_/_search", "/_search/_search", "/_%61liases/_search", "http://other/docs/_search"),
        *("http://other/_bulk#/_search", "*", "/docs/_SEARCH", "/docs/_searc%68"),
        *("/docs%00/_search", "/docs%0d%0aX: y/_search", "/docs%0A/_search", "/do cs/_search"),
        *("/docs%20/_search", "/docs%/_search", "/docs%zz/_search", "/docs%2/_search"),
        *("/%ff/_search", "/%c0%ae%c0%ae/_search", "/%252e%252e/_search"),
        *("/docs%252F_bulk/_search", "/docs%25/_search", "/é/_search", "/docs%C2%85/_search"),
        *("/%3C../_bulk%3E/_search", "/%3Cdocs%2F_bulk%3E/_search", "/%3Cdocs%23%3E/_search"),
        *("/%3C/_search", "/,docs/_search", "/,/_search", "/%E2%80%A8/_search"),
    ],
)
def test_106_what_is_no_address_of_a_search_is_refused(path: str) -> None:
    with pytest.raises(Refused) as refusal:
        read_address(path.encode(), b"")
    assert refusal.value.status_code == 404


@pytest.mark.attack(106)
@pytest.mark.parametrize(
    "query",
    [
        *("q=a#b", "#", "q=a#/../_bulk", "%", "q=%zz", "q=%2", "%=a", "q=a b", "q=é"),
        *("q=a\r\nX: y", "index=other", "index=other&q=a", "q=a;index=other", "i%6Edex=other"),
        *("id=1", "type=_doc", "%23=a", "a%0d%0a=b", "%C3%A9=a", "a%3Bindex=b", "a%26b=c", "a/b=c"),
    ],
)
def test_106_parameters_that_would_be_read_otherwise_are_refused(query: str) -> None:
    with pytest.raises(Refused) as refusal:
        read_address(b"/docs/_search", query.encode())
    assert refusal.value.status_code in (400, 404)


@pytest.mark.attack(110)
def test_110_parameters_are_parted_as_the_cluster_parts_them() -> None:
    address = read_address(b"/docs/_search", b"q=a;scroll=1m&size=2&size=%31;;x")
    assert address.params == {"q": "a", "scroll": "1m", "size": "1", "x": ""}
    assert address.target == "/docs/_search?q=a&scroll=1m&size=1&x="
    assert address.without(("scroll", "x")).target == "/docs/_search?q=a&size=1"


@pytest.mark.attack(106)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(index=PARTS, query=PARTS)
def test_106_nobody_reads_another_path_in_what_is_sent(index: str, query: str) -> None:
    """A target is the same to urllib3, and to who decodes it once or twice on the way."""
    try:
        address = read_address(f"/{index}/_search".encode(), query.encode())
    except Refused:
        return
    assert parse_url(HOST + address.target).request_uri == address.target
    path, _, params = address.target.partition("?")
    assert re.fullmatch(r"/[^/#?;\\\s]+/_search", path)
    for read in (path, unquote(path), unquote(unquote(path))):
        assert read.endswith("/_search")
        assert not re.search(r"//|/\.\.?(/|$)|[#?\\\x00-\x20\x7f]|/_(?!all/|search$)", read)
    assert "#" not in params
    assert read_address(path.encode(), params.encode()) == address


def test_names_that_come_from_elsewhere_are_read_as_strictly() -> None:
    for name in ("..", "_bulk", "a/b", "a#b", "a?b", "a%2Fb", "a b", "a,"):
        with pytest.raises(ValueError, match="no name of an index"):
            SearchAddress(name, "_search", {})
