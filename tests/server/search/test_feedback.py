"""RM3 on a real node, in words and in pairs of characters."""

from __future__ import annotations

import json

import pytest

from hybridr import Search
from hybridr.cluster.loading import load
from hybridr.cluster.settings import LoadSettings
from hybridr.errors import SettingsError
from hybridr.records import Query
from hybridr.search.feedback import expand_queries
from support.corpus import beir_folder


def test_rm3_is_for_words_alone(cluster, searchable):
    """What it adds: tests/server/cluster/test_lexical.py."""
    index, encoder = searchable
    expanded = Search(cluster, index, mode="lexical", feedback="rm3")
    [hit] = expanded("anchor ladder", 1)
    assert hit.scores["lexical"] == pytest.approx(hit.score)
    with pytest.raises(SettingsError, match="not mode hybrid"):
        Search(cluster, index, encoder, feedback="rm3")
    with pytest.raises(SettingsError, match="unknown feedback"):
        Search(cluster, index, encoder, feedback="bm25")  # type: ignore[arg-type]


CHINESE = (
    "病毒疫苗接种安全研究 疫苗接种人群免疫反应 疫苗接种不良反应报告 股票市场价格波动 天气预报明天下雨 "
    "足球比赛冠军球队 古代诗歌语言艺术 铁路运输货物列车 海洋生物多样保护 城市交通管理政策"
).split()
"""Written for this test."""


def test_rm3_expands_chinese_by_character_pairs(cluster, index_name, tmp_path):
    file = tmp_path / "zh.jsonl"
    filler = [text for text in CHINESE[3:] for _ in range(4)]
    rows = [{"_id": str(n), "text": text} for n, text in enumerate([*CHINESE[:3], *filler])]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = load(cluster, file, LoadSettings(index=index_name, k1=0.9, b=0.4))
    assert (done.language, done.analyzer) == ("zh", "cjk")
    body = expand_queries(cluster, cluster.index_info(index_name), ["contents"], ["病毒"])[0]
    weights = {
        clause["term"]["contents"]["value"]: clause["term"]["contents"]["boost"]
        for clause in body["bool"]["should"]
    }
    pairs = [CHINESE[0][i : i + 2] for i in range(len(CHINESE[0]) - 1)]
    assert weights == pytest.approx(
        {pair: 0.5 / len(pairs) + 0.5 * (pair == "病毒") for pair in pairs}, abs=1e-6
    )
    plain = Search(cluster, index_name, mode="lexical").run([Query("q", "病毒")])["q"]
    expanded = Search(cluster, index_name, mode="lexical", feedback="rm3").run([Query("q", "病毒")])["q"]
    assert plain.keys() == {"0"}
    assert expanded.keys() == {"0", "1", "2"}


def test_the_analyser_can_be_named(cluster, index_name, tmp_path, cli, monkeypatch):
    monkeypatch.setenv("HYBRIDR_LOAD_K1", "0.9")
    folder, on = beir_folder(tmp_path / "beir"), ["--index", index_name, "--url", cluster.url]
    said = cli.typed(["load", str(folder), *on, "--analyzer", "smartcnx"], 2).err
    assert "the cluster has no analyser 'smartcnx'" in said
    assert "cjk, " in said
    assert not cluster.exists(index_name)
    cli.typed(["load", str(folder), *on, "--analyzer", "whitespace"])
    info = cluster.index_info(index_name)
    assert info.mappings["properties"]["contents"]["analyzer"] == "whitespace"
    assert info.settings["index.similarity.default.k1"] == "0.9"
    assert info.settings["index.similarity.default.b"] == "0.75"
