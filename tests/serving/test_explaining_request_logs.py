"""Requests of an application are read line by line; what cannot be read spoils its own line only."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hybridr.errors import DataError
from hybridr.serving.rewriting import explaining
from hybridr.serving.rewriting.explaining import read_requests

BODY = {"query": {"match": {"title": "scarf"}}}
DEEP = '{"query":' * 100_000


def written(folder: Path, *lines: Any) -> Path:
    file = folder / "requests.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return file


def test_each_request_is_read_with_its_line(tmp_path: Path) -> None:
    requests = [BODY, {"path": "/other/_search", "body": {}}, BODY]
    file = written(tmp_path, requests[0], "", *requests[1:])
    log = read_requests(file)
    assert [tuple(logged) for logged in log.requests] == [(1, BODY), (3, requests[1]), (4, BODY)]
    packed = tmp_path / "old.jsonl.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + file.read_bytes()))
    assert read_requests(packed) == log


@pytest.mark.parametrize("odd", ["what is this", "[3]", '"text"', "null", DEEP, "\x1b]0;title\x07"])
def test_what_cannot_be_read_is_counted_and_the_rest_goes_on(tmp_path: Path, odd: str) -> None:
    log = read_requests(written(tmp_path, BODY, odd, BODY))
    assert (len(log.requests), log.unreadable) == (2, (2,))
    with pytest.raises(DataError, match="it contains no request") as caught:
        read_requests(written(tmp_path, odd))
    assert "one request per line" in str(caught.value.hint)


def test_bytes_that_are_no_text_spoil_their_own_line_only(tmp_path: Path) -> None:
    file = written(tmp_path, BODY)
    file.write_bytes(file.read_bytes() + b'{"caf\xe9\n' + b"\x00\x01\n")
    log = read_requests(file)
    assert (len(log.requests), log.unreadable) == (1, (2, 3))


def test_a_line_too_long_a_crowd_of_requests_and_no_file_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(explaining, "MAX_REQUESTS", 3)
    with pytest.raises(DataError, match="more than 3 requests, use a part"):
        read_requests(written(tmp_path, *({"size": size} for size in range(5))))
    monkeypatch.setenv("HYBRIDR_LINE_MB", "0.0001")
    with pytest.raises(DataError, match="a line of more than 100 characters"):
        read_requests(written(tmp_path, {"query": "x" * 200}))
    with pytest.raises(DataError, match="cannot be read"):
        read_requests(tmp_path / "nothing")
    with pytest.raises(DataError, match="cannot be read"):
        read_requests(tmp_path)
