"""Assembly of the effective configuration from the documents that users write.

Pass one validates every document by itself, pass two validates the merged document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_dtrain.core.config.determined_compat import Normalized, normalize
from airflow_provider_dtrain.core.config.experiment import DocumentCheck, ExperimentConfig
from airflow_provider_dtrain.core.config.inference_rules import inference_problems
from airflow_provider_dtrain.core.config.merge import UNION_COMMON, UNION_TAG, merge_config, merge_layers, origin_of
from airflow_provider_dtrain.core.config.scope import WHOLE, Scope
from airflow_provider_dtrain.core.config.search_rules import search_problems
from airflow_provider_dtrain.core.config.secrets import (
    MOST_SECRETS,
    NONE,
    PUBLIC,
    VARIABLES,
    literal_secrets,
    public_variables,
)
from airflow_provider_dtrain.core.config.sections import DEFAULT_LOG_POLICIES
from airflow_provider_dtrain.core.config.unions import MEMBERS, AzureStorage
from airflow_provider_dtrain.core.config.unsupported import notices
from airflow_provider_dtrain.core.documents import ConfigDocument
from airflow_provider_dtrain.core.launchers.launcher import command_problem, launcher_of
from airflow_provider_dtrain.core.safe_repr import shown
from airflow_provider_dtrain.errors import ConfigError, Problem

PROVIDER_DEFAULTS: Final[ConfigDocument] = {"log_policies": [dict(policy) for policy in DEFAULT_LOG_POLICIES]}


@dataclass(frozen=True, kw_only=True)
class Effective:
    """Complete configuration that a trial runs with and that the store keeps."""

    config: ExperimentConfig
    #: Plain data with every default filled in. It contains secrets: see ``mask`` and ``take_secrets``.
    document: ConfigDocument
    #: Dotted path of each leaf -> ``config``, ``template``, ``pool`` or ``default``.
    origins: dict[str, str]
    #: One per key of Determined without a counterpart here, and one per field that has no effect on these hosts.
    warnings: list[str]


def validate_partial(
    document: Mapping[str, Any], source: str = "configuration", *, template: bool = False
) -> list[str]:
    """Return the warnings of one document as written.

    Checks types, ranges and contradictions. No field is required.

    :param document: may hold ``Override`` and ``RESET`` unless it is a template
    :param source: name of the document in error messages
    :param template: whether it is a template: no tags, and no template of its own
    :raises ConfigError: with every problem of the document
    """
    normalized, problems = _pass_one(document, source, is_base=template)
    if problems:
        raise ConfigError(problems, source=source)
    return normalized.warnings


def assemble(
    template: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    *,
    pool_defaults: Mapping[str, Any] | None = None,
    needs_entrypoint: bool = True,
) -> Effective:
    """Return the complete configuration, merged from all layers.

    The configuration overrides the template, the template overrides the pool's defaults, and these override the
    provider's defaults.

    :param template: as stored, or None
    :param config: as written; may hold ``Override`` and ``RESET``
    :param pool_defaults: the defaults of the pool, or None
    :param needs_entrypoint: False when the caller brings the code (a decorated function, a processor)
    :raises ConfigError: with every problem of every document, or of the merged one
    """
    layers, warnings = _layers(template, config, pool_defaults)
    merged, origins = merge_layers([("default", PROVIDER_DEFAULTS), *layers])
    _keep_public(merged, origins, layers)
    checked = ExperimentConfig.checked(merged)
    problems = [*checked.problems, *_cross_problems(checked, needs_entrypoint=needs_entrypoint), *_many_secrets(merged)]
    if checked.config is None or problems:
        raise ConfigError(problems, source="configuration")
    document = effective_document(checked.config)
    leaf_origins = merge_layers([("default", document)])[1]
    found = {path: origin_of(path, origins) for path in leaf_origins}
    return Effective(
        config=checked.config,
        document=document,
        origins=found,
        warnings=[*warnings, *notices(checked.config, found)],
    )


def _keep_public(
    merged: ConfigDocument, origins: Mapping[str, str], layers: Sequence[tuple[str, Mapping[str, Any]]]
) -> None:
    """Leave the marks of those variables that the document which set the value has marked as public.

    A document can neither publish the variable of another one, nor be published by it.
    """
    section = merged.get("environment")
    if not isinstance(section, dict) or not isinstance(section.get("public_variables"), list):
        return
    public = {origin: public_variables(document) for origin, document in layers}
    variables = section.get("variables")
    names = [name for name in variables if isinstance(name, str)] if isinstance(variables, dict) else []
    section["public_variables"] = [
        name for name in names if name in public.get(origins.get(f"{VARIABLES}.{name}", ""), NONE)
    ]


def effective_document(config: ExperimentConfig) -> ConfigDocument:
    """Return a configuration as plain data with every default, ready for JSON."""
    document = config.model_dump(mode="json", exclude_none=True)
    document["hyperparameters"] = config.hyperparameters
    document["data"] = config.data
    return merge_config({}, document)


def incomplete(config: ExperimentConfig, *, needs_entrypoint: bool = True, scope: Scope = WHOLE) -> list[Problem]:
    """Return the problems that keep a valid configuration from running: missing and contradictory fields.

    :param needs_entrypoint: False when the caller brings the code
    :param scope: the fields that count. For a partial document, only contradictions are returned
    """
    found = [*_lacks(config, scope, needs_entrypoint=needs_entrypoint), *_contradictions(config, scope)]
    of_inference = inference_problems(config, scope, needs_processor=needs_entrypoint)
    own = [Problem(path=path, message=message) for path, message in found]
    return [*own, *of_inference, *search_problems(config, scope)]


def _lacks(config: ExperimentConfig, scope: Scope, *, needs_entrypoint: bool) -> Iterator[tuple[str, str]]:
    if scope.is_partial:
        return
    has_code = config.entrypoint is not None or config.inference is not None
    if needs_entrypoint and not has_code and scope.knows("entrypoint", "inference"):
        yield "entrypoint", "missing; a command such as 'python train.py', or module:TrialClass, is required"
    storage = config.checkpoint_storage
    if not isinstance(storage, AzureStorage) or not scope.knows("checkpoint_storage"):
        return
    if not (storage.connection_string or storage.account_url or storage.conn_id):
        yield "checkpoint_storage", "connection_string, account_url or conn_id is required for azure"


def _contradictions(config: ExperimentConfig, scope: Scope) -> Iterator[tuple[str, str]]:
    problem = command_problem(config.command) if config.command else None
    if problem is not None and scope.knows("entrypoint"):
        yield "entrypoint", problem
    if scope.knows("launch", "entrypoint"):
        launcher = launcher_of(config.command)
        if config.launch == "per_slot" and launcher is not None:
            yield (
                "launch",
                f"per_slot contradicts the entrypoint, whose {launcher.name} starts the ranks of a host itself; remove "
                "launch, or start the script without it",
            )
        if config.launch == "per_host" and (config.trial_class or config.inference is not None):
            yield "launch", "per_host is for commands that start ranks; trial classes and inference need per_slot"
    slots = config.resources.slots_per_trial
    limit = config.resources.max_slots
    if limit is not None and limit < slots and scope.knows("resources.slots_per_trial", "resources.max_slots"):
        yield "resources.max_slots", f"{limit} is below resources.slots_per_trial {slots}: no trial could run"
    path = "hyperparameters.global_batch_size"
    batch = config.hyperparameters.get("global_batch_size")
    batch = batch.get("val") if isinstance(batch, dict) and batch.get("type") == "const" else batch
    if type(batch) is int and batch < max(slots, 1) and scope.knows(path, "resources.slots_per_trial"):
        yield path, f"{shown(batch)} is below resources.slots_per_trial {slots}"


def _cross_problems(checked: DocumentCheck, *, needs_entrypoint: bool) -> list[Problem]:
    """Return the cross-field problems, or none when too few fields are valid."""
    config = checked.config or checked.rest
    return [] if config is None else incomplete(config, needs_entrypoint=needs_entrypoint, scope=checked.scope)


def _layers(
    template: Mapping[str, Any] | None, config: Mapping[str, Any], pool: Mapping[str, Any] | None
) -> tuple[list[tuple[str, ConfigDocument]], list[str]]:
    """Return the given documents, weakest first, and their warnings without repetition."""
    layers: list[tuple[str, ConfigDocument]] = []
    warnings: dict[str, None] = {}
    problems: list[Problem] = []
    for origin, document in (("pool", pool), ("template", template), ("config", config)):
        if document is None:
            continue
        normalized, found = _pass_one(document, origin, is_base=origin != "config")
        where = {"config": "", "template": " (in the template)"}.get(origin, " (in the defaults of the pool)")
        problems.extend(Problem(path=problem.path, message=problem.message + where) for problem in found)
        warnings.update(dict.fromkeys(normalized.warnings))
        layers.append((origin, normalized.document))
    if problems:
        raise ConfigError(problems, source="configuration")
    return layers, list(warnings)


def _pass_one(document: Mapping[str, Any], source: str, *, is_base: bool) -> tuple[Normalized, list[Problem]]:
    """Return a normalized document and its problems. Required fields may be missing."""
    normalized = normalize(document, source=source)
    problems = list(normalized.problems)
    if is_base:
        problems.extend(_base_problems(normalized.document))
    try:
        plain = merge_config({}, normalized.document)
    except ConfigError as error:
        return normalized, [*problems, *error.problems]
    for union in MEMBERS:
        _guess_member(plain, union)
    checked = ExperimentConfig.checked(plain, partial=True)
    problems.extend([*checked.problems, *_cross_problems(checked, needs_entrypoint=False)])
    return normalized, [*problems, *_unknown_public(plain)]


def _many_secrets(merged: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problem of more secrets than the text of ranks can be searched for."""
    paths = literal_secrets(merged)
    if len(paths) > MOST_SECRETS:
        many = f"{len(paths)} secrets and private variables; at most {MOST_SECRETS} are possible"
        yield Problem(path=paths[-1], message=f"{many}. Name variables that are no secrets in {PUBLIC}")


def _unknown_public(document: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of marks for variables that their document does not set."""
    section = document.get("environment")
    marks = section.get("public_variables") if isinstance(section, Mapping) else None
    variables = section.get("variables") if isinstance(section, Mapping) else None
    known = variables if isinstance(variables, Mapping) else {}
    message = "is not set by this document, which can mark only its own environment.variables as public"
    for index, name in enumerate(marks if isinstance(marks, list) else ()):
        if isinstance(name, str) and name not in known:
            yield Problem(path=f"{PUBLIC}.{index}", message=f"{shown(name)} {message}")


def _base_problems(document: ConfigDocument) -> list[Problem]:
    """Return the problems that only a template or a pool's defaults can have, such as tags or a template."""
    problems: list[Problem] = []
    if document.get("template") is not None:
        problems.append(Problem(path="template", message="a template cannot use a template"))
    for union, tag in UNION_TAG.items():
        problems.extend(_nameless(document.get(union), union, tag))
    try:
        merge_config(document, {})
    except ConfigError as error:
        problems.extend(error.problems)
    return problems


def _nameless(section: Any, union: str, tag: str) -> Iterator[Problem]:
    """Yield the problem of a section that has fields of a member but does not name the member.

    Such fields would apply to any member that a configuration names.
    """
    if not isinstance(section, Mapping) or section.get(tag) is not None:
        return
    of_members = {field for member in MEMBERS[union].values() for field in member.model_fields}
    own = sorted(name for name in section if name in of_members - UNION_COMMON[union] - {tag})
    if any(section[name] is not None for name in own):
        common = ", ".join(sorted(UNION_COMMON[union]))
        message = f"missing; {', '.join(own)} need it. Without it, a template may only have {common}"
        yield Problem(path=f"{union}.{tag}", message=message)


def _guess_member(document: ConfigDocument, union: str) -> None:
    """Set the member that fits a section without a name best, so that its fields can be checked."""
    part = document.get(union)
    if not isinstance(part, dict) or UNION_TAG[union] in part:
        return
    members = MEMBERS[union]
    best = max(members, key=lambda name: len(part.keys() & members[name].model_fields.keys()))
    if best != next(iter(members)):
        part[UNION_TAG[union]] = best
