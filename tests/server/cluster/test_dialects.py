"""The life of an index on Elasticsearch, and that it ranks as on OpenSearch. TRY_URL names another node."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.dialects.elastic import Elastic
from hybridr.cluster.known_problems import problems_of_index
from hybridr.cluster.loading import load
from hybridr.cluster.settings import ClusterSettings, LoadSettings
from hybridr.doctor.diagnosis import cluster_checks
from hybridr.errors import ClusterError, ModelError
from hybridr.indexing.in_place_index import PAINLESS
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.settings import ReindexSettings
from hybridr.indexing.verification import verify
from hybridr.search.search import Search
from hybridr.serving.deploy.deploying import deploy
from support.corpus import drop_indices
from support.hashing import HashingEncoder
from support.known_problems import shown

pytestmark = pytest.mark.elastic
WORDS = (
    "wing flow pressure boundary layer heat shock body plate supersonic jet nozzle cone drag lift "
    "vortex wake edge angle attack mach number gas shell panel flutter stress load beam buckling"
).split()
QUERIES = ("supersonic jet flow", "boundary layer", "flutter of a panel", "heat shock mach number", "wake")
DOCUMENTS = 120
ENCODER = HashingEncoder()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write documents of two fields, of random words."""
    draw = random.Random(13)
    file = tmp_path_factory.mktemp("documents") / "documents.jsonl"
    lines = [
        {
            "_id": str(number),
            "title": " ".join(draw.choices(WORDS, k=4)),
            "text": " ".join(draw.choices(WORDS, k=draw.randint(8, 30))),
        }
        for number in range(DOCUMENTS)
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return file


@pytest.fixture
def loaded(elastic: Cluster, folder: Path) -> Iterator[str]:
    """Load the documents into an index of their own, which goes afterwards with all that was made of it."""
    name = f"hybridr-try-{uuid.uuid4().hex[:8]}"
    load(elastic, folder, LoadSettings(index=name, analyzer="standard"))
    yield name
    drop_indices(elastic, f"{name}*,.hybridr-*-{name}*")


def test_it_is_found_out_and_doctor_says_so(elastic):
    assert isinstance(elastic.dialect, Elastic)
    checks = {one.name: one for one in cluster_checks(ClusterSettings(url=elastic.url))}
    assert "Elasticsearch 8." in checks["cluster"].found
    assert checks["rights"].ok, checks["rights"]
    assert not [one for one in checks.values() if one.ok is False]


def test_an_index_that_knows_nothing_of_vectors_takes_them_in_place(elastic, loaded, monkeypatch):
    """A filling sends no script; the core, which has none, is refused for what comes after it."""
    in_place = ReindexSettings(in_place=True)
    if PAINLESS not in elastic.installed_parts("modules"):
        with pytest.raises(ClusterError, match="a node lacks the module lang-painless"):
            reindex(elastic, loaded, ENCODER, in_place)
        monkeypatch.setattr(Cluster, "installed_parts", lambda *_: frozenset())
    made = reindex(elastic, loaded, ENCODER, in_place)
    assert (made.destination, made.encoded, made.alias) == (loaded, DOCUMENTS, None)
    assert verify(elastic, loaded, ENCODER).ok
    elastic.request("PUT", path_of(loaded, "_doc", "new"), {"text": "zither"}, {"refresh": "true"})
    assert sync(elastic, loaded, ENCODER).renewed == 1
    elastic.refresh(loaded)
    for mode in ("dense", "hybrid"):
        assert Search(elastic, loaded, ENCODER, mode)("zither", 1)[0].doc_id == "new"


@pytest.mark.parametrize("settings", [{"vectors": "byte"}, {"vectors": "sq"}, {"passages": True}])
def test_other_forms_of_vectors_are_kept_and_found(elastic, loaded, settings):
    reindex(elastic, loaded, ENCODER, ReindexSettings(**settings))
    assert verify(elastic, loaded, ENCODER).ok
    hits = Search(elastic, loaded, ENCODER, "dense")(QUERIES[0], 3)
    assert len(hits) == 3
    assert hits[0].score > 0.6


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"vectors": "on_disk"}, "--vectors on_disk does not work on Elasticsearch yet"),
        ({"engine": "faiss"}, "--engine faiss does not work on Elasticsearch yet"),
        ({"token_bits": True}, "--token-bits, --representations"),
    ],
)
def test_what_does_not_work_yet_says_so(elastic, loaded, settings, said):
    with pytest.raises(ClusterError, match=said):
        reindex(elastic, loaded, ENCODER, ReindexSettings(**settings))
    with pytest.raises(ClusterError, match="`hybridr deploy` does not work on Elasticsearch yet"):
        deploy(elastic, loaded)
    assert not elastic.indices(f"{loaded}-hybridr-*")


def test_vectors_of_too_many_dimensions_are_refused_before_anything_is_written(elastic, loaded):
    with pytest.raises(ModelError, match="4097 dimensions, Elasticsearch takes at most 4096"):
        reindex(elastic, loaded, HashingEncoder(dim=4_097))
    assert not elastic.indices(f"{loaded}-hybridr-*")


def test_vectors_of_the_users_own_are_copied_as_they_are(elastic, loaded):
    """Not indexed, and quantised already."""
    vector = {"type": "dense_vector", "dims": 3}
    kept = {"bare": {**vector, "index": False}, "small": {**vector, "index_options": {"type": "int8_hnsw"}}}
    elastic.request("PUT", path_of(loaded, "_mapping"), {"properties": kept})
    source = {"text": "wing flow", "bare": [1.0, 2.0, 3.0], "small": [0.5, 0.25, 1.0]}
    elastic.request("PUT", path_of(loaded, "_doc", "own"), source, {"refresh": "true"})
    made = reindex(elastic, loaded, ENCODER)
    assert made.documents == DOCUMENTS + 1
    copied = elastic.request("GET", path_of(made.destination, "_doc", "own"))["_source"]
    assert {name: copied[name] for name in source} == source
    before, after = (elastic.index_info(name).mappings["properties"] for name in (loaded, made.destination))
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


@shown("quantized-by-default")
def test_elasticsearch_quantizes_by_default(elastic):
    index = "t-known-quantized"
    vector = {"type": "dense_vector", "dims": 64, "similarity": "cosine"}
    elastic.request("PUT", f"/{index}", {"mappings": {"properties": {"v": vector}}})
    try:
        info = elastic.index_info(index)
        assert info.mappings["properties"]["v"]["index_options"]["type"] == "int8_hnsw"
        assert {problem.name for problem in problems_of_index(elastic, info)} == {"quantized-by-default"}
    finally:
        elastic.request("DELETE", f"/{index}")
