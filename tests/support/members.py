"""A throw-away member of a family, in a folder beside the family's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from hybridr.families import load_member

FUSION = '''
from hybridr.search.fusions import Fusion, Grid


class Maximum(Fusion):
    """The larger of both true scores, the dense one five times."""

    name = "throwaway"
    grids = (Grid("throwaway", {"fusion": "throwaway"}, (0.5,)),)

    def scores(self, legs):
        words, near = legs.scores["lexical"], legs.scores["dense"]
        return {doc: max(words.get(doc, 0.0), 5 * near.get(doc, 0.0)) for doc in legs.documents}
'''
"""A fusion of no request of its own: each candidate's scores are asked by ids."""


@contextmanager
def one_more(family: ModuleType, name: str, source: str, folder: Path) -> Iterator[None]:
    """Put the file of one more member where the family looks, and take all traces of it away again."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(family, "__path__", [*family.__path__, str(folder)])
        yield
    sys.modules.pop(f"{family.__name__}.{name}", None)
    vars(family).pop(name, None)
    load_member.cache_clear()


TITLES = '''
from hybridr.cluster.retrievers import Retriever
from hybridr.cluster.retrievers import among
from hybridr.cluster.retrievers.lexical import named_query


class Titles(Retriever):
    """Documents that share a first word with the query: one point each."""

    name = "throwaway"
    help = "by first words"
    reads = "text"
    part = "first word"

    @classmethod
    def of(cls, record, fields):
        made = cls()
        made.field = fields[0]
        return made

    def query(self, value, k, *, filter=None, explain=False, boost=None):
        points = {"constant_score": {"filter": {"match": {self.field: value.split()[0]}}}}
        return named_query(points, self.name if explain else None, filter, boost)

    def scores_of(self, value, doc_ids):
        return among(doc_ids, self.query(value, len(doc_ids)))

    def true_scores(self, value, weight=1.0, *, explain=False):
        return self.query(value, 0, explain=explain, boost=weight)

    @classmethod
    def scale(cls, idf_sum, spread):
        return 1.0
'''
"""A leg that is no mode of the product, with true scores: it can be a part of a hybrid."""
