"""Search pipelines that a cluster keeps: shown, stored and deleted without touching anybody else's.

The description of ours begins with `hybridr: `, as in the files of `opensearch/pipelines/`; the server takes
no other place for a mark.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..cluster.connection import Cluster
from ..cluster.default_pipeline import DEFAULT, default_of, found_pipeline, pipeline_path, stored_pipeline
from ..errors import ClusterError, SettingsError
from ..search.fusions.pipeline import LowerBound, Technique, fusion_pipeline
from ..search.settings import SearchSettings
from .remote_models import MARK

NEWEST = (3, 6, 0)


class Change(NamedTuple):
    """What storing or deleting a pipeline does; `changed` is False where nothing was sent."""

    name: str
    requests: list[dict[str, Any]]
    changed: bool


def technique_of(
    settings: SearchSettings, weights: str | None = None, bounds: str | None = None
) -> Technique:
    """Read a technique: weights as `0.4,0.6` (None: from `dense_weight`), bounds as `apply:0,clip:0.5`.

    Raises SettingsError for what no server takes.
    """
    shares = (1.0 - settings.dense_weight, settings.dense_weight)
    if weights is not None:
        shares = tuple(read_number(part, "weights", "0.4,0.6") for part in weights.split(","))  # type: ignore[assignment]
    lowest = tuple(read_bound(part) for part in bounds.split(",")) if bounds else ()
    technique = Technique(
        settings.normalization, settings.combination, shares, settings.rank_constant, lowest
    )
    technique.check()
    return technique


def read_bound(text: str) -> LowerBound:
    """Read `apply:0.5`. Raises SettingsError."""
    mode, _, lowest = text.strip().partition(":")
    return LowerBound(mode, read_number(lowest, "lower bounds", "apply:0,clip:0.5"))


def read_number(text: str, what: str, form: str) -> float:
    """Read a number of a list. Raises SettingsError."""
    try:
        return float(text)
    except ValueError:
        raise SettingsError(f"{what}: '{text}' is no number", hint=f"they look like {form}") from None


def build_pipeline(technique: Technique, version: tuple[int, int, int] = NEWEST) -> dict[str, Any]:
    """Build the body of a technique, as it is stored. Raises SettingsError for what the version refuses."""
    return fusion_pipeline(technique, version)


def put_pipeline(
    cluster: Cluster, name: str, technique: Technique, *, replace: bool = False, dry_run: bool = False
) -> Change:
    """Store a pipeline; the same again changes nothing.

    Raises ClusterError rather than replace one of a deployment, or, without `replace`, one that is not ours.
    """
    body = build_pipeline(technique, cluster.version)
    path = pipeline_path(name)
    request = {"method": "PUT", "path": path, "body": body}
    current = found_pipeline(cluster, name)
    if current == body:
        return Change(name, [request], False)
    if current is not None:
        require_free(cluster, name)
        require_ours(name, current, replace)
    if not dry_run:
        cluster.request("PUT", path, body)
    return Change(name, [request], not dry_run)


def delete_pipeline(cluster: Cluster, name: str, *, dry_run: bool = False) -> Change:
    """Delete a pipeline of ours. Raises NotFound, and ClusterError for one in use or of somebody else."""
    current = stored_pipeline(cluster, name)
    if not is_ours(current):
        raise ClusterError(
            f"the search pipeline '{name}' is not hybridr's",
            hint=f"by hand: DELETE {pipeline_path(name)}",
        )
    require_free(cluster, name)
    if used := default_of(cluster, name):
        raise ClusterError(
            f"'{name}' is the default of {', '.join(used)}: their searches would fail",
            hint=f'first: PUT /{used[0]}/_settings {{"{DEFAULT}": null}}',
        )
    if not dry_run:
        cluster.request("DELETE", pipeline_path(name))
    return Change(name, [{"method": "DELETE", "path": pipeline_path(name)}], not dry_run)


def is_ours(body: dict[str, Any]) -> bool:
    """Tell whether hybridr made a pipeline."""
    return str(body.get("description", "")).startswith(MARK)


def require_ours(name: str, current: dict[str, Any], replace: bool) -> None:
    """Raise ClusterError for somebody else's pipeline."""
    if not (replace or is_ours(current)):
        raise ClusterError(
            f"there is a search pipeline '{name}' that is not hybridr's",
            hint=f"choose another name, or --replace; hybridr pipeline show {name}   prints it",
        )


def require_free(cluster: Cluster, name: str) -> None:
    """Raise ClusterError for the pipeline of a deployment, which `deploy` and `undeploy` look after."""
    for index in default_of(cluster, name):
        deployment = cluster.index_info(index).record.deployment
        if deployment and deployment.pipeline == name:
            raise ClusterError(
                f"'{name}' belongs to the deployment of '{index}'",
                hint=f"hybridr deploy {index}   with other [search] settings, or hybridr undeploy {index}",
            )
