"""`Index`: one index of a cluster and everything that can be done with it, as the command line does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
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
    """A connected cluster whose indices are opened by name.

    >>> docs = hybridr.connect("https://search.example:9200", user="me").index("docs")
    """

    def index(self, name: str) -> Index:
        """Return the index or alias of that name; it need not exist yet.

        >>> hybridr.connect().index("docs").name
        'docs'
        """
        return Index(self, name)


def connect(url: str | None = None, **auth: Any) -> Connection:
    """Connect to OpenSearch >= 2.19 or Elasticsearch >= 8.12; `auth`: other fields of ClusterSettings.

    Without a url: `HYBRIDR_URL`, else the running embedded node, else localhost:9200.
    Raises Unreachable, AccessDenied, ClusterError (neither, or too old), SettingsError.

    >>> docs = hybridr.connect().index("docs")
    """
    settings = resolve_stage(ClusterSettings, {"url": url, **auth})[0]
    return Connection.connect(settings)


class Index:
    """An index or alias of a cluster. Each command of `hybridr` that works on an index is a method.

    `encoder` is a folder, a name of `hybridr models` or an opened encoder; without one it is the encoder
    that wrote the vectors, else the one that `adapt` made for the index, else the packaged MiniLM.

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
        """Return the experiment that compares two rankings by clicks."""
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
        """Fill this index, which must be new, from a BEIR folder or a file of JSON. See `hybridr load`.

        With `replace` in the settings an index of this name is deleted first. Raises ClusterError if clients
        wrote into an index with its vectors what it lacks.

        >>> docs.load("docs-beir").documents
        120
        """
        from .cluster.loading import load
        from .cluster.settings import LoadSettings
        from .indexing.client_writes import require_none_of

        own = LoadSettings(index=self.name)
        chosen = settings.model_copy(update={"index": self.name}) if settings else own
        check = partial(require_none_of, self.cluster)
        return load(self.cluster, path, chosen, before_deletion=check, dry_run=dry_run, progress=progress)

    def inspect(
        self,
        *,
        fields: Sequence[str] = (),
        encoder: Path | str | None = None,
        progress: Progress = silent,
    ) -> Inspection:
        """Describe fields, lengths, language and duplicates. Changes nothing.

        Lengths are in tokens of the model `encoder`, a folder or a name, else of the packaged one; in words
        where that cannot be downloaded, which the advice then says.

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
            if not folder.exists():  # OWNER/NAME of the model hub
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
        """Compare encoders, folders or names, on 2,000 documents of the index. Changes nothing.

        With 30 judged queries (`judgements` as in `adapt`) those decide, else queries made from documents.

        >>> docs.compare(["docs-encoder"]).choice
        'docs-encoder'
        """
        from .encoders.opening import load_encoder
        from .relevance.gate import compare_on_index
        from .search.checks import find_encoder_folder

        opened = {str(encoder): load_encoder(find_encoder_folder(encoder, progress)) for encoder in encoders}
        if not opened:
            raise SettingsError("no encoder is named", hint="--encoders all-MiniLM-L6-v2,bge-small-en-v1.5")
        queries = read_judged(judgements)
        return compare_on_index(self.cluster, self.name, opened, queries, fields=fields, progress=progress)

    def plan_reindex(
        self,
        *,
        encoder: Encoder | Path | str | None = None,
        settings: ReindexSettings | None = None,
        search: SearchSettings | None = None,
        progress: Progress = silent,
    ) -> Plan:
        """Return what `reindex` would send, how long it takes and what it costs. Nothing is sent.

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
        """Write vectors into a new index beside this one, verify it and move an alias to it.

        Then measure what scores mean, by the ranking of `search`, whose `lexical_fields` hold here too.
        Running it again goes on where it stopped.
        Raises ClusterError, DataError, SettingsError, ModelError.

        >>> done = docs.reindex(encoder=encoder)
        >>> done.documents, done.rejected, done.switched
        (120, 0, True)
        """
        from .indexing.reindexing import prepare, reindex_planned

        started = monotonic()
        model, settings = self._document_encoder(encoder, reindex_settings(settings, search), progress)
        todo = prepare(self.cluster.with_patience(settings.patience_s), self.name, model, settings)
        result = reindex_planned(todo, progress=progress)
        confidence = self._calibrate(result, todo.proposal.encoder, search, progress)
        return replace(result, confidence=confidence, seconds=monotonic() - started)

    def _document_encoder(
        self, encoder: Encoder | Path | str | None, settings: ReindexSettings, progress: Progress
    ) -> tuple[Encoder, ReindexSettings]:
        """Return the encoder for documents, opened if only its folder or name is given, and the settings for
        it.

        For an encoder that is open already the settings lose their precision, since the encoder has its own.
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
        """Measure what scores of the new vectors mean; return a sentence with the result, or why it
        failed.
        """
        from .relevance.answering import calibrate

        if result.rejected and not result.switched:
            return None
        changed = result.encoded or result.without_text or result.deleted or result.from_clients
        arguments: dict[str, Any] = {"search": search, "unchanged": not changed, "progress": progress}
        try:
            return calibrate(self.cluster, result.destination, encoder, **arguments).described
        except ClusterError as error:
            return f"not measured: {error.message}; hybridr tune {self.name}"

    def export_text(
        self, folder: Path, settings: ReindexSettings | None = None, *, progress: Progress = silent
    ) -> TextsExported:
        """Write the texts of all documents as Parquet: the first of three stages of a reindex by files."""
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
        """Return what `import_vectors` would send, and how many documents have their vectors in `folder`."""
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
        """Write vectors from Parquet files into a new index: the last stage. Documents changed since are
        encoded here.
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
        """Bring later changes into the index with vectors: those of its source, and those that clients wrote
        into it.

        With `dry_run` the counts are those of a round that began now, and nothing is written.

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
        """Yield the result of one `sync` every so many seconds, until the caller stops.

        `missed` is called with the error of a round that failed; the next one takes what it left.
        """
        from .indexing.reindexing import sync_rounds
        from .indexing.settings import ReindexSettings

        settings = settings or ReindexSettings()
        model = self._encoder_of_vectors(encoder, settings, progress)
        yield from sync_rounds(self.cluster, self.name, model, settings, every_s=seconds, missed=missed)

    def _encoder_of_vectors(
        self,
        encoder: Encoder | Path | str | None,
        settings: ReindexSettings | None = None,
        progress: Progress = silent,
    ) -> Encoder:
        """Open the encoder that wrote the vectors, in the arithmetic that it wrote them in."""
        from .cluster.destinations import resolve
        from .search.checks import encoder_for

        if not (encoder is None or isinstance(encoder, (Path, str))):
            return encoder
        if settings is None:
            info = resolve(self.cluster, self.name)
            return encoder_for(info, encoder, progress=progress)
        cluster = self.cluster.with_patience(settings.patience_s)
        info = resolve(cluster, self.name)
        precision = settings.chosen_precision or info.record.precision
        backend = settings.backend or info.record.backend
        return encoder_for(info, encoder, precision=precision, backend=backend, progress=progress)

    def verify(
        self,
        *,
        encoder: Encoder | Path | str | None = None,
        sample: int = 64,
        progress: Progress = silent,
    ) -> Verification:
        """Compare the index with vectors with its source; `sample` documents are compared completely.

        >>> docs.verify().ok
        True
        """
        from .indexing.verification import verify

        model = self._encoder_of_vectors(encoder, progress=progress)
        return verify(self.cluster, self.name, model, sample=sample, progress=progress)

    def measure_recall(
        self,
        queries: Sequence[str] | Path | None = None,
        *,
        encoder: Encoder | Path | str | None = None,
        sample: int = 64,
        progress: Progress = silent,
    ) -> Recall:
        """Compare searches of the vector graph with exact ones, for queries and `sample` documents.

        `queries` are texts, or a file with one a line.
        """
        from .doctor.recall import measure_recall
        from .files.formats import read_query_log

        texts = read_query_log(queries) if isinstance(queries, Path) else queries or ()

        model = self._encoder_of_vectors(encoder, progress=progress)
        return measure_recall(self.cluster, self.name, model, texts=texts, sample=sample, progress=progress)

    def status(self) -> Status:
        """Return how up to date the vectors are, what was made for the index, and its history.

        >>> [(one.index, one.current) for one in docs.status().holdings]
        [('docs-hybridr-1', 120)]
        """
        from .status.standing import status

        return status(self.cluster, self.name)

    def rollback(
        self, *, copy_back: bool = False, discard: bool = False, drop: bool = False, dry_run: bool = False
    ) -> dict[str, Any]:
        """Point the alias back to what it stood for before the last reindex.

        `copy_back` copies what clients wrote since to the source first, `discard` gives it up, `drop` also
        deletes the index that is left, its deployment, and what is stored beside it alone; rules stay. Raises
        ClusterError where clients' writes would be lost.

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
        """Delete all that was made for the index and put its aliases back; the source stays.

        `copy_back` and `discard` as in `rollback`.

        >>> docs.remove()["indices"]
        ['docs-hybridr-1']
        """
        from .status.standing import remove

        return remove(self.cluster, self.name, copy_back=copy_back, discard=discard, dry_run=dry_run)

    def unfinished(self) -> str:
        """Return a line about what searches lack until a reindex ends or `tune` runs; "" if nothing is
        missing.
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
        """Return a search to ask many times: `search(text, k)`. `mode` is hybrid, lexical, dense, …

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
        """Return the best `k` documents for a text, from `offset` on, with the score of each retriever.

        `filter` is a query that every document has to match. Opens the index anew: ask many times by
        `open_search`.

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
        """Search, and return what each part adds to the scores, which rules hold and what is left out.

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
        """Fit an encoder to the documents without labels; the next `reindex` takes it.

        `judgements` is a BEIR folder, or queries and qrels. With 30 queries the adapted encoder is kept
        only if it is shown to rank them better.

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
        """Return the queries that people judged in the page of `hybridr serve`. Raises SettingsError."""
        from .cluster.destinations import resolve
        from .evaluation.evaluation import JudgedQueries
        from .serving.page.judgements import Judgements

        folder = Judgements.of(resolve(self.cluster, self.name)).folder
        if not (folder / "qrels").is_dir():
            raise SettingsError(
                f"nobody has judged '{self.name}' on this machine", hint=f"hybridr serve --index {self.name}"
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
        """Measure named systems, and run files, on judged queries: intervals and paired tests.

        `report` is a file to write them into: .md, or .html with the best ten documents of each query. With
        `Compared(against=FILE)` the result has `falls` below an earlier evaluation, a `Compared(write=FILE)`.

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
        """Choose how retrievers are joined by judged queries; only what is shown to gain is kept.

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
        """Rank by the defaults again.

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
        """Remember judged queries: searches like them find their relevant documents higher.

        >>> docs.learn("docs-beir").queries
        13
        """
        from .relevance.learning import learn

        queries = read_judged(judgements)
        if queries is None:
            raise SettingsError("no judgements", hint="--beir FOLDER, or --judgements")
        return learn(self.cluster, self.name, queries, encoder=encoder, dry_run=dry_run, progress=progress)

    def forget(self, *, dry_run: bool = False) -> Forgetting:
        """Forget all that `learn` remembered.

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
        """Let a language model judge documents; its judgements are stored beside people's."""
        from .serving.page.judgements import assess

        return assess(self.cluster, self.name, settings, encoder=encoder, progress=progress)

    def clicks(self, log: Path | None = None, *, progress: Progress = silent) -> Clicks:
        """Return what clicks say of documents: those that UBI keeps in the cluster, or of a log file.

        >>> from pathlib import Path
        >>> docs.clicks(Path("clicks.jsonl")).report.clients
        520
        """
        from .relevance.clicks.clicks import read_clicks

        return read_clicks(self.cluster, self.name, log, progress=progress)

    def changes_since_learnt(self, clicks: Clicks) -> Changes | None:
        """Compare judgements from clicks with those that the index has learnt; None if it has learnt
        nothing.
        """
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
        """Return what `deploy` would send. Nothing is sent."""
        from .search.settings import SearchSettings
        from .serving.deploy.deploying import plan_deployment
        from .serving.deploy.ingesting import plan_ingest
        from .serving.settings import DeploySettings

        settings = settings or DeploySettings()
        plan = plan_deployment(self.cluster, self.name, settings, search or SearchSettings())
        return plan, plan_ingest(self.cluster, self.name, settings) if ingest else None

    def deploy(
        self,
        settings: DeploySettings | None = None,
        *,
        search: SearchSettings | None = None,
        ingest: bool = False,
    ) -> tuple[DeployResult, Ingesting | None]:
        """Let applications get hybrid results by plain REST; with `ingest` writes get vectors at once.

        >>> deployed, ingest = docs.deploy()
        >>> deployed.pipeline
        'hybridr-docs-hybridr-1'
        """
        from .serving.deploy.deploying import deploy
        from .serving.deploy.ingesting import deploy_ingest
        from .serving.settings import DeploySettings

        settings = settings or DeploySettings()
        done = deploy(self.cluster, self.name, settings, search)
        return done, deploy_ingest(self.cluster, self.name, settings) if ingest else None

    def undeploy(self, *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Take away what `deploy` made, and return the requests; the vectors stay.

        >>> [request["method"] for request in docs.undeploy()]
        ['PUT', 'DELETE']
        """
        from .cluster.destinations import resolve
        from .serving.deploy.deploying import undeploy
        from .serving.deploy.ingesting import undeploy_ingest

        info = resolve(self.cluster, self.name, whole=True)
        requests = undeploy_ingest(self.cluster, info, dry_run=dry_run)
        return requests + undeploy(self.cluster, self.name, dry_run=dry_run)

    def deployment_problems(self) -> list[str]:
        """Return in which ways a deployment no longer fits the index, each with the command that mends it."""
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
        """Return which requests of an application, one a line of `file`, `deploy` would rank, and why not."""
        from .search.settings import SearchSettings
        from .serving.rewriting.explaining import explain_file
        from .serving.settings import DeploySettings

        recall = (settings or DeploySettings()).recall
        return explain_file(self.cluster, self.name, file, search or SearchSettings(), recall)

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
        """Return what the ranking with vectors changes for an application's requests; no user sees it.

        `file` holds one request a line, as for `explain_requests`, or a text: both rankings answer each. None
        stands for those that `hybridr serve --shadow` kept on this machine. Where a text is a query
        of `judgements` both are measured. `page` is an HTML file for the report.

        >>> docs.shadow("requests.jsonl").difference.requests
        3
        """
        from .search.search import open_search
        from .serving.rewriting.explaining import shadow_report
        from .serving.settings import DeploySettings

        opened = open_search(self.cluster, self.name, encoder=encoder, settings=search)
        recall, file = (settings or DeploySettings()).recall, Path(file) if file else None
        return shadow_report(
            opened, file, recall, judgements=read_judged(judgements), page=page, progress=progress
        )


class IndexRules:
    """The rules of an index: documents pinned, banned or filtered for single queries."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def list(self, version: int | None = None) -> RulesVersion:
        """Return the rules as they are, or as they were in a `version` that is still kept.

        >>> [rule.name for rule in docs.rules.list().rules]
        ['sale']
        """
        from .search.rules.rules import rules_of

        return rules_of(self.cluster, self.name, version)

    def add(self, rules: Iterable[Rule], *, by: str | None = None, dry_run: bool = False) -> RulesChange:
        """Add rules, each in the place of the one of its name; `by` says who decided so.

        >>> docs.rules.add([hybridr.Rule(name="sale", text="basket", pin=["d7"])]).missing
        ()
        """
        from .search.rules.rules import add_rules

        return add_rules(self.cluster, self.name, rules, by=by, dry_run=dry_run)

    def remove(self, names: Sequence[str], *, by: str | None = None, dry_run: bool = False) -> RulesChange:
        """Remove rules by name.

        >>> docs.rules.remove(["sale"]).now.rules
        ()
        """
        from .search.rules.rules import remove_rules

        return remove_rules(self.cluster, self.name, names, by=by, dry_run=dry_run)


class IndexExperiment:
    """Two rankings of an index shown in one list, compared by the clicks of its users."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def start(
        self, a: str, b: str, *, encoder: Encoder | Path | None = None, dry_run: bool = False
    ) -> ExperimentStep:
        """Show rankings `a` and `b` (today, learnt, tuned or a settings file) in one list.

        >>> docs.experiment.start("today", "learnt").ranks
        'today'
        """
        from .relevance.experiments import start_experiment

        return start_experiment(self.cluster, self.name, a, b, encoder=encoder, dry_run=dry_run)

    def report(self, *, progress: Progress = silent) -> ExperimentReport:
        """Return which ranking people clicked more in, and whether that is decided.

        >>> docs.experiment.report().clicks
        0
        """
        from .relevance.experiments import report_experiment

        return report_experiment(self.cluster, self.name, progress=progress)

    def stop(self, *, dry_run: bool = False) -> ExperimentStep:
        """End the experiment: the index ranks as before it.

        >>> docs.experiment.stop().ranks
        'before'
        """
        from .relevance.experiments import stop_experiment

        return stop_experiment(self.cluster, self.name, dry_run=dry_run)

    def promote(
        self, winner: Contender | None = None, *, undo: bool = False, dry_run: bool = False
    ) -> ExperimentStep:
        """Rank by the winner, by default the one that the report names; `undo` takes it back.

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
    """Return the settings of a reindex, with the `lexical_fields` of `search` if they name none."""
    from .indexing.settings import ReindexSettings

    settings = given_settings or ReindexSettings()
    if settings.lexical_fields or search is None:
        return settings
    return settings.model_copy(update={"lexical_fields": search.lexical_fields})


def judged_queries(queries: JudgedQueries | Path | str | None) -> JudgedQueries:
    """Return `JudgedQueries` for a BEIR folder, or the given ones unchanged; None stands for none."""
    from .evaluation.evaluation import JudgedQueries

    return (
        queries if isinstance(queries, JudgedQueries) else JudgedQueries(Path(queries) if queries else None)
    )


def read_judged(queries: Judged | None) -> tuple[list[Query], Qrels] | None:
    """Return queries and qrels, read from a folder if they are not given themselves; None for None."""
    from .evaluation.evaluation import JudgedQueries

    if isinstance(queries, tuple) and not isinstance(queries, JudgedQueries):
        return queries
    return judged_queries(queries).read_if_given()
