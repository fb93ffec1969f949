"""The page's files: nothing inline, nothing foreign, and headers that a browser enforces."""

from __future__ import annotations

import re
from functools import partial
from html.parser import HTMLParser

import pytest
from fastapi.testclient import TestClient

from hybridr.serving.application import create_app
from hybridr.serving.page.workbench import FOLDER, add_workbench
from hybridr.serving.settings import ServeSettings
from support.hashing import HashingEncoder

FILES = ("/", "/page/page.js", "/page/page.css")


@pytest.fixture(scope="module")
def client() -> TestClient:
    settings = ServeSettings(token="secret")
    return TestClient(
        create_app(HashingEncoder(), settings, added=partial(add_workbench, settings=settings, cluster=None))
    )


@pytest.mark.parametrize("path", FILES)
def test_the_page_asks_for_no_token_and_runs_nothing_foreign(client: TestClient, path: str) -> None:
    found = client.get(path)
    assert found.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in found.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert found.headers["x-content-type-options"] == "nosniff"
    assert "://" not in found.text


@pytest.mark.parametrize("path", ["/compare", "/judging", "/tasks", "/docs", "/metrics", "/page/index.html"])
def test_all_else_needs_the_token(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 401
    known = client.get(path, headers={"Authorization": "Bearer secret"}).status_code
    assert known == (200 if path in ("/docs", "/metrics") else 404)


class Parts(HTMLParser):
    """Collects tags with their attributes, and labels."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_nothing_is_inline_and_every_field_has_a_label() -> None:
    parts = Parts()
    parts.feed((FOLDER / "index.html").read_text(encoding="utf-8"))
    names = [name for _, attributes in parts.tags for name in attributes]
    assert not [name for name in names if name.startswith("on") or name == "style"]
    assert all("src" in attributes for tag, attributes in parts.tags if tag == "script")
    assert not [tag for tag, _ in parts.tags if tag in ("style", "iframe", "object", "base")]
    labelled = {attributes.get("for") for tag, attributes in parts.tags if tag == "label"}
    fields = [of["id"] for tag, of in parts.tags if tag in ("input", "select", "textarea", "progress")]
    assert set(fields) <= labelled
    ids = [attributes["id"] for _, attributes in parts.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    assert set(re.findall(r'element\("([\w-]+)"\)', script)) <= set(ids)


def test_the_script_writes_text_only() -> None:
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    dangerous = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|setAttribute\(.on"
    assert not re.search(dangerous, script)
