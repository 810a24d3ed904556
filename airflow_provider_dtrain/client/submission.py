"""Submission of an experiment: check of the configuration, upload of the code, start, and following it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow_provider_dtrain.client.answers import DagRun, ForkSource, PlacedProblem, Started, StoredCode, Validation
from airflow_provider_dtrain.client.local_config import NAME_FOLDER, own_model_dir
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.core.paths_below import path_below
from airflow_provider_dtrain.errors import ConfigError, ConflictError, NotFoundError, Problem, ServerError

#: Largest configuration, as the server accepts it.
CONFIG_MOST = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Start:
    """An experiment that a server has accepted."""

    name: str
    dag: str
    dag_run: str
    message: str
    #: About the configuration.
    warnings: tuple[str, ...] = ()


def checked(
    session: Session, text: str, template: str | None, source: str, inference: Mapping[str, Any] | None = None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return values of the effective configuration by their paths, and warnings.

    :param source: name of the configuration in messages
    :param inference: options of a batch inference that override the configuration
    :raises ConfigError: all problems at once
    """
    body = {"config": text, "template": template, "payload": "", "inference": inference}
    found = session.send("POST", "/configs/validate", body).record(Validation)
    raise_problems(found.problems, source)
    words = problem_texts([one for one in found.problems if one.severity == "warning"])
    return {line.path: _value(line.text) for line in found.effective if line.path}, words


def problem_texts(problems: Sequence[PlacedProblem]) -> tuple[str, ...]:
    """Return problems as texts with their paths."""
    return tuple(f"{one.path}: {one.message}" if one.path else one.message for one in problems)


def raise_problems(problems: Sequence[PlacedProblem], source: str) -> None:
    """Raise an error if a text has problems that are more than warnings.

    :param source: name of the text in messages
    :raises ConfigError: all of them at once
    """
    errors = [one for one in problems if one.severity == "error"]
    if errors:
        raise ConfigError(
            [Problem(path=escaped(one.path), message=escaped(f"{one.message} (line {one.line})")) for one in errors],
            source=source,
        )


def _value(line: str) -> str:
    """Return the scalar of a line of YAML that the server has written."""
    text = line.partition(":")[2].strip()
    return text[1:-1].replace("''", "'") if text[:1] == "'" == text[-1:] else text.strip('"')


def code_folder(text: str, effective: str, base: Path, given: str | None, agree: Callable[[Path], bool]) -> Path:
    """Return the folder of the code. A server or a template never names it alone.

    :param text: the configuration
    :param effective: ``model_dir`` as the server has it, which a template may name
    :param base: folder of the configuration
    :param given: folder that the user names
    :param agree: returns whether the user agrees to a folder that a template names
    :raises ConfigError: it does not exist, or the user has not named it and does not agree
    """
    own = given or own_model_dir(text)
    folder = Path(given) if given else base / (own or ".")
    if own is None and (named := os.path.normpath(effective or ".")) not in (".", "null"):
        try:
            folder = path_below(base, named)
        except ValueError as error:
            raise _refused(f"the template names {named[:200]!r}, which is not below {base} ({error})") from None
        if folder.is_dir() and not agree(folder):
            raise _refused(f"the template names {folder}, and only you name the code that is sent")
    if not folder.is_dir():
        what = "MODEL_DIR" if given else "model_dir"
        raise ConfigError([Problem(path=what, message=f"folder {folder} does not exist")])
    return folder


def _refused(words: str) -> ConfigError:
    return ConfigError([Problem(path="model_dir", message=f"{words}. {NAME_FOLDER}")])


def upload(session: Session, folder: Path, notify: Callable[[str], None]) -> str:
    """Send the code in a folder, unless the server has it, and return its digest.

    :param notify: prints which folder was packed, its size, and which files are not sent
    :raises PayloadError: the folder cannot be packed, or is larger than the limit: nothing was sent then
    """
    from airflow_provider_dtrain.hosts.payload import pack

    payload = pack(folder)
    notify(f"The code is {folder.resolve()}, packed to {payload.size_text}.")
    if payload.notice:
        notify(payload.notice)
    try:
        session.get(f"/code/{payload.digest}")
    except NotFoundError:
        found = session.send_bytes("/code", payload.content, "application/gzip").record(StoredCode)
        if found.digest != payload.digest:
            raise ServerError(f"{session.server.url} received other code than was sent. Try again.") from None
    return payload.digest


def start(session: Session, body: dict[str, Any]) -> Start:
    """Start an experiment.

    :param body: ``config``, and what else the route takes
    """
    found = session.send("POST", "/experiments", body).record(Started)
    return Start(name="", dag=found.dag_id, dag_run=found.run_id, message=found.message)


def create(
    session: Session,
    text: str,
    *,
    base: Path,
    model_dir: str | None,
    template: str | None,
    name: str,
    source: str,
    agree: Callable[[Path], bool],
    notify: Callable[[str], None],
    inference: Mapping[str, Any] | None = None,
) -> Start:
    """Check a configuration, send its code, and start it.

    :param base: folder of the configuration
    :param name: name of the experiment if the configuration has none
    :param source: name of the configuration in messages
    :param agree: returns whether the user agrees to a folder of the code that a template names
    :param notify: prints a message
    :param inference: options of a batch inference that override the configuration
    """
    from airflow_provider_dtrain.hosts.work_tree import git_state

    if len(text.encode()) > CONFIG_MOST:
        raise ConfigError([Problem(path="", message="larger than 1 MiB, the most that is accepted")], source=source)
    values, warnings = checked(session, text, template, source, inference)
    folder = code_folder(text, values.get("model_dir", ""), base, model_dir, agree)
    digest = upload(session, folder, notify)
    git = asdict(git_state(folder))
    body = {
        "config": text,
        "template": template,
        "payload": digest,
        "default_name": name,
        "git": git,
        "inference": inference,
    }
    found = start(session, body)
    shown = values.get("name", "null")
    return replace(found, name=name if shown in ("null", "") else shown, warnings=warnings)


def fork(session: Session, experiment_id: int, text: str | None) -> Start:
    """Start an experiment with the code and secrets of another one.

    :param text: configuration; None = that of the other experiment
    :raises ConflictError: the store does not have its code
    """
    found = session.get(f"/experiments/{experiment_id}/fork").record(ForkSource)
    if found.code_removed:
        raise ConflictError(
            f"The code of experiment {experiment_id} was removed from the store. Start it with its code: "
            "dtrain experiments create CONFIG MODEL_DIR"
        )
    if found.payload_digest is None:
        raise ConflictError(
            f"Experiment {experiment_id} has no trial yet, and its code is stored with the first one. Try again once "
            f"it has a trial. See: dtrain trials list --experiment {experiment_id}"
        )
    if text is None:
        return start(session, {"config": found.yaml, "template": found.template, "fork_of": experiment_id})
    return start(session, {"config": text, "fork_of": experiment_id})


def reproduce(session: Session, trial_id: int, secrets: Mapping[str, str]) -> Start:
    """Run a trial again from its record.

    :param secrets: private variables and other secrets of a trial of another user, by their names
    """
    body = {"secrets": [{"name": name, "value": value} for name, value in secrets.items()]}
    found = session.send("POST", f"/trials/{trial_id}/reproduce", body).record(Started)
    return Start(name="", dag=found.dag_id, dag_run=found.run_id, message=found.message)


def run_state(session: Session, dag: str, dag_run: str) -> str:
    """Return the state of a DAG run, from Airflow's own API."""
    target = f"{session.server.base}/api/v2/dags/{quote(dag, safe='')}/dagRuns/{quote(dag_run, safe='')}"
    return session.get_of_airflow(target).record(DagRun).state
