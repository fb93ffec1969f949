"""Tables and reports: escaped, self-contained, with both top tens."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from hybridr.errors import SettingsError
from hybridr.evaluation.evaluation import Evaluation, evaluate
from hybridr.evaluation.report import html_table, markdown, rendered, report_format, shown_documents
from hybridr.languages import without_tags
from hybridr.records import Query

EVIL = "<script>alert('x')</script>"
QUERIES = [Query("q1", f"one {EVIL}"), Query("q2", "two")]
QRELS = {"q1": {"a": 1, "b": 0}, "q2": {"d": 1}}


@pytest.fixture
def found() -> Evaluation:
    old = {"q1": {"b": 2.0, "a": 1.0}, "q2": {"d": 1.0}}
    new = {"q1": {"a": 2.0, "<i>c</i>": 1.0}, "q2": {"d": 1.0}}
    return evaluate({"bm25": old, f"new{EVIL}": new}, QUERIES, QRELS)


def test_markdown_table() -> None:
    table = markdown(["system", "nDCG|10"], [["a|b", 0.51239], ["<i>c\nd", 1.0]])
    assert table.splitlines() == [
        "| system | nDCG\\|10 |",
        "| --- | ---: |",
        "| a\\|b | 0.5124 |",
        "| &lt;i&gt;c d | 1.0000 |",
    ]


def test_html_table() -> None:
    assert '<td>&lt;b&gt;</td><td class="number">0.5000</td>' in html_table(["a", "b"], [["<b>", 0.5]])


class Tags(HTMLParser):
    """Collects what a browser would open, load or run, and checks that every tag is closed."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loaded += [name for name, _ in attributes if name in ("src", "href", "onclick", "onerror")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.attack(42)
def test_page_is_whole_escaped_and_loads_nothing(found: Evaluation) -> None:
    written = rendered(found, "html", f"title {EVIL}", {"a": f"text {EVIL} " + "x" * 900})
    tags = Tags()
    tags.feed(written)
    assert (tags.open, tags.loaded) == ([], [])
    assert not {"script", "i", "link", "img", "iframe"} & set(tags.seen)
    assert written.count("&lt;script&gt;") >= 4
    assert tags.seen.count("section") == 1, "only the query on which they differ"
    assert tags.seen.count("ol") == 2
    assert "grade 1" in written
    assert "grade 0" in written
    assert "not judged" in written
    assert "x" * 500 not in written
    assert shown_documents(found) == ["b", "a", "<i>c</i>"]


def test_texts_are_shown_without_their_markup(found: Evaluation) -> None:
    text = "<p>some <em>marked</em> text,</p> R&amp;D, list&lt;string&gt; and a < b"
    written = rendered(found, "html", "title", {"a": text})
    assert "some marked text, R&amp;D, list&lt;string&gt; and a &lt; b" in written


def test_page_of_a_single_system_has_no_lists() -> None:
    alone = evaluate({"bm25": {"q1": {"a": 1.0}}}, QUERIES, QRELS)
    assert "<section>" not in rendered(alone, "html", "alone")
    assert rendered(alone, "markdown", "alone").count("\n| ---") == 1


def test_the_choice_of_a_format(found: Evaluation, tmp_path) -> None:
    assert rendered(found, "markdown", "t").count("\n| ---") == 2
    assert report_format(tmp_path / "a.MD") == "markdown"
    with pytest.raises(SettingsError, match=r"a\.pdf' has an unsupported report suffix"):
        report_format(tmp_path / "a.pdf")


def test_only_tags_of_html_go() -> None:
    assert without_tags('<p class="x">two <em>words</em></p>\n<br/>more') == "two words more"
    assert without_tags("list<string> and a < b > c, <bx>") == "list<string> and a < b > c, <bx>"
