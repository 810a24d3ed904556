"""``airflow dtrain init`` and ``experiments create``: an experiment without writing a DAG."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.lifecycle.inference_progress import inference_text, result_text
from airflow_provider_dtrain.errors import ConfigError, NotNowError, Problem, UnplaceableError, UsageError
from airflow_provider_dtrain.listings.trials import progress_of
from airflow_provider_dtrain.terminal.following import best_text, state_text
from airflow_provider_dtrain.terminal.output import FAILURE, hint, is_table, note, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.cli._inputs import Source
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.searches import ExperimentView
    from airflow_provider_dtrain.store.records.trials import Config
    from airflow_provider_dtrain.store.store import Store

DAG_FILE = """from airflow_provider_dtrain.dags import experiment_dag
dag = experiment_dag()
"""
OPERATIONS_DAG_FILE = """from airflow_provider_dtrain.dags import operations_dag
dag = operations_dag()
"""
POLL_S = 1.0
#: After this time without a plan, the command asks to check the scheduler.
QUIET_S = 60.0


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


def start(args: Namespace, hook: DtrainHook, source: Source) -> int:
    """Store a configuration and its code, trigger the DAG, and return the exit code.

    :param args: with ``dag``, ``config``, ``model_dir``, ``template``, ``follow`` and ``output``
    """
    from airflow_provider_dtrain.engine.submission.granted import grant
    from airflow_provider_dtrain.notifications.notice import address

    require_ready(args.dag)
    stored, code = _stored(hook, args, source)
    conf = {"config": {"config_id": stored.config_id, "digest": stored.digest}, "payload": code}
    run = _trigger(args.dag, conf, grant(hook.store, args.dag, stored, code, user_id=None))
    row = {
        "name": stored.document["name"], "dag": args.dag, "dag_run": run, "config_id": stored.config_id,
        "page": address(f"dags/{args.dag}/runs/{quote(run)}"),
    }  # fmt: skip
    if not args.follow:
        show_one(args, row)
        hint("airflow dtrain experiments list")
        return 0
    if is_table(args):
        show_one(args, row)
    result = _follow(hook.store, args.dag, row["dag_run"])
    found = hook.store.experiments.list(dag_id=args.dag, run_id=row["dag_run"])
    if not is_table(args):
        facts = ("experiment_id", "state", "trials", "metric", "best", "best_trial")
        show_one(args, {**row, **{name: getattr(found[0], name) if found else None for name in facts}})
    return result


def default_name(path: str | None, config: ExperimentConfig, dag: str) -> str:
    """Return the name of an experiment whose configuration has none.

    It is that of the configuration's file, else of the processor's module, else of the DAG.
    """
    if path not in (None, "-"):
        return Path(str(path)).stem
    processor = config.inference.processor if config.inference is not None else None
    return processor.partition(":")[0] if processor else dag


def _stored(hook: DtrainHook, args: Namespace, source: Source) -> tuple[Config, str]:
    """Return the stored configuration and the digest of the stored code.

    A configuration with a problem is not stored.
    """
    from airflow.configuration import conf

    from airflow_provider_dtrain.cli._inputs import assemble, find_template
    from airflow_provider_dtrain.engine.submission.assembly import checked
    from airflow_provider_dtrain.engine.submission.entry import entry_problems
    from airflow_provider_dtrain.engine.submission.submit import put_code, render

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
    return render(hook, {**source.document, "name": name}, template, source.folder), put_code(hook.store, folder, note)


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


def _follow(store: Store, dag_id: str, run_id: str) -> int:
    """Print changes until the DAG run has ended, and return the exit code."""
    note("Following the experiment. Ctrl-C ends only this command; the experiment continues.")
    shown = ""
    for state, view in _changes(store, dag_id, run_id):
        last = state, view
        if view is not None and (line := f"{_line(view)}{_progress(store, view)}") != shown:
            note(f"{time.strftime('%H:%M:%S')}  {line}")
            shown = line
    state, view = last
    if view is None:
        note(f"DAG run {run_id} ended {state} before its plan. For the cause, see the log of {dag_id}.experiment.plan.")
    elif state == "success":
        note(f"Experiment {view.experiment_id} succeeded{_computed(store, view) or _result(view)}.")
        hint(f"airflow dtrain trials describe {view.best_trial or ''}".rstrip())
    else:
        note(f"Experiment {view.experiment_id} failed. {_cause(store, view)}")
        hint(f"airflow dtrain trials list --experiment {view.experiment_id}")
    return 0 if state == "success" else FAILURE


def _cause(store: Store, view: ExperimentView) -> str:
    trials = store.trials.list(experiment_id=view.experiment_id, limit=None)
    first = next((one for one in trials if one.failure), None)
    if first is None or first.failure is None:
        return f"For the cause, see the log of the task experiment.best of DAG run {view.run_id}."
    return f"Trial {first.trial_id}: {first.failure.get('message')}"


def _changes(store: Store, dag_id: str, run_id: str) -> Iterator[tuple[str, ExperimentView | None]]:
    """Yield the state of the DAG run and the experiment at each change, until the DAG run ends."""
    last = ""
    quiet_from = time.monotonic()
    while True:
        state = _run_state(dag_id, run_id)
        found = store.experiments.list(dag_id=dag_id, run_id=run_id)
        view = found[0] if found else None
        over = state in ("success", "failed")
        now = f"{state} {_line(view) + _progress(store, view, is_rough=True) if view else ''}"
        if now != last:
            yield state, view
        last = now
        if over:
            return
        if view is None and time.monotonic() - quiet_from > QUIET_S:
            note(f"The DAG run is {state} and has no plan yet. Check that Airflow's scheduler runs.")
            quiet_from = time.monotonic()
        time.sleep(POLL_S)


def _run_state(dag_id: str, run_id: str) -> str:
    import sqlalchemy as sa
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        query = sa.select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        return str(session.scalar(query) or "failed")


def _computed(store: Store, view: ExperimentView) -> str:
    """Return what a batch inference has computed in words, empty for any other experiment."""
    trials = store.trials.list(experiment_id=view.experiment_id, limit=1) if view.max_trials <= 1 else []
    found = store.shards.counts([trial.trial_id for trial in trials])
    return "".join(f": {result_text(counts)}" for counts in found.values())


def _progress(store: Store, view: ExperimentView, *, is_rough: bool = False) -> str:
    """Return the progress of a batch inference in words, empty for any other experiment.

    :param is_rough: only the whole percents, so that a line is printed for each of them
    """
    if view.max_trials > 1:
        return ""
    found = progress_of(store, store.trials.list(experiment_id=view.experiment_id, limit=1))
    one = next(iter(found.values()), None)
    if one is None:
        return ""
    return f"; {int(one.share * 100)} %" if is_rough else f"; {inference_text(one)}"


def _line(view: ExperimentView) -> str:
    to_come = view.max_trials - sum(view.trials.values())
    return state_text(view.experiment_id, view.name, view.trials, _result(view), to_come=to_come)


def _result(view: ExperimentView) -> str:
    return best_text(view.metric, view.best, view.best_trial)
