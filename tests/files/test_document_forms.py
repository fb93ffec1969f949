"""Documents in the forms of others: read, or refused with the form's name and what to type."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hybridr.errors import DataError
from hybridr.files.formats import read_corpus, read_qrels, read_queries, read_query_log, read_run
from hybridr.relevance.clicks.ubi import read_log_file
from hybridr.search.rules.rules import read_rules
from hybridr.training.judged import read_scores

TWO = [{"_id": "a1", "title": "Seal", "text": "of a pump"}, {"_id": "a2", "title": "Valve", "text": "steam"}]


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def hit(document: dict[str, Any], **more: Any) -> dict[str, Any]:
    source = {name: value for name, value in document.items() if name != "_id"}
    return {"_index": "x", "_id": document["_id"], "_score": 1, "_source": source} | more


READ = {
    "lines": lines(*TWO),
    "a byte-order mark, CRLF": "\ufeff" + lines(*TWO).replace("\n", "\r\n"),
    "an array": json.dumps(TWO),
    "an array over lines": json.dumps(TWO, indent=2),
    "an array of elasticdump": "[\n" + ",\n".join(json.dumps(hit(one)) for one in TWO) + "\n]\n",
    "lines of elasticdump": lines(*(hit(one, _type="_doc", sort=[1]) for one in TWO)),
    "_bulk": lines(
        {"index": {"_index": "x", "_id": "a1"}},
        {"title": "Seal", "text": "of a pump"},
        {"create": {"_id": "a2", "routing": "r"}},
        {"title": "Valve", "text": "steam"},
    ),
    "mongoexport": lines(*({**one, "_id": {"$oid": one["_id"]}} for one in TWO)),
    "mongoexport in an array": json.dumps([{**one, "_id": {"$oid": one["_id"]}} for one in TWO]),
}


@pytest.mark.parametrize("form", READ)
@pytest.mark.parametrize("ending", ["jsonl", "json", "jsonl.gz"])
def test_forms_that_are_read_give_the_same_documents(form: str, ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"documents.{ending}"
    content = READ[form].encode()
    file.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    assert list(read_corpus(file)) == TWO


def test_id_is_the_id_where_there_is_no_other_and_stays_a_field(tmp_path: Path) -> None:
    file = tmp_path / "documents.jsonl"
    file.write_text(lines({"id": 7, "text": "x"}, {"_id": "8", "id": "y"}))
    assert list(read_corpus(file)) == [{"_id": "7", "id": 7, "text": "x"}, {"_id": "8", "id": "y"}]


def test_extended_json_becomes_plain_and_other_objects_stay(tmp_path: Path) -> None:
    record = {
        "_id": {"$numberLong": "5"},
        "count": {"$numberInt": "3"},
        "price": {"$numberDecimal": "12.30"},
        "weight": {"$numberDouble": "2.5"},
        "odd": {"$numberDouble": "NaN"},
        "made": {"$date": "2020-01-02T03:04:05Z"},
        "sold": {"$date": {"$numberLong": "1577836800000"}},
        "parts": [{"of": {"$oid": "57e0"}}],
        "schema": {"$ref": "#/x"},
    }
    file = tmp_path / "documents.jsonl"
    file.write_text(lines(record))
    assert list(read_corpus(file)) == [
        {
            "_id": "5",
            "count": 3,
            "price": "12.30",
            "weight": 2.5,
            "odd": {"$numberDouble": "NaN"},
            "made": "2020-01-02T03:04:05Z",
            "sold": 1577836800000,
            "parts": [{"of": "57e0"}],
            "schema": {"$ref": "#/x"},
        }
    ]


ODD_IDS: list[Any] = [1.0, 1e300, True, False, None, [], ["a"], {}, {"a": 1}, "", " "]
ODD_IDS += [{"$binary": "x"}, {"$numberDouble": "1.0"}]


@pytest.mark.parametrize("value", ODD_IDS, ids=json.dumps)
@pytest.mark.parametrize("wrap", ["lines", "array", "hits", "bulk", "id"])
def test_an_id_of_another_type_is_refused_with_its_line(value: Any, wrap: str, tmp_path: Path) -> None:
    odd = {"_id": value, "text": "x"}
    contents = {
        "lines": lines(TWO[0], odd),
        "array": "[\n" + json.dumps(TWO[0]) + ",\n" + json.dumps(odd) + "]",
        "hits": lines(hit(TWO[0]), hit(odd)),
        "bulk": lines({"index": {"_id": "a"}}, {"text": "y"}, {"index": {"_id": value}}, {"text": "x"}),
        "id": lines(TWO[0], {"id": value, "text": "x"}),
    }
    file = tmp_path / "documents.jsonl"
    file.write_text(contents[wrap])
    line = {"array": 3, "bulk": 4}.get(wrap, 2)
    with pytest.raises(DataError, match=rf"documents.jsonl:{line}: '_id' is ") as caught:
        list(read_corpus(file))
    assert caught.value.hint


REFUSED = {
    "an answer of _search": (lines({"hits": {"hits": [hit(TWO[0])]}}), "of _search", ".hits.hits[]"),
    "an answer of Solr": (lines({"response": {"docs": TWO}}), "of Solr", ".response.docs[]"),
    "XML of Solr": ("<add><doc><field name='id'>1</field></doc></add>", "XML", ".response.docs[]"),
    "an object over lines": (json.dumps(TWO[0], indent=1), "over several lines", "jq -c '.' "),
    "CSV": ("id,title,text\n1,Seal,pump\n", "CSV", "csv.DictReader(sys.stdin)"),
    "TSV": ("id\ttitle\ttext\n1\tSeal\tpump\n", "TSV", r"delimiter"),
    "MS MARCO": ("7\tthe seal of a pump\n", "MS MARCO", "jq -Rc"),
    "plain text": ("the seal of a pump\n", "not JSON", "one JSON object a line"),
    "_bulk that updates": (lines({"update": {"_id": "1"}}, {"doc": {}}), "action 'update'", "/_bulk"),
    "_bulk that deletes": (lines({"delete": {"_id": "1"}}), "action 'delete'", "/_bulk"),
    "_bulk without ids": (lines({"index": {}}, TWO[0]), "without '_id'", "an id"),
    "no id, another name": (lines({"docid": "1", "text": "x"}), "has no '_id'", '.["docid"]'),
    "no id at all": (lines({"text": "x"}), "has no '_id'", "fields there: text"),
    "a list in lines": (lines(TWO[0], [1]), ":2: needed a JSON object", ""),
    "an array that breaks off": ('[{"_id": "1"}', "not JSON", ""),
    "an array with more after it": ('[{"_id": "1"}] x', "follows the end", ""),
}


@pytest.mark.parametrize("form", REFUSED)
def test_forms_that_are_not_read_are_named_with_what_to_type(form: str, tmp_path: Path) -> None:
    content, words, hint = REFUSED[form]
    file = tmp_path / "my documents.jsonl"
    file.write_text(content)
    with pytest.raises(DataError, match=words) as caught:
        list(read_corpus(file))
    assert str(file) in caught.value.message
    assert hint in str(caught.value.hint)
    assert str(file) not in str(caught.value.hint).replace(f"'{file}'", ""), "commands quote the file's name"


@pytest.mark.parametrize("value", ODD_IDS, ids=json.dumps)
def test_a_query_id_of_another_type_is_refused(value: Any, tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text(lines({"_id": "q1", "text": "a"}, {"_id": value, "text": "b"}))
    with pytest.raises(DataError, match=r"queries.jsonl:2: '_id' is "):
        read_queries(tmp_path, {"q1": {"d": 1}})


def test_queries_by_another_name_say_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text(lines({"qid": "q1", "query": "a"}))
    with pytest.raises(DataError, match="the query has no '_id'") as caught:
        read_queries(tmp_path, {"q1": {"d": 1}})
    assert '.["qid"]' in str(caught.value.hint)


QRELS = {
    "BEIR": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
    "BEIR without a header": "q1\td1\t1\n",
    "TREC": "q1 0 d1 1\n",
    "TREC with Q0": "q1 Q0 d1 1\n",
    "TREC with tabs": "q1\t0\td1\t1\n",
    "TREC with a header": "query iteration document relevance\nq1 0 d1 1\n",
    "CRLF and a byte-order mark": "\ufeffq1 0 d1 1\r\n",
}
OF_BLANKS = "query-id\tcorpus-id\tscore\r\nq1\ta document\t1\r\nq1\tb\t-1\r\n"


@pytest.mark.parametrize("form", QRELS)
def test_forms_of_qrels(form: str, tmp_path: Path) -> None:
    file = tmp_path / "qrels.tsv"
    file.write_text(QRELS[form], newline="")
    assert read_qrels(file) == {"q1": {"d1": 1}}
    file.write_text(OF_BLANKS, newline="")
    assert read_qrels(file) == {"q1": {"a document": 1, "b": -1}}


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("q1 0 d1 1.0", "whole numbers"),
        ("q1\td1\t1.0", "whole numbers"),
        ("q1 0 d1 1_0", "whole numbers"),
        ("q1 Q0 d1 1 .5 tag", "a run"),
        ("q1,d1,1", "tr ','"),
        ('{"query-id": "q1", "corpus-id": "d1", "score": 1}', "TREC"),
    ],
)
def test_judgements_that_are_none_are_refused(line: str, hint: str, tmp_path: Path) -> None:
    file = tmp_path / "qrels.tsv"
    file.write_text(f"q0 0 d0 1\n{line}\n")
    with pytest.raises(DataError, match=r"qrels.tsv:2: needed ") as caught:
        read_qrels(file)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"PK\x03\x04\xff", "unzip"),
        (b"\x1f\x8b\x08\xff", ".gz"),
        (b"\xff\xfe{\x00", "iconv"),
        (b"BZh9\xff", "bunzip2"),
    ],
)
def test_a_file_that_is_no_text_says_what_makes_text_of_it(start: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "documents.jsonl"
    file.write_bytes(start)
    with pytest.raises(DataError, match="is not UTF-8") as caught:
        list(read_corpus(file))
    assert words in str(caught.value.hint)


def test_a_query_log_of_json_says_what_to_type_and_a_byte_order_mark_is_no_query(tmp_path: Path) -> None:
    file = tmp_path / "queries.txt"
    file.write_text("\ufeffseal\npump\n")
    assert read_query_log(file) == ["seal", "pump"]
    file.write_text(lines({"query": "seal"}))
    with pytest.raises(DataError, match="holds JSON; one query per line") as caught:
        read_query_log(file)
    assert "jq -r .query" in str(caught.value.hint)


def test_a_click_log_that_is_an_array_says_what_to_type(tmp_path: Path) -> None:
    file = tmp_path / "log.json"
    file.write_text(json.dumps([{"query_id": "1", "user_query": "seal"}]))
    with pytest.raises(DataError, match="is a JSON array") as caught:
        list(read_log_file(file))
    assert "jq -c '.[]'" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["query-id", "corpus-id"])
@pytest.mark.parametrize("value", ODD_IDS, ids=json.dumps)
def test_a_teachers_scores_by_ids_of_another_type_are_refused(value: Any, name: str, tmp_path: Path) -> None:
    file = tmp_path / "scores.jsonl"
    score = {"query-id": "q", "corpus-id": "d", "score": 1}
    file.write_text(lines(score, {**score, name: value}))
    with pytest.raises(DataError, match=rf"scores.jsonl:2: '{name}' is "):
        list(read_scores(file))


@pytest.mark.parametrize("value", [value for value in ODD_IDS if value != " "], ids=json.dumps)
def test_a_rule_pins_no_id_of_another_type(value: Any, tmp_path: Path) -> None:
    file = tmp_path / "rules.jsonl"
    rules = ({"name": name, "text": name, "pin": [doc_id]} for name, doc_id in (("a", "1"), ("b", value)))
    file.write_text(lines(*rules))
    with pytest.raises(DataError, match=r"rules.jsonl:2: pin"):
        read_rules(file)


@pytest.mark.parametrize(("line", "hint"), [("q1\td1\t1", "awk"), ("q1 0 d1 1", "judgements")])
def test_a_run_of_another_form_says_what_to_type(line: str, hint: str, tmp_path: Path) -> None:
    file = tmp_path / "run.txt"
    file.write_text(line + "\n")
    with pytest.raises(DataError, match=r"run.txt:1: needed 'query Q0 document rank score tag'") as caught:
        read_run(file)
    assert hint in str(caught.value.hint)
