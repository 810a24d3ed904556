"""The code that the trials of a new experiment get, as far as this server sees it.

A stored configuration without stored code makes each trial pack ``model_dir``, which is relative to the folder of the
DAG that starts experiments. The workers read that folder. This server may see the same one, or none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.api.forks import payload_of
from airflow_provider_dtrain.api.init_dags import DAG_ID
from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.engine.submission.entry import entry_problems, problems_of_archive
from airflow_provider_dtrain.engine.submission.granted import folder_problem
from airflow_provider_dtrain.errors import Problem


@dataclass(frozen=True, kw_only=True)
class CodeSource:
    """The code of a new experiment."""

    #: In words, with what was not checked.
    text: str
    #: The code is missing, so no rank could start.
    errors: tuple[Problem, ...] = ()
    #: Probably a mistake.
    warnings: tuple[Problem, ...] = ()


def code_source(call: Call, config: ExperimentConfig, fork_of: int | None, payload: str | None = None) -> CodeSource:
    """Return the code that an experiment would use.

    :param fork_of: the forked experiment, whose stored code is used while the store has it
    :param payload: digest of code that the client has sent; empty = it sends the code later
    :raises NotFoundError: the user may not read the forked experiment
    """
    if payload is not None:
        return _sent(call, config, payload, fork_of)
    digest = None if fork_of is None else payload_of(call, fork_of)
    if digest is not None:
        ignored = "" if config.model_dir is None else ". It does not read model_dir"
        return CodeSource(text=f"The stored code of experiment {fork_of} ({digest[:12]}){ignored}.")
    folder = _dag_folder(call)
    if (problem := folder_problem(config)) is not None:
        return CodeSource(text="", errors=(problem,))
    if folder is None:
        named = "The whole folder" if config.model_dir is None else f"Folder '{config.model_dir}' below that"
        return CodeSource(text=f"{named} of the DAG {DAG_ID} on the workers. This server does not see it.")
    return _in_folder(config, folder)


def _sent(call: Call, config: ExperimentConfig, digest: str, fork_of: int | None) -> CodeSource:
    """Return code that the user has sent, or sends later, or that of the forked experiment."""
    if not digest:
        return CodeSource(text="Code that the client sends.")
    is_theirs = call.store.payloads.is_sent_by(digest, call.access.user_id)
    if not is_theirs and fork_of is not None:
        is_theirs = payload_of(call, fork_of) == digest
    if not is_theirs or not call.store.payloads.use(digest):
        message = f"you have sent no code {digest[:12]}, or the store no longer has it. Send it first: POST /code"
        return CodeSource(text="", errors=(Problem(path="payload", message=message),))
    errors = tuple(problems_of_archive(config, call.store.payloads.get(digest)))
    return CodeSource(text=f"The code that was sent ({digest[:12]}).", errors=errors)


def _dag_folder(call: Call) -> str | None:
    """Return the folder of the DAG file, None when this server does not have it or the user may not start the DAG."""
    file = call.access.starter.file
    if not call.access.starting.may_trigger or file is None or not os.path.isfile(file):
        return None
    return os.path.dirname(file)


def _in_folder(config: ExperimentConfig, folder: str) -> CodeSource:
    """Return the code below the folder of the DAG. A link that leaves this folder is not followed."""
    root = os.path.realpath(os.path.join(folder, config.model_dir or "."))
    home = os.path.realpath(folder)
    if os.path.commonpath([root, home]) != home:
        return CodeSource(text=f"Folder '{config.model_dir}' is a link out of {folder}. This server does not check it.")
    if not os.path.isdir(root):
        message = (
            f"{folder} has no folder '{config.model_dir}'. Put the code there, or correct model_dir, which is relative "
            f"to the folder of the DAG {DAG_ID}"
        )
        return CodeSource(text="", errors=(Problem(path="model_dir", message=message),))
    found = entry_problems(config, root)
    whole = "" if config.model_dir is not None else ", all of it. To copy only a part, set model_dir"
    return CodeSource(text=f"Folder {root}{whole}.", errors=found.errors, warnings=found.warnings)
