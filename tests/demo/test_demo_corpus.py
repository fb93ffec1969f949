"""The demo corpus: read from this Python's sources, and from small libraries written here."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from hybridr.demo import demo
from hybridr.demo.demo import MIN_WORDS, Entry, is_query, read_pydocs
from hybridr.errors import DataError

REST = "The rest of it goes on for a while and says in many different words what the summary had said before."


@pytest.fixture(scope="module")
def corpus():
    return read_pydocs()


def library(folder: Path, **modules: str) -> Path:
    for name, source in modules.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return folder


def function(name: str, summary: str, rest: str = REST, arguments: str = "") -> str:
    return f'def {name}({arguments}):\n    """{summary}\n\n    {rest}\n    """\n\n'


def test_reading_is_quick_and_repeatable_and_the_size_that_of_the_design(corpus):
    demo._read_library.cache_clear()  # the suite reads it once
    start = time.process_time()
    assert read_pydocs() == corpus
    assert time.process_time() - start < 10
    assert [len(part) for part in corpus] == [1500, 200, 200]


def test_identifiers_are_unique_and_public(corpus):
    names = [document.doc_id for document in corpus[0]]
    assert (len(set(names)), names) == (len(names), sorted(names))
    assert not [name for name in names if any(part.startswith("_") for part in name.split("."))]
    assert not [name for name in names if name.split(".")[0] in ("test", "idlelib", "lib2to3", "turtledemo")]
    assert any(name.startswith("pathlib.Path") for name in names)


def test_no_two_documents_say_the_same(corpus):
    texts = [" ".join(document.text.split()) for document in corpus[0]]
    assert len(set(texts)) == len(texts)
    assert min(len(text.split()) for text in texts) >= MIN_WORDS


def test_each_query_has_one_document_that_does_not_contain_it(corpus):
    documents, queries, qrels = corpus
    texts = {document.doc_id: document for document in documents}
    for query in queries:
        (target,) = qrels[query.query_id]
        words = re.findall(r"\w+", texts[target].contents.lower())
        assert " ".join(re.findall(r"\w+", query.text.lower())) not in " ".join(words), target
        assert target.rsplit(".", 1)[-1].lower() not in re.findall(r"\w+", query.text.lower())
    assert len({query.text for query in queries}) == len(queries)


def test_another_seed_asks_for_other_documents(corpus):
    assert {query.text for query in read_pydocs(seed=7)[1]} != {query.text for query in corpus[1]}


def test_the_summary_is_removed_from_the_document_of_its_query_only(tmp_path):
    sources = library(
        tmp_path,
        fruit=function("peel", "Take the skin off one piece of fruit.")
        + function("cut", "Cut up.", REST + " Now."),
    )
    documents, queries, qrels = read_pydocs(library=sources)
    assert [query.text for query in queries] == ["Take the skin off one piece of fruit"]
    assert qrels == {"q001": {"fruit.peel": 1}}
    assert [(document.doc_id, document.text) for document in documents] == [
        ("fruit.cut", f"Cut up.\n\n{REST} Now."),
        ("fruit.peel", REST),
    ]


def test_titles_show_the_way_and_the_arguments(tmp_path):
    method = "class Tree:\n    " + function(
        "prune", "Cut twigs.", arguments="self, depth, *, keep=0"
    ).replace("\n", "\n    ")
    documents, _, _ = read_pydocs(library=library(tmp_path, **{"garden/work": method}))
    assert [(document.doc_id, document.title) for document in documents] == [
        ("garden.work.Tree.prune", "garden > work > Tree > prune(depth, keep)")
    ]


def test_private_short_repeated_and_broken_sources_are_left_out(tmp_path):
    guarded = "try:\n    pass\nexcept ImportError:\n    " + function("guarded", "In a try.").replace(
        "\n", "\n    "
    )
    sources = library(
        tmp_path,
        one=function("_hidden", "A.") + function("seen", "B.") + function("seen", "C.") + guarded,
        two=function("alias", "B.") + 'def brief():\n    """Too short."""\n',
        _private=function("f", "D."),
        broken="def f(:\n",
        **{"test/test_one": function("f", "E."), "pack/__init__": function("g", "F.")},
    )
    documents, queries, _ = read_pydocs(library=sources)
    assert [document.doc_id for document in documents] == ["one.seen", "pack.g"]
    assert queries == []


def test_definitions_inside_if_and_try_are_found(tmp_path):
    block = "if True:\n    " + function("inside", "In a block.").replace("\n", "\n    ")
    documents, _, _ = read_pydocs(library=library(tmp_path, module=block))
    assert [document.doc_id for document in documents] == ["module.inside"]


@pytest.mark.parametrize(
    ("name", "summary", "body"),
    [
        ("m.f", "Too few words", REST),
        ("m.f", " ".join(["word"] * 26), REST),
        ("m.open", "Open the door of a house with a key", REST),
        ("m.f", "Deprecated alias of the newer way to do it", REST),
        ("m.f", "f(x) -> the value of x in the end", REST),
        ("m.f", "Use it as the following lines explain:", REST),
        ("m.f", "Take the skin off one piece", "Too short a rest."),
        ("m.f", "Take the skin off one piece", "First take the skin off one piece. " + REST),
    ],
)
def test_unfit_summaries(name, summary, body):
    assert is_query(Entry("m.f", "m > f", "Take the skin off one piece", REST))
    assert not is_query(Entry(name, "m > f", summary, body))


def test_two_objects_with_one_summary_give_no_query(tmp_path):
    summary = "Take the skin off one piece of fruit."
    sources = library(tmp_path, a=function("f", summary), b=function("g", summary, REST + " Twice."))
    documents, queries, _ = read_pydocs(library=sources)
    assert (len(documents), queries) == (2, [])


def test_two_objects_that_differ_in_their_summary_only_give_no_query(tmp_path):
    both = function("f", "Take the skin off one piece.") + function("g", "Cut the fruit up in small bits.")
    documents, queries, _ = read_pydocs(library=library(tmp_path, a=both))
    assert (len(documents), queries) == (2, [])


def test_a_python_without_sources(tmp_path):
    with pytest.raises(DataError, match=f"no documented Python sources under {tmp_path}") as caught:
        read_pydocs(library=tmp_path)
    assert "installed with its .py files" in caught.value.hint
    assert caught.value.exit_code == 1
