"""Load on a real node."""

from __future__ import annotations

import json

import pytest

import hybridr_cli
from hybridr import Search
from hybridr.cluster.loading import load
from hybridr.cluster.settings import LoadSettings
from hybridr.errors import ClusterError, DataError
from hybridr.index import Index
from hybridr.indexing.reindexing import sync
from support.corpus import (
    beir_folder,
    delete,
    fill_index,
    put_documents,
    reindexed,
    sources,
    text_number,
    update,
)
from support.hashing import HashingEncoder


def test_load_keeps_the_record_and_adds_contents(cluster, index_name, tmp_path):
    folder = beir_folder(tmp_path / "beir")
    settings = LoadSettings(index=index_name, k1=0.9, b=0.4, language="de")
    tried = load(cluster, folder, settings, dry_run=True)
    assert not cluster.exists(index_name)
    done = load(cluster, folder, settings)
    assert tried == done
    assert (done.documents, done.rejected, done.analyzer, done.loaded) == (20, 0, "german", True)
    info = cluster.index_info(index_name)
    assert info.settings["index.similarity.default.k1"] == "0.9"
    assert info.mappings["properties"]["contents"]["analyzer"] == "german"
    source = cluster.request("GET", f"/{index_name}/_doc/d3")["_source"]
    assert source["contents"] == f"Title 3 {text_number(3)}"
    assert source["year"] == 3
    delete(cluster, index_name, "d1")
    update(cluster, index_name, "d2", year=1999)
    again = load(cluster, folder, settings)  # it put the deleted document back, and all others over changes
    assert (again.loaded, again.documents) == (False, 19)
    assert sources(cluster, index_name)["d2"]["year"] == 1999
    put_documents(cluster, index_name, [1])
    with pytest.raises(DataError, match="holds 20 documents of another file or settings"):
        load(cluster, folder, LoadSettings(index=index_name, k1=1.2), dry_run=True)
    load(cluster, folder, LoadSettings(index=index_name, replace=True), dry_run=True)
    assert cluster.index_info(index_name).uuid == info.uuid
    assert load(cluster, folder, LoadSettings(index=index_name, replace=True)).loaded


def test_load_takes_any_jsonl_by_its_fields(cluster, index_name, tmp_path):
    file = tmp_path / "faq.jsonl"
    rows = [{"_id": n, "question": f"How {n}?", "answer": text_number(n)} for n in range(5)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="no field 'title' or 'text', found answer, question"):
        load(cluster, file, LoadSettings(index=index_name))
    load(cluster, file, LoadSettings(index=index_name, fields=("question", "answer")))
    assert Search(cluster, index_name, mode="lexical")("n4", 1)[0].doc_id == "4"


def test_load_takes_an_export_of_mongo_and_refuses_ids_of_other_types(cluster, index_name, tmp_path, cli):
    file = tmp_path / "export.json"
    rows = [
        {"_id": {"$oid": f"57e{n}"}, "text": text_number(n), "at": {"$date": "2020-01-01T00:00:00Z"}}
        for n in (0, 1)
    ]
    command = ["load", str(file), "--index", index_name, "--url", cluster.url]
    file.write_text(json.dumps([*rows, {"_id": 1.0, "text": "x"}]))
    shown = cli.typed(command, 1).err
    assert "export.json:1: '_id' is 1.0, a number with a fraction" in shown
    assert not cluster.exists(index_name)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cli.typed(command)
    source = cluster.request("GET", f"/{index_name}/_doc/57e1")["_source"]
    assert source["at"] == "2020-01-01T00:00:00Z"


def test_load_reports_what_the_index_refuses(cluster, index_name, tmp_path, cli):
    folder = beir_folder(tmp_path / "beir")
    with (folder / "corpus.jsonl").open("a") as lines:
        lines.write(
            json.dumps({"_id": "bad", "title": "", "text": "fine", "year": {"not": "a number"}}) + "\n"
        )
    command = ["load", str(folder), "--index", index_name, "--url", cluster.url]
    shown = cli.typed(command, 3).out
    assert "20 documents" in shown
    assert "1 refused by the index, reasons in" in shown
    assert hybridr_cli.main(command) == 0, "the second run finds nothing to do"


def test_an_alias_is_not_replaced_by_an_index(cluster, index_name, tmp_path, cli):
    """What stands behind it may be the owner's index that is in use."""
    folder, alias = beir_folder(tmp_path / "beir"), f"{index_name}-shop"
    fill_index(cluster, index_name, 7)
    cluster.request("POST", "/_aliases", {"actions": [{"add": {"index": index_name, "alias": alias}}]})
    uuid = cluster.index_info(index_name).uuid
    for dry_run in (True, False):
        with pytest.raises(DataError, match=f"alias of the index '{index_name}', which holds 7 documents"):
            load(cluster, folder, LoadSettings(index=alias, replace=True), dry_run=dry_run)
    assert cluster.index_info(alias).uuid == uuid
    command = ["load", str(folder), "--index", index_name, "--replace", "--url", cluster.url]
    assert (
        "that name with 7 documents is deleted first; 20 documents" in cli.typed([*command, "--dry-run"]).out
    )
    assert cluster.index_info(index_name).uuid == uuid
    assert "that name with 7 documents was deleted first; 20 documents" in cli.typed(command).out


def test_a_source_is_not_replaced_while_clients_wrote_what_it_lacks(cluster, index_name, tmp_path):
    folder, settings = beir_folder(tmp_path / "beir"), LoadSettings(index=index_name, replace=True)
    made = reindexed(cluster, index_name, 10)
    put_documents(cluster, made.alias, [10])
    uuid = cluster.index_info(index_name).uuid
    for name in (index_name, made.destination):
        for dry_run in (True, False):
            with pytest.raises(ClusterError, match="clients changed 1 document") as refusal:
                Index(cluster, name).load(folder, settings, dry_run=dry_run)
            assert f"hybridr remove {index_name} --discard" in str(refusal.value.hint)
    assert cluster.index_info(index_name).uuid == uuid
    assert cluster.count(made.destination) == 11
    cluster.request("DELETE", f"/{made.destination}/_doc/d10", params={"refresh": "true"})
    sync(cluster, index_name, HashingEncoder())
    assert Index(cluster, index_name).load(folder, settings).replaced == 10
