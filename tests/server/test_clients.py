"""Clients that people use ask a deployed index as the pages say; every block of them runs as written."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridr import Search, load_encoder
from hybridr.cluster.connection import Cluster
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.search.settings import SearchSettings
from hybridr.serving.deploy.deploying import deploy, undeploy
from hybridr.serving.settings import DeploySettings
from support.corpus import drop_indices
from support.deployed import TEXT, Server, ask, by_hand, fill_library, ids, vector_of
from support.places import ROOT

pytestmark = [pytest.mark.node, pytest.mark.ml]
PAGES = ROOT / "docs"
RECIPES = sorted(page for page in (PAGES / "recipes").glob("*.md") if page.stem != "ci")
PROGRAMS = {"javascript": ("node", "recipe.mjs"), "java": ("java", "Search.java")}
"""What runs a block that is not Python, and what its file has to be called."""
NOTES = "notes"
CALIBRATED_S = 10
"""A query of a new form is ranked a moment after it was seen first."""
HEADINGS = r"^### (.*)$"


def blocks(way: str) -> list[tuple[str, str, str]]:
    """Give name, language and code of the blocks of the pages that need a way."""
    found = []
    for page in RECIPES:
        section = page.read_text(encoding="utf-8").removeprefix("# ")
        parts = re.split(HEADINGS, section, flags=re.M)
        for heading, body in zip(parts[1::2], parts[2::2], strict=True):
            [(language, code)] = re.findall(r"^```(\w+)\n(.*?)^```$", body, re.M | re.S)
            found.append((f"{section.splitlines()[0]}, {heading}", language, code))
    return [one for one in found if re.split(r"[ ,]+", one[0].split(", ", 1)[1])[0] == way]


@pytest.fixture(scope="module")
def notes(docs: Cluster, minilm_encoder_folder: Path) -> Iterator[Cluster]:
    """An index whose fields have the names that LangChain expects."""
    fill_library(docs, NOTES, "text", 150)
    reindex(docs, NOTES, minilm_encoder_folder, ReindexSettings(vector_field="vector_field"))
    deploy(docs, NOTES, DeploySettings(), SearchSettings())
    yield docs
    undeploy(docs, NOTES)
    drop_indices(docs, f"{NOTES}*")


def here(written: str, cluster: Cluster, server: Server) -> str:
    """Replace the two addresses of a page; nothing else may differ."""
    return written.replace("http://localhost:9200", cluster.url).replace("http://127.0.0.1:8080", server.url)


def texts(answer: dict[str, Any]) -> list[str]:
    return [hit["_source"].get("contents") or hit["_source"]["text"] for hit in answer["hits"]["hits"]]


@pytest.fixture(scope="module")
def expected(docs: Cluster, minilm_encoder_folder: Path, way: str) -> list[str]:
    """The best ten by the request written by hand, or that of `hybridr search`, which need no deployment."""
    if way == "transparent":
        search = Search(docs, "docs-hybridr", load_encoder(minilm_encoder_folder))
        return texts(docs.search("docs-hybridr", search.request(TEXT)))
    answer = ask(docs, "docs-hybridr", by_hand(minilm_encoder_folder, "contents"))
    lexical = ask(docs, "docs", {"query": {"match": {"contents": TEXT}}})
    dense = ask(
        docs,
        "docs-hybridr",
        {"query": by_hand(minilm_encoder_folder, "contents")["query"]["hybrid"]["queries"][1]},
    )
    assert texts(answer) not in (texts(lexical), texts(dense))
    return texts(answer)


def test_every_client_asks_as_the_page_says(
    docs, notes, docs_server, way, expected, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    for name, language, code in blocks(way):
        if language != "python":
            continue
        file = tmp_path / "recipe.py"
        file.write_text(here(code, docs, docs_server), encoding="utf-8")
        runpy.run_path(str(file), run_name="recipe")
        own = name.startswith("Haystack") and way == "transparent"
        wanted = ranked_by_its_own_words(docs) if own else expected
        if own:  # it was seen for the first time
            capsys.readouterr()
            runpy.run_path(str(file), run_name="recipe")
        assert capsys.readouterr().out.splitlines() == wanted, name


def ranked_by_its_own_words(docs: Cluster) -> list[str]:
    """Wait until the query that Haystack writes is ranked, and give what it finds."""
    words = {"query": TEXT, "fuzziness": 0, "type": "most_fields", "operator": "OR"}
    body = {"query": {"bool": {"must": [{"multi_match": words}]}}}
    plain, deadline = texts(docs.search("docs-hybridr", body)), time.monotonic() + CALIBRATED_S
    while (found := texts(ask(docs, "docs-hybridr", body))) == plain and time.monotonic() < deadline:
        time.sleep(0.2)
    assert found != plain, "ranked anew"
    return found


@pytest.mark.parametrize("language", PROGRAMS)
def test_clients_in_other_languages_ask_as_their_pages_say(
    docs, docs_server, way, language, expected, tmp_path
):
    program, file_name = PROGRAMS[language]
    if shutil.which(program) is None and os.environ.get("CI") != "true":
        pytest.skip(f"there is no {program} here; CI has one")
    for name, code in [(name, code) for name, written, code in blocks(way) if written == language]:
        (tmp_path / file_name).write_text(here(code, docs, docs_server), encoding="utf-8")
        done = subprocess.run([program, file_name], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (name, done.stderr)
        said = texts(json.loads(done.stdout)) if language == "java" else done.stdout.splitlines()
        assert said == expected, name


def test_every_way_of_the_pages_has_blocks():
    written = sum(page.read_text(encoding="utf-8").count("```") // 2 for page in RECIPES)
    assert sum(len(blocks(way)) for way in ("client", "neural", "transparent")) == written == 13


def test_the_query_page_says_what_curl_sends(docs, docs_server, way, expected, minilm_encoder_folder):
    [section] = re.findall(rf"^## {way}$(.*?)(?=^## |\Z)", (PAGES / "query.md").read_text(), re.M | re.S)
    commands = re.findall(r"(?:\A|\n\n)    (curl .*?)(?=\n\n|\Z)", section, re.S)
    vector = vector_of(minilm_encoder_folder, TEXT)
    answers = []
    for command in commands:
        shown = here(command, docs, docs_server).replace("[0.1, …]", json.dumps(vector))
        done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True)
        answers.append(json.loads(done.stdout))
    assert texts(answers.pop()) == expected
    if way == "client":
        [[embedding]] = [answer["data"] for answer in answers]
        assert embedding["embedding"] == pytest.approx(vector, abs=1e-5)


def test_the_printed_request_finds_what_search_does_whatever_is_deployed(
    docs, docs_server, way, minilm_encoder_folder
):
    page = (PAGES / "query.md").read_text(encoding="utf-8")
    [command] = re.findall(r"\n\n    (hybridr search .*?\| curl .*?)\n\n", page, re.S)
    shown = here(command, docs, docs_server).replace(
        "hybridr search", f"{sys.executable} -m hybridr_cli search"
    )
    environment = {**os.environ, "HYBRIDR_URL": docs.url}
    done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True, env=environment)
    hits = Search(docs, "docs", load_encoder(minilm_encoder_folder))(TEXT)
    assert ids(json.loads(done.stdout)) == [hit.doc_id for hit in hits]


def langchain_embeddings(server: Server) -> Any:
    from langchain_openai import OpenAIEmbeddings

    return OpenAIEmbeddings(
        base_url=f"{server.url}/v1",
        api_key="none",
        model="hybridr-query",
        check_embedding_ctx_length=False,
    )


def test_langchain_finds_neighbours_in_any_field(docs, docs_server, minilm_encoder_folder):
    from langchain_community.vectorstores import OpenSearchVectorSearch

    embeddings = langchain_embeddings(docs_server)
    store = OpenSearchVectorSearch(docs.url, "docs-hybridr", embeddings)
    found = store.similarity_search_with_score(
        TEXT, k=7, vector_field="hybridr_vector", text_field="contents"
    )
    dense = Search(docs, "docs", load_encoder(minilm_encoder_folder), "dense")(TEXT, 7)
    assert [document.id for document, _ in found] == [hit.doc_id for hit in dense]
    assert [score for _, score in found] == pytest.approx([hit.score for hit in dense], abs=1e-5)
