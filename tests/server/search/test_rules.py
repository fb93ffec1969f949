"""Rules on a real node: what they do to a search, its pages, a server and clients' own searches."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from hybridr import Rule, Search, SearchSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.cluster.rule_versions import rules_index
from hybridr.errors import ClusterError, DataError, NotFound, SettingsError
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.search.client_query import Shapes
from hybridr.search.rules import rules as rule_store
from hybridr.search.rules.matching import RuleBook
from hybridr.search.rules.rules import VERSIONS_KEPT, add_rules, fetch_rules, remove_rules
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from hybridr.status.standing import remove, status
from hybridr_cli import main
from support.corpus import add_alias, fill_index, filled_and_reindexed, text_number
from support.hashing import HashingEncoder

INDEX, WHOLE = "t-rules", 60
TEXT = text_number(7)
QUICK = ReindexSettings(term_table=False)


@pytest.fixture(scope="module")
def index(cluster: Cluster) -> Iterator[str]:
    with filled_and_reindexed(cluster, INDEX, WHOLE, HashingEncoder(), QUICK) as name:
        yield name


@pytest.fixture(autouse=True)
def without_rules(cluster: Cluster, index: str) -> None:
    if names := [one.name for one in fetch_rules(cluster, index).rules]:
        remove_rules(cluster, index, names)


def opened(cluster: Cluster, name: str = INDEX, mode: str = "hybrid", **settings: Any) -> Search:
    return Search(cluster, name, HashingEncoder(), mode, settings=SearchSettings(**settings))


def served(cluster: Cluster, **settings: Any) -> TestClient:
    given = {"rank_timeout_s": 5, **settings}
    return TestClient(create_app(HashingEncoder(), ServeSettings(index=INDEX, **given), cluster=cluster))


def ranked(client: TestClient, cluster: Cluster, body: dict[str, Any], recall: str = "all") -> dict[str, Any]:
    """Search by what the server makes of a client's own body."""
    made = json.loads(client.post(f"/v1/rank?recall={recall}", json=body).json()["body"])
    return cluster.search(resolve(cluster, INDEX).name, made)["hits"]


def ids(search: Search, text: str = TEXT, k: int = 10, **asked: Any) -> list[str]:
    return [hit.doc_id for hit in search(text, k, **asked)]


@pytest.mark.parametrize(
    ("mode", "settings"),
    [("hybrid", {}), ("hybrid", {"fusion": "pipeline"}), ("dense", {})],
)
def test_pins_stand_on_top_bans_are_gone_and_pages_join(cluster, mode, settings):
    before = opened(cluster, mode=mode, **settings)
    plain = ids(before, k=12)
    pins, ban = ("d50", plain[5], "gone", "d51"), plain[1]
    done = add_rules(cluster, INDEX, [Rule(name="r", text=TEXT.upper(), pin=pins, ban=(ban,))])
    assert done.missing == ("gone",)
    assert ids(before, k=12) == plain, "an open search keeps to what it was opened with"
    search = opened(cluster, mode=mode, **settings)
    hits = search(TEXT, 12)
    found = [hit.doc_id for hit in hits]
    assert found[:3] == ["d50", plain[5], "d51"]
    assert ban not in found
    assert len(set(found)) == 12
    assert [hit.rank for hit in hits] == list(range(1, 13))
    assert [hit.rule for hit in hits[:4]] == ["r", "r", "r", None]
    assert all(hit.text for hit in hits)
    pages = [one for start in (0, 2, 4, 6, 8, 10) for one in ids(search, k=2, offset=start)]
    if "fusion" not in settings:  # min-max scores hang on how many are asked for
        assert pages == found
        rest = [one for one in plain if one not in {*pins, ban}]
        assert found[3:] == rest[:9] or settings
    assert ids(search, "another text altogether") == ids(before, "another text altogether")


def test_a_pin_passes_the_filter_and_the_alias_or_is_not_shown(cluster):
    add_rules(cluster, INDEX, [Rule(name="r", text=TEXT, pin=("d30", "d31", "d32"))])
    cheap = {"range": {"price": {"lte": 3.1}}}
    assert ids(opened(cluster), filter=cheap)[:3][:2] == ["d30", "d31"]
    assert "d32" not in ids(opened(cluster), k=WHOLE, filter=cheap)
    made = resolve(cluster, INDEX).name
    add_alias(cluster, made, "t-rules-part", filter={"term": {"tags": "t1"}})
    found = opened(cluster, "t-rules-part")(TEXT, WHOLE)
    assert [hit.doc_id for hit in found if hit.rule] == ["d31"]
    assert {int(hit.doc_id[1:]) % 3 for hit in found} == {1}
    with pytest.raises(ClusterError, match="alias with a filter"):
        add_rules(cluster, "t-rules-part", [Rule(name="x", text="x", ban=("d1",))])
    cluster.request("DELETE", path_of(made, "_alias", "t-rules-part"))

    # A fusion that asks twice says that one request cannot pin.
    add_rules(cluster, INDEX, [Rule(name="r", text=TEXT, pin=("d1",))])
    with pytest.raises(SettingsError, match="a rule pins documents"):
        opened(cluster, fusion="pipeline").body(TEXT)
    body = opened(cluster).request(TEXT, 5)
    assert cluster.search(resolve(cluster, INDEX), body)["hits"]["hits"][0]["_id"] == "d1"


def test_filters_and_other_texts(cluster):
    few = {"range": {"price": {"lt": 1}}}
    rules = [Rule(name="f", words="saddle", filter=few), Rule(name="t", prefix="n7 ", replace=TEXT)]
    add_rules(cluster, INDEX, rules)
    search = opened(cluster)
    assert {int(one[1:]) for one in ids(search, "a saddle of", k=WHOLE)} == set(range(10))
    assert ids(search, "n7 and so on") == ids(search)
    assert search.body("n7 and so on")["query"] == search.body(TEXT)["query"]


def test_every_change_is_a_version_with_who_and_when(cluster, tmp_path):
    first = add_rules(cluster, INDEX, [Rule(name="a", text="x", pin=("d1",))], by="eve").now
    add_rules(cluster, INDEX, [Rule(name="b", text="y", pin=("d2",))], by="ann")
    now = remove_rules(cluster, INDEX, ["a"]).now
    assert [one.name for one in now.rules] == ["b"]
    assert now.version == first.version + 2
    assert [(one.name, one.by) for one in fetch_rules(cluster, INDEX).rules] == [("b", "ann")]
    old = fetch_rules(cluster, INDEX, first.version)
    assert [(one.name, one.by) for one in old.rules] == [("a", "eve")]
    assert old.at
    with pytest.raises(NotFound, match="no rule is called 'a'"):
        remove_rules(cluster, INDEX, ["a"])
    with pytest.raises(NotFound, match="is no longer stored"):
        fetch_rules(cluster, INDEX, now.version - VERSIONS_KEPT)
    remove_rules(cluster, INDEX, ["b"])
    assert resolve(cluster, INDEX).record.rules is None


def test_rules_that_are_not_as_they_were_written_keep_a_search_from_opening(cluster):
    add_rules(cluster, INDEX, [Rule(name="r", text=TEXT, ban=("d1",))])
    info = resolve(cluster, INDEX)
    rule_store._books.clear()
    path = path_of(rules_index(info), "_doc", str(info.record.rules.version))
    foreign = {"version": info.record.rules.version, "job": info.record.rules.job, "rules": [{"name": "r"}]}
    kept = cluster.request("GET", path)["_source"]
    for odd, said in ((foreign, "one of text"), ({**kept, "job": "x"}, "as they were written")):
        cluster.request("PUT", path, odd, {"refresh": "true"})
        with pytest.raises(DataError, match=said):
            opened(cluster)
    cluster.request("PUT", path, kept, {"refresh": "true"})
    assert opened(cluster).rules.rules


def test_a_server_follows_and_names_the_rules(cluster):
    client = served(cluster)
    assert "rules" not in client.post("/search", json={"query": TEXT}).json()
    rules = [Rule(name="r", text=TEXT, pin=("d50",)), Rule(name="t", text="other", replace=TEXT)]
    add_rules(cluster, INDEX, rules)
    client.app.state.searches.look()  # type: ignore[attr-defined]
    found = client.post("/search", json={"query": TEXT}).json()
    assert (found["rules"], found["hits"][0]["doc_id"], found["hits"][0]["rule"]) == (["r"], "d50", "r")
    assert "rule" not in found["hits"][1]
    other = client.post("/search", json={"query": "other"}).json()
    assert other["hits"][0]["doc_id"] == "d7"


@pytest.mark.parametrize("recall", ["all", "lexical"])
def test_clients_own_searches_keep_to_rules(cluster, recall):
    client, made = served(cluster), resolve(cluster, INDEX).name
    match = {"match": {"text": {"query": TEXT, "operator": "OR"}}}
    few = [{"range": {"price": {"lt": 5.05}}}]
    body: dict[str, Any] = {"size": 10, "query": {"bool": {"must": [match], "filter": few}}}
    body["track_total_hits"] = True

    def asked(**more: Any) -> tuple[list[str], int]:
        found = ranked(client, cluster, {**body, **more}, recall)
        return [hit["_id"] for hit in found["hits"]], found["total"]["value"]

    plain, total = asked()
    add_rules(cluster, INDEX, [Rule(name="r", text=TEXT, pin=("d50", "d51", plain[4]), ban=(plain[1],))])
    client.app.state.searches.look()  # type: ignore[attr-defined]
    found, now = asked()
    assert found[:2] == ["d50", plain[4]], "d51 is too dear"
    assert plain[1] not in found
    assert (
        found[2:] == [one for one in plain if one not in (plain[1], plain[4])][: len(found) - 2] + found[10:]
    )
    pages = [one for start in range(0, 10, 2) for one in asked(**{"from": start, "size": 2})[0]]
    assert pages == found
    if recall == "lexical":
        matched = cluster.count(made, {"bool": {"must": [match], "filter": few}})
        assert total == matched
        assert now == matched - 1 + (
            cluster.count(made, {"bool": {"must": [match, {"ids": {"values": ["d50"]}}]}}) == 0
        )
    remove_rules(cluster, INDEX, ["r"])
    add_rules(cluster, INDEX, [Rule(name="t", text=TEXT, replace=text_number(9), filter=few[0])])
    client.app.state.searches.look()  # type: ignore[attr-defined]
    assert asked()[0][0] == "d9"


def test_rules_stay_with_a_source_through_another_reindex_and_end_with_it(cluster, index_name):
    fill_index(cluster, index_name, 20)
    with pytest.raises(DataError, match="no complete vectors"):
        add_rules(cluster, index_name, [Rule(name="r", text="x", ban=("d1",))])
    reindex(cluster, index_name, HashingEncoder(), QUICK)
    add_rules(cluster, index_name, [Rule(name="r", text=TEXT, pin=("d3",))])
    reindex(cluster, index_name, HashingEncoder(dim=16), QUICK)
    search = Search(cluster, index_name, HashingEncoder(dim=16))
    assert ids(search)[0] == "d3"
    add_rules(cluster, index_name, [Rule(name="s", text="y", ban=("d3",))])
    held = status(cluster, index_name).holdings
    assert {one.sidecar_states["rules"].rules for one in held} == {2}
    assert any("rules: 2" in line for line in held[0].sidecar_lines())
    done = remove(cluster, index_name, discard=True)
    assert done["rules"] == [f"{index_name}-hybridr-rules"]
    assert not cluster.exists(f"{index_name}-hybridr-rules")


def test_the_command(cluster, tmp_path, cli):
    def run(*words: str) -> str:
        return cli.typed(["rules", INDEX, *words, "--url", cluster.url]).out

    assert "no rules" in run()
    assert "1 rule in force" in run(
        "add", "sale", "--text", TEXT, "--pin", "d5", "--pin", "d6", "--by", "eve"
    )
    assert "pin d5, d6" in run("list")
    file = tmp_path / "rules.jsonl"
    run("export", str(file))
    assert json.loads(file.read_text())["name"] == "sale"
    assert "dry run, 0 rules would be in force" in run("remove", "sale", "--dry-run")
    assert "dry run, 2 rules would be in force" in run("add", "x", "--text", "y", "--ban", "d5", "--dry-run")
    assert "pin d5, d6" in run("list")
    run("remove", "sale")
    assert "dry run, 1 rule would be in force" in run("import", str(file), "--dry-run")
    assert "no rules" in run()
    run("import", str(file))
    assert json.loads(run("export"))["pin"] == ["d5", "d6"]
    cli(cluster, f"rules {INDEX} add", code=2)
    file.write_text('{"name": "x"}\n')
    assert f"{file}:1" in cli(cluster, f"rules {INDEX} import {file}", code=1).err


def test_ten_thousand_rules_are_kept_and_a_search_opens_with_them(cluster):
    """What they cost a search: tests/search/test_matching.py."""
    kinds = ("text", "words", "prefix")
    many = [Rule(name=f"r{n}", **{kinds[n % 3]: f"word{n} of n{n}"}, pin=("d1",)) for n in range(9_990)]
    many += [Rule(name=f"p{n}", pattern=rf"(a+)+{n}x$", pin=("d1",)) for n in range(10)]
    add_rules(cluster, INDEX, many)
    assert len(opened(cluster).rules.rules) == 10_000


def stored(cluster: Cluster, *rules: dict[str, Any]) -> None:
    """Write rules as somebody does who may write into their index, past all checks."""
    info = resolve(cluster, INDEX)
    path = path_of(rules_index(info), "_doc", str(info.record.rules.version))
    document = cluster.request("GET", path)["_source"]
    cluster.request("PUT", path, {**document, "rules": list(rules)}, {"refresh": "true"})
    rule_store._books.clear()


@pytest.mark.attack(127)
def test_a_stored_pattern_that_explodes_is_left_out_and_said(cluster, capsys):
    add_rules(cluster, INDEX, [Rule(name="sale", text=TEXT, pin=("d5",))])
    exploding = {"name": "slow", "pin": ["d6"], "pattern": "(?:(?:(?:a?){90}){90}){8}zq"}
    stored(cluster, {"name": "sale", "text": TEXT, "pin": ["d5"]}, *[exploding] * 12)
    search = opened(cluster)
    assert ids(search)[0] == "d5"
    assert search.remarks[-1].startswith("rule slow is left out: its pattern is too complex")
    assert list(fetch_rules(cluster, INDEX).left_out) == ["slow"]
    main(["rules", INDEX, "--url", cluster.url])
    assert "warning: rule slow is left out" in capsys.readouterr().err
    add_rules(cluster, INDEX, [Rule(name="more", text=TEXT, ban=("d7",))])
    assert [rule.name for rule in fetch_rules(cluster, INDEX).rules] == ["sale", "more"]


def test_an_edit_leaves_stored_what_exceeds_the_limits(cluster, capsys, tmp_path):
    """The next edit deleted such rules."""
    add_rules(cluster, INDEX, [Rule(name="sale", text=TEXT, pin=("d5",))])
    patterns = [{"name": f"p{number}", "pin": ["d6"], "pattern": f"zq{number}"} for number in range(202)]
    stored(cluster, {"name": "sale", "text": TEXT, "pin": ["d5"]}, *patterns)
    add_rules(cluster, INDEX, [Rule(name="more", text=TEXT, ban=("d7",))])
    found = fetch_rules(cluster, INDEX)
    assert ([rule.name for rule in found.rules][-1], list(found.left_out)) == ("more", ["p200", "p201"])
    main(["rules", INDEX, "export", str(tmp_path / "rules.jsonl"), "--url", cluster.url])
    assert "not exported, since their patterns exceed the limits: p200, p201" in capsys.readouterr().err
    remove_rules(cluster, INDEX, ["p7", "p201"])
    found = fetch_rules(cluster, INDEX)
    assert (len(found.rules), found.rules[-1].name, found.left_out) == (202, "p200", {})
    remove_rules(cluster, INDEX, [rule.name for rule in found.rules])


ODD_FILTERS = [
    {"range": {"number": {"gte": "notanumber"}}},
    {"term": {"number": "x"}},
    {"terms": {"number": [1, "x"]}},
    {"match": {"text": {"query": "boat", "operator": "xor"}}},
    {"bool": {"must_not": [{"bool": {"should": [{"match": {"number": "many"}}]}}]}},
]


def give_field(cluster: Cluster, **properties: Any) -> None:
    for name in (INDEX, resolve(cluster, INDEX).name):
        cluster.request("PUT", path_of(name, "_mapping"), {"properties": properties})


@pytest.fixture(scope="module")
def numbered(cluster: Cluster, index: str) -> None:
    give_field(cluster, number={"type": "integer"})


@pytest.mark.attack(134)
def test_filters_that_the_index_refuses_are_no_rules_and_stored_ones_stop_no_search(cluster, numbered):
    good = [Rule(name=f"good{n}", text=f"t{n}", filter={"term": {"number": n}}) for n in range(5)]
    for filter in ODD_FILTERS:
        with pytest.raises(DataError, match="rule bad: its filter is refused"):
            add_rules(cluster, INDEX, [*good, Rule(name="bad", text=TEXT, filter=filter)])
    assert not fetch_rules(cluster, INDEX).rules
    add_rules(cluster, INDEX, [Rule(name="first", text=TEXT, pin=("d5",)), *good])
    rules = [{"name": f"r{n}", "prefix": "a", "filter": {"exists": {"field": "text"}}} for n in range(9)]
    bad = {f"bad{n}": filter for n, filter in enumerate(ODD_FILTERS)}
    rules += [{"name": name, "prefix": TEXT[:3], "filter": filter} for name, filter in bad.items()]
    stored(cluster, *rules, {"name": "pinning", "text": TEXT, "pin": ["d6"], "filter": ODD_FILTERS[0]})
    search = opened(cluster)
    assert ids(search)[0] == "d6", "its other actions stay"
    assert sorted(search.rules.left_out) == sorted(fetch_rules(cluster, INDEX).left_out) == [*bad, "pinning"]
    assert "its filter is refused" in search.remarks[-1]
    client = served(cluster)
    assert client.post("/search", json={"query": TEXT}).status_code == 200
    body = {"query": {"match": {"text": {"query": TEXT, "operator": "OR"}}}}
    assert ranked(client, cluster, body)["hits"][0]["_id"] == "d6"


@pytest.mark.attack(134)
def test_a_filter_that_a_new_mapping_refuses_stops_no_search(cluster):
    """It was good when it was added: the field was not there yet."""
    rule = Rule(name="later", text=TEXT, pin=("d5",), filter={"term": {"later": "x"}})
    add_rules(cluster, INDEX, [rule])
    assert not opened(cluster).rules.left_out
    give_field(cluster, later={"type": "date"})
    search = opened(cluster)
    assert list(search.rules.left_out) == ["later"]
    assert ids(search)[0] == "d5"


@pytest.mark.attack(126)
def test_rules_are_compared_beside_the_event_loop(cluster, monkeypatch):
    """Whoever asks something else meanwhile is answered."""
    add_rules(cluster, INDEX, [Rule(name="p", pattern="shoes?", pin=("d5",))])
    threads: dict[str, list[str]] = {}
    plain = RuleBook._matching

    def noted(self: RuleBook, text: str) -> Any:
        threads.setdefault(text, []).append(threading.current_thread().name)
        return plain(self, text)

    monkeypatch.setattr(RuleBook, "_matching", noted)
    match = {"match": {"text": {"query": "blue shoes", "operator": "OR"}}}
    with served(cluster) as client:
        assert client.post("/search", json={"query": "red shoes"}).json()["rules"] == ["p"]
        assert "rescore" in client.post("/v1/rank", json={"query": match}).json()["body"]
    for text in ("red shoes", "blue shoes"):
        assert len(threads[text]) == 1, "compared once, whoever asks again"
        assert threads[text][0].startswith("asyncio_")


@pytest.mark.attack(127)
def test_hundreds_of_rules_for_one_text_make_a_search_that_the_cluster_takes(cluster):
    ranges = [{"range": {"price": {"lt": m + 100}}} for m in range(49)]
    rules = [Rule(name=f"f{n}", prefix=TEXT[:3], filter={"bool": {"should": ranges}}) for n in range(20)]
    bans = [tuple(f"x{n}-{m}" for m in range(1_000)) for n in range(12)]
    rules += [Rule(name=f"b{n}", prefix=TEXT[:3], ban=ban) for n, ban in enumerate(bans)]
    add_rules(cluster, INDEX, [*rules, Rule(name="p", text=TEXT, pin=("d5",))])
    narrow = {"bool": {"filter": [{"range": {"price": {"gte": -m}}} for m in range(90)]}}
    searches = [opened(cluster, mode=mode) for mode in ("hybrid", "lexical", "dense")]
    for search in (*searches, opened(cluster, fusion="pipeline")):
        assert ids(search, filter=narrow)[0] == "d5"
        assert len(search.ruling(TEXT).left_out) >= 2
    body = {"query": {"match": {"text": {"query": TEXT, "operator": "OR"}}}, "size": 3}
    assert ranked(served(cluster), cluster, body)["hits"][0]["_id"] == "d5"


@pytest.mark.parametrize("recall", ["lexical", "all"])
def test_rules_hold_before_the_scale_of_a_query_is_known(cluster, index, recall, monkeypatch):
    monkeypatch.setattr(Shapes, "scale", lambda *_: None)
    add_rules(cluster, index, [Rule(name="sale", text=TEXT, pin=("d50", "d51"), ban=("d7",))])
    boosted = {"match": {"text": {"query": TEXT, "fuzziness": 1}}}
    queries = [
        boosted,
        {"function_score": {"query": boosted, "weight": 2}},
        {"dis_max": {"queries": [boosted]}},
    ]
    with served(cluster, rank_timeout_s=20) as client:
        for query in queries:
            found = ranked(client, cluster, {"query": query, "size": 10}, recall)
            hits = [hit["_id"] for hit in found["hits"]]
            assert hits[:2] == ["d50", "d51"]
            assert "d7" not in hits
        other = {"query": {"match": {"text": {"query": "anchor", "fuzziness": 1}}}}
        assert "rescore" not in client.post("/v1/rank", json=other).json()["body"], "calibrating as before"
