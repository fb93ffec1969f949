"""Tags go, all other brackets stay."""

from __future__ import annotations

from hybridr.markup import without_tags


def test_only_tags_of_html_go() -> None:
    assert without_tags('<p class="x">two <em>words</em></p>\n<br/>more') == "two words more"
    assert without_tags("list<string> and a < b > c, <bx>") == "list<string> and a < b > c, <bx>"
