"""``airflow dtrain searches``: trials and cost of a search, before it runs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.hyperparameters.space import Path, dotted
from airflow_provider_dtrain.core.search.plan import Outline, TrialSpec, outline, planned
from airflow_provider_dtrain.core.search.value_text import value_text
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.terminal.output import dump, hint, is_table, note, show, show_one

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.core.config import ExperimentConfig

#: Seed of a preview when neither the command nor the configuration gives one. A run then draws its own.
_SEED: Final = 0
#: Columns of a preview in addition to those of the hyperparameters.
_FIXED: Final = ("trial", "bracket", "seed")


@command
def preview(args: Namespace) -> None:
    """Print trials, rungs, lengths and the first samples of a search. Stores and runs nothing."""
    from airflow_provider_dtrain.cli._inputs import assemble, read
    from airflow_provider_dtrain.engine.submission.fit import never_fits

    source = read(args.config, what="configuration")
    hook = _hook()
    found = assemble(hook, source, args.template)
    effective, pool = found.effective, found.pool
    for warning in effective.warnings:
        note(f"Warning: {warning}")
    config = effective.config
    given = config.reproducibility.experiment_seed if args.seed is None else args.seed
    seed = _SEED if given is None else given
    shape = outline(config)
    warn(config, shape)
    # assemble() has already warned about a pool that does not exist.
    with contextlib.suppress(NotFoundError):
        if reason := never_fits(hook.store, pool, config):
            note(f"Warning: {reason}")
    first = list(itertools.islice(planned(config, seed, shape), args.trials))
    if not is_table(args):
        dump(args.output, _document(shape, first, seed=seed, slots=config.resources.slots_per_trial, pool=pool))
        return
    _show(args, shape, first, seed=seed, drawn=given is None, slots=config.resources.slots_per_trial, pool=pool)
    hint(f"airflow dtrain explain {args.config}")


def warn(config: ExperimentConfig, shape: Outline) -> None:
    """Print warnings about settings that are valid but probably a mistake."""
    from airflow.configuration import conf

    from airflow_provider_dtrain.core.search.lint import slips

    for warning in slips(config, shape):
        note(f"Warning: {warning}")
    if shape.tasks > (most := conf.getint("core", "max_map_length")):
        note(
            f"Warning: {shape.tasks} tasks for {shape.trials} trials, but Airflow maps at most {most} tasks. Raise "
            "[core] max_map_length or searcher.trials_per_task, or use fewer trials"
        )


def _hook() -> Any:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    return DtrainHook()


def _document(shape: Outline, first: Sequence[TrialSpec], **more: Any) -> dict[str, Any]:
    return {
        "method": shape.method,
        "metric": shape.metric,
        **more,
        "trials": shape.trials,
        "max_concurrent_trials": shape.max_concurrent,
        "trials_per_task": shape.trials_per_task,
        "tasks": shape.tasks,
        "unit": shape.unit,
        "max_length": shape.length,
        "most_units": shape.most_units,
        "expected_units": shape.expected_units,
        "brackets": [{"trials": trials, "rungs": list(rungs)} for rungs, trials in shape.brackets],
        "first_trials": list(first),
    }


def _show(
    args: Namespace, shape: Outline, first: Sequence[TrialSpec], *, seed: int, drawn: bool, slots: int, pool: str
) -> None:
    unit = shape.unit or "units"
    row = {
        "method": shape.method,
        "metric": shape.metric,
        "pool": pool,
        "trials": f"{shape.trials} x {slots} slot{'s' if slots != 1 else ''}",
        "at a time": shape.max_concurrent or "no limit",
        "tasks": f"{shape.tasks}, each with at most {shape.trials_per_task}"
        if shape.trials_per_task > 1
        else shape.tasks,
        "length": f"{shape.length} {unit}" if shape.length is not None else "set by the training code",
        "in all": _total(shape, unit),
    }
    show_one(args, row)
    if shape.divisor is not None:
        print()
        show(args, [_bracket(index, *bracket, unit) for index, bracket in enumerate(shape.brackets)])
    if first:
        print()
        show(args, _rows(first))
        if shape.trials > len(first):
            note(f"{shape.trials - len(first)} more trials. Show all with: --trials {shape.trials}")
    if shape.draws_at_start:
        note("The hyperparameters of a trial are drawn when it starts, from what other trials have shown.")
    elif drawn and shape.method != "grid":
        note(f"Samples of seed {seed}. A run draws its own seed unless reproducibility.experiment_seed is set.")


def _total(shape: Outline, unit: str) -> str | None:
    if shape.most_units == shape.expected_units:
        return None if shape.most_units is None else f"{shape.most_units} {unit}"
    return f"at most {shape.most_units} {unit}; expected {shape.expected_units} if metrics were random"


def _bracket(index: int, rungs: Sequence[int], trials: int, unit: str) -> dict[str, Any]:
    return {"bracket": index, "trials": trials, f"rungs ({unit})": ", ".join(map(str, rungs))}


def _rows(trials: Sequence[TrialSpec]) -> list[dict[str, Any]]:
    rows = []
    for trial in trials:
        found = list(_leaves(trial["hyperparameters"] or {}))
        names = dotted([path for path, _ in found])
        columns = [f"hyperparameters.{name}" if name in _FIXED else name for name in names]
        values = {column: value_text(value) for column, (_, value) in zip(columns, found, strict=True)}
        beside = {"bracket": trial["bracket"]} if trial["rungs"] else {}
        rows.append({"trial": trial["number"], **beside, **values, "seed": trial["seed"]})
    return rows


def _leaves(values: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value
