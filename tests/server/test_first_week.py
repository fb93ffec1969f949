"""The first week with an index as applications have it, lived by the documents, as its page in docs tells.

`WRITE_FIRST_WEEK=1` writes that page anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from hybridr.cluster.connection import Cluster
from hybridr.files.formats import read_topics
from hybridr.relevance import answering
from hybridr.search import calibration
from support import manuals
from support.corpus import bulk, delete, drop_indices
from support.diary import Diary, differences
from support.matrix import asked, told
from support.places import ROOT

pytestmark = [pytest.mark.node, pytest.mark.ml, pytest.mark.model]
PAGE = ROOT / "docs" / "measured" / "first-week.md"
WRITE = bool(os.environ.get("WRITE_FIRST_WEEK"))
SERVER, JUDGED, REQUESTS = "http://127.0.0.1:8080", "FOLDER/judged", "FOLDER/requests.jsonl"
COPY = f"{manuals.ALIAS}-hybridr"
QUERY = "how does information retrieval work"
Answers = dict[str, Any]
FEW_PROBES = (
    "import sys, hybridr_cli; from hybridr.search import calibration; calibration.PROBED = 5; "
    "sys.exit(hybridr_cli.main(sys.argv[1:]))"
)
"""The command line, in which the scale of a shape of queries is measured with five texts; users get 50."""


def test_the_page_tells_what_happens(week):
    if WRITE:
        PAGE.write_text(week, encoding="utf-8")
    found = differences(week, PAGE.read_text(encoding="utf-8"))
    assert found == [], "WRITE_FIRST_WEEK=1 with this test writes docs/measured/first-week.md anew"


def test_the_page_holds_nothing_of_the_collections(week, collection):
    shown = fives(week)
    assert len(shown) > 500
    for part in manuals.PARTS:
        for _, source in manuals.documents({part: collection(part)}):
            assert not fives(f"{source.get('title', '')} {source['text']}") & shown


def fives(text: str) -> set[tuple[str, ...]]:
    """List five words side by side: nobody writes the same ones by chance."""
    words = text.split()
    return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}


@pytest.fixture(scope="module")
def week(
    ml_cluster: Cluster, collection: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Live through it, and give what was written."""
    folder = tmp_path_factory.mktemp("week")
    folders = {part: collection(part) for part in manuals.PARTS}
    diary = Diary()
    diary.name("http://localhost:9200", ml_cluster.url)
    diary.name(JUDGED, str(manuals.judged(folders, folder / "judged")))
    diary.name(REQUESTS, str(written(folder / "requests.jsonl")))
    manuals.make(ml_cluster, folders)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRIDR_URL", ml_cluster.url)
        patch.setenv("HYBRIDR_SERVE_RANK_TIMEOUT_S", "5")  # a busy machine encodes slowly
        patch.setattr(answering, "SEARCHED_QUERIES", 400)
        patch.setattr(calibration, "PROBED", 5)
        yield live(diary, ml_cluster)
    drop_indices(ml_cluster, f"{manuals.NAME}*")


def live(diary: Diary, cluster: Cluster) -> str:
    """Live through the week, day by day."""
    diary.tell(OPENING)
    diary.run("doctor", code=None, only=r"plugins|scripts|hybrid search|engines")
    diary.run(f"inspect {manuals.ALIAS}")
    before = answers(cluster, manuals.ALIAS)
    reindexing(diary)
    copied = answers(cluster, COPY)
    diary.tell(
        f"{len(copied)} requests of the application were sent to `{COPY}` instead of `{manuals.ALIAS}`. "
        f"{agreeing(before, copied)} return as many documents as before."
    )
    with serving(diary):
        judging(diary)
        deploying(diary, cluster, copied)
    unserved(diary, cluster, copied)
    leaving(diary, cluster, before)
    return diary.text


def reindexing(diary: Diary) -> None:
    diary.tell("## Tuesday: vectors\n\nFirst the cost and the requests, then for real.")
    diary.run(f"reindex {manuals.ALIAS} --dry-run", only=r"^\S+ documents of|^time|^(PUT|POST) |^nothing")
    diary.run(f"reindex {manuals.ALIAS}")
    diary.run(f"search {manuals.ALIAS} '{QUERY}' --explain --k 3")
    diary.run(f"verify {manuals.ALIAS}")
    diary.tell("The gain, by the collections' own judgements:")
    systems = "--systems bm25,hybrid-stock,hybrid"
    diary.run(f"evaluate {manuals.ALIAS} --beir {JUDGED} {systems}", first=5)


@contextmanager
def serving(diary: Diary) -> Iterator[None]:
    """Run `hybridr serve` as a process of its own."""
    command = [sys.executable, "-c", FEW_PROBES, "serve", "--index", manuals.ALIAS, "--port", "0"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            diary.name(SERVER, json.loads(process.stdout.readline())["url"])  # type: ignore[union-attr]
            yield
        finally:
            process.terminate()


def judging(diary: Diary) -> None:
    diary.tell(JUDGING)
    client = httpx.Client(base_url=diary.real(SERVER), timeout=60)
    queries, qrels = read_topics(Path(diary.real(JUDGED)), "test")
    relevant = {query.text: qrels[query.query_id] for query in queries}
    client.post("/judging/queries", json={"queries": list(relevant)}).raise_for_status()
    standing: dict[str, Any] = {}
    while (found := client.post("/judging/next", json={"judge": "ada"}).json())["query"] is not None:
        shown = [one["doc_id"] for one in found["documents"]]
        grades = {doc_id: int(doc_id in relevant[found["query"]]) for doc_id in shown}
        told = {"judge": "ada", "query_id": found["query_id"], "grades": grades}
        standing = client.post("/judging/grades", json=told).raise_for_status().json()
    diary.tell(f"{standing['queries']} queries judged, {standing['judged']} with a relevant document.")
    diary.run(f"tune {manuals.ALIAS} --judgements", only="judged|^search|pipeline:|use")
    diary.run(f"tune {manuals.ALIAS} --reset")


def deploying(diary: Diary, cluster: Cluster, copied: Answers) -> None:
    diary.tell(DEPLOYING)
    verdicts = diary.run(f"deploy {manuals.ALIAS} --explain {REQUESTS}", only="are ranked")
    way = f"--way transparent --server {SERVER} --set-cluster-settings"
    diary.run(f"deploy {manuals.ALIAS} {way}", only="deployed")
    deployed = answers(cluster, COPY)
    copied_verdicts = zip(copied, re.findall(r"^ *\d+  (\w+)", verdicts, re.MULTILINE), strict=True)
    alone = [name for name, verdict in copied_verdicts if verdict != "ranked"]
    kept = sum(told(deployed[name]) == told(copied[name]) for name in alone)
    diary.tell(
        f"{statuses(copied, deployed)} of {len(deployed)} requests are answered or refused as before. "
        f"{len(alone)} pass unchanged, and {kept} of these return the same response to the last digit. The "
        "others are ranked as by `hybridr search`."
    )


def unserved(diary: Diary, cluster: Cluster, copied: Answers) -> None:
    """The server has stopped; the application has not."""
    late = answers(cluster, COPY)
    same = sum(told(late[name]) == told(copied[name]) for name in copied)
    diary.tell(
        f"With the server stopped, {statuses(copied, late)} of {len(late)} requests are answered or refused "
        f"as before. {same} return the same response as before the deployment: plain BM25."
    )
    diary.run("doctor", code=None, only="no embedding server")


def leaving(diary: Diary, cluster: Cluster, before: Answers) -> None:
    diary.tell(LEAVING)
    put(cluster, "new-1")
    diary.run(f"status {manuals.ALIAS}", only="behind")
    diary.run(f"sync {manuals.ALIAS}")
    delete(cluster, manuals.NAME, "new-1")
    diary.run(f"sync {manuals.ALIAS}")
    diary.run(f"verify {manuals.ALIAS}", only="count|missing|older")
    diary.run(f"undeploy {manuals.ALIAS}", only="as it was")
    diary.run(f"rollback {manuals.ALIAS}")
    diary.run(f"remove {manuals.ALIAS}", code=2)
    diary.run(f"remove {manuals.ALIAS} --yes")
    diary.run(f"search {manuals.ALIAS} '{QUERY}'", code=1)
    after = answers(cluster, manuals.ALIAS)
    left = [info.name for info in cluster.indices(f"{manuals.ALIAS}*")]
    diary.tell(
        f"What is left: {', '.join(f'`{name}`' for name in left)}. {agreeing(before, after)} of the "
        f"{len(after)} requests return as many documents as on Monday."
    )


def put(cluster: Cluster, doc_id: str) -> None:
    bulk(cluster, manuals.NAME, [{"index": {"_id": doc_id}}, {"title": "One more", "text": "A last word."}])


def written(file: Path) -> Path:
    """Write the application's requests as `deploy --explain` reads them."""
    lines = [
        {"path": f"/{COPY}/{one.api}?{urlencode(one.params)}", "body": one.body} for one in manuals.requests()
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


def answers(cluster: Cluster, index: str) -> Answers:
    return {one.name: asked(cluster, index, one) for one in manuals.requests()}


def statuses(before: Answers, after: Answers) -> int:
    """Count the requests that are answered, or refused, as before."""
    return sum(isinstance(before[name], int) == isinstance(after[name], int) for name in before)


def agreeing(before: Answers, after: Answers) -> int:
    """Count the requests that find as many documents as before."""
    return sum(found(before[name]) == found(after[name]) for name in before)


def found(answer: Any) -> Any:
    """Give how many documents an answer says there are; of no search all that it says, but for the index."""
    if isinstance(answer, dict) and "hits" in answer:
        return answer["hits"].get("total")
    return json.dumps(told(answer)).replace(f"{manuals.NAME}-hybridr-1", manuals.NAME)


OPENING = """
# The first week

A search engineer adds hybridr to an index of a typical application, in the order of the README. All week,
every request of the application was answered or refused as before. Hybrid search ranked better than BM25.
At the end all of hybridr was removed.

All of this ran: `tests/server/test_first_week.py` runs these commands, and compares this page with their
output. Times and addresses are left out. Figures may differ in the last digits on other CPUs.

`manuals-v1` has 280 documents: 80 of the collection cisi (abstracts of library science) and 200 of cosqa
(Python functions). It has three uneven shards: every other document is routed to the same one. Bodies are
HTML. Their analyser has `html_strip`, stemming and, for queries, synonyms. Most documents have neither title
nor summary. Other fields are tags, a price, a date, an object and nested comments, with `dynamic: strict`.
Applications query its alias `manuals`, in the 121 kinds of requests of `tests/support/matrix.py`. Mistyped
commands are in `tests/server/test_mistakes.py`.

## Monday: what is there
"""
JUDGING = """
## Wednesday: judgements

`hybridr serve --index manuals` compares rankings and collects judgements in the browser. Here a program
judges in place of a person, by the collections' judgements.
"""
DEPLOYING = """
## Thursday: the application, unchanged

First what would happen to each of its requests, then for real.
"""
LEAVING = """
## Friday: writes, and the way back

A document is added and deleted. Then everything of hybridr is removed.
"""
