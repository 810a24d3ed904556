"""The Python client: experiments and trials of a server, for notebooks and scripts. Synchronous.

::

    from airflow_provider_dtrain.client import Client

    client = Client("https://airflow.example.com")
    experiment = client.experiments.create("search.yaml", "code/").wait()
    experiment.trials.frame()
    experiment.best.checkpoint.download("best/")
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from airflow_provider_dtrain.client.address import address
from airflow_provider_dtrain.client.answers import Nothing
from airflow_provider_dtrain.client.control import ServerControl
from airflow_provider_dtrain.client.decoder import Record
from airflow_provider_dtrain.client.definition import with_own_commands
from airflow_provider_dtrain.client.downloads import save_checkpoint, usable_checkpoints
from airflow_provider_dtrain.client.media import save_media
from airflow_provider_dtrain.client.operations import ServerOperations
from airflow_provider_dtrain.client.reconnection import Patience
from airflow_provider_dtrain.client.session import Session, server_url
from airflow_provider_dtrain.client.source import ROWS_MOST, ServerSource
from airflow_provider_dtrain.client.submission import create, fork, reproduce, run_state
from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.core.lifecycle.control import Archived, Change
from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED
from airflow_provider_dtrain.core.rank_results import CommandResult, ProfileRequest, Stacks
from airflow_provider_dtrain.errors import (
    ConflictError,
    NotFoundError,
    NotNowError,
    TrialKilledError,
    UsageError,
    UserError,
)
from airflow_provider_dtrain.resources.bulk import Freed
from airflow_provider_dtrain.resources.experiments import ExperimentDetail, ExperimentFilter, ExperimentSummary
from airflow_provider_dtrain.resources.failures import ExperimentFailures, TrialFailure
from airflow_provider_dtrain.resources.gangs import GangSummary
from airflow_provider_dtrain.resources.hosts import Cluster
from airflow_provider_dtrain.resources.media import MediaItem
from airflow_provider_dtrain.resources.metrics import MetricReport
from airflow_provider_dtrain.resources.provenance import Differences, TrialProvenance
from airflow_provider_dtrain.resources.ranks import RankRow
from airflow_provider_dtrain.resources.reproductions import TrialReproductions
from airflow_provider_dtrain.resources.trials import TrialDetail, TrialSummary
from airflow_provider_dtrain.terminal.following import cause

if TYPE_CHECKING:
    import pandas

POLL_S = 2.0


def _print(text: str) -> None:
    """Print a message, which may have text of the server."""
    print(escaped(text))


class Client:
    """A server of Airflow with the provider.

    :param server: URL; None = ``DTRAIN_SERVER``, else that of the last ``dtrain login``
    :param token: None = ``DTRAIN_TOKEN``, else that of ``dtrain login``
    :param ca: file of certificates that are trusted instead of the system's
    :param allow_http: reach another machine without encryption
    :param notify: prints messages while a method waits for a server that does not answer
    :raises UserError: no server is named
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        ca: str | None = None,
        allow_http: bool = False,
        notify: Callable[[str], None] = _print,
    ) -> None:
        found = server_url(server)
        if found is None:
            raise UserError("No server is named. Give Client(SERVER), set DTRAIN_SERVER, or run: dtrain login")
        given = token or os.environ.get("DTRAIN_TOKEN") or None
        self.session = Session(address(found), given, ca=ca, allow_http=allow_http, reword=with_own_commands())
        self.source = ServerSource(self.session)
        self.patience = Patience(self.session, notify)
        #: Experiments of the server.
        self.experiments = Experiments(self)
        #: Trials of all experiments.
        self.trials = ClientTrials(self, None)

    def __repr__(self) -> str:
        """Return a text without the token."""
        return f"Client({self.session.server.url!r})"

    def queue(self, pool: str | None = None) -> list[GangSummary]:
        """Return waiting and running gangs."""
        return self.source.gangs(pool)

    def cluster(self, pool: str | None = None) -> Cluster:
        """Return pools, hosts with their slots, and the gangs that hold them."""
        return self.source.cluster(pool)


class ExperimentQuery(TypedDict, total=False):
    """Fields of :class:`ExperimentFilter`."""

    name: str
    tags: Sequence[str]
    owner: str | None
    mine: bool
    project: str | None
    archived: Archived
    limit: int


class Experiments:
    """Experiments of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self, **query: Unpack[ExperimentQuery]) -> list[ExperimentSummary]:
        """Return experiments, latest first.

        :param query: ``name`` (part of it), ``tags`` (all of them), ``owner``, ``mine``, ``project``, ``archived``
            (``no``, ``only`` or ``all``) and ``limit`` (50): see :class:`ExperimentFilter`
        """
        return self._client.source.experiments(ExperimentFilter(**query))

    def get(self, experiment_id: int) -> Experiment:
        """Return an experiment.

        :raises NotFoundError: there is none with this id
        """
        found = self._client.source.experiment(experiment_id)
        return Experiment(self._client, found.dag_id, found.run_id, found.experiment_id)

    def create(
        self,
        config: str | Path | Mapping[str, Any],
        model_dir: str | Path | None = None,
        *,
        template: str | None = None,
        name: str = "experiment",
    ) -> Experiment:
        """Check a configuration, send its code, and start the experiment.

        :param config: path of a YAML file, or the configuration itself
        :param model_dir: folder of the code; None = ``model_dir`` of the configuration, else the folder of the file
        :param template: name of a stored template
        :param name: name of the experiment if the configuration has none
        :raises ConfigError: all problems of the configuration at once
        :raises PayloadError: the code cannot be packed, or is too large
        """
        file = None if isinstance(config, Mapping) else Path(config)
        text = _json(config) if isinstance(config, Mapping) else Path(config).read_text(encoding="utf-8")
        started = create(
            self._client.session,
            text,
            base=Path.cwd() if file is None else file.absolute().parent,
            model_dir=None if model_dir is None else str(model_dir),
            template=template,
            name=name if file is None else file.stem,
            source="configuration" if file is None else str(file),
            agree=lambda folder: False,
            notify=self._client.patience.notify,
        )
        return Experiment(self._client, started.dag, started.dag_run)

    def fork(self, experiment_id: int, config: Mapping[str, Any] | None = None) -> Experiment:
        """Start an experiment with the code and secrets of another one.

        :param config: None = that of the other experiment
        """
        started = fork(self._client.session, experiment_id, None if config is None else _json(config))
        return Experiment(self._client, started.dag, started.dag_run)

    def diff(self, *experiment_ids: int) -> Differences:
        """Return in what two to eight experiments differ, and what is not known."""
        return self._client.source.experiment_differences(experiment_ids)


def _json(config: Mapping[str, Any]) -> str:
    import json

    # JSON is YAML.
    return json.dumps(dict(config))


class Experiment:
    """One experiment. It has an id once its DAG run has planned it."""

    def __init__(self, client: Client, dag: str, dag_run: str, experiment_id: int | None = None) -> None:
        self._client = client
        self._id = experiment_id
        self.dag = dag
        self.dag_run = dag_run

    def __repr__(self) -> str:
        return f"Experiment({self._id if self._id is not None else self.dag_run!r})"

    @property
    def id(self) -> int:
        """Its id.

        :raises ConflictError: it is not planned yet
        """
        if self._id is None:
            found = self._client.source.experiment_of(self.dag, self.dag_run)
            if found is None:
                raise ConflictError(f"DAG run {self.dag_run} has not planned its experiment yet. Use wait().")
            self._id = found.experiment_id
        return self._id

    @property
    def state(self) -> str:
        """State of the DAG run until it is planned, its own state afterwards."""
        if self._id is None and self._client.source.experiment_of(self.dag, self.dag_run) is None:
            return run_state(self._client.session, self.dag, self.dag_run)
        return self.describe().state

    def describe(self) -> ExperimentDetail:
        """Return its record."""
        return self._client.source.experiment(self.id)

    def wait(self, timeout_s: float | None = None, *, poll_s: float = POLL_S) -> Experiment:
        """Wait until it ends, and return it. A server that restarts and a login that expires are waited for.

        :param timeout_s: None = no limit
        :raises TimeoutError: it has not ended in time; it continues
        :raises UserError: it failed
        :raises TrialKilledError: a user killed it
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while (state := self._client.patience.of(lambda: self.state)) not in _ENDS:
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"{self._words} has not ended within {timeout_s:g} s: {state}.")
            time.sleep(poll_s)
        if state == "killed":
            raise TrialKilledError(f"{self._words} was killed by a user.")
        if state in _FAILURES:
            raise UserError(escaped(f"{self._words} ended {state}. {self._cause()}"))
        return self

    @property
    def _words(self) -> str:
        return f"Experiment {self._id}" if self._id is not None else f"The experiment of DAG run {self.dag_run}"

    def _cause(self) -> str:
        if self._id is None:
            return f"For the cause, see the log of DAG run {self.dag_run}."
        return self._client.patience.of(lambda: cause(self._client.source, self.id, self.dag_run))

    @property
    def trials(self) -> ClientTrials:
        """Its trials."""
        return ClientTrials(self._client, self.id)

    @property
    def best(self) -> Trial:
        """Its best trial so far, or its only one.

        :raises NotFoundError: none has reported the metric, or there is no metric to compare several
        """
        view = self.describe()
        if view.best_trial is not None:
            return Trial(self._client, view.best_trial)
        if view.metric is not None:
            raise NotFoundError(f"Experiment {self.id} has no best trial yet: none has reported {view.metric!r}.")
        found = self.trials.list(limit=2)
        if len(found) == 1:
            return Trial(self._client, found[0].trial_id)
        raise NotFoundError(
            f"Experiment {self.id} has no best trial: its configuration has no searcher.metric to compare trials."
        )

    def failures(self) -> ExperimentFailures:
        """Return its failed trials by cause."""
        return self._client.source.failures(self.id)

    def pause(self) -> None:
        """Let its trials save checkpoints and release their slots."""
        self._act("pause")

    def activate(self) -> None:
        """Resume its paused trials."""
        self._act("activate")

    def stop(self) -> None:
        """End it with its best trial so far."""
        self._act("stop")

    def kill(self) -> None:
        """Kill all its trials."""
        self._act("kill")

    def archive(self) -> None:
        """Leave it out of lists. Its data stays.

        :raises ConflictError: it has not ended
        """
        self._set({"archived": True})

    def unarchive(self) -> None:
        """Return it to the lists."""
        self._set({"archived": False})

    def move(self, project: str) -> None:
        """Move it to another project."""
        self._set({"project": project})

    def delete(self) -> Freed:
        """Remove it with checkpoints, logs and rows, for good, and return what that frees.

        :raises ConflictError: it has not ended, or another experiment needs it
        """
        found = ServerControl(self._client.session).act("delete", [self.id])
        if found.refused_count:
            raise ConflictError(found.outcomes[0].message)
        return found.freed or Freed()

    def _set(self, change: Change) -> None:
        ServerControl(self._client.session).set("experiment", self.id, change)

    def _act(self, verb: str) -> None:
        self._client.session.send("POST", f"/experiments/{self.id}/{verb}")


#: States of an experiment, or of a DAG run without one, after its end.
_FAILURES = frozenset({"errored", "failed"})
_ENDS = frozenset({*TRIAL_ENDED, "success", *_FAILURES})


class ClientTrials:
    """Trials of an experiment, or of all."""

    def __init__(self, client: Client, experiment_id: int | None) -> None:
        self._client = client
        self._experiment_id = experiment_id

    def list(
        self, *, where: str = "", state: str | None = None, tags: Sequence[str] = (), limit: int = ROWS_MOST
    ) -> list[TrialSummary]:
        """Return trials, latest first.

        :param where: filter expression, such as ``metrics.accuracy > 0.9 and params.lr < 0.01``
        :raises UserError: the expression cannot be read; the message has the place
        """
        own = self._experiment_id
        return self._client.source.trials(experiment=own, state=state, tags=tags, limit=limit, where=where)

    def get(self, trial_id: int) -> Trial:
        """Return a trial."""
        return Trial(self._client, trial_id)

    def frame(self, *, where: str = "") -> pandas.DataFrame:
        """Return a data frame with a row per trial, by id, and a column ``hparams.NAME`` per hyperparameter.

        :param where: filter expression; empty: all trials
        :raises UsageError: pandas is not installed
        """
        pandas = _pandas()
        rows = []
        for one in reversed(self.list(where=where)):
            row = asdict(one)
            hparams = row.pop("hparams")
            rows.append({**row, **{f"hparams.{name}": value for name, value in _flat(hparams).items()}})
        return pandas.DataFrame(rows).set_index("trial_id") if rows else pandas.DataFrame()


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError:
        raise UsageError("frame() needs pandas. Install it: pip install pandas") from None
    return pandas


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


class Trial:
    """One trial."""

    def __init__(self, client: Client, trial_id: int) -> None:
        self._client = client
        self.id = trial_id

    def __repr__(self) -> str:
        return f"Trial({self.id})"

    def describe(self) -> TrialDetail:
        """Return its record."""
        return self._client.source.trial(self.id)

    def failure(self) -> TrialFailure:
        """Return why it failed, what has changed since the last good run, and what to try.

        :raises NotFoundError: it has not failed
        """
        return self._client.source.failure(self.id)

    def provenance(self) -> TrialProvenance:
        """Return what it was made of: code, packages, devices."""
        return self._client.source.provenance(self.id)

    def reproduce(self, secrets: Mapping[str, str] | None = None) -> Experiment:
        """Run it again from its record, as an experiment of one trial.

        :param secrets: name -> value of those that another user submitted; None = none is needed
        """
        started = reproduce(self._client.session, self.id, secrets or {})
        return Experiment(self._client, started.dag, started.dag_run)

    def reproductions(self) -> TrialReproductions:
        """Return comparisons of its weights with those of the trial it runs again, and of trials that run it again."""
        return self._client.source.reproductions(self.id)

    def ranks(self) -> list[RankRow]:
        """Return the processes of its latest attempt."""
        return self._client.source.ranks(self.id).rows

    def metrics(self, group: str | None = None, *, abandoned: bool = False) -> list[MetricReport]:
        """Return its reports by step.

        :param group: ``training``, ``validation``, or ``builtin`` for those of the training library itself;
            None = training and validation
        :param abandoned: also steps that a later attempt repeated
        """
        return self._client.source.metrics(self.id, group=group, abandoned=abandoned)

    def frame(self, group: str | None = None) -> pandas.DataFrame:
        """Return its reports as a data frame with a column per metric.

        :raises UsageError: pandas is not installed
        """
        pandas = _pandas()
        from airflow_provider_dtrain.terminal.trials import metric_row

        reports = self.metrics(group)
        names = sorted({name for one in reports for name in one.metrics})
        return pandas.DataFrame([metric_row(one, names) for one in reports])

    def media(self, key: str | None = None) -> list[MediaFile]:
        """Return the images, tables and texts that it reported, by key and step.

        :param key: None = all of them
        """
        series = self._client.source.media(self.id).series
        return [
            MediaFile(self._client, self.id, one.key, item)
            for one in series
            if key in (None, one.key)
            for item in one.items
        ]

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Its checkpoints that are there, oldest first."""
        return [
            Checkpoint(self._client, self.id, one.checkpoint_id, one.step, is_best=one.is_best)
            for one in usable_checkpoints(self._client.source, self.id)
        ]

    @property
    def checkpoint(self) -> Checkpoint:
        """Its best checkpoint by the metric of its searcher, else the latest.

        :raises NotFoundError: it has none
        """
        found = self.checkpoints
        if not found:
            raise NotFoundError(f"Trial {self.id} has no checkpoint.")
        return next((one for one in found if one.is_best), found[-1])

    def log(self, rank: int = 0, *, attempt: int | None = None, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes of a rank's log from its host.

        :param attempt: None = the latest
        :param end: None = all that the host has
        :raises ConflictError: it has no log yet, or the server reaches no host
        """
        found: list[bytes] = []
        self._ask(Nothing, "log", found.append, rank=rank, attempt=attempt, start=start, end=end)
        return b"".join(found)

    def stacks(self, rank: int | None = None) -> Stacks:
        """Return the Python stacks of its running ranks.

        :param rank: None = all
        :raises ConflictError: none runs, or the server reaches no host
        """
        return self._ask(Stacks, "stacks", rank=rank)

    def trace(self, batches: int = 3, ranks: Sequence[int] = (0,), *, with_stack: bool = False) -> ProfileRequest:
        """Let running ranks record their next batches. The traces become outputs of the trial.

        :param batches: 1 to 100
        :param with_stack: record the lines of the program as well
        :raises ConflictError: none runs, or the server reaches no host
        """
        return self._ask(ProfileRequest, "profile", ranks=list(ranks), batches=batches, with_stack=with_stack)

    def exec(self, argv: Sequence[str], rank: int = 0, *, timeout_s: int = 60) -> CommandResult:
        """Run a command in the environment of a rank. The server allows it only with ``[dtrain] allow_exec``.

        :raises ConflictError: the rank does not run, or the server reaches no host
        """
        return self._ask(CommandResult, "exec", rank=rank, argv=list(argv), timeout_s=timeout_s)

    def _ask(
        self, result: type[Record], kind: str, put: Callable[[bytes], object] | None = None, /, **body: object
    ) -> Record:
        operations = ServerOperations(self._client.session, self._client.patience, notify=self._client.patience.notify)
        try:
            return operations.run(result, kind, {"trial_id": self.id, **body}, put)
        except NotNowError as error:
            raise ConflictError(str(error)) from error

    def pause(self) -> None:
        """Let it save a checkpoint and release its slots."""
        self._act("pause")

    def activate(self) -> None:
        """Resume it."""
        self._act("activate")

    def stop(self) -> None:
        """End it with its result so far."""
        self._act("stop")

    def kill(self) -> None:
        """Kill it."""
        self._act("kill")

    def _act(self, verb: str) -> None:
        self._client.session.send("POST", f"/trials/{self.id}/{verb}")


class MediaFile:
    """One image, table or text of a trial.

    :ivar kind: image (PNG or JPEG), text (UTF-8), or table, histogram, matrix, curve (JSON)
    """

    def __init__(self, client: Client, trial_id: int, key: str, item: MediaItem) -> None:
        self._client = client
        self._item = item
        self.trial_id = trial_id
        self.key = key
        self.step = item.step
        self.attempt = item.attempt
        self.kind = item.kind
        self.size_bytes = item.size_bytes
        self.at = item.at

    def __repr__(self) -> str:
        return f"MediaFile(trial {self.trial_id}, {self.key!r}, step {self.step}, {self.kind})"

    def download(self, path: str | Path) -> Path:
        """Write it to a file that does not exist, and return the path.

        :raises ConflictError: the file exists
        """
        target = Path(path)
        save_media(self._client.session, self.trial_id, self._item, target)
        return target


class Checkpoint:
    """One checkpoint of a trial."""

    def __init__(self, client: Client, trial_id: int, checkpoint_id: int, step: int, *, is_best: bool) -> None:
        self._client = client
        self.trial_id = trial_id
        self.id = checkpoint_id
        self.step = step
        self.is_best = is_best

    def __repr__(self) -> str:
        return f"Checkpoint(trial {self.trial_id}, step {self.step})"

    def download(self, folder: str | Path | None = None) -> Path:
        """Write it to a folder that does not exist, and return the folder.

        :param folder: None = ``trial-<id>-step-<step>`` below the current folder
        :raises ConflictError: the folder exists, or the server cannot send it; says where it is
        """
        target = Path(folder) if folder is not None else Path(f"trial-{self.trial_id}-step-{self.step}")
        return save_checkpoint(self._client.session, self.trial_id, self.id, target)
