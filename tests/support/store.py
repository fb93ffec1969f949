"""A shop as shops are: sub-fields, keywords, synonyms, nested objects, three shards; and what it sends."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from hybridr.cluster.connection import Cluster, path_of
from support.corpus import put

BRANDS = ("Nordvik", "Tallow & Sons", "Acme", "Hearthside", "Kumo", "Blue Heron")
COLOURS = ("red", "navy blue", "green", "charcoal", "ivory", "mustard")
MATERIALS = ("oak", "wool", "cast iron", "linen", "ceramic", "leather", "stainless steel")
KINDS = (
    ("lighting", "reading lamp", "a warm light for late evenings with a book"),
    ("lighting", "floor lamp", "a tall light that stands beside the sofa"),
    ("seating", "armchair", "a soft seat with wide arms"),
    ("seating", "office chair", "turns and rolls, kind to the back"),
    ("kitchen", "frying pan", "heats evenly, for eggs and pancakes"),
    ("kitchen", "tea kettle", "boils a litre of water in two minutes"),
    ("bedroom", "blanket", "keeps you warm on cold nights"),
    ("bedroom", "bedside table", "one drawer for books and glasses"),
    ("storage", "bookshelf", "five boards for two hundred books"),
    ("storage", "coat rack", "holds the coats of a whole family"),
)
STORE: dict[str, Any] = {
    "settings": {
        "index.knn": True,
        "number_of_shards": 3,
        "number_of_replicas": 0,
        "analysis": {
            "filter": {
                "same": {"type": "synonym_graph", "synonyms": ["couch, sofa, settee", "rug, carpet"]},
                "stems": {"type": "stemmer", "language": "english"},
            },
            "analyzer": {
                "asked": {"tokenizer": "standard", "filter": ["lowercase", "same"]},
                "stemmed": {"tokenizer": "standard", "filter": ["lowercase", "stems"]},
            },
        },
    },
    "mappings": {
        "dynamic": "strict",
        "properties": {
            "sku": {"type": "keyword"},
            "title": {
                "type": "text",
                "analyzer": "standard",
                "search_analyzer": "asked",
                "fields": {
                    "english": {"type": "text", "analyzer": "stemmed"},
                    "keyword": {"type": "keyword", "ignore_above": 256},
                },
            },
            "brand": {"type": "keyword", "fields": {"text": {"type": "text"}}},
            "description": {"type": "text"},
            "attributes": {"type": "text"},
            "category": {"type": "keyword"},
            "specs": {
                "type": "nested",
                "properties": {"name": {"type": "keyword"}, "value": {"type": "text"}},
            },
            "price": {"type": "float"},
            "rating": {"type": "half_float"},
            "reviews": {"type": "integer"},
            "in_stock": {"type": "boolean"},
            "published": {"type": "date"},
            "popularity": {"type": "rank_feature"},
            "suggest": {"type": "completion"},
            "alert": {"type": "percolator"},
            "photo": {
                "type": "knn_vector",
                "dimension": 2,
                "method": {"name": "hnsw", "engine": "lucene", "space_type": "l2"},
            },
        },
    },
}


def fill_store(cluster: Cluster, index: str, count: int) -> None:
    """Create a shop as shops are: sub-fields, keywords, synonyms, nested objects, three shards."""
    cluster.request("PUT", path_of(index), STORE)
    dice, documents = random.Random(27), {}
    for number in range(count):
        category, kind, about = KINDS[number % len(KINDS)]
        colour, material = dice.choice(COLOURS), dice.choice(MATERIALS)
        documents[f"p{number}"] = {
            "sku": f"{kind[:2].upper()}-{1000 + number}",
            "title": f"{colour} {material} {kind}",
            "brand": dice.choice(BRANDS),
            "description": f"{about}, made of {material} {dice.choice(['by hand', 'in small numbers'])}",
            "attributes": f"{colour} {material} {dice.choice(['small', 'large', 'foldable'])}",
            "category": category,
            "specs": [{"name": "material", "value": material}, {"name": "colour", "value": colour}],
            "price": round(dice.uniform(5, 900), 2),
            "rating": round(dice.uniform(1, 5), 1),
            "reviews": int(dice.lognormvariate(2, 1.5)),
            "in_stock": dice.random() < 0.7,
            "published": f"2026-{1 + number % 12:02}-{1 + number % 27:02}",
            "popularity": 1 + dice.randrange(500),
            "suggest": [kind],
            "photo": [dice.random(), dice.random()],
        } | ({"alert": match(kind)} if number % 50 == 0 else {})
    put(cluster, index, documents)


FIELDS_ASKED = ["title^5", "title.english^3", "brand.text^2", "description", "attributes^0.5"]
FACETS = {
    "brands": {"terms": {"field": "brand"}},
    "prices": {"stats": {"field": "price"}},
    "categories": {"terms": {"field": "category"}},
}
IN_STOCK = {"term": {"in_stock": True}}
CHEAP = {"range": {"price": {"lte": 400}}}
LIKED = {"field_value_factor": {"field": "rating", "modifier": "sqrt", "missing": 1}}
RECENT = {"gauss": {"published": {"origin": "2026-12-01", "scale": "120d", "decay": 0.5}}}
LAMP, CHAIR, PAN, LIKE_OAK = "reading lamp", "leather armchair", "cast iron frying pan", "oak shelf for books"


@dataclass(frozen=True)
class Sent:
    """A request of the shop; `ranked` tells whether it looks for a text, orders by its score and finds it."""

    kind: str
    body: dict[str, Any]
    ranked: bool = True
    params: dict[str, str] = field(default_factory=dict)
    api: str = "_search"


def match(text: str, name: str = "title", **more: Any) -> dict[str, Any]:
    return {"match": {name: {"query": text, **more}}}


def multi(text: str, fields: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"multi_match": {"query": text, "fields": fields or FIELDS_ASKED, **more}}


def of_bool(**parts: Any) -> dict[str, Any]:
    return {"bool": parts}


def scored(query: dict[str, Any], **functions: Any) -> dict[str, Any]:
    return {"function_score": {"query": query, **functions}}


def asked(query: dict[str, Any], **besides: Any) -> dict[str, Any]:
    return {"query": query, **besides}


def searches() -> list[Sent]:
    """What the shop sends that looks for a text and orders by its score; plainer forms are in `matrix.py`."""
    main = multi(LAMP)
    types = ("best_fields", "most_fields", "cross_fields", "phrase", "phrase_prefix", "bool_prefix")
    texts = {"phrase": "iron frying", "phrase_prefix": "iron fry", "bool_prefix": "iron fry"}
    strings = {
        "words": "red armchair",
        "and": "red AND armchair",
        "field": "title:(wool OR linen) blanket",
        "phrase": '"office chair" -leather',
        "begins": "kett* steel",
        "boost": "title:lamp^3 brand.text:Kumo",
    }
    simple = {
        "words": "green kettle",
        "plus": "+green +kettle",
        "not": "blanket -wool",
        "any": "lamp | kettle",
    }
    nested = {"nested": {"path": "specs", "query": match("leather", "specs.value")}}
    material = {
        "nested": {
            "path": "specs",
            "query": of_bool(must=[{"term": {"specs.name": "material"}}, match("oak", "specs.value")]),
        }
    }
    queries = {
        "match of a sub-field": match(LAMP, "title.english"),
        "match, fuzzy": match("readng lmap", fuzziness="AUTO"),
        "match, and": match(CHAIR, operator="and"),
        "match, most of the words": match(PAN, minimum_should_match="75%"),
        **{f"multi_match, {one}": multi(texts.get(one, PAN), type=one) for one in types},
        "multi_match, ties": multi(LIKE_OAK, tie_breaker=0.3),
        "multi_match, wildcard": multi(LIKE_OAK, ["tit*", "description"]),
        "multi_match, wildcard of sub-fields": multi(CHAIR, ["title.*^2", "brand.*"]),
        "multi_match, keyword among them": multi("Acme kettle", ["title^3", "brand", "sku^10"]),
        "multi_match, fuzzy": multi("lether armchar", fuzziness="AUTO", prefix_length=1),
        "multi_match, and": multi("warm light", operator="and", type="cross_fields"),
        "multi_match, all fields": multi("oak 2026 shelf", ["*"]),
        "multi_match, all fields of any kind": multi("acme kettle", ["*", "*.*^2"], lenient=True),
        "multi_match, no fields": {"multi_match": {"query": LIKE_OAK}},
        "multi_match, plain fields": multi(LIKE_OAK, ["title", "description", "attributes"]),
        "multi_match, large boosts": multi(LAMP, ["title^1000000", "description^0"]),
        "multi_match, a field that is gone": multi(LAMP, ["title^2", "gone^3"]),
        "match, boost of nothing": match(LAMP, boost=0),
        "multi_match, one analyser": multi(PAN, analyzer="standard"),
        "match_phrase": {"match_phrase": {"title": "office chair"}},
        "match_phrase, slop": {"match_phrase": {"title": {"query": "oak chair", "slop": 2}}},
        "match_phrase_prefix": {"match_phrase_prefix": {"title": "office ch"}},
        "match_bool_prefix": {"match_bool_prefix": {"title": "office ch"}},
        **{f"query_string, {name}": {"query_string": {"query": of}} for name, of in strings.items()},
        **{
            f"simple_query_string, {name}": {
                "simple_query_string": {"query": of, "fields": ["title^2", "at*"]}
            }
            for name, of in simple.items()
        },
        "dis_max, part number": {
            "dis_max": {"queries": [main, {"term": {"sku": {"value": LAMP, "boost": 50}}}]}
        },
        "dis_max, phrase": {"dis_max": {"queries": [main, {"match_phrase": {"title": LAMP}}]}},
        "bool, phrase wished": of_bool(
            must=[main], should=[{"match_phrase": {"title": {"query": LAMP, "boost": 8}}}], filter=[IN_STOCK]
        ),
        "bool, several matches": of_bool(
            should=[match(PAN, boost=5), match(PAN, "description"), match(PAN, "brand.text", boost=2)],
            minimum_should_match=1,
        ),
        "bool, two texts": of_bool(must=[match("armchair"), match("nordvik", "brand.text")]),
        "bool, brand by its text": of_bool(must=[main, match("Kumo Acme", "brand.text")]),
        "bool, rank_feature": of_bool(must=[main], should=[{"rank_feature": {"field": "popularity"}}]),
        "bool in bool": of_bool(must=[of_bool(should=[main, match(LAMP, "description")])], filter=[CHEAP]),
        "bool, keyword exactly": of_bool(should=[main, {"term": {"title.keyword": LAMP}}]),
        "nested wished": of_bool(must=[multi("armchair")], should=[nested]),
        "nested demanded": of_bool(must=[multi("armchair"), material]),
        **{
            f"function_score, {mode}": scored(main, functions=[LIKED], boost_mode=mode)
            for mode in ("multiply", "sum", "avg", "max", "min")
        },
        **{
            f"function_score, of {mode}": scored(main, functions=[LIKED, RECENT], score_mode=mode)
            for mode in ("sum", "avg", "first", "max", "min")
        },
        "function_score, filtered": scored(main, functions=[{"filter": IN_STOCK, "weight": 3}]),
        "function_score, random": scored(main, random_score={"seed": 3, "field": "_seq_no"}),
        "function_score, nothing left of it": scored(main, weight=0),
        "function_score, least score": scored(main, functions=[LIKED], min_score=2),
        "function_score in bool": of_bool(must=[scored(main, functions=[LIKED])], filter=[IN_STOCK]),
        "function_score, a script in its place": scored(
            main, script_score={"script": {"source": "_score * doc['rating'].value"}}, boost_mode="replace"
        ),
        "function_score among clauses": of_bool(
            should=[scored(match(PAN), functions=[LIKED, RECENT]), match(PAN, "description")]
        ),
        "function_score in dis_max": {
            "dis_max": {"queries": [scored(main, functions=[LIKED]), match(LAMP, "description")]}
        },
    }
    sent = [Sent(kind, asked(query)) for kind, query in queries.items()]
    filtered = of_bool(must=[main], filter=[IN_STOCK])
    bodies: dict[str, dict[str, Any]] = {
        "min_score": asked(main, min_score=6),
        "collapse, hits inside": asked(
            main, collapse={"field": "brand", "inner_hits": {"name": "more", "size": 2}}, from_=2
        ),
        "collapse, facets": asked(filtered, collapse={"field": "category"}, aggs=FACETS),
        "sort by score": asked(main, sort=["_score"]),
        "sort by score, then by price": asked(main, sort=[{"_score": "desc"}, {"price": "asc"}]),
        "sort by score, then by id": asked(
            main, sort=["_score", {"sku": "asc"}], highlight={"fields": {"title": {}}}
        ),
    }
    bodies["collapse, hits inside"]["from"] = bodies["collapse, hits inside"].pop("from_")
    sent += [Sent(kind, body) for kind, body in bodies.items()]
    template = {"source": {"query": multi("{{t}}")}, "params": {"t": CHAIR}}
    return [
        *sent,
        Sent("?q=", {}, params={"q": "green armchair"}),
        Sent("?q=, a field", {}, params={"q": "large wool blanket", "df": "title.english"}),
        Sent("template", template, api="_search/template"),
    ]


def others() -> list[Sent]:
    """What holds nothing to rank: another order, or no text."""
    main = multi(LAMP)
    bodies = {
        "sorted, then by score": asked(main, sort=[{"in_stock": "desc"}, "_score"]),
        "facets alone": asked(main, size=0, aggs=FACETS),
        "filters alone": asked(of_bool(filter=[IN_STOCK, CHEAP])),
        "next page of a view": asked(main, sort=["_score", "_doc"]),
        "by score, backwards": asked(main, sort=[{"_score": "asc"}]),
        "function added to one of several clauses": asked(
            of_bool(should=[scored(main, functions=[LIKED], boost_mode="sum"), match(LAMP)])
        ),
        "popular": asked({"rank_feature": {"field": "popularity"}}),
        "function alone": asked(scored({"match_all": {}}, random_score={"seed": 1, "field": "_seq_no"})),
        "no boost at all": asked(multi(LAMP, ["title^0", "description^0"])),
        "all fields are gone": asked(multi(LAMP, ["gone^3", "went"])),
        "percolate": asked({"percolate": {"field": "alert", "document": {"title": "red reading lamp"}}}),
        "negative boost": asked(multi(LAMP, ["title^-1", "title.english"])),
    }
    return [Sent(kind, body, ranked=False) for kind, body in bodies.items()]
