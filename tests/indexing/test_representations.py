"""What an encoder leaves in a document: chosen by settings and records, made of one reading of each text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr import ReindexSettings
from hybridr.cluster.record import BITS_FIELD, Record
from hybridr.cluster.retrievers.dense import vector_mapping
from hybridr.encoders.derived import mean_as_text
from hybridr.errors import ModelError, SettingsError
from hybridr.families import member_names
from hybridr.indexing import representations
from hybridr.indexing.planning import Proposal
from hybridr.indexing.recipe import TextRecipe
from hybridr.indexing.representations import (
    Representation,
    fields_of,
    fitted_states,
    representations_in,
    settings_in,
)
from hybridr.records import Windows
from hybridr.settings import resolve_stage
from support.bits import read_bits
from support.hashing import HashingEncoder, ProductEncoder
from support.members import one_more
from support.term_weights import FIELD, TERM_WEIGHTS

TEXTS = ["anchor basket candle", "", " ".join(f"w{number}" for number in range(600)), "wing"]
SPLIT = {"passages": True, "max_tokens": 34, "passage_overlap": 4}
MEAN = mean_as_text(np.full(24, 0.01, dtype=np.float32))


@pytest.fixture
def further(tmp_path: Path) -> Iterator[None]:
    """One more representation in a file of its own, which is all that there is to it."""
    with one_more(representations, "throwaway", TERM_WEIGHTS, tmp_path):
        yield


def names(named: ReindexSettings | Record) -> list[str]:
    return [kind.name for kind in representations_in(named)]


def recipe(states: Any = None, **settings: Any) -> TextRecipe:
    return TextRecipe(HashingEncoder(), ReindexSettings(**settings), ("text",), states or {})


def test_settings_and_records_tell_their_representations() -> None:
    assert set(member_names("indexing.representations")) >= {"one_vector", "passage_vectors", "token_signs"}
    assert names(ReindexSettings()) == names(Record()) == ["one_vector"]
    assert names(ReindexSettings(passages=True)) == names(Record(passages=Windows(34, 4, 8)))
    assert (
        names(ReindexSettings(token_bits=True))
        == names(Record(token_bits=MEAN))
        == ["one_vector", "token_signs"]
    )
    record = Record(vector_field="v", token_bits=MEAN)
    assert fields_of(record) == ("v", BITS_FIELD)
    assert fitted_states(record) == {"token_signs": MEAN, "one_vector": None}


def job_of(made: TextRecipe) -> dict[str, Any]:
    """Name what decides the vectors of an index that is filled so."""
    nobody: Any = None
    return Proposal(nobody, nobody, made.encoder, made.settings, 0, made.text_fields).job_settings


@pytest.mark.parametrize(
    "record",
    [Record(), Record(passages=Windows(34, 4, 8)), Record(token_bits=MEAN)],
    ids=["one", "many", "bits"],
)
def test_a_record_gives_the_settings_that_give_the_same_representations(record: Record) -> None:
    again = ReindexSettings(max_tokens=34).model_copy(update=settings_in(record))
    assert names(again) == names(record)
    assert TextRecipe(HashingEncoder(), again, ()).windows == record.passages


def test_vectors_alone_are_what_the_encoder_gives() -> None:
    made = recipe()
    exact = HashingEncoder().encode_documents([text for text in TEXTS if text])
    said = made.read(TEXTS)
    assert said[1] is None
    assert made.values(None) == {}
    [vectors], field = made.representations, vector_mapping(16, "cosine", made.settings, (3, 6, 0))
    assert vectors.mapping((3, 6, 0)) == {"hybridr_vector": field}
    [split] = recipe(**SPLIT).representations
    passages = split.mapping((3, 6, 0))["hybridr_vector"]
    assert (passages["type"], passages["properties"]["vector"]) == ("nested", field)
    found = [made.values(one)["hybridr_vector"] for one in said if one]
    np.testing.assert_array_equal(np.stack(found), exact)


def test_passages_are_those_of_the_windows() -> None:
    made = recipe(**SPLIT)
    [_, _, many, one] = made.read(TEXTS)
    parts = made.values(many)["hybridr_vector"]
    assert [(part["start"], part["end"]) for part in parts] == list(many.split.spans)
    exact = HashingEncoder().encode_documents([TEXTS[2][a:b] for a, b in many.split.spans])
    np.testing.assert_array_equal(np.stack([part["vector"] for part in parts]), exact)
    assert len(made.values(one)["hybridr_vector"]) == 1
    [first] = made.representations
    held = [{**part, "vector": part["vector"].tolist()} for part in parts]
    assert first.fits(many, held)
    assert not first.fits(many, held[1:])
    assert not first.fits(many, [{**held[0], "vector": held[1]["vector"]}, *held[1:]])


def test_bits_are_those_of_the_whole_text() -> None:
    made = recipe({"token_signs": MEAN}, token_bits=True)
    bits = next(one for one in made.representations if one.name == "token_signs")
    exact_vectors, exact = read_bits(HashingEncoder(), [TEXTS[2]], np.full(24, 0.01, dtype=np.float16))
    [said] = made.read(TEXTS[2:3])
    np.testing.assert_array_equal(said.vectors, exact_vectors)
    assert bits.fits(said, exact[0].tobytes())
    assert not bits.fits(said, exact[0].tobytes()[8:])


def test_members_say_what_stands_in_their_way() -> None:
    class Blind:
        similarity, dim = "cosine", 16

    bits: type[Representation] = next(kind for kind in representations.kinds() if kind.name == "token_signs")
    cluster: Any = None
    blind: Any = Blind()
    with pytest.raises(ModelError, match="does not show the states of its tokens, which --token-bits needs"):
        bits.check(cluster, blind, ReindexSettings(token_bits=True))
    with pytest.raises(ModelError, match="compares by cosine"):
        bits.check(cluster, ProductEncoder(), ReindexSettings(token_bits=True))
    with pytest.raises(SettingsError, match="--token-bits and --passages exclude each other"):
        bits.check(cluster, HashingEncoder(), ReindexSettings(token_bits=True, passages=True))


def test_a_representation_that_there_is_not() -> None:
    with pytest.raises(SettingsError, match="'throwaway'"):
        ReindexSettings(representations=("throwaway",))
    with pytest.raises(SettingsError, match="'token_signs'"):
        ReindexSettings(representations=("token_signs",))
    with pytest.raises(SettingsError, match="'throwaway'"):
        representations_in(Record(representations={"throwaway": ""}))


def test_a_sparse_encoder_is_asked_for_by_its_folder() -> None:
    folder = Path("splade")
    for given in ({}, {"representations": ("dense",)}, {"representations": ("dense", "sparse")}):
        settings = ReindexSettings(sparse_encoder=folder, **given)
        assert (settings.representations, names(settings)) == (("sparse",), ["one_vector", "sparse"])
    assert ReindexSettings(representations=("dense",)).representations == ()
    assert ReindexSettings(representations="dense,sparse".split(",")).representations == ("sparse",)
    chosen, _ = resolve_stage(ReindexSettings, {"representations": "dense, sparse"})
    assert chosen.representations == ("sparse",)


@pytest.mark.usefixtures("further")
def test_a_new_representation_is_a_new_file() -> None:
    settings, origin = resolve_stage(ReindexSettings, {"representations": ("throwaway",), "token_bits": True})
    assert (settings.representations, origin["representations"]) == (("throwaway",), "flag")
    record = Record(vector_field="v", representations={"throwaway": "[0.5]"})
    assert names(record) == ["one_vector", "throwaway"]
    assert fields_of(record) == ("v", FIELD)
    assert fields_of(record, visible=True) == ("v",)
    assert fitted_states(record)["throwaway"] == "[0.5]"
    assert settings_in(record)["representations"] == ("throwaway",)
    made = TextRecipe(HashingEncoder(), settings, ("text",))
    assert {"token_bits": True, "throwaway": True}.items() <= job_of(made).items()


@pytest.mark.usefixtures("further")
def test_all_representations_of_an_index_share_one_reading() -> None:
    made = recipe(token_bits=True, representations=("throwaway",))
    encoder: Any = made.encoder
    said = made.read(TEXTS)
    assert [one for one in encoder.encoded if one in TEXTS] == [text for text in TEXTS if text]
    assert sum(len(text.split()) for text in encoder.encoded) == 3 + (600 + 346 + 92) + 1
    values = made.values(said[2])
    assert set(values) == {"hybridr_vector", BITS_FIELD, FIELD}
    assert set(values[FIELD]) == set(TEXTS[2].split())
