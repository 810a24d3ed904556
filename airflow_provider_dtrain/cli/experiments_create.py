"""``airflow dtrain init`` and ``experiments create``: an experiment without writing a DAG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._in_process import source_of
from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.page_paths import experiment_page, run_page
from airflow_provider_dtrain.errors import ConfigError, NotNowError, Problem, UnplaceableError, UsageError
from airflow_provider_dtrain.terminal.following import (
    ExperimentProgress,
    cause,
    comparison_of,
    given_secrets,
    inference_of,
    show_started,
)
from airflow_provider_dtrain.terminal.output import hint, note, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.cli._inputs import InputDocument
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.resources.provenance import GitState

DAG_FILE = """from airflow_provider_dtrain.dags import experiment_dag
dag = experiment_dag()
"""
OPERATIONS_DAG_FILE = """from airflow_provider_dtrain.dags import operations_dag
dag = operations_dag()
"""


@command
def init(args: Namespace) -> None:
    """Write the DAG files. A file of such a name with other content is left unchanged."""
    from airflow.configuration import conf

    from airflow_provider_dtrain.dags import DAG_ID, OPERATIONS_DAG_ID

    folder = Path(args.folder or conf.get("core", "dags_folder")).expanduser()
    files = {folder / f"{DAG_ID}.py": DAG_FILE, folder / f"{OPERATIONS_DAG_ID}.py": OPERATIONS_DAG_FILE}
    for path, content in files.items():
        if path.exists() and path.read_text() != content:
            raise UsageError(
                f"{path} exists with other content. Move it away, or name another folder: airflow dtrain init FOLDER"
            )
    for path, content in files.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
    wrote = f"Wrote {' and '.join(path.name for path in files)} to {folder}."
    if folder.resolve() == Path(conf.get("core", "dags_folder")).resolve():
        note(f"{wrote} Airflow finds them within minutes; at once with: airflow dags reserialize")
    else:
        note(f"{wrote} Move them to a folder from which Airflow reads DAGs.")
    hint("airflow dtrain experiments create CONFIG")


@command
def create(args: Namespace) -> int:
    """Check and store configuration and code, and trigger the DAG.

    With ``--follow``, exit 1 if the DAG run fails.
    """
    from airflow_provider_dtrain.cli._inputs import read
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    return start(args, DtrainHook(), read(args.config, what="configuration"))


def start(args: Namespace, hook: DtrainHook, source: InputDocument) -> int:
    """Store a configuration and its code, trigger the DAG, and return the exit code.

    :param args: with ``dag``, ``config``, ``model_dir``, ``template``, ``follow`` and ``output``
    """
    from airflow_provider_dtrain.engine.submission.granted import grant
    from airflow_provider_dtrain.notifications.notice import address

    require_ready(args.dag)
    stored, code, git = _stored(hook, args, source)
    conf = {"config": {"config_id": stored.config_id, "digest": stored.digest}, "payload": code}
    run = _trigger(args.dag, conf, grant(hook.store, args.dag, stored, code, user_id=None, git=git))
    page = address(run_page(args.dag, run))
    row = {
        "name": stored.document["name"],
        "dag": args.dag,
        "dag_run": run,
        "config_id": stored.config_id,
        "page": page,
    }
    return show_started(args, _AirflowRun(hook, args.dag, run), row)


@command
def reproduce(args: Namespace) -> int:
    """Trigger the DAG for a trial that runs again from its record.

    With ``--follow``, compare the weights, and exit 0 only if they are equal.
    """
    from airflow_provider_dtrain.dags import DAG_ID
    from airflow_provider_dtrain.engine.submission.reproduction import grant_reproduction, recorded_config
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.notifications.notice import address

    given = given_secrets(args.secret)
    hook = DtrainHook()
    store = hook.store
    trial = store.trials.get(args.trial_id)
    require_ready(DAG_ID)
    recorded_config(store, trial)
    submitted = store.submissions.find(trial.key.dag_id, trial.key.run_id)
    # Administrators may read all configurations of DAG files and of this command, and not the secrets of users.
    copies = submitted is None or submitted.user_id is None
    granted = grant_reproduction(store, trial, given, dag_id=DAG_ID, user_id=None, copies=copies)
    run = _trigger(DAG_ID, granted.conf, granted.run_id)
    row = {"trial": trial.trial_id, "dag": DAG_ID, "dag_run": run, "page": address(run_page(DAG_ID, run))}
    return show_started(
        args,
        _AirflowRun(hook, DAG_ID, run),
        row,
        compare=lambda experiment: comparison_of(source_of(hook), experiment),
        after=f"airflow dtrain trials describe {trial.trial_id}",
    )


class _AirflowRun:
    """A DAG run of this Airflow."""

    def __init__(self, hook: DtrainHook, dag: str, dag_run: str) -> None:
        self.hook = hook
        self.dag = dag
        self.dag_run = dag_run

    def state(self) -> str:
        """Return the state of the DAG run."""
        import sqlalchemy as sa
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session

        with create_session() as session:
            query = sa.select(DagRun.state).where(DagRun.dag_id == self.dag, DagRun.run_id == self.dag_run)
            return str(session.scalar(query) or "failed")

    def progress(self) -> ExperimentProgress | None:
        """Return its experiment, None until it is planned."""
        found = self.hook.store.experiments.list(dag_id=self.dag, run_id=self.dag_run)
        if not found:
            return None
        view = found[0]
        return ExperimentProgress(
            experiment=view.experiment_id,
            name=view.name,
            state=view.state,
            trials=view.trials,
            metric=view.metric,
            best=view.best,
            best_trial=view.best_trial,
            to_come=view.max_trials - sum(view.trials.values()),
            **(inference_of(source_of(self.hook), view.experiment_id) if view.max_trials <= 1 else {}),
        )

    def page(self, experiment: int) -> str:
        """Return the address of the page of its experiment."""
        from airflow_provider_dtrain.notifications.notice import address

        return address(experiment_page(experiment))

    def cause(self, experiment: int) -> str:
        """Return why the experiment failed in a sentence."""
        return cause(source_of(self.hook), experiment, self.dag_run)


def default_name(path: str | None, config: ExperimentConfig, dag: str) -> str:
    """Return the name of an experiment whose configuration has none.

    It is that of the configuration's file, else of the processor's module, else of the DAG.
    """
    if path not in (None, "-"):
        return Path(str(path)).stem
    processor = config.inference.processor if config.inference is not None else None
    return processor.partition(":")[0] if processor else dag


def _stored(hook: DtrainHook, args: Namespace, source: InputDocument) -> tuple[Any, str, GitState]:
    """Return the stored configuration, the digest of the stored code and its state in git.

    A configuration with a problem is not stored.
    """
    from airflow.configuration import conf

    from airflow_provider_dtrain.cli._inputs import assemble, find_template
    from airflow_provider_dtrain.engine.submission.assembly import checked
    from airflow_provider_dtrain.engine.submission.entry import entry_problems
    from airflow_provider_dtrain.engine.submission.submit import put_code, render
    from airflow_provider_dtrain.hosts.work_tree import git_state

    found = assemble(hook, source, args.template)
    config = found.effective.config
    hook.ensure_local()
    check = checked(hook.store, found, max_map_length=conf.getint("core", "max_map_length"))
    for warning in (*found.effective.warnings, *check.slips):
        note(f"Warning: {warning}")
    folder = Path(args.model_dir) if args.model_dir else source.folder / (config.model_dir or ".")
    if not folder.is_dir():
        what = "MODEL_DIR" if args.model_dir else "model_dir"
        raise ConfigError([Problem(path=what, message=f"folder {folder} does not exist")], source=source.name)
    entry = entry_problems(config, folder)
    if entry.errors:
        raise ConfigError(entry.errors, source=source.name)
    for problem in entry.warnings:
        note(f"Warning: {problem.path}: {problem.message}")
    # With on_unplaceable: wait, the trial waits for other hosts instead.
    if check.never_fits and config.on_unplaceable == "fail":
        raise UnplaceableError(check.never_fits)
    # --template is relative to the current folder, a template in the document to the document's folder.
    template = find_template(hook, args.template, Path.cwd())
    name = config.name or default_name(args.config, config, args.dag)
    stored = render(hook, {**source.document, "name": name}, template, source.folder)
    return stored, put_code(hook.store, folder, note, note), git_state(folder)


def require_ready(dag_id: str) -> None:
    """Raise an error if Airflow would not run the DAG now.

    :raises NotNowError: Airflow does not know the DAG, or it is paused
    :raises UsageError: the DAG was not made by ``experiment_dag()``
    """
    from airflow.models.dag import DagModel
    from airflow.models.serialized_dag import SerializedDagModel

    model = DagModel.get_dagmodel(dag_id)
    if model is None or model.is_stale:
        raise NotNowError(
            f"Airflow knows no DAG {dag_id}. Write it once with: airflow dtrain init. Airflow loads a new file within "
            "minutes, or at once with: airflow dags reserialize"
        )
    known = SerializedDagModel.get_dag(dag_id)
    if known is None or not {"config", "payload"} <= set(known.params):
        raise UsageError(
            f"The DAG {dag_id} cannot run an experiment: it was not made by experiment_dag(). To write one that can, "
            "run: airflow dtrain init"
        )
    if model.is_paused:
        raise NotNowError(f"The DAG {dag_id} is paused. To unpause it, run: airflow dags unpause {dag_id}")


def _trigger(dag_id: str, conf: dict[str, Any], run_id: str) -> str:
    from airflow.api.client import get_current_api_client

    client = get_current_api_client()
    run = client.trigger_dag(dag_id=dag_id, run_id=run_id, conf=conf, triggering_user_name=user())
    return str((run or {})["dag_run_id"])
