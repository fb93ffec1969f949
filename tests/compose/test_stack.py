"""The committed docker-compose.yml, run: load, reindex, search against it, and vectors from its encoder."""

import json
import os
import ssl
import subprocess
import sys
import time

import httpx
import numpy as np
import pytest

from hybridr.encoders.opening import load_encoder
from support.engine import run
from support.images import OPENSEARCH

pytestmark = pytest.mark.timeout(1800)  # the first test also fetches and makes everything

OPEN = {"opensearch", "dashboards", "encoder"}
SECURE = {"opensearch-secure", "dashboards-secure"}
DOCUMENTS = {
    "car": ("Engines", "How to fix the motor of a car that does not start in the morning."),
    "bread": ("Baking", "Flour, water, yeast and salt are kneaded and rest for an hour before baking."),
    "moon": ("Astronomy", "The tides of the sea follow the gravity of the moon."),
    "heart": ("Medicine", "High blood pressure damages the arteries of the heart over many years."),
    "snake": ("Python", "A package manager installs libraries for the programming language."),
    "rain": ("Weather", "Warm air rises, cools down and loses its water as rain."),
    "bank": ("Money", "The central bank raises interest rates when prices climb too fast."),
    "chess": ("Games", "The queen moves in straight lines and diagonals over the whole board."),
}
PARAPHRASE = "automobile repair"


def hybridr(*arguments: str, connection: dict[str, str]) -> dict:
    """Run the command line against a composed cluster and give what it prints with --json."""
    command = [sys.executable, "-m", "hybridr_cli", *arguments, "--json"]
    variables = {**os.environ, "OMP_NUM_THREADS": "2", **connection}
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    records = [{"_id": doc_id, "title": title, "text": text} for doc_id, (title, text) in DOCUMENTS.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.fixture(scope="session")
def connection(cluster_url):
    return {"HYBRIDR_URL": cluster_url}


@pytest.fixture(scope="session")
def reindexed(corpus, project, connection):
    loaded = hybridr("load", str(corpus), "--index", "docs", connection=connection)
    assert loaded["documents"] == len(DOCUMENTS)
    return hybridr("reindex", "docs", "--encoder", str(project / "encoder"), connection=connection)


def test_the_file_is_valid(composed):
    open_only = set(composed.compose("config", "--services").split())
    every = (
        OPEN | SECURE | {"elasticsearch", "sync"}
    )  # 1.29 lists every service, v2 those that would be started
    assert OPEN <= open_only <= every
    for profile, added in (("secure", SECURE), ("elasticsearch", {"elasticsearch"}), ("sync", {"sync"})):
        listed = set(composed.compose("--profile", profile, "config", "--services").split())
        assert OPEN | added <= listed <= every
    assert "opensearchproject/opensearch-dashboards:3.6.0" in composed.compose("config")


def test_the_containers_are_healthy_and_open_to_this_machine_only(stack):
    for service, port in (("opensearch", 9200), ("encoder", 8080)):
        assert stack.health(service) == "healthy"
        assert stack.address(service, port).startswith("127.0.0.1:")
    assert run("docker", "exec", stack.container("encoder"), "id", "-u").strip() == "10001"


def test_load_and_reindex(reindexed):
    assert reindexed["documents"] == len(DOCUMENTS)
    assert reindexed["switched"] is True


@pytest.mark.parametrize(("mode", "best"), [("lexical", None), ("dense", "car"), ("hybrid", "car")])
def test_search_finds_by_meaning_what_words_do_not(reindexed, connection, mode, best):
    hits = hybridr("search", "docs", PARAPHRASE, "--mode", mode, connection=connection)["hits"]
    assert (hits[0]["doc_id"] if hits else None) == best


def test_the_encoder_container_gives_the_vectors_of_its_folder(project, encoder_url):
    texts = [text for _, text in DOCUMENTS.values()]
    body = {"input": texts, "model": "hybridr-passage"}
    answer = httpx.post(f"{encoder_url}/v1/embeddings", json=body, timeout=60).json()
    found = np.array([entry["embedding"] for entry in answer["data"]])
    np.testing.assert_allclose(found, load_encoder(project / "encoder").encode_documents(texts), atol=1e-5)


def test_the_encoder_container_searches_once_it_is_given_the_index(reindexed, stack, connection, encoder_url):
    assert httpx.post(f"{encoder_url}/search", json={"query": PARAPHRASE}).status_code == 404
    stack.settle(HYBRIDR_SERVE_INDEX="docs")
    stack.compose("up", "-d", "encoder")
    stack.wait_healthy("encoder")
    answer = httpx.post(f"{encoder_url}/search", json={"query": PARAPHRASE, "k": 3}, timeout=60).json()
    expected = hybridr("search", "docs", PARAPHRASE, "--k", "3", connection=connection)["hits"]
    assert [hit["doc_id"] for hit in answer["hits"]] == [hit["doc_id"] for hit in expected]
    np.testing.assert_allclose(
        [hit["score"] for hit in answer["hits"]], [hit["score"] for hit in expected], atol=1e-5
    )


def test_what_is_written_comes_to_its_vectors(reindexed, stack, cluster_url):
    stack.settle(HYBRIDR_SERVE_INDEX="docs", HYBRIDR_SYNC_EVERY="1s")
    stack.compose("--profile", "sync", "up", "-d", "sync")
    stack.wait_healthy("sync")
    try:
        text = {"title": "Water", "text": "A ship crosses the ocean."}
        httpx.put(f"{cluster_url}/docs/_doc/ship?refresh=true", json=text).raise_for_status()
        deadline = time.monotonic() + 60
        while httpx.get(f"{cluster_url}/docs-hybridr/_doc/ship").status_code != 200:
            assert time.monotonic() < deadline, stack.compose("--profile", "sync", "logs", "sync")
            time.sleep(0.5)
        assert run("docker", "exec", stack.container("sync"), "id", "-u").strip() == "10001"
    finally:
        stack.compose("--profile", "sync", "rm", "--stop", "--force", "sync")
        httpx.delete(f"{cluster_url}/docs/_doc/ship?refresh=true")
        httpx.delete(f"{cluster_url}/docs-hybridr/_doc/ship?refresh=true")


def test_the_data_outlives_the_containers(reindexed, stack, cluster_url):
    stack.compose("rm", "--stop", "--force", "opensearch")
    stack.compose("up", "-d", "opensearch")
    stack.wait_healthy("opensearch")
    assert httpx.get(f"{cluster_url}/docs-hybridr/_count").json()["count"] == len(DOCUMENTS)


def test_without_an_encoder_folder_the_encoder_says_so(stack):
    image = stack.compose("images", "-q", "encoder").strip()
    done = subprocess.run(["docker", "run", "--rm", image], capture_output=True, text=True)
    assert done.returncode == 1
    assert "there is no encoder folder /encoder" in done.stderr


def test_the_secure_profile_asks_for_a_password_over_tls(secured):
    url = secured["HYBRIDR_URL"]
    with httpx.Client(verify=ssl.create_default_context(cafile=secured["HYBRIDR_CA_CERTS"])) as client:
        assert client.get(url).status_code == 401
        assert client.get(url, auth=("admin", "admin")).status_code == 401
        found = client.get(url, auth=("admin", secured["HYBRIDR_PASSWORD"])).json()
    assert found["version"]["number"] == "3.6.0"
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(url)


def test_the_whole_line_on_the_secure_profile(secured, corpus, project):
    assert hybridr("load", str(corpus), "--index", "docs", connection=secured)["documents"] == len(DOCUMENTS)
    done = hybridr("reindex", "docs", "--encoder", str(project / "encoder"), connection=secured)
    assert done["switched"] is True
    assert hybridr("search", "docs", PARAPHRASE, connection=secured)["hits"][0]["doc_id"] == "car"


def test_the_secure_profile_does_not_start_without_a_password(images):
    done = subprocess.run(["docker", "run", "--rm", OPENSEARCH], capture_output=True, text=True)
    assert done.returncode == 1
    assert "OPENSEARCH_INITIAL_ADMIN_PASSWORD" in done.stdout + done.stderr
