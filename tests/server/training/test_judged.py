"""Negatives mined by the cluster's BM25."""

from __future__ import annotations

from hybridr.cluster.loading import load
from hybridr.cluster.settings import LoadSettings
from hybridr.search.search import Search
from hybridr.training.judged import mine_negatives, read_judged_beir
from support.rem_training import write_toy


def test_negatives_of_an_index(cluster, index_name, tmp_path):
    folder = write_toy(tmp_path / "beir")
    load(cluster, folder, LoadSettings(index=index_name))
    judged = read_judged_beir(folder)
    search = Search(cluster, index_name, mode="lexical")
    here = mine_negatives(judged, tmp_path / "here", 5)
    there = mine_negatives(judged, tmp_path / "cluster", 5, rank=search.run, source=index_name)
    common = all_mined = 0
    lines = (one.read_text().splitlines() for one in (here, there))
    for ours, theirs in zip(*lines, strict=True):
        query_id, listed = theirs.split("\t")
        assert not set(listed.split()) & set(judged.positives[query_id])
        all_mined += len(ours.split("\t")[1].split())
        common += len(set(listed.split()) & set(ours.split("\t")[1].split()))
    assert common > 0.8 * all_mined  # they differ in lengths, which Lucene rounds
