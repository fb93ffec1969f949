"""Connectors and models that the server will not delete: in use, still deployed, or by mistake."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster import remote_models
from hybridr.cluster.remote_models import RemoteModel, delete_model, deploy_model
from hybridr.errors import ClusterError, NotFound

OURS, OTHER = "pQ6dAaIB-D-HHKeiZ58h", "rw6dAaIB-D-HHKei5J8Y"


class Plugin:
    """ml-commons, as far as deletions go: `held` are the models that it names for a connector."""

    def __init__(self, held: list[str], models: dict[str, str]) -> None:
        self.held, self.models, self.deleted = held, models, []

    def request(self, method: str, path: str, body: Any = None) -> Any:
        name = path.rpartition("/")[2]
        if method == "GET":
            if name not in self.models:
                raise NotFound(f"no model {name}", status=404)
            return {"connector_id": self.models[name]}
        if "/connectors/" in path and self.held:
            text = "1 models are still using this connector, please delete or update the models first"
            raise ClusterError(f"{text}: [{', '.join(self.held)}]", status=409)
        self.deleted.append((method, name))
        return {}


def test_a_connector_that_is_held_for_the_model_of_another_stays_without_an_error() -> None:
    plugin = Plugin(["qw6dAaIB-D-HHKeiaZ9i"], {"qw6dAaIB-D-HHKeiaZ9i": OTHER})
    delete_model(plugin, RemoteModel("mine", OURS))
    assert plugin.deleted == [("POST", "_undeploy"), ("DELETE", "mine")]


def test_a_connector_is_waited_for_while_its_own_model_is_still_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_models.time, "sleep", lambda seconds: plugin.held.clear())
    plugin = Plugin(["mine", "qw6dAaIB-D-HHKeiaZ9i"], {"qw6dAaIB-D-HHKeiaZ9i": OTHER})
    delete_model(plugin, RemoteModel("mine", OURS))
    assert plugin.deleted[-1] == ("DELETE", OURS)


def test_a_connector_in_use_by_another_model_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_models, "CONFLICT_TIMEOUT_S", 0.0)
    plugin = Plugin(["theirs"], {"theirs": OURS})
    with pytest.raises(ClusterError, match="still using this connector"):
        delete_model(plugin, RemoteModel("mine", OURS))


class StillDeployed(Plugin):
    """ml-commons that writes a model's state, deployed, after it was undeployed `times` times."""

    def __init__(self, times: int) -> None:
        super().__init__([], {})
        self.times = times

    def request(self, method: str, path: str, body: Any = None) -> Any:
        undeployed = self.deleted.count(("POST", "_undeploy"))
        if method == "DELETE" and "/models/" in path and undeployed <= self.times:
            text = "Model cannot be deleted in deploying or deployed state. Try undeploy model first"
            raise ClusterError(text, status=400)
        return super().request(method, path, body)


def test_a_model_that_is_still_deployed_is_undeployed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_models.time, "sleep", lambda seconds: None)
    plugin = StillDeployed(2)
    delete_model(plugin, RemoteModel("mine", OURS))
    assert plugin.deleted == [*[("POST", "_undeploy")] * 3, ("DELETE", "mine"), ("DELETE", OURS)]


def test_a_model_that_stays_deployed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_models, "CONFLICT_TIMEOUT_S", 0.0)
    with pytest.raises(ClusterError, match="cannot be deleted"):
        delete_model(StillDeployed(99), RemoteModel("mine", OURS))


class Forgetful:
    """ml-commons that loses the first tasks of deploying."""

    def __init__(self, lost: int) -> None:
        self.lost, self.asked = lost, 0

    def request(self, method: str, path: str, body: Any = None) -> Any:
        if path.endswith("/_deploy"):
            self.asked += 1
            return {"task_id": f"t{self.asked}"}
        if "/tasks/" in path:
            return {"state": "RUNNING" if self.asked <= self.lost else "COMPLETED"}
        return {"model_state": "DEPLOYING"}


def test_a_lost_task_of_deploying_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_models, "DEPLOY_TIMEOUT_S", 0.3)
    plugin = Forgetful(lost=1)
    deploy_model(plugin, "mine")
    assert plugin.asked == 2
    with pytest.raises(ClusterError, match="did not deploy the model mine") as refused:
        deploy_model(Forgetful(lost=9), "mine")
    assert "_ml/tasks" in (refused.value.hint or "")
