"""What stands beside an index with vectors goes with it, people's rules stay, and what was left is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from hybridr import Query, ReindexSettings, Rule, Search
from hybridr.cluster.connection import Cluster, hidden_index_body, path_of
from hybridr.cluster.default_pipeline import stored_pipeline
from hybridr.cluster.destinations import resolve
from hybridr.errors import AccessDenied, ClusterError, DataError, NotFound
from hybridr.indexing import rollback as alias_moves
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.terms import storage
from hybridr.relevance.learning import learn
from hybridr.search.past_queries import current_memory, memory_name
from hybridr.search.rules.rules import add_rules, fetch_rules
from hybridr.search.settings import SearchSettings
from hybridr.serving.deploy import deploying
from hybridr.serving.deploy.deploying import deploy, undeploy
from hybridr.serving.settings import DeploySettings
from hybridr.status import leftovers, standing
from hybridr.status.leftovers import rollback
from hybridr.status.standing import remove
from support.commands import before_call
from support.corpus import drop_indices, fill_index, put_documents, sources, text_number
from support.hashing import HashingEncoder

JUDGED: Any = ([Query("p1", text_number(3))], {"p1": {"d3": 2}})
RULE = Rule(name="r1", text=text_number(7), pin=("d5",))
OTHER = ReindexSettings(m=8)  # which makes another destination


@pytest.fixture
def name(cluster: Cluster, index_name: str) -> Iterator[str]:
    """Give an index; it goes afterwards with everything that may be beside it, hidden indices too."""
    fill_index(cluster, index_name, 30)
    yield index_name
    for pipeline in pipelines(cluster, index_name):
        cluster.request("DELETE", path_of("_search", "pipeline", pipeline))
    drop_indices(cluster, f"{index_name}*")
    drop_indices(cluster, storage.HOME + index_name)


def there(cluster: Cluster, name: str) -> set[str]:
    """Give the names of all indices of an index, hidden ones too, less its own."""
    every = cluster.request("GET", path_of(f"{name}*,{storage.HOME}{name}*"), params=leftovers.PATTERNS)
    return every.keys() - {name}


def pipelines(cluster: Cluster, name: str) -> set[str]:
    with suppress(NotFound):  # there is none at all
        stored = cluster.request("GET", "/_search/pipeline")
        return {one for one in stored if one.startswith(f"hybridr-{name}")}
    return set()


def equipped(cluster: Cluster, name: str, settings: ReindexSettings | None = None) -> str:
    """Reindex, learn and deploy; give the name of the index with vectors."""
    made = reindex(cluster, name, HashingEncoder(), settings).destination
    learn(cluster, name, JUDGED, encoder=HashingEncoder())
    deploy(cluster, name, DeploySettings(), SearchSettings())
    return made


def test_a_drop_takes_all_of_the_index_and_leaves_the_rules(cluster, name):
    made = equipped(cluster, name)
    add_rules(cluster, name, [RULE])
    memory = current_memory(resolve(cluster, made))
    planned = rollback(cluster, name, drop=True, dry_run=True)
    assert not planned["dropped"]
    assert there(cluster, name) >= {made, memory, f"{name}-hybridr-rules"}
    done = rollback(cluster, name, drop=True)
    assert done["dropped"]
    for told in ("requests", "memories", "term_tables", "beside"):
        assert done[told] == planned[told]
    assert done["memories"] == [memory]
    assert there(cluster, name) == {f"{name}-hybridr-rules"}
    assert pipelines(cluster, name) == set()
    with pytest.raises(DataError, match="nothing is deployed"):
        undeploy(cluster, name)


def test_rules_are_in_force_again_after_the_next_reindex(cluster, name):
    reindex(cluster, name, HashingEncoder())
    add_rules(cluster, name, [RULE])
    rollback(cluster, name, drop=True)
    made = reindex(cluster, name, HashingEncoder()).destination
    assert [rule.name for rule in fetch_rules(cluster, name).rules] == ["r1"]
    assert Search(cluster, name, HashingEncoder())(RULE.text or "", 3)[0].doc_id == "d5"
    alias_moves.rollback(cluster, name)
    second = reindex(cluster, name, HashingEncoder(), OTHER).destination
    assert second != made
    assert resolve(cluster, name).record.rules == cluster.index_info(made).record.rules is not None
    assert remove(cluster, name)["rules"] == [f"{name}-hybridr-rules"]
    assert there(cluster, name) == set()


def test_remove_after_a_drop_finds_what_is_left(cluster, name, cli):
    reindex(cluster, name, HashingEncoder())
    add_rules(cluster, name, [RULE])
    rollback(cluster, name, drop=True)
    said = cli(cluster, f"remove {name} --dry-run").out
    assert f"rules that people made, {name}-hybridr-rules: to be deleted" in said
    assert f"alias {name}-hybridr: remove {name}" in said
    assert cli(cluster, f"remove {name} --yes --json").json["rules"] == [f"{name}-hybridr-rules"]
    assert there(cluster, name) == set()
    assert cluster.index_info(name).aliases == {}
    with pytest.raises(NotFound, match="hybridr made nothing"):
        remove(cluster, name)


@pytest.mark.usefixtures("few_terms")
@pytest.mark.parametrize("generations", [0, 1])
def test_remove_finds_what_indices_that_are_gone_left(cluster, name, generations, cli):
    made = [equipped(cluster, name, settings) for settings in (None, OTHER)][generations:]
    add_rules(cluster, name, [RULE])
    if generations:
        alias_moves.rollback(cluster, name)
    memories = {current_memory(resolve(cluster, index)) for index in made}
    for index in made:
        cluster.request("DELETE", path_of(index))
    left = {f"hybridr-{index}" for index in made}
    assert left <= pipelines(cluster, name)
    planned = remove(cluster, name, dry_run=True)
    assert memories <= set(planned["memories"])
    assert {f"/_search/pipeline/{one}" for one in left} <= {one["path"] for one in planned["requests"]}
    assert cli(cluster, f"remove {name} --yes").out.count("memory of past queries") == 4
    assert there(cluster, name) == set()
    assert pipelines(cluster, name) == set()


def test_remove_finds_it_where_the_source_is_gone_too(cluster, name):
    made = equipped(cluster, name)
    memory = current_memory(resolve(cluster, made))
    for index in (made, name):
        cluster.request("DELETE", path_of(index))
    done = remove(cluster, name)
    assert (done["source"], done["memories"]) == (name, [memory])
    assert there(cluster, name) == pipelines(cluster, name) == set()
    for nowhere in (name, f"{name}*"):
        with pytest.raises(NotFound, match="no index"):
            remove(cluster, nowhere)


def test_what_is_somebody_elses_stays(cluster, name):
    """A hidden index that hybridr did not make, a pipeline, and the memory of an index of such a name."""
    theirs, own = f"{name}-hybridr-5", f"{name}-hybridr-6"
    pipeline = path_of("_search", "pipeline", f"hybridr-{theirs}")
    cluster.request("PUT", path_of(memory_name(theirs, "1")), {"settings": {"index.hidden": True}})
    cluster.request("PUT", pipeline, {"description": "theirs", "phase_results_processors": []})
    cluster.request("PUT", path_of(own))
    cluster.request("PUT", path_of(memory_name(own, "1")), hidden_index_body({}))
    before = there(cluster, name)
    with pytest.raises(NotFound, match="hybridr made nothing"):
        remove(cluster, name)
    reindex(cluster, name, HashingEncoder())
    remove(cluster, name)
    assert there(cluster, name) == before
    assert stored_pipeline(cluster, f"hybridr-{theirs}")


def test_who_may_not_read_pipelines_drops_what_was_never_deployed(cluster, name, monkeypatch):
    def denied(*_: Any) -> None:
        raise AccessDenied("no permissions for [cluster:admin/search/pipeline/get]")

    equipped(cluster, name)
    for module in (leftovers, deploying):
        monkeypatch.setattr(module, "stored_pipeline", denied)
    with pytest.raises(AccessDenied):
        rollback(cluster, name, drop=True)
    assert resolve(cluster, name).name != name, "nothing was changed"
    monkeypatch.undo()
    undeploy(cluster, name)
    for module in (leftovers, deploying):
        monkeypatch.setattr(module, "stored_pipeline", denied)
    assert rollback(cluster, name, drop=True)["dropped"]
    assert there(cluster, name) == set()


@pytest.mark.parametrize("copy_back", [False, True])
def test_what_clients_write_while_all_is_removed_is_not_lost(cluster, name, monkeypatch, copy_back):
    made, alias = (
        reindex(cluster, name, HashingEncoder(), ReindexSettings(alias=f"{name}-app")),
        f"{name}-app",
    )
    deploy(cluster, name, DeploySettings(), SearchSettings())
    before = cluster.index_info(made.destination).aliases
    before_call(monkeypatch, standing, "model_deletions", lambda: put_documents(cluster, alias, [70]))
    if copy_back:
        assert remove(cluster, name, copy_back=True)["returned"] == {"changed": 1, "deleted": 0}
        assert "d70" in sources(cluster, name)
        return
    with pytest.raises(ClusterError, match=f"changed 1 document in '{made.destination}'") as refused:
        remove(cluster, name)
    assert "--copy-back" in str(refused.value.hint)
    assert cluster.index_info(made.destination).aliases == before, "as if nothing had been tried"
    assert cluster.index_info(made.destination).record.deployment
    monkeypatch.undo()
    remove(cluster, name, copy_back=True)
    assert "d70" in sources(cluster, name)
    assert there(cluster, name) == set()
