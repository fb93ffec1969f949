"""`Index`: an index of a cluster, with a method for each command that works on an index."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from .cluster.connection import Cluster
from .cluster.settings import ClusterSettings
from .errors import ClusterError, DownloadError, SettingsError
from .records import Progress, silent
from .settings import resolve_stage

if TYPE_CHECKING:
    from .cluster.loading import Loading
    from .cluster.settings import LoadSettings
    from .doctor.inspection import Inspection
    from .doctor.recall import Recall
    from .encoders.contract import Encoder
    from .encoders.opening import OnnxEncoder
    from .evaluation.evaluation import Evaluation, JudgedQueries
    from .indexing.planning import Plan
    from .indexing.reindexing import ReindexResult, SyncResult
    from .indexing.settings import ReindexSettings
    from .indexing.stages.transfer import Imported, TextsExported
    from .indexing.verification import Verification
    from .records import Hits, Qrels, Query
    from .relevance.clicks.clicks import Clicks
    from .relevance.experiments import Contender, ExperimentReport, ExperimentStep
    from .relevance.gate import EncoderComparison
    from .relevance.learning import Changes, Forgetting, LearnResult
    from .relevance.settings import TuneSettings
    from .relevance.shadows import ShadowReport
    from .relevance.tuning import Reset, TuneResult
    from .search.rules.rule import Rule
    from .search.rules.rules import RulesChange, RulesVersion
    from .search.search import Explanation, Search
    from .search.settings import SearchSettings
    from .search.systems import Compared
    from .serving.deploy.deploying import DeployResult
    from .serving.deploy.ingesting import Ingesting
    from .serving.page.judgements import Assessment
    from .serving.rewriting.explaining import Explained
    from .serving.settings import AssessorSettings, DeploySettings
    from .status.standing import Status
    from .training.adaptation import AdaptResult
    from .training.settings import AdaptSettings

    Judged: TypeAlias = JudgedQueries | tuple[list[Query], Qrels] | Path | str


class Connection(Cluster):
    """A connection to a cluster, which opens its indices by name.

    >>> docs = hybridr.connect("https://search.example:9200", user="me").index("docs")
    """

    def index(self, name: str) -> Index:
        """Return the index or alias `name`, which need not exist yet. Sends no request.

        >>> hybridr.connect().index("docs").name
        'docs'
        """
        return Index(self, name)


def connect(url: str | None = None, **auth: Any) -> Connection:
    """Connect to OpenSearch 2.19 or later, or to Elasticsearch 8.12 or later.

    The default `url` is `HYBRIDR_URL`, else the running embedded node, else localhost:9200.
    `auth` are other fields of ClusterSettings, such as `user`. Raises Unreachable, AccessDenied,
    SettingsError, and ClusterError for another product or an older version.

    >>> docs = hybridr.connect().index("docs")
    """
    settings = resolve_stage(ClusterSettings, {"url": url, **auth})[0]
    return Connection.connect(settings)


class Index:
    """An index or alias of a cluster, with a method for each command of `hybridr` that works on an index.

    `encoder` is a folder, a name that `hybridr models` lists, or an opened encoder. The default is the
    encoder that wrote the vectors, else the one that `adapt` made, else the packaged MiniLM.
    `progress` is called with the name of a step, the work done, and the total work. Methods raise
    NotFound for an index that does not exist, and Unreachable, AccessDenied or ClusterError for a
    request that fails.

    >>> docs = hybridr.connect().index("docs")
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def __repr__(self) -> str:
        return f"Index({self.name!r} of {self.cluster.url})"

    @property
    def rules(self) -> IndexRules:
        """Return the rules of the index: pins, bans and filters for single queries."""
        return IndexRules(self.cluster, self.name)

    @property
    def experiment(self) -> IndexExperiment:
        """Return the experiment of the index, which compares two rankings by clicks."""
        return IndexExperiment(self.cluster, self.name)

    # Documents and vectors

    def load(
        self,
        path: Path | str,
        settings: LoadSettings | None = None,
        *,
        dry_run: bool = False,
        progress: Progress = silent,
    ) -> Loading:
        """Create this index from a BEIR folder or a JSONL file; return what was loaded.

        `replace` in the settings deletes an existing index of this name first. Repeating a finished load
        changes nothing. Raises DataError for unreadable input, or if the index holds other documents;
        ClusterError if the deletion would lose documents that clients wrote only into its index with vectors.

        >>> docs.load("docs-beir").documents
        120
        """
        from .cluster.loading import load
        from .cluster.settings import LoadSettings
        from .indexing.client_writes import require_none_of

        defaults = LoadSettings(index=self.name)
        stage = settings.model_copy(update={"index": self.name}) if settings else defaults
        check = partial(require_none_of, self.cluster)
        return load(self.cluster, path, stage, before_deletion=check, dry_run=dry_run, progress=progress)

    def inspect(
        self, *, fields: Sequence[str] = (), encoder: Path | str | None = None, progress: Progress = silent
    ) -> Inspection:
        """Return the fields, text lengths, language and duplicates of the index. Writes nothing.

        Lengths are in tokens of `encoder`, by default the packaged one. If it cannot be downloaded, they
        are in words, and `advice` says so. Raises DataError for an index without documents or text fields.

        >>> docs.inspect().language.code
        'en'
        """
        from .doctor.inspection import inspect_index
        from .encoders.export.exporting import encoder_folder, model_folder
        from .encoders.opening import FolderTokens
        from .encoders.registry import PACKAGED, PACKAGED_LANGUAGES, declared_languages

        counter: FolderTokens | None = None
        advice: tuple[str, ...] = ()
        languages = PACKAGED_LANGUAGES
        try:
            folder = model_folder(encoder or PACKAGED, progress=progress)
            if not folder.exists():  # a name OWNER/NAME on the model hub
                folder = encoder_folder(folder, progress=progress)
            counter, languages = FolderTokens(folder), declared_languages(folder)
        except DownloadError as error:
            advice = (f"lengths are in words, not in tokens: {error.message}",)
        report = inspect_index(
            self.cluster,
            self.name,
            fields=fields,
            token_counter=counter,
            languages=languages,
            progress=progress,
        )
        return replace(report, advice=(*report.advice, *advice)) if advice else report

    def compare(
        self,
        encoders: Sequence[Path | str],
        judgements: Judged | None = None,
        *,
        fields: Sequence[str] = (),
        progress: Progress = silent,
    ) -> EncoderComparison:
        """Compare encoders, given as folders or names, on 2,000 documents of the index. Writes nothing.

        30 or more judged queries (`judgements` as in `adapt`) decide; with fewer, queries are made from
        documents. Raises SettingsError without encoders, DataError if too few queries can be made.

        >>> docs.compare(["docs-encoder"]).choice
        'docs-encoder'
        """
        from .encoders.opening import load_encoder
        from .relevance.gate import compare_on_index
        from .search.checks import find_encoder_folder

        models = {str(encoder): load_encoder(find_encoder_folder(encoder, progress)) for encoder in encoders}
        if not models:
            raise SettingsError("no encoder is named", hint="--encoders all-MiniLM-L6-v2,bge-small-en-v1.5")
        queries = read_judged(judgements)
        return compare_on_index(self.cluster, self.name, models, queries, fields=fields, progress=progress)

    def plan_reindex(
        self,
        *,
        encoder: Encoder | Path | str | None = None,
        settings: ReindexSettings | None = None,
        search: SearchSettings | None = None,
        progress: Progress = silent,
    ) -> Plan:
        """Return the requests that `reindex` would send, its duration, and the disk space it needs.

        Writes nothing. Raises the errors of `reindex`.

        >>> docs.plan_reindex(encoder=encoder).destination
        'docs-hybridr-1'
        """
        from .doctor.forecasting import estimated_plan

        model, settings = self._document_encoder(encoder, reindex_settings(settings, search), progress)
        return estimated_plan(self.cluster, self.name, model, settings)

    def reindex(
        self,
        *,
        encoder: Encoder | Path | str | None = None,
        settings: ReindexSettings | None = None,
        search: SearchSettings | None = None,
        progress: Progress = silent,
    ) -> ReindexResult:
        """Write documents and their vectors into a new index, verify it and point an alias to it.

        Afterwards the confidence of scores is calibrated for the ranking of `search`, whose `lexical_fields`
        also apply to the reindex. A repeated call continues an interrupted one.
        Raises ClusterError, DataError, SettingsError, ModelError.

        >>> done = docs.reindex(encoder=encoder)
        >>> done.documents, done.rejected, done.switched
        (120, 0, True)
        """
        from .indexing.reindexing import prepare, reindex_planned

        started = monotonic()
        model, settings = self._document_encoder(encoder, reindex_settings(settings, search), progress)
        prepared = prepare(self.cluster.with_patience(settings.patience_s), self.name, model, settings)
        result = reindex_planned(prepared, progress=progress)
        confidence = self._calibrate(result, prepared.proposal.encoder, search, progress)
        return replace(result, confidence=confidence, seconds=monotonic() - started)

    def _document_encoder(
        self, encoder: Encoder | Path | str | None, settings: ReindexSettings, progress: Progress
    ) -> tuple[Encoder, ReindexSettings]:
        """Return the opened encoder for documents, and the settings to use with it.

        The precision in the settings is dropped for an encoder that is already open: it has its own.
        """
        from .indexing.planning import index_to_read
        from .search.checks import encoder_for

        if not (encoder is None or isinstance(encoder, (Path, str))):
            return encoder, settings.model_copy(update={"precision": None})
        cluster = self.cluster.with_patience(settings.patience_s)
        model = encoder_for(
            index_to_read(cluster, self.name),
            encoder,
            precision=settings.chosen_precision or "fp32",
            backend=settings.backend,
            progress=progress,
        )
        return model, settings

    def _calibrate(
        self, result: ReindexResult, encoder: Encoder, search: SearchSettings | None, progress: Progress
    ) -> str | None:
        """Calibrate the confidence of scores; return the result or the reason of a failure as a sentence.

        Returns None if rejected documents kept the alias from being switched.
        """
        from .relevance.answering import calibrate

        if result.rejected and not result.switched:
            return None
        changed = result.encoded or result.without_text or result.deleted or result.from_clients
        arguments: dict[str, Any] = {"search": search, "unchanged": not changed, "progress": progress}
        try:
            return calibrate(self.cluster, result.destination, encoder, **arguments).described
        except ClusterError as error:
            return f"not measured: {error.message}; hybridr tune {shlex.quote(self.name)}"

    def export_text(
        self, folder: Path, settings: ReindexSettings | None = None, *, progress: Progress = silent
    ) -> TextsExported:
        """Write the texts of all documents into `folder` as Parquet: stage one of a reindex by files.

        The stages are `export_text`, `hybridr encode`, and `import_vectors`. A repeated call continues
        an interrupted one. Raises DataError if the folder has other texts, DownloadError for a full disk.
        """
        from .indexing.stages.transfer import export_text

        return export_text(self.cluster, self.name, folder, settings, progress=progress)

    def plan_import(
        self,
        folder: Path,
        *,
        encoder: Path | str | None = None,
        settings: ReindexSettings | None = None,
        search: SearchSettings | None = None,
    ) -> tuple[Plan, int]:
        """Return the plan of `import_vectors`, and the number of documents with vectors in `folder`.

        Writes nothing. Raises the errors of `import_vectors`.
        """
        from .indexing.stages.transfer import plan_import

        settings = reindex_settings(settings, search)
        model = self._encoder_of_stage(folder, encoder, settings, silent)
        return plan_import(self.cluster, self.name, folder, model, settings)

    def import_vectors(
        self,
        folder: Path,
        *,
        encoder: Path | str | None = None,
        settings: ReindexSettings | None = None,
        search: SearchSettings | None = None,
        progress: Progress = silent,
    ) -> Imported:
        """Write documents and the vectors in `folder` into a new index: stage three of a reindex by files.

        Documents that were changed since the export are encoded here. Raises DataError for vectors that
        are incomplete or belong to another index, FingerprintMismatch for those of another encoder, and
        the errors of `reindex`.
        """
        from .indexing.stages.transfer import import_vectors

        started, settings = monotonic(), reindex_settings(settings, search)
        model = self._encoder_of_stage(folder, encoder, settings, progress)
        cluster = self.cluster.with_patience(settings.patience_s)
        result = import_vectors(cluster, self.name, folder, model, settings, progress=progress)
        confidence = self._calibrate(result, model, search, progress)
        return replace(result, confidence=confidence, seconds=monotonic() - started)

    def _encoder_of_stage(
        self, folder: Path, encoder: Path | str | None, settings: ReindexSettings, progress: Progress
    ) -> OnnxEncoder:
        """Open the given encoder, else the one that encoded the texts in `folder`."""
        from .encoders.opening import load_encoder
        from .files.remembered import known_encoder_folder
        from .indexing.planning import index_to_read
        from .indexing.stages.transfer import read_ready
        from .search.checks import find_encoder_folder

        index_to_read(self.cluster.with_patience(settings.patience_s), self.name)
        making = read_ready(folder).making
        return load_encoder(
            find_encoder_folder(encoder or known_encoder_folder(making.encoder), progress),
            precision=settings.chosen_precision or making.precision,
            backend=settings.backend or making.backend,
        )

    def sync(
        self,
        *,
        encoder: Encoder | Path | str | None = None,
        settings: ReindexSettings | None = None,
        dry_run: bool = False,
        progress: Progress = silent,
    ) -> SyncResult:
        """Copy changes of the source into the index with vectors, and encode documents that clients wrote.

        Returns the counts of documents. `dry_run` writes nothing and counts what a round would change.
        Raises DataError without a complete index with vectors, FingerprintMismatch for another encoder.

        >>> docs.sync().copied
        0
        """
        from .indexing.reindexing import sync
        from .indexing.settings import ReindexSettings

        settings = settings or ReindexSettings()
        model = self._encoder_of_vectors(encoder, settings, progress)
        return sync(self.cluster, self.name, model, settings, dry_run=dry_run, progress=progress)

    def sync_every(
        self,
        seconds: float,
        *,
        encoder: Encoder | Path | str | None = None,
        settings: ReindexSettings | None = None,
        missed: Callable[[ClusterError], None] = lambda _: None,
        progress: Progress = silent,
    ) -> Iterator[SyncResult]:
        """Yield the result of a `sync` every `seconds`, until the caller stops.

        `missed` is called with the error of a failed round; the next round repeats its work.
        """
        from .indexing.reindexing import sync_rounds
        from .indexing.settings import ReindexSettings

        settings = settings or ReindexSettings()
        model = self._encoder_of_vectors(encoder, settings, progress)
        yield from sync_rounds(self.cluster, self.name, model, settings, every_s=seconds, missed=missed)

    def _encoder_of_vectors(
        self, encoder: Encoder | Path | str | None, settings: ReindexSettings, progress: Progress
    ) -> Encoder:
        """Return an open `encoder` as it is; else open the one that wrote the vectors (from its folder, if
        given), with the precision and backend that wrote them, if that backend is installed.
        """
        from .cluster.destinations import resolve
        from .encoders.precisions import usable_arithmetic
        from .search.checks import encoder_for

        if not (encoder is None or isinstance(encoder, (Path, str))):
            return encoder
        info = resolve(self.cluster.with_patience(settings.patience_s), self.name)
        precision, backend = usable_arithmetic(info.record.precision, info.record.backend)
        precision, backend = settings.chosen_precision or precision, settings.backend or backend
        return encoder_for(info, encoder, precision=precision, backend=backend, progress=progress)

    def verify(
        self, *, encoder: Encoder | Path | str | None = None, sample: int = 64, progress: Progress = silent
    ) -> Verification:
        """Compare the index with vectors with its source, and `sample` documents field by field.

        Returns the findings; `ok` is whether all agree. Raises DataError if the index has no vectors.

        >>> docs.verify().ok
        True
        """
        from .cluster.destinations import resolve
        from .indexing.verification import verify
        from .search.checks import encoder_for

        model = encoder_for(resolve(self.cluster, self.name), encoder, progress=progress)
        return verify(self.cluster, self.name, model, sample=sample, progress=progress)

    def measure_recall(
        self,
        queries: Sequence[str] | Path | None = None,
        *,
        encoder: Encoder | Path | str | None = None,
        sample: int = 64,
        progress: Progress = silent,
    ) -> Recall:
        """Return the recall of vector search: its hits compared with those of exact search.

        Searches are made for `sample` documents and for `queries`, which are texts or a file with one
        a line; by default queries are made from documents. Raises DataError for too few vectors,
        ClusterError if the cluster refuses scripts.
        """
        from .cluster.destinations import resolve
        from .doctor.recall import measure_recall
        from .files.formats import read_query_log
        from .search.checks import encoder_for

        texts = read_query_log(queries) if isinstance(queries, Path) else queries or ()
        model = encoder_for(resolve(self.cluster, self.name), encoder, progress=progress)
        return measure_recall(self.cluster, self.name, model, texts=texts, sample=sample, progress=progress)

    def status(self) -> Status:
        """Return the state of the index and of each index with vectors made from it, with their history.

        >>> [(holding.index, holding.current) for holding in docs.status().holdings]
        [('docs-hybridr-1', 120)]
        """
        from .status.standing import status

        return status(self.cluster, self.name)

    def rollback(
        self, *, copy_back: bool = False, discard: bool = False, drop: bool = False, dry_run: bool = False
    ) -> dict[str, Any]:
        """Point the alias back to the index that it pointed to before the last reindex.

        `copy_back` first copies documents that clients wrote since then to the source; `discard` loses them.
        Without either, ClusterError is raised if there are any. `drop` also deletes the abandoned index, its
        deployment and its sidecars; rules stay. Returns names and counts as `hybridr rollback --json` does.

        >>> docs.rollback()["to"]
        'docs'
        """
        from .status.leftovers import rollback

        return rollback(
            self.cluster, self.name, copy_back=copy_back, discard=discard, drop=drop, dry_run=dry_run
        )

    def remove(
        self, *, copy_back: bool = False, discard: bool = False, dry_run: bool = False
    ) -> dict[str, Any]:
        """Delete everything that was made for the index, and point its aliases back; the source stays.

        `copy_back` and `discard` work as in `rollback`. Returns names and counts, as `hybridr remove --json`
        does. Raises NotFound if nothing was made.

        >>> docs.remove()["indices"]
        ['docs-hybridr-1']
        """
        from .status.standing import remove

        return remove(self.cluster, self.name, copy_back=copy_back, discard=discard, dry_run=dry_run)

    def unfinished(self) -> str:
        """Return a line about what searches still lack, such as a term table; "" if nothing is missing.

        It names the command that completes the index.
        """
        from .cluster.destinations import resolve
        from .search.answers import missing_parts_remark

        return missing_parts_remark(resolve(self.cluster, self.name))

    # Searching and ranking

    def open_search(
        self,
        mode: str = "hybrid",
        *,
        encoder: Encoder | Path | None = None,
        settings: SearchSettings | None = None,
    ) -> Search:
        """Return a `Search` that stays open for many queries: `search(text, k)`.

        `mode` is the retriever or combination to use: hybrid, lexical, dense and others. Raises
        SettingsError for an unknown mode or a setting that the index cannot use, ModelError without encoder.

        >>> search = docs.open_search()
        >>> [hit.rank for hit in search("basket", k=2)]
        [1, 2]
        """
        from .search.search import Search, open_search

        if encoder is None or isinstance(encoder, Path):
            return open_search(self.cluster, self.name, mode, encoder, settings)
        return Search(self.cluster, self.name, encoder, mode, settings=settings)

    def search(
        self,
        text: str,
        k: int = 10,
        *,
        mode: str = "hybrid",
        offset: int = 0,
        filter: dict[str, Any] | None = None,
        encoder: Encoder | Path | None = None,
        settings: SearchSettings | None = None,
    ) -> Hits:
        """Return `k` documents for a text, best first, from rank `offset` + 1 on, with the score of each
        retriever.

        `filter` is a query in query DSL that every hit must match. Each call opens the index again; for
        several queries use `open_search`, whose errors this raises.

        >>> [hit.rank for hit in docs.search("basket", k=2)]
        [1, 2]
        """
        search = self.open_search(mode, encoder=encoder, settings=settings)
        if settings is not None:
            search = search.requiring(settings.at_least)
        return search(text, k, offset=offset, filter=filter)

    def explain(
        self,
        text: str,
        k: int = 10,
        *,
        mode: str = "hybrid",
        filter: dict[str, Any] | None = None,
        encoder: Encoder | Path | None = None,
        settings: SearchSettings | None = None,
    ) -> Explanation:
        """Search, and return the parts of each score, the rules that apply, and the signals left out.

        Parameters and errors are those of `search`.

        >>> list(docs.explain("basket").hits[0].parts)[:2]
        ['words', 'cosine']
        """
        search = self.open_search(mode, encoder=encoder, settings=settings)
        if settings is not None:
            search = search.requiring(settings.at_least)
        return search.explain(text, k, filter=filter)

    def adapt(
        self,
        settings: AdaptSettings | None = None,
        *,
        judgements: Judged | None = None,
        progress: Progress = silent,
    ) -> AdaptResult:
        """Fit an encoder to the documents, without labels; the next `reindex` uses it.

        `judgements` is a BEIR folder, or queries and qrels. With 30 or more judged queries the adapted
        encoder is kept only if it ranks them better. A repeated call continues an interrupted one.
        Raises DataError for too few documents or another language, ModelError, SettingsError, DownloadError,
        and MissingExtra without the extra `train`.

        >>> settings = hybridr.AdaptSettings(out="adapted")
        >>> docs.adapt(settings).folder.name
        'adapted'
        """
        from .search.checks import promote
        from .training.adaptation import adapt
        from .training.settings import AdaptSettings

        settings = settings or AdaptSettings()
        queries = read_judged(judgements)
        result = adapt((self.cluster, self.name), settings, judgements=queries, progress=progress)
        promote(self.cluster, self.name, result.folder)
        return result

    def judgements(self, split: str = "test") -> JudgedQueries:
        """Return the queries that were judged on the page of `hybridr serve`, with their judgements.

        Judgements are stored on the machine of the server. Raises SettingsError if this machine has none.
        """
        from .cluster.destinations import resolve
        from .evaluation.evaluation import JudgedQueries
        from .serving.page.judgements import Judgements

        folder = Judgements.of(resolve(self.cluster, self.name)).folder
        if not (folder / "qrels").is_dir():
            raise SettingsError(
                f"nobody has judged '{self.name}' on this machine",
                hint=f"hybridr serve --index {shlex.quote(self.name)}",
            )
        return JudgedQueries(folder, split)

    def evaluate(
        self,
        queries: JudgedQueries | Path | str,
        compared: Compared | None = None,
        *,
        encoder: Path | None = None,
        settings: SearchSettings | None = None,
        report: Path | None = None,
        progress: Progress = silent,
    ) -> Evaluation:
        """Return means of measures for systems and run files on judged queries, with intervals and tests.

        `report` is a file for a report, .md or .html; the latter shows the best ten documents of each query.
        `Compared(write=FILE)` stores the evaluation. `Compared(against=FILE)` compares with a stored one: the
        measures that fell are in `falls`. Raises DataError for unreadable input, SettingsError without qrels.

        >>> sorted(docs.evaluate("docs-beir").systems)
        ['bm25', 'dense', 'hybrid']
        """
        from .search.systems import Compared, evaluate_systems

        return evaluate_systems(
            judged_queries(queries),
            compared or Compared(),
            index=(self.cluster, self.name),
            encoder=encoder,
            settings=settings,
            report=report,
            progress=progress,
        )

    def tune(
        self,
        judgements: Judged | None = None,
        *,
        encoder: Encoder | Path | None = None,
        settings: TuneSettings | None = None,
        search: SearchSettings | None = None,
        progress: Progress = silent,
    ) -> TuneResult:
        """Choose the weights of the ranking by judged queries, and store them if they rank better.

        Weights that do not gain significantly are not stored. `judgements` as in `adapt`.
        Raises DataError for fewer than 10 judged queries, FingerprintMismatch for another encoder.

        >>> docs.tune("docs-beir").index
        'docs-hybridr-1'
        """
        from .relevance.tuning import tune

        queries = read_judged(judgements)
        return tune(
            self.cluster,
            self.name,
            queries,
            encoder=encoder,
            settings=settings,
            search=search,
            progress=progress,
        )

    def reset_tuning(self, *, dry_run: bool = False) -> Reset:
        """Delete what `tune` stored, so that searches use the default weights; return the deleted settings.

        >>> docs.reset_tuning().index
        'docs-hybridr-1'
        """
        from .relevance.tuning import reset_tuning

        return reset_tuning(self.cluster, self.name, dry_run=dry_run)

    def learn(
        self,
        judgements: Judged,
        *,
        encoder: Encoder | Path | None = None,
        dry_run: bool = False,
        progress: Progress = silent,
    ) -> LearnResult:
        """Store judged queries, so that similar queries rank their relevant documents higher.

        They replace those learnt before. `dry_run` writes nothing and only measures the effect. Raises
        SettingsError without judgements, DataError without relevant documents.

        >>> docs.learn("docs-beir").queries
        13
        """
        from .relevance.learning import learn

        queries = read_judged(judgements)
        if queries is None:
            raise SettingsError("no judgements", hint="--beir FOLDER, or --judgements")
        return learn(self.cluster, self.name, queries, encoder=encoder, dry_run=dry_run, progress=progress)

    def forget(self, *, dry_run: bool = False) -> Forgetting:
        """Delete the judged queries that `learn` stored. Raises DataError while an experiment uses them.

        >>> docs.forget().index
        'docs-hybridr-1'
        """
        from .relevance.learning import unlearn

        return unlearn(self.cluster, self.name, dry_run=dry_run)

    def assess(
        self,
        settings: AssessorSettings,
        *,
        encoder: Encoder | Path | None = None,
        progress: Progress = silent,
    ) -> Assessment:
        """Let a language model judge the best documents of each query of the page, and return the counts.

        Its judgements are stored with those of people. A repeated call continues an interrupted one.
        Raises SettingsError without endpoint, model or queries, Unreachable if the model does not answer.
        """
        from .serving.page.judgements import assess

        return assess(self.cluster, self.name, settings, encoder=encoder, progress=progress)

    def clicks(self, log: Path | None = None, *, progress: Progress = silent) -> Clicks:
        """Return relevance judgements derived from clicks, in a log file or else in the UBI indices.

        Raises NotFound without UBI indices, DataError for a log that is unreadable or has too few clicks.

        >>> from pathlib import Path
        >>> docs.clicks(Path("clicks.jsonl")).report.clients
        520
        """
        from .relevance.clicks.clicks import read_clicks

        return read_clicks(self.cluster, self.name, log, progress=progress)

    def changes_since_learnt(self, clicks: Clicks) -> Changes | None:
        """Compare judgements from clicks with those that `learn` stored; return None if there are none."""
        from .relevance.learning import compare_with_learnt

        return compare_with_learnt(self.cluster, self.name, (clicks.queries, clicks.qrels))

    # Applications that ask the index

    def plan_deploy(
        self,
        settings: DeploySettings | None = None,
        *,
        search: SearchSettings | None = None,
        ingest: bool = False,
    ) -> tuple[DeployResult, Ingesting | None]:
        """Return the requests that `deploy` would send, after its checks. Writes nothing.

        Returns and raises the same as `deploy`.
        """
        from .search.settings import SearchSettings
        from .serving.deploy.deploying import plan_deployment
        from .serving.deploy.ingesting import plan_ingest
        from .serving.settings import DeploySettings

        settings = settings or DeploySettings()
        plan = plan_deployment(self.cluster, self.name, settings, search or SearchSettings())
        ingesting = plan_ingest(self.cluster, self.name, settings) if ingest else None
        if ingesting and plan.settings and ingesting.settings:  # the first request sets them for both
            ingesting = replace(ingesting, requests=ingesting.requests[1:], settings={})
        return plan, ingesting

    def deploy(
        self,
        settings: DeploySettings | None = None,
        *,
        search: SearchSettings | None = None,
        ingest: bool = False,
    ) -> tuple[DeployResult, Ingesting | None]:
        """Install a search pipeline, so that applications get hybrid results from the cluster's `_search`.

        `ingest` also installs an ingest pipeline, which encodes documents as they are written; the second
        result is None without it. Raises DataError without vectors, ClusterError for a missing plugin or
        another default pipeline, Unreachable if the embedding server does not answer.

        >>> deployed, ingest = docs.deploy()
        >>> deployed.pipeline
        'hybridr-docs-hybridr-1'
        """
        from .serving.deploy.deploying import deploy
        from .serving.deploy.ingesting import deploy_ingest, require_ingest
        from .serving.settings import DeploySettings

        settings = settings or DeploySettings()
        if ingest:
            require_ingest(self.cluster, self.name, settings)  # else an index would be deployed by half
        deployed = deploy(self.cluster, self.name, settings, search)
        return deployed, deploy_ingest(self.cluster, self.name, settings) if ingest else None

    def undeploy(self, *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Delete the pipelines and models that `deploy` made; return the requests. The vectors stay.

        Raises DataError if nothing is deployed.

        >>> [request["method"] for request in docs.undeploy()]
        ['PUT', 'DELETE']
        """
        from .cluster.destinations import resolve
        from .serving.deploy.deploying import undeploy
        from .serving.deploy.ingesting import undeploy_ingest

        info = resolve(self.cluster, self.name, whole_index=True)
        requests = undeploy_ingest(self.cluster, info, dry_run=dry_run)
        return requests + undeploy(self.cluster, self.name, dry_run=dry_run)

    def deployment_problems(self) -> list[str]:
        """Return each way in which a deployment no longer fits the index, with the command that fixes it."""
        from .cluster.destinations import resolve
        from .indexing.switching import deploy_command
        from .serving.deploy.deploying import deployment_faults

        info = resolve(self.cluster, self.name)
        if (deployment := info.record.deployment) is None:
            return []
        command = deploy_command(info, deployment)
        return [f"{fault}: {command}" for fault in deployment_faults(self.cluster, info, deployment)]

    def explain_requests(
        self, file: Path, settings: DeploySettings | None = None, *, search: SearchSettings | None = None
    ) -> Explained:
        """Return which requests in `file` a transparent deployment would rank, and for the others the reason.

        Each line of the file is a search body, or {"path": …, "body": …}. Raises DataError for an unreadable
        file, NotFound and AccessDenied.
        """
        from .search.settings import SearchSettings
        from .serving.rewriting.explaining import explain_file
        from .serving.settings import DeploySettings

        recall = (settings or DeploySettings()).recall
        return explain_file(self.cluster, self.name, Path(file), search or SearchSettings(), recall)

    def shadow(
        self,
        file: Path | None = None,
        settings: DeploySettings | None = None,
        *,
        encoder: Path | None = None,
        search: SearchSettings | None = None,
        judgements: Judged | None = None,
        page: Path | None = None,
        progress: Progress = silent,
    ) -> ShadowReport:
        """Return how the ranking with vectors differs from an application's own, without users seeing it.

        `file` has a request body or a text a line; both rankings answer each. Without a file, the requests
        are those that `hybridr serve --shadow` recorded on this machine. Texts that are queries of
        `judgements` are also measured. `page` is an HTML file for the report.
        Raises DataError without requests.

        >>> docs.shadow("requests.jsonl").difference.requests
        3
        """
        from .search.search import open_search
        from .serving.rewriting.explaining import shadow_report
        from .serving.settings import DeploySettings

        open_index_search = open_search(self.cluster, self.name, encoder=encoder, settings=search)
        recall, file = (settings or DeploySettings()).recall, Path(file) if file else None
        return shadow_report(
            open_index_search, file, recall, judgements=read_judged(judgements), page=page, progress=progress
        )


@dataclass(frozen=True)
class IndexRules:
    """The rules of an index: documents pinned, banned or filtered for single queries."""

    cluster: Cluster
    name: str

    def list(self, version: int | None = None) -> RulesVersion:
        """Return the rules in force, or those of an earlier `version`.

        Raises NotFound for a version that is not stored, DataError for an index without vectors.

        >>> [rule.name for rule in docs.rules.list().rules]
        ['sale']
        """
        from .search.rules.rules import fetch_rules

        return fetch_rules(self.cluster, self.name, version)

    def add(self, rules: Iterable[Rule], *, by: str | None = None, dry_run: bool = False) -> RulesChange:
        """Add rules, each replacing the rule of the same name; searches apply them at once.

        `by` is the author, by default the cluster's user. Returns the rules in force and the pinned ids
        that the index lacks (`missing`). Raises DataError for a rule that cannot be applied.

        >>> docs.rules.add([hybridr.Rule(name="sale", text="basket", pin=["d7"])]).missing
        ()
        """
        from .search.rules.rules import add_rules

        return add_rules(self.cluster, self.name, rules, by=by, dry_run=dry_run)

    def remove(self, names: Sequence[str], *, by: str | None = None, dry_run: bool = False) -> RulesChange:
        """Remove rules by name; return the remaining rules (`now`). Raises NotFound for an unknown name.

        >>> docs.rules.remove(["sale"]).now.rules
        ()
        """
        from .search.rules.rules import remove_rules

        return remove_rules(self.cluster, self.name, names, by=by, dry_run=dry_run)


@dataclass(frozen=True)
class IndexExperiment:
    """An experiment that interleaves two rankings of an index in one list and compares them by clicks."""

    cluster: Cluster
    name: str

    def start(
        self, a: str, b: str, *, encoder: Encoder | Path | None = None, dry_run: bool = False
    ) -> ExperimentStep:
        """Interleave rankings `a` and `b` in one list; each is today, learnt, tuned or a settings file.

        Raises DataError if an experiment is running, a ranking does not exist, or both are equal.

        >>> docs.experiment.start("today", "learnt").ranks
        'today'
        """
        from .relevance.experiments import start_experiment

        return start_experiment(self.cluster, self.name, a, b, encoder=encoder, dry_run=dry_run)

    def report(self, *, progress: Progress = silent) -> ExperimentReport:
        """Return the clicks on each ranking, the winner, and whether the difference is significant.

        Raises DataError without an experiment, NotFound without UBI indices.

        >>> docs.experiment.report().clicks
        0
        """
        from .relevance.experiments import report_experiment

        return report_experiment(self.cluster, self.name, progress=progress)

    def stop(self, *, dry_run: bool = False) -> ExperimentStep:
        """End the experiment and restore the ranking before it. Raises DataError if none is running.

        >>> docs.experiment.stop().ranks
        'before'
        """
        from .relevance.experiments import stop_experiment

        return stop_experiment(self.cluster, self.name, dry_run=dry_run)

    def promote(
        self, winner: Contender | None = None, *, undo: bool = False, dry_run: bool = False
    ) -> ExperimentStep:
        """End the experiment and rank by `winner`, by default the one in the report.

        `undo` restores the ranking before the promotion. Raises DataError without a winner.

        >>> docs.experiment.promote("b").ranks
        'learnt'
        >>> docs.experiment.promote(undo=True).ranks
        'before'
        """
        from .relevance.experiments import promote_ranking

        return promote_ranking(self.cluster, self.name, winner, undo=undo, dry_run=dry_run)


def reindex_settings(
    given_settings: ReindexSettings | None, search: SearchSettings | None
) -> ReindexSettings:
    """Return the settings of a reindex, with the `lexical_fields` of `search` unless they have their own."""
    from .indexing.settings import ReindexSettings

    settings = given_settings or ReindexSettings()
    if settings.lexical_fields or search is None:
        return settings
    return settings.model_copy(update={"lexical_fields": search.lexical_fields})


def judged_queries(queries: JudgedQueries | Path | str | None) -> JudgedQueries:
    """Return judged queries as given, or those of a BEIR folder; an empty JudgedQueries for None."""
    from .evaluation.evaluation import JudgedQueries

    return (
        queries if isinstance(queries, JudgedQueries) else JudgedQueries(Path(queries) if queries else None)
    )


def read_judged(queries: Judged | None) -> tuple[list[Query], Qrels] | None:
    """Return queries and their judgements (qrels), if any, from a folder if `queries` names one."""
    from .evaluation.evaluation import JudgedQueries

    if isinstance(queries, tuple) and not isinstance(queries, JudgedQueries):
        return queries
    return judged_queries(queries).read_if_given()
