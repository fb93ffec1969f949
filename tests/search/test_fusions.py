"""The family of fusions: one new file is a setting, a choice, a system and a part of `tune`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr.cluster.retrievers.lexical import LexicalRetriever
from hybridr.cluster.token_field import bits_query
from hybridr.cluster.word_fields import SearchedField
from hybridr.errors import SettingsError
from hybridr.families import OneOf, load_member, member_names
from hybridr.records import Query
from hybridr.relevance.judgement import QueryCandidates, score_all, variants
from hybridr.search import fusions
from hybridr.search.fusions import (
    CLIENT_SHARE,
    FAMILY,
    CandidateLists,
    CompiledQuery,
    Scales,
    SplitQuery,
    Weighted,
    cut_to_budget,
)
from hybridr.search.fusions.absolute import Absolute, part_weights
from hybridr.search.settings import SearchSettings
from hybridr.search.systems import system
from support.members import FUSION, one_more

VERSION = (3, 6, 0)
LEGS = CandidateLists(
    {"lexical": {"a": 4.0, "b": 2.0}, "dense": {"b": 0.9, "c": 0.8}},
    {"lexical": {"a": 4.0, "b": 2.0, "c": 1.0}, "dense": {"a": 0.6, "b": 0.9, "c": 0.8}},
    Scales(9.0, 2.0),
)
QUERY = CompiledQuery(
    Absolute(SearchSettings(), VERSION),
    {"lexical": LexicalRetriever((SearchedField("text"),))},
    {"lexical": "two words"},
    100,
)
OWN_WORDS = {"match": {"title": {"query": "two words", "boost": 3}}}


@pytest.fixture
def maximum(tmp_path: Path) -> Iterator[None]:
    with one_more(fusions, "throwaway", FUSION, tmp_path):
        yield


def test_every_file_is_a_fusion() -> None:
    assert set(member_names(FAMILY)) >= {"absolute", "pipeline"}
    for name in member_names(FAMILY):
        made = load_member(FAMILY, name)(SearchSettings(fusion=name), VERSION)
        assert set(made.scores(LEGS)) == {"a", "b", "c"}


def test_a_new_file_is_a_setting_a_choice_and_a_system(maximum: None) -> None:
    assert SearchSettings(fusion="throwaway").fusion == "throwaway"
    [choice] = [one for one in SearchSettings.model_fields["fusion"].metadata if isinstance(one, OneOf)]
    assert choice.choices == ("auto", *member_names(FAMILY))
    with pytest.raises(SettingsError, match="'auto', .*'throwaway'.*, got 'nothing'"):
        SearchSettings(fusion="nothing")
    assert system("hybrid-throwaway").settings == {"tuned": False, "fusion": "throwaway"}


def test_a_new_file_takes_part_in_tune_where_it_says_how(maximum: None) -> None:
    found = variants(VERSION)
    [variant] = [one for one in found if one.technique == "throwaway"]
    assert [one.distance for one in found].count(0) == 1
    assert variant.distance
    asked = QueryCandidates(Query("q", "text"), LEGS, 9.0)
    assert score_all([variant], asked, 2.0).tolist() == [[4.0, 4.5, 4.0]]
    assert "throwaway" not in {one.technique for one in variants(VERSION, ["pipeline"])}


def test_without_the_file_nobody_knows_it() -> None:
    with pytest.raises(SettingsError, match="'auto', 'absolute' or 'pipeline', got 'throwaway'"):
        SearchSettings(fusion="throwaway")
    with pytest.raises(SettingsError, match="unknown system 'hybrid-throwaway'.*hybrid-pipeline"):
        system("hybrid-throwaway")


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_sides_add_up_to_the_scores(weight: float) -> None:
    for given in ({"fusion": "absolute"}, *({"normalization": one} for one in ("min_max", "l2", "rrf"))):
        settings = SearchSettings(**{"fusion": "pipeline"} | given, dense_weight=weight)
        made = load_member(FAMILY, settings.fusion)(settings, VERSION)
        lexical, dense = made.sides(LEGS).values()
        added = {doc: (1 - weight) * lexical[doc] + weight * dense[doc] for doc in LEGS.documents}
        assert added == pytest.approx(made.scores(LEGS))


def test_legs_tell_what_is_known_of_a_document() -> None:
    without = {**LEGS.scores, "dense": {"a": 0.6, "b": 0.9}}
    legs = LEGS._replace(scores=without, signals={"phrases": (0.1, {"a": 0.3})})
    assert legs.scoring_query("a") == {"lexical": 4.0, "dense": 0.6, "phrases": 0.3}
    assert legs.scoring_query("c") == {"lexical": 1.0}, "no vector, and no pair of words"


def test_signals_take_the_room_that_is_left() -> None:
    words = {name: Weighted(1.0, [{"term": {"text": name}}] * 4) for name in ("phrases", "soft_terms")}
    assert cut_to_budget(words, 8) == words
    assert [len(part.clauses) for part in cut_to_budget(words, 7).values()] == [4, 3]
    assert list(cut_to_budget(words, 4)) == ["phrases"]
    assert cut_to_budget(words, 0) == {}
    assert list(cut_to_budget({"phrases": Weighted(1.0, [])}, 0)) == ["phrases"], "one word has no pair"


def test_a_script_beside_more_clauses_than_the_budget_counts_as_one() -> None:
    bits = bits_query(np.zeros((2, 48), np.uint8), np.ones(2, np.float32), 384, 1.0)
    signals = {"token_bits": Weighted(0.4, [bits], True), "soft_terms": Weighted(0.2, [{"exists": {}}] * 9)}
    cut = cut_to_budget(signals, 4)
    assert {name: len(part.clauses) for name, part in cut.items()} == {"token_bits": 1, "soft_terms": 3}


def asked_too(leaves: int) -> tuple[dict[str, Any], int]:
    """Ask a client's own query of so many leaves beside two words: what scores words, and the clauses left to
    a signal."""
    soft = {"soft_terms": Weighted(1.0, [{"term": {"text": "word"}}] * 600)}
    found = replace(QUERY, leaf_clauses=2, signals=soft).with_client_query(
        SplitQuery(OWN_WORDS, OWN_WORDS, leaves)
    )
    assert found.client_query == OWN_WORDS
    return found.values["lexical"], sum(len(part.clauses) for part in found.signals.values())


def test_a_clients_own_query_scores_words_beside_the_plain_one() -> None:
    plain = {"match": {"text": {"query": "two words"}}}
    parts = [
        {"bool": {"must": [one], "boost": share}}
        for one, share in ((OWN_WORDS, CLIENT_SHARE), (plain, 1 - CLIENT_SHARE))
    ]
    assert asked_too(100) == ({"bool": {"should": parts}}, 600)
    assert asked_too(900) == ({"bool": {"should": parts}}, 98)


def test_where_a_cluster_has_no_room_for_both_the_clients_own_query_is_asked() -> None:
    assert asked_too(999) == (OWN_WORDS, 1)


def test_scores_by_which_hits_are_found_are_not_asked_for_again() -> None:
    soft = {"soft_terms": Weighted(1.0, [{"term": {"text": "word"}}] * 600)}
    question = replace(QUERY, leaf_clauses=500, signals=soft, scales=Scales(16.0))
    found = question.with_client_query(SplitQuery(OWN_WORDS, OWN_WORDS, 0, finding_scale=8.0))
    plain = {"match": {"text": {"query": "two words"}}}
    assert found.values == {"lexical": {"bool": {"must": [plain], "boost": 1 - CLIENT_SHARE}}}
    assert (found.finding_share, len(found.signals["soft_terms"].clauses)) == (CLIENT_SHARE / 8, 500)
    made = QUERY.fusion.rescoring(found)
    weight = CLIENT_SHARE / 8 * 0.5 * 0.8 / 16  # the words' half, of which a signal takes a fifth, by the idf
    assert made.body()["rescore"]["query"]["query_weight"] == pytest.approx(weight)
    [counted] = made.as_single_query()["query"]["bool"]["must"]
    assert counted["bool"]["boost"] == pytest.approx(weight)
    huge = question.with_client_query(SplitQuery(OWN_WORDS, OWN_WORDS, 0, finding_scale=1e15))
    assert "must" in QUERY.fusion.rescoring(huge).as_single_query()["query"]["bool"]
    long = replace(question, leaf_clauses=1_001).with_client_query(
        SplitQuery(OWN_WORDS, OWN_WORDS, 0, finding_scale=8.0)
    )
    assert (long.values, long.finding_share) == ({"lexical": {"match_none": {}}}, 1 / 8)


def test_a_leg_that_knows_its_spread_has_a_scale_of_its_own() -> None:
    shares, scales = (
        {"lexical": 0.5, "dense": 0.5, "sparse": 0.4},
        Scales(4.0, 2.0, by_retriever={"sparse": 0.25}),
    )
    weights = part_weights(shares, scales).retrievers
    assert weights == pytest.approx({"lexical": 0.5 / 8, "dense": 2.0, "sparse": 0.1})
    legs = CandidateLists({"sparse": {"a": 8.0}}, {"sparse": {"a": 8.0}}, scales)
    made = load_member(FAMILY, "absolute")(SearchSettings(retrievers={"sparse": 0.4}), VERSION)
    assert made.sides(legs) == {"sparse": {"a": pytest.approx(2.0)}}
