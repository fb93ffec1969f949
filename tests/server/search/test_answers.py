"""An index says how sure its hits are, and that nothing fits; calibrated by nothing but its own documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hybridr import ReindexSettings, SearchSettings, connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve
from hybridr.errors import SettingsError
from hybridr.indexing.recipe import TextRecipe
from hybridr.records import Hit, Progress, silent
from hybridr.relevance import answering
from hybridr.relevance.answering import calibrate, measure_missing_cosines
from hybridr.search import scripts
from hybridr.search.answers import MARGIN_BELOW
from hybridr.search.calibration import OVER_PACKAGED, scale_factor
from hybridr.search.context import query_whitening, without_tokens
from hybridr.search.rerankers import QueryHits, Reranker
from hybridr.search.rules.matching import MatchedRules
from hybridr.search.search import Search
from hybridr.serving.rewriting.rewriting import BodyRanking, normalised_body
from support.corpus import delete, drop_indices, fill_index, reindexed, text_number, update
from support.hashing import HashingEncoder

AS_THEY_ARE = SearchSettings(whitened=False)
UNANSWERABLE = "why did the judge postpone tuesday's hearing"


class Unmoved(Reranker):
    """Leaves hits as they are."""

    name = "unmoved"
    reach = 100

    def __init__(self) -> None:
        pass

    def rescored(self, lists: Sequence[QueryHits]) -> list[list[Hit]]:
        return [list(one.hits) for one in lists]


@pytest.fixture(scope="module")
def calibrated(cluster: Cluster) -> Iterator[tuple[str, HashingEncoder]]:
    name, encoder = "t-answers", HashingEncoder(dim=32)
    reindexed(cluster, name, 40, encoder)
    assert calibrate(cluster, name, encoder).answers
    plain = [hit[:3] for hit in Search(cluster, name, encoder)(text_number(7))]
    found = calibrate(cluster, name, encoder)
    assert found.answers, found.note
    assert found.answers.documents == 40
    assert [hit[:3] for hit in Search(cluster, name, encoder)(text_number(7))] == plain
    yield name, encoder
    drop_indices(cluster, f"{name}*")


def test_what_fits_stays_and_nothing_is_found_for_what_does_not(cluster, calibrated, cli, monkeypatch):
    search = Search(cluster, *calibrated)
    own, foreign = search(text_number(7)), search(UNANSWERABLE)
    assert own[0].doc_id == "d7"
    assert own[0].confidence == 1.0
    told = [hit.confidence for hit in own]
    assert told == sorted(told, reverse=True)
    sure = search.requiring(0.95)
    least = search.answers.threshold(0.95) - MARGIN_BELOW
    assert 0 < len(sure(text_number(7), 40)) < 40
    assert sure(text_number(7), 40) == [hit for hit in search(text_number(7), 40) if hit.score >= least]
    assert sure(UNANSWERABLE) == []
    assert sure(UNANSWERABLE).nearest == foreign[0]
    assert sure(UNANSWERABLE, offset=1).nearest is None
    assert search.requiring(0)(UNANSWERABLE) == foreign
    set_so = Search(cluster, *calibrated, settings=SearchSettings(at_least=0.95))
    assert set_so(UNANSWERABLE) == []

    # The command line says that nothing fits.
    opened, name = Search(cluster, *calibrated), calibrated[0]
    monkeypatch.setattr("hybridr.search.search.open_search", lambda *_, **__: opened)
    asked = ["search", name, UNANSWERABLE, "--url", cluster.url]
    assert "nothing fits; the nearest is d" in cli.typed([*asked, "--at-least", "0.95"]).out
    assert "confidence" in cli.typed(asked).out


@pytest.mark.parametrize("text", ["🎉", "!!!", "« … »", "🍕 🍕?"])
def test_no_document_answers_signs_that_it_does_not_have(cluster, calibrated, text):
    """Their vector is near to those of documents that say as little."""
    name, encoder = calibrated
    [vector] = encoder.encode_documents([text_number(7)])
    same = without_tokens(vector)
    search = Search(cluster, name, encoder)
    hits = search(text, reading=same)
    assert hits[0].doc_id == "d7"
    assert {hit.confidence for hit in hits} == {0}
    assert search.requiring(0.01)(text, reading=same) == []
    ranking = BodyRanking(search.requiring(0.01), "all")
    body = {"query": {"match": {"text": text}}, "size": 10}
    parsed = ranking.read(normalised_body(body, {}))
    ranked = ranking.rank(parsed._replace(reading=same))
    assert cluster.search(search.info, ranked.body)["hits"]["hits"] == []


@pytest.mark.parametrize("way", ["one request", "pieces", "joined here", "re-ranked", "pinned"])
def test_pages_join_and_all_are_judged_by_the_best_hit(cluster, calibrated, monkeypatch, way):
    known = Search(cluster, *calibrated).answers
    if way == "joined here":
        monkeypatch.setattr(scripts, "scripts_refused", lambda cluster, index: "none here")
    settings = SearchSettings(depth=10 if way == "pieces" else 100)
    search = Search(cluster, *calibrated, settings=settings)
    if way == "re-ranked":
        search.reordering = replace(search.reordering, members=(Unmoved(),))
    if pins := {"d9": "r", "gone": "r"} if way == "pinned" else {}:
        monkeypatch.setattr(search, "ruling", lambda text: MatchedRules(text, pins=pins))
    search.answers = known
    sure = search.requiring(0.95)
    for text in (text_number(7), UNANSWERABLE):
        best = max(hit.score for hit in search(text, 40))
        pages = [sure(text, 10, offset=offset) for offset in range(0, 40, 10)]
        assert [hit.doc_id for page in pages for hit in page] == [hit.doc_id for hit in sure(text, 40)]
        assert [page.best for page in pages] == pytest.approx([best] * 4)
    assert 0 < len(sure(text_number(7), 40)) < 40
    assert [hit.doc_id for hit in sure(UNANSWERABLE, 40)] == list(pins)[:1]


def test_no_confidence_is_told_of_scores_that_are_made_otherwise(cluster, calibrated):
    for settings in ({"dense_weight": 0.7}, {"signals": ("none",)}, {"boost": "linear(price, 100):0.1"}):
        search = Search(cluster, *calibrated, settings=SearchSettings(**settings))
        assert search(text_number(7))[0].confidence is None
        with pytest.raises(SettingsError, match="calibrated for another ranking") as refused:
            search.requiring(0.95)
        assert (refused.value.hint or "").startswith(f"hybridr tune {calibrated[0]} ")
    assert Search(cluster, *calibrated)(text_number(7), boost="linear(price, 100):0.1")[0].confidence is None
    words = Search(cluster, *calibrated, mode="lexical", settings=SearchSettings(at_least=0.95))
    assert words(text_number(7))[0].confidence is None
    with pytest.raises(SettingsError, match="mode lexical") as refused:
        words.requiring(0.5)
    assert refused.value.hint == "search with the default mode and fusion"
    with pytest.raises(SettingsError, match="is not a confidence"):
        Search(cluster, *calibrated).requiring(1.5)

    # What cannot be calibrated says why.
    name, encoder = calibrated
    pipeline = calibrate(cluster, name, encoder, search=SearchSettings(fusion="pipeline"))
    assert pipeline.answers is None
    assert "no true scores" in pipeline.note
    other = calibrate(cluster, name, HashingEncoder(dim=32, salt="another"))
    assert other.answers is None
    assert other.described.startswith("none, ")
    assert calibrate(cluster, "t-there-is-none", encoder).answers is None


def test_a_confidence_costs_no_request(cluster, calibrated, sent):
    search = Search(cluster, *calibrated)
    sure = search.requiring(0.95)
    search(text_number(7))  # its words are remembered from then on
    sent.clear()
    search(text_number(7))
    plain, sent[:] = list(sent), []
    sure(text_number(7))
    sure(text_number(7), offset=10)
    assert sent == plain * 2


def test_a_reindex_measures_how_cosines_lie_and_a_later_one_keeps_to_it(cluster, index_name):
    """The index's own texts tell it, in the record; searches and explanations use it, and tune leaves it."""
    fill_index(cluster, index_name, 60)
    encoder = HashingEncoder(dim=32)
    index = connect(cluster.url).index(index_name)
    index.reindex(encoder=encoder)
    info = resolve(cluster, index_name)
    measured = info.record.cosines
    recipe = TextRecipe.of(info.record, encoder)
    texts = [recipe.text_of({"text": text_number(number)}) for number in range(60)]
    assert measured.spread == pytest.approx(recipe.cosines(texts).spread, rel=0.05)
    with pytest.MonkeyPatch.context() as patch:  # vectors that are stored are not made again
        patch.setattr(HashingEncoder, "encode_documents", None)
        unmeasured = info.with_record(info.record.changed(cosines=None))
        assert measure_missing_cosines(cluster, unmeasured, encoder, silent) == measured
    assert measured.whitened
    whitened, plain = (
        Search(cluster, index_name, encoder),
        Search(cluster, index_name, encoder, settings=AS_THEY_ARE),
    )
    usual = OVER_PACKAGED * measured.packaged
    assert whitened.context.scales.dense == scale_factor(measured.whitened.spread, usual)
    assert plain.context.scales.dense == scale_factor(measured.spread, usual)
    assert query_whitening(Search(cluster, index_name, encoder, mode="dense").context) is None
    document = encoder.encode_documents([text_number(7)])
    for search, queries in (
        (whitened, query_whitening(whitened.context).apply(encoder.encode_queries([text_number(9)]))),
        (plain, encoder.encode_queries([text_number(9)])),
    ):
        [lists] = search.candidates([text_number(9)])
        cosine = float((queries @ document.T)[0, 0])
        assert lists.scores["dense"]["d7"] == pytest.approx((1 + cosine) / 2, abs=1e-4)
    index.reindex(encoder=encoder, settings=ReindexSettings(vectors="byte"))
    again = resolve(cluster, index_name)
    assert again.name != info.name
    assert again.record.cosines
    calibrate(cluster, index_name, encoder)
    assert resolve(cluster, index_name).record.cosines == again.record.cosines


def test_a_reindex_that_changes_nothing_keeps_what_scores_mean(cluster, index_name, monkeypatch):
    """It is measured again for a changed document, another number of them, and another ranking."""
    encoder, calls = HashingEncoder(dim=32), list[str]()
    fill_index(cluster, index_name, 60)
    index = connect(cluster.url).index(index_name)
    calibrated = answering.calibrate_search

    def counted(search: Search, progress: Progress = silent) -> Any:
        calls.append(search.info.name)
        return calibrated(search, progress)

    monkeypatch.setattr(answering, "calibrate_search", counted)
    first = index.reindex(encoder=encoder)
    assert index.reindex(encoder=encoder).confidence == first.confidence
    assert len(calls) == 1
    update(cluster, index_name, "d7", text="another garden")
    index.reindex(encoder=encoder)
    delete(cluster, index_name, "d8")
    index.reindex(encoder=encoder)
    assert len(calls) == 3
    index.reindex(encoder=encoder, search=SearchSettings(dense_weight=0.2))
    assert len(calls) == 4, "another ranking"
    calibrate(cluster, index_name, encoder)
    assert len(calls) == 5, "tune measures whenever it is asked"
