"""What the containers of docker-compose.yml run, here without an engine: words, variables and checks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
import yaml

import hybridr_cli
from hybridr.cluster.embedded.process import free_port
from support.corpus import bulk, fill_index, text_number
from support.places import ROOT
from support.waiting import wait_until

SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
IMAGE = (ROOT / "opensearch" / "Dockerfile").read_text(encoding="utf-8").split("\nFROM ")[-1]
SERVED, WATCHED = "8080", "9109"


def set_to(text: str, values: dict[str, str]) -> str:
    """Put values in the place of `${NAME:-default}`, as compose does."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: values.get(match[1]) or match[2], text)


def image_words(name: str) -> list[str]:
    """Give the words of ENTRYPOINT or CMD of the image."""
    [words] = re.findall(rf"^ *{name} (\[.*\])$", IMAGE, re.M)
    return list(json.loads(words))


@contextmanager
def running(
    service: str, places: dict[str, str], values: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service; `places` are those of this machine for those of a container. It is healthy then."""

    def here(text: str) -> str:
        text = set_to(text, values)
        for inside, outside in places.items():
            text = text.replace(inside, outside)
        return text

    described: dict[str, Any] = SERVICES[service]
    of_image = dict(re.findall(r"(HYBRIDR_\w+)=(\S+)", IMAGE))
    variables = {**of_image, **described["environment"], "HYBRIDR_HOME": str(log.parent / "home")}
    environment = {**os.environ, **{name: here(value) for name, value in variables.items()}}
    program, *words = map(here, described.get("entrypoint") or image_words("ENTRYPOINT"))
    assert program == "hybridr"
    check = described["healthcheck"]["test"][1:] if "healthcheck" in described else image_words("CMD")
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "hybridr_cli", *words], env=environment, stdout=said, stderr=said
        )
    try:
        healthy = [sys.executable, *map(here, check[1:])]
        wait_until(lambda: process.poll() or not subprocess.run(healthy, capture_output=True).returncode)
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.terminate()
        process.wait(60)


def ask(port: str, query: str) -> list[str]:
    body = json.dumps({"query": query, "k": 3}).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"http://127.0.0.1:{port}/search", body, headers), timeout=30) as answer:
        return [hit["doc_id"] for hit in json.load(answer)["hits"]]


def test_both_containers_do_their_work(cluster, index_name, minilm_encoder_folder, tmp_path):
    fill_index(cluster, index_name, 20)
    on = ["--encoder", str(minilm_encoder_folder), "--url", cluster.url, "--quiet"]
    assert hybridr_cli.main(["reindex", index_name, *on]) == 0
    served, watched = str(free_port()), str(free_port())
    places = {"/encoder": str(minilm_encoder_folder), "http://opensearch:9200": cluster.url}
    places |= {f":{SERVED}": f":{served}", WATCHED: watched, "0.0.0.0": "127.0.0.1"}
    values = {"HYBRIDR_SERVE_INDEX": index_name, "HYBRIDR_SYNC_EVERY": "0.5s"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRIDR_SERVE_PORT", served)
        with (
            running("encoder", places, values, tmp_path / "serve.log"),
            running("sync", places, values, tmp_path / "sync.log") as sync,
        ):
            assert ask(served, text_number(7))[0] == "d7"
            bulk(cluster, index_name, [{"index": {"_id": "ship"}}, {"text": "a ship crosses the ocean"}])
            wait_until(lambda: ask(served, "boat on the sea")[0] == "ship")
    assert sync.returncode == 130, "as it ends by Ctrl-C"
    with pytest.raises(URLError):
        ask(served, "boat")
