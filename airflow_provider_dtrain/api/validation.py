"""Validation of configurations: all problems with their lines, and the summary of a valid one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from airflow.configuration import conf

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.api.code_source import CodeSource, code_source
from airflow_provider_dtrain.api.configs import config_lines
from airflow_provider_dtrain.api.errors import PROBLEMS_MOST
from airflow_provider_dtrain.api.forks import forked
from airflow_provider_dtrain.api.models.configs import (
    CheckedTemplate,
    ConfigSummary,
    ConfigText,
    Document,
    PlacedProblem,
    Validation,
)
from airflow_provider_dtrain.api.models.experiments import NewExperiment
from airflow_provider_dtrain.api.named_objects import require_names
from airflow_provider_dtrain.core.config import mask
from airflow_provider_dtrain.core.config.forms import is_path_like
from airflow_provider_dtrain.core.config.partial import checked_partial
from airflow_provider_dtrain.core.config.positions import places_of, without_place
from airflow_provider_dtrain.core.config.yaml_reader import load_yaml
from airflow_provider_dtrain.engine.submission.assembly import Assembled, Checked, assembled, checked
from airflow_provider_dtrain.engine.submission.inference import with_inference
from airflow_provider_dtrain.engine.submission.submit import render
from airflow_provider_dtrain.errors import ConfigError, ConflictError, NotFoundError, Problem, UnplaceableError
from airflow_provider_dtrain.store.records.trials import Config

#: Values of a configuration that this server accepts. More take seconds of CPU time.
VALUES_MOST = 20_000


def check(call: Call, document: Mapping[str, Any], template: str | None) -> tuple[Assembled, Checked]:
    """Return a configuration that could be started.

    :param template: name of a stored template; None = the one that the document names
    :raises ConfigError: all problems at once
    """
    base = template_of(call, template if template is not None else document.get("template"))
    found = assembled(call.store, document, base)
    require_names(call, found.effective.config)
    return found, checked(call.store, found, max_map_length=conf.getint("core", "max_map_length"))


def template_of(call: Call, named: object) -> Mapping[str, Any] | None:
    """Return a stored template. A path is refused: the API server reads no files for a user."""
    if named is None:
        return None
    name = str(named)
    if is_path_like(name):
        message = "must be the name of a stored template, because the API server reads no files"
        raise ConfigError([Problem(path="template", message=message)])
    try:
        stored = call.store.templates.get(name)
    except NotFoundError as error:
        raise ConfigError([Problem(path="template", message=str(error))]) from error
    return load_yaml(stored.text, source=f"template '{stored.name}'")


def document_of(body: ConfigText) -> dict[str, Any]:
    """Return the configuration of a request, with the options of a batch inference in place of its own.

    :raises ConfigError: it is no acceptable YAML
    """
    document = load_yaml(body.config, most_values=VALUES_MOST)
    if body.inference is None:
        return document
    fields = body.inference.model_dump(exclude={"slots", "pool"})
    return with_inference(document, fields, slots=body.inference.slots, host_pool=body.inference.pool)


def checked_template(text: str) -> list[str]:
    """Return the warnings of a text as a template.

    :raises ConfigError: all problems at once, with their lines
    """
    try:
        return checked_partial(load_yaml(text, source="template", most_values=VALUES_MOST), "template")
    except ConfigError as error:
        placed = _placed(text, error.problems[:PROBLEMS_MOST], "error")
        with_lines = [Problem(path=one.path, message=f"{one.message} (line {one.line})") for one in placed]
        raise ConfigError(with_lines, source="template") from None


def template_problems(text: str) -> CheckedTemplate:
    """Return the problems of a text as a template, with their lines."""
    try:
        document = load_yaml(text, source="template", most_values=VALUES_MOST)
        warnings = [Problem(path="", message=one) for one in checked_partial(document, "template")]
    except ConfigError as error:
        return CheckedTemplate(problems=_placed(text, error.problems[:PROBLEMS_MOST], "error"))
    return CheckedTemplate(problems=_placed(text, warnings[:PROBLEMS_MOST], "warning"))


def validation(call: Call, body: Document) -> Validation:
    """Return the problems of a text, and its summary when it has no errors."""
    try:
        found, result = check(call, forked(call, document_of(body), body.fork_of), body.template)
        code = code_source(call, found.effective.config, body.fork_of, body.payload)
        if code.errors:
            raise ConfigError(code.errors)
    except ConfigError as error:
        problems = error.problems[:PROBLEMS_MOST]
        return Validation(problems=_placed(body.config, problems, "error"), summary=None, effective=[])
    words = (*found.effective.warnings, *result.slips)
    warnings = [*(Problem(path="", message=one) for one in words), *code.warnings]
    return Validation(
        problems=_placed(body.config, warnings[:PROBLEMS_MOST], "warning"),
        summary=_summary(found, result, code),
        effective=config_lines(mask(found.effective.document), found.effective.origins),
    )


def _placed(text: str, problems: Sequence[Problem], severity: Literal["error", "warning"]) -> list[PlacedProblem]:
    return [
        PlacedProblem(
            path=one.path, line=at.line, column=at.column, message=without_place(one.message), severity=severity
        )
        for one, at in zip(problems, places_of(text, problems), strict=True)
    ]


def _summary(found: Assembled, result: Checked, code: CodeSource) -> ConfigSummary:
    config = found.effective.config
    return ConfigSummary(
        name=config.name or "",
        method=result.shape.method,
        trials=result.shape.trials,
        slots_per_trial=config.resources.slots_per_trial,
        pool=found.pool,
        fits=result.never_fits is None,
        fits_reason=result.never_fits or "",
        code=code.text,
    )


def checked_config(call: Call, body: NewExperiment) -> Config:
    """Check a configuration and store it, secrets sealed.

    :raises ConfigError: all problems at once
    :raises ConflictError: no host is registered, and no pool has an external scheduler
    :raises UnplaceableError: no set of the pool's hosts can ever run a trial
    """
    if not call.store.hosts.pools_with_hosts() and not any(pool.is_external for pool in call.store.pools.list()):
        raise ConflictError("No host is registered. See: airflow dtrain hosts add, or pools set --backend")
    document = forked(call, document_of(body), body.fork_of)
    found, result = check(call, document, body.template)
    config = found.effective.config
    if errors := code_source(call, config, body.fork_of, body.payload).errors:
        raise ConfigError(errors)
    if result.never_fits is not None and config.on_unplaceable == "fail":
        raise UnplaceableError(result.never_fits)
    named = {**document, "name": config.name or body.default_name}
    wanted = body.template if body.template is not None else document.get("template")
    return render(
        call.hook,
        named,
        None if wanted is None else str(wanted),
        call.hook.settings.checkpoint_dir,
        # The template may have changed since the check above.
        check=lambda config: require_names(call, config),
        may_read=call.access.may_read,
    )
