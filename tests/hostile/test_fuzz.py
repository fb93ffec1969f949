"""Whatever is parsed, the answer is a value or one of hybridr's errors: more than 20,000 generated cases.

`HYBRIDR_FUZZ_FACTOR=50` (`make fuzz`) makes it a million, drawn anew.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from hybridr.cluster.record import NEEDED, Record, parse_record
from hybridr.encoders.model_usage import read_usage
from hybridr.encoders.opening import EncoderEntry, checked_entry
from hybridr.errors import DataError, ModelError, SettingsError
from hybridr.files.formats import read_corpus, read_jsonl, read_qrels, read_query_log, read_run, read_table
from hybridr.files.local import MANIFEST_PARTS, read_manifest
from hybridr.search.clauses import REASONS, ParsedQuery, QueryReader
from hybridr.search.client_query import dense_filter
from hybridr.serving.requests import EmbeddingRequest, SearchRequest
from hybridr.serving.rewriting.rewriting import is_by_query, normalised_body, page_of
from hybridr.settings import TABLES, Stage, read_config
from hybridr.training.adapters import read_design
from hybridr.training.backbone import read_rem, read_tensors
from hybridr.training.judged import read_scores
from hybridr.training.torch_models import read_configuration
from support.fuzzing import FACTOR, Target, each, run, said, texts, values
from support.tiny import tiny_retriever

LEAST = 20_000
SHARED = Path("/dev/shm")
ROOM = Path(tempfile.mkdtemp(prefix="hybridr-fuzz-", dir=SHARED if SHARED.is_dir() else None))
FILE = ROOM / "file"
PACKAGES = ("cluster", "training", "indexing", "search", "serving", "relevance")
RECORD = dict.fromkeys(NEEDED, "x") | {"role": "vectors", "state": "complete", "similarity": "ip"}
RECORD |= {"fields": ["text"], "encoder": "0" * 64}
ENTRY = {"dim": 384, "similarity": "cosine", "max_tokens": 256, "max_positions": 512, "precision": "fp32"}
ENTRY |= {"fingerprint": "0" * 64, "prefixes": {"query": "", "document": ""}}
LORA = {"architecture": "lora", "r": 8, "alpha": 8, "attn_matrices": ["q"], "selfattn_lora": True}
PARALLEL = {"is_parallel": True, "output_adapter": True, "original_ln_after": True}
PARALLEL |= {"non_linearity": "relu", "reduction_factor": 4, "scaling": 4.0}
CONFIG = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100}
MODULES = [
    {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
QUERIES: tuple[dict[str, Any], ...] = (
    {"match": {"text": "wing"}},
    {"match": {"text": {"query": "wing", "operator": "or", "minimum_should_match": 1}}},
    {"multi_match": {"query": "wing", "fields": ["text^2"], "type": "best_fields", "operator": "or"}},
    {
        "bool": {
            "must": [{"match": {"text": "wing"}}],
            "should": [{"match": {"text": "wing"}}],
            "filter": {"term": {"a": 1}},
            "must_not": [],
            "minimum_should_match": 1,
        }
    },
)


@pytest.fixture(scope="module", autouse=True)
def room() -> Iterator[None]:
    """Take the folder away at the end."""
    yield
    for path in sorted(ROOM.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    ROOM.rmdir()


def stages() -> list[type[Stage]]:
    for package in PACKAGES:
        importlib.import_module(f"hybridr.{package}.settings")
    found, todo = [], [Stage]
    while todo:
        below = todo.pop().__subclasses__()
        found, todo = found + below, todo + below
    return sorted({one for one in found if one.table in TABLES}, key=lambda one: one.__qualname__)


def of_settings(value: Any) -> int:
    """Put a value into every setting of every stage."""
    count = 0
    for stage in STAGES:
        needed = {name: "x" for name, field in stage.model_fields.items() if field.is_required()}
        count += each(lambda given, stage=stage: stage(**given), needed, stage.model_fields, SettingsError)(
            {str(name): one for name, one in value.items()} if isinstance(value, dict) else {"own": value}
        )
    return count


STAGES = stages()


def of_texts(content: bytes) -> int:
    """Let every reader of a format read the same bytes."""
    FILE.write_bytes(content)
    for read in READERS:
        said(lambda read=read: list(read(FILE)), DataError)
    return len(READERS)


def scores_of(suffix: str) -> Callable[[Path], Any]:
    def read(file: Path) -> Any:
        link = file.with_suffix(suffix)
        link.write_bytes(file.read_bytes())
        return read_scores(link)

    return read


READERS: tuple[Callable[[Path], Any], ...] = (
    *(read_jsonl, read_corpus, read_qrels, read_run, read_query_log, read_table),
    *(scores_of(suffix) for suffix in (".jsonl", ".tsv", ".tsv.gz")),
)


def of_entry(entry: Any) -> EncoderEntry:
    return checked_entry(EncoderEntry, entry, ROOM, "encoder")


def of_manifest(record: Any) -> dict[str, Any] | None:
    (ROOM / "manifest.json").write_text(json.dumps(record))
    return read_manifest(ROOM)


def of_model(value: Any) -> int:
    """Put a value into every key of the files of a sentence-transformers folder."""
    pooling, whole = {"pooling_mode_mean_tokens": True}, {"prompts": {}, "similarity_fn_name": "cosine"}
    files: dict[str, Any] = {
        "config.json": CONFIG,
        "modules.json": MODULES,
        "1_Pooling/config.json": pooling,
        "config_sentence_transformers.json": whole,
        "sentence_bert_config.json": {"max_seq_length": 64},
        "tokenizer_config.json": {"model_max_length": 64},
    }
    folder = ROOM / "model"
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    count = 0
    for name, content in files.items():
        records = content if isinstance(content, list) else [content]
        changed: list[Any] = [value, [value]]
        changed += [{**record, key: value} for record in records for key in record]
        changed += (
            [[*records, {**records[0], key: value}] for key in records[0]] if name == "modules.json" else []
        )
        for one in changed:
            (folder / name).write_text(json.dumps(one))
            for read in (read_usage, read_configuration):
                shape = (AttributeError, KeyError, TypeError) if read is read_usage else ()
                said(partial(read, folder), ModelError, *shape)  # `read_retriever` catches the shapes
            count += 1
        (folder / name).write_text(json.dumps(content))
    return count


def of_rem(record: Any) -> Any:
    folder = ROOM / "rem"
    folder.mkdir(exist_ok=True)
    (folder / "pytorch_adapter.bin").touch()
    (folder / "adapter_config.json").write_text(json.dumps(record))
    return read_design(read_rem(folder).record["config"])


def of_design(part: Any) -> Any:
    return read_design(part if isinstance(part, dict) else {"architecture": "union", "configs": part})


def of_weights(content: bytes) -> int:
    """Read bytes as weights and as a zip, alone and behind the head of real ones."""
    cut = SAFETENSORS[: len(SAFETENSORS) - len(content)]
    for body in (content, SAFETENSORS[:8] + content, cut + content):
        for suffix in (".bin", ".safetensors"):
            said(partial(read_tensors, body, f"x{suffix}"), ModelError)
        FILE.write_bytes(body)
        with pytest.raises(ModelError):
            read_rem(FILE)
    return 9


def weights() -> bytes:
    from safetensors.torch import save

    return save({"w": next(tiny_retriever().backbone.parameters()).detach()})


SAFETENSORS = weights()


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in parts:
        yield from places_in(inner, (*path, key))


def with_value(query: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    found = copy.copy(query)
    found[path[0]] = with_value(query[path[0]], path[1:], value)
    return found


READER = QueryReader({"text", "title"})
PLACES = [(query, path) for query in QUERIES for path in places_in(query)]


def of_queries(value: Any) -> int:
    """Put a value into every place of queries: what is read is one of their texts, and nothing changes."""
    for query, path in PLACES:
        asked = with_value(query, path, value)
        before = repr(asked)
        try:
            one = READER.read(asked)
            if isinstance(one, ParsedQuery):
                assert one.text.strip()
                assert all(repr(typed) in before for typed in one.strings)
                dense_filter(one)
            else:
                assert one.reason in REASONS
            body = {"query": asked, "size": value, "sort": value}
            is_by_query(body), page_of(body), normalised_body(body, {})
        except (AttributeError, TypeError, ValueError):
            continue  # the routes give such a body back as it came
        assert repr(asked) == before
    return len(PLACES)


def of_toml(content: bytes) -> int:
    FILE.write_bytes(content)
    error = said(partial(read_config, FILE), SettingsError)
    assert error is None or str(FILE) in str(error)
    return 1


def of_request(model: type[Any], valid: dict[str, Any]) -> Callable[[Any], int]:
    return each(model.model_validate, valid, model.model_fields, ValidationError)


EMBEDDING = {"input": "a", "model": "hybridr-query"}
TARGETS = (
    Target(
        "record",
        90,
        40,
        values,
        each(lambda one: parse_record(one, "x"), RECORD, Record.model_fields, DataError),
    ),
    Target("settings", 4, 200, values, of_settings),
    Target("entry", 300, 9, values, each(of_entry, ENTRY, ENTRY, ModelError)),
    Target("manifest", 60, 11, values, each(of_manifest, {}, MANIFEST_PARTS, DataError)),
    Target("lora", 240, 7, values, each(of_design, LORA, LORA, ModelError)),
    Target("parallel", 240, 8, values, each(of_design, PARALLEL, PARALLEL, ModelError)),
    Target("rem", 20, 4, values, each(of_rem, {"name": "x", "config": LORA}, ("name", "config"), ModelError)),
    Target("model", 10, 28, values, of_model),
    Target("embedding", 180, 6, values, of_request(EmbeddingRequest, EMBEDDING)),
    Target("search", 180, 8, values, of_request(SearchRequest, {"query": "a"})),
    Target("queries", 240, len(PLACES), values, of_queries),
    Target("formats", 140, len(READERS), texts, of_texts),
    Target("weights", 20, 9, texts, of_weights),
    Target("toml", 100, 1, texts, of_toml),
)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_whatever_is_parsed_the_answer_is_a_value_or_an_error_of_our_own(target: Target) -> None:
    assert run(target) >= target.examples * target.places * FACTOR * 0.9


def test_the_cases_are_twenty_thousand() -> None:
    assert sum(target.examples * target.places * 0.9 for target in TARGETS) >= LEAST
    assert os.environ.get("HYBRIDR_FUZZ_FACTOR") is None, "the suite runs the short form"
