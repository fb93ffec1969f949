"""A user's own lexical query: where the text goes, and what every hit has to match."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridr.cluster.retrievers.lexical import LexicalRetriever, Template
from hybridr.errors import SettingsError

HOSTILE = 'cat"}}, "match_all": {}, {"x": "\\u0022 {{query}} \n'
FUNCTION = {
    "function_score": {
        "query": {
            "bool": {
                "must": [{"multi_match": {"query": "{{query}}", "fields": ["title^3", "text"]}}],
                "filter": [{"term": {"lang": "en"}}, {"match": {"text": "{{query}}"}}],
                "must_not": {"term": {"hidden": True}},
            }
        },
        "functions": [{"field_value_factor": {"field": "price", "missing": 1}}],
    }
}


def template(tmp_path: Path, value: Any) -> Template:
    file = tmp_path / "own.json"
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return Template.read(file)


@pytest.mark.parametrize("value", [FUNCTION, {"query": FUNCTION, "size": 20, "aggs": {}}])
def test_the_text_is_a_value_whatever_it_holds(tmp_path: Path, value: Any) -> None:
    filled = template(tmp_path, value).filled(HOSTILE)
    bool_query = filled["function_score"]["query"]["bool"]
    assert bool_query["must"][0]["multi_match"] == {"query": HOSTILE, "fields": ["title^3", "text"]}
    assert filled.keys() == FUNCTION.keys()
    assert json.loads(json.dumps(filled)) == filled


SCORED: dict[str, Any] = {"query": {"match": {"text": "{{query}}"}}}


@pytest.mark.attack(24)
@pytest.mark.parametrize("script", ["'{{query}}'.length()", {"source": "'{{query}}'"}, {"id": "{{query}}"}])
def test_no_text_becomes_part_of_a_script(tmp_path: Path, script: Any) -> None:
    with pytest.raises(SettingsError, match="what users type would be part of a script"):
        template(tmp_path, {"script_score": {**SCORED, "script": script}})
    given = {"source": "params.text.length()", "params": {"text": "{{query}}"}}
    filled = template(tmp_path, {"script_score": {**SCORED, "script": given}}).filled("cat")
    assert filled["script_score"]["script"]["params"] == {"text": "cat"}


def test_a_template_of_any_depth_or_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"own\.json: it is nested too deep"):
        template(tmp_path, '{"bool":{"must":' * 100_000 + '"{{query}}"' + "}}" * 100_000)
    with pytest.raises(SettingsError, match="is a pipe or a device"):
        Template.read(Path("/dev/zero"))


def test_filters_hold_for_the_other_leg_too(tmp_path: Path) -> None:
    own, known = template(tmp_path, FUNCTION), {"term": {"year": 2020}}
    hidden = [{"term": {"hidden": True}}]
    assert own.with_conditions(None) == {"bool": {"filter": [{"term": {"lang": "en"}}], "must_not": hidden}}
    assert own.with_conditions(known) == {
        "bool": {"filter": [{"term": {"lang": "en"}}, known], "must_not": hidden}
    }
    plain = template(tmp_path, {"match": {"text": "{{query}}"}})
    assert plain.with_conditions(None) is None
    assert plain.with_conditions(known) == {"bool": {"filter": [known]}}


def test_scores_are_divided_by_the_scale(tmp_path: Path) -> None:
    own = template(tmp_path, {"match": {"text": "the {{query}}"}})
    assert LexicalRetriever(("text",), own).query("cat", 10) == {"match": {"text": "the cat"}}
    scaled = LexicalRetriever(("text",), Template(own.body, 4.0)).query("cat", 10, explain=True)
    [inner] = scaled["bool"]["must"]
    assert scaled["bool"]["_name"] == "lexical"
    assert inner["bool"] == {"must": [{"match": {"text": "the cat"}}], "boost": 0.25}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{", "Expecting"),
        ([1], "is not a query"),
        ({"query": {}}, "is not a query"),
        ({"match": {"text": "cat"}}, "no value of the query holds"),
        ({"match": {"{{query}}": "cat"}}, "no value of the query holds"),
    ],
)
def test_what_is_no_template_is_refused(tmp_path: Path, value: Any, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        template(tmp_path, value)
    assert "{{query}}" in (caught.value.hint or "")
    with pytest.raises(SettingsError, match="No such file"):
        Template.read(tmp_path / "gone.json")
