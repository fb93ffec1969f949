"""A small application that knows nothing of hybridr: a shop that asks OpenSearch by opensearch-py."""

from __future__ import annotations

from typing import Any

from opensearchpy import OpenSearch

FIELDS = ["name^2", "about"]
MAPPING = {
    "settings": {"number_of_shards": 2, "number_of_replicas": 0},
    "mappings": {
        "properties": {
            "name": {"type": "text"},
            "about": {"type": "text"},
            "room": {"type": "keyword"},
            "price": {"type": "float"},
        }
    },
}
PRODUCTS = [
    ("Desk lamp", "A small light for reading at night.", "study", 25),
    ("Floor lamp", "A tall light that stands beside the sofa.", "living", 80),
    ("Candle", "Burns for forty hours and smells of honey.", "living", 9),
    ("Curtains", "Heavy cloth that keeps a bedroom dark in the morning.", "bedroom", 60),
    ("Bedside table", "Oak, with one drawer for books.", "bedroom", 110),
    ("Alarm clock", "Wakes you with a rising sun.", "bedroom", 35),
    ("Armchair", "Soft seat with wide arms, for long evenings with a novel.", "living", 320),
    ("Sofa", "Room for three people and a cat.", "living", 900),
    ("Stool", "Three legs, stands in any corner.", "kitchen", 30),
    ("Office chair", "Turns, rolls, and is kind to the back.", "study", 210),
    ("Kettle", "Boils a litre of water in two minutes.", "kitchen", 40),
    ("Teapot", "Holds six cups and keeps them warm.", "kitchen", 28),
    ("Frying pan", "Cast iron, for eggs and pancakes.", "kitchen", 45),
    ("Bread knife", "A long blade with teeth.", "kitchen", 22),
    ("Bookshelf", "Five boards for two hundred books.", "study", 150),
    ("Rug", "Woven wool, warm under bare feet.", "living", 240),
    ("Blanket", "Keeps you warm on cold nights.", "bedroom", 70),
    ("Pillow", "Filled with down, for a quiet sleep.", "bedroom", 33),
    ("Wall mirror", "Makes a small room look larger.", "bedroom", 95),
    ("Reading glasses", "Two strengths, in a case.", "study", 18),
]


class Shop:
    """Searches, pages, facets, sorting, highlighting and deletions, by one index name."""

    def __init__(self, url: str, index: str) -> None:
        self.client, self.index = OpenSearch(url), index

    def fill(self) -> None:
        self.client.indices.create(index=self.index, body=MAPPING)
        for number, (name, about, room, price) in enumerate(PRODUCTS):
            product = {"name": name, "about": about, "room": room, "price": price}
            self.client.index(index=self.index, id=str(number), body=product)
        self.client.indices.refresh(index=self.index)

    def find(self, text: str, page: int = 0, room: str | None = None, **besides: Any) -> dict[str, Any]:
        query: dict[str, Any] = {"multi_match": {"query": text, "fields": FIELDS}}
        if room:
            query = {"bool": {"must": [query], "filter": [{"term": {"room": room}}]}}
        body = {"query": query, "from": 3 * page, "size": 3, **besides}
        found: dict[str, Any] = self.client.search(index=self.index, body=body)
        return found

    def answers(self) -> dict[str, Any]:
        """What the pages of the shop show."""
        text = "something to read by in the evening"
        rooms = self.find(text, aggs={"rooms": {"terms": {"field": "room"}}})
        marked = self.find(text, highlight={"fields": {"about": {}}})
        cheapest = self.find(text, sort=[{"price": "asc"}])
        return {
            "first page": names(self.find(text)),
            "second page": names(self.find(text, page=1)),
            "in the bedroom": names(self.find(text, room="bedroom")),
            "found": rooms["hits"]["total"]["value"],
            "rooms": {one["key"]: one["doc_count"] for one in rooms["aggregations"]["rooms"]["buckets"]},
            "marked": [hit.get("highlight", {}).get("about", [""])[0] for hit in marked["hits"]["hits"]],
            "cheapest": names(cheapest),
            "nothing": names(self.find("qqxyzzy")),
            "counted": self.client.count(index=self.index, body={"query": {"match": {"about": "warm"}}})[
                "count"
            ],
            "shown of a hit": sorted(self.find(text)["hits"]["hits"][0]["_source"]),
        }

    def sell_out(self, text: str) -> int:
        """Delete what words match, and no more."""
        body = {"query": {"match": {"about": text}}}
        answer = self.client.delete_by_query(index=self.index, body=body, params={"refresh": "true"})
        return int(answer["deleted"])


def names(answer: dict[str, Any]) -> list[str]:
    return [hit["_source"]["name"] for hit in answer["hits"]["hits"]]


def transcript(answers: dict[str, dict[str, Any]]) -> str:
    """Write the answers of several times side by side, those that stayed in one line."""
    times = list(answers)
    lines: list[str] = []
    for name in answers[times[0]]:
        said = [answers[time][name] for time in times]
        if all(one == said[0] for one in said):
            lines.append(f"{name}, always: {said[0]}")
            continue
        lines += [f"{name}, {time}: {one}" for time, one in zip(times, said, strict=True)]
    return "\n".join(lines)
