"""Checks before an index is deployed."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...cluster.aliases import resolve_complete
from ...cluster.connection import Cluster, path_of
from ...cluster.default_pipeline import is_searchable, pipeline_path
from ...cluster.field_values import text_of
from ...cluster.mappings import narrow_window_warnings
from ...cluster.reading import sample_documents
from ...cluster.record import IndexInfo
from ...cluster.remote_models import MARK, PLUGIN, ask_embedding_server, require_allowed
from ...cluster.retrievers.lexical import LexicalRetriever
from ...encoders.registry import languages_by_fingerprint
from ...errors import ClusterError, FingerprintMismatch, SettingsError
from ...families import load_member
from ...files.remembered import known_encoder_folder
from ...indexing.preflight import LANGUAGE_SAMPLE, check_language
from ...search.checks import stored_fusion, weighted_boosts
from ...search.fusions import FAMILY as FUSIONS
from ...search.search import Search, requirements_of
from ...search.settings import SearchSettings, with_tuning
from ..settings import DeploySettings

CLUSTER_SETTINGS = "/_cluster/settings"


class Deployable(NamedTuple):
    """An index that can be deployed, and the settings of its searches.

    `warning` is a problem of the encoder with the index's language that was forced; "" without one.
    """

    info: IndexInfo
    search: SearchSettings
    warning: str


def check_deployable(
    cluster: Cluster, name: str, settings: DeploySettings, search: SearchSettings
) -> Deployable:
    """Return the index and its search settings after checks.

    Raises DataError for an index without complete vectors, and SettingsError for impossible boosts or the
    transparent way without true scores. Raises ModelError, unless `settings.force`, for texts in a language
    that the encoder does not know.
    """
    cluster.dialect.require("deploy")
    info = resolve_complete(cluster, name)
    if search.boost and settings.way != "transparent":
        raise SettingsError(
            f"--way {settings.way} ranks by a stored pipeline, which does not support boosts",
            hint="--way transparent",
        )
    weighted_boosts(info, search.boost)  # only for its SettingsError
    fusion, remark = stored_fusion(cluster, with_tuning(search, info), info)
    if settings.way == "transparent" and not gives_true_scores(fusion):
        ranking = remark or f"ranked by the fusion '{fusion}'"
        raise SettingsError(
            f"--way transparent ranks by true scores, this index is {ranking}",
            hint="hybridr serve --proxy lexical ranks without scripts"
            if remark
            else f"--fusion absolute, after hybridr tune {shlex.quote(name)} --reset",
        )
    languages = languages_by_fingerprint(info.record.encoder, known_encoder_folder(info.record.encoder))
    warning = ""
    if languages and is_searchable(cluster, info):  # searches fail while its default pipeline is missing
        sample = sample_documents(cluster, info, LANGUAGE_SAMPLE, fields=info.record.fields)
        texts = [text_of(document.source, info.record.fields) for document in sample]
        warning = check_language(texts, languages, info.name, force=settings.force)
    search = with_tuning(search, info, "pipeline").model_copy(update={"fusion": fusion})
    return Deployable(info, search, warning)


def search_pipeline_of(info: IndexInfo) -> str:
    """Return the name of the search pipeline of a deployment."""
    return f"hybridr-{info.name}"


def is_ours(stored: Mapping[str, Any]) -> bool:
    """Return whether a stored search pipeline was made by hybridr, by its description."""
    return str(stored.get("description", "")).startswith(MARK)


def require_ours(name: str, stored: dict[str, Any]) -> None:
    """Raise ClusterError if a stored search pipeline of this name was not made by hybridr."""
    if not is_ours(stored):
        raise ClusterError(
            f"the search pipeline '{name}' exists and is not hybridr's",
            hint=f"store what GET {pipeline_path(name)} prints under another name, then delete it",
        )


def check_model(cluster: Cluster, info: IndexInfo, settings: DeploySettings, option: str) -> None:
    """Raise ClusterError if the cluster cannot use a model for this index.

    Raises for the server: Unreachable if it does not answer, SettingsError if it refuses the token,
    FingerprintMismatch if it has another encoder. `option` needs the model: "--ingest", "--way
    neural" or "--way transparent".
    """
    sync = f"hybridr sync {shlex.quote(info.record.source or info.name)} --every 30s"
    if PLUGIN not in cluster.installed_parts("plugins"):
        other_way = sync if option == "--ingest" else "--way client"
        raise ClusterError(
            f"{option} needs the plugin {PLUGIN} on every node",
            hint=f"{other_way} needs no plugin; an embedded node has it with: hybridr node start --with-ml",
        )
    if option != "--way transparent" and info.record.vectors == "byte":
        raise ClusterError(
            f"'{info.name}' stores byte vectors, and {option} sends floats",
            hint=sync if option == "--ingest" else "--way transparent",
        )
    ask_embedding_server(settings.server, "/v1/models", token_of(settings))  # raises for a wrong token
    health = ask_embedding_server(settings.server, "/healthz")
    if health.get("encoder") != info.record.encoder:
        raise FingerprintMismatch(
            f"{encoder_of_server(settings.server, health)}, the vectors of '{info.name}' were made by "
            f"{info.record.encoder[:12]}",
            hint=f"hybridr serve --index {shlex.quote(info.name)}",
        )


def encoder_of_server(server: str, health: Mapping[str, Any]) -> str:
    """Return the beginning of a message on a server's encoder, from its `/healthz`."""
    encoder = health.get("encoder")
    return f"the server at {server} has encoder {encoder[:12]}" if encoder else f"{server} has no encoder"


def check_served(
    cluster: Cluster, info: IndexInfo, settings: DeploySettings, search: SearchSettings
) -> list[str]:
    """Return a line for each signal that the server leaves out of its scores.

    Raises SettingsError if the server searches another index, or this one with another encoder, fields or
    term table than these settings.
    """
    report = ask_embedding_server(settings.server, "/v1/index", token_of(settings))
    report = report if "uuid" in report else {}  # without an index the server has no such route
    lexical = Search(cluster, info, mode=LexicalRetriever.name, settings=search)
    needs = requirements_of(lexical, info.record.encoder) | {"lost": ""}
    if mismatch := next((name for name, value in needs.items() if report.get(name) != value), None):
        problem = f"; {report['problem']}" if report.get("problem") else ""
        raise SettingsError(
            f"the server at {settings.server} ranks searches of {report.get('index', 'no index')}: its "
            f"{mismatch} is {short_text(report.get(mismatch))}, that of '{info.name}' is "
            f"{short_text(needs[mismatch])}{problem}",
            hint=f"hybridr serve --index {shlex.quote(info.name)}",
        )
    left_out: dict[str, str] = report.get("left_out", {})
    return [f"the server ranks without {name}: {reason}" for name, reason in left_out.items()]


def require_settable(missing: Mapping[str, Any], settings: DeploySettings) -> None:
    """Raise ClusterError if cluster settings that a model needs are missing, unless they may be set."""
    if not settings.set_cluster_settings:
        require_allowed(missing, settings.server, "   or: --set-cluster-settings")


def set_model_settings(cluster: Cluster, missing: Mapping[str, Any], settings: DeploySettings) -> None:
    """Set the cluster settings that a model needs. Raises ClusterError unless `set_cluster_settings`."""
    require_settable(missing, settings)
    cluster.request("PUT", CLUSTER_SETTINGS, {"persistent": missing})


def token_of(settings: DeploySettings) -> str | None:
    """Return the token for the server; None without one."""
    return settings.token.get_secret_value() if settings.token else None


def token_digest(info: IndexInfo, settings: DeploySettings) -> str:
    """Return a slow digest of the token, salted by the index name; empty without a token."""
    token = token_of(settings)
    return hashlib.scrypt(token.encode(), salt=info.name.encode(), n=2**14, r=8, p=1).hex() if token else ""


def short_text(value: Any) -> str:
    """Return a value that a server reported, as a text of at most 100 characters; "nothing" for ""."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text[:100] or "nothing"


def gives_true_scores(fusion: str) -> bool:
    """Return whether a fusion adds up true scores, so that the server can rank whole search bodies."""
    return bool(load_member(FUSIONS, fusion).rescores)


def search_limits(cluster: Cluster, info: IndexInfo) -> list[str]:
    """Return a line for each kind of search that will not be ranked, or that fails with other indices."""
    limits = narrow_window_warnings(info)
    field, dim = info.record.vector_field, info.record.dim
    mappings = cluster.request("GET", path_of("_all", "_mapping", "field", field))
    leaf_name = field.rpartition(".")[2]
    other_indices: list[str] = []
    for name, index_mapping in sorted(mappings.items()):
        mapping = index_mapping["mappings"].get(field, {}).get("mapping", {}).get(leaf_name, {})
        if mapping.get("dimension", dim) != dim:
            other_indices.append(name)
    if other_indices:
        names = ", ".join(other_indices[:3]) + (", …" if len(other_indices) > 3 else "")
        limits.append(
            f"a search of it together with {names} fails: their {field} does not have {dim} dimensions"
        )
    return limits


def overtaken_error(name: str, state: str = "") -> ClusterError:
    """Return the error of a run that was overtaken by another one; `state` describes what remains."""
    return ClusterError(
        f"another `deploy` or `undeploy` of '{name}' ran at the same time{state}",
        hint=f"hybridr status {shlex.quote(name)}; when the other one has ended, run the same command again",
    )
