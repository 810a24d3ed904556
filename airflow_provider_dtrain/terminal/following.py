"""Lines about an experiment that a command follows."""

from __future__ import annotations

from collections.abc import Mapping


def state_text(experiment: int, name: str, trials: Mapping[str, int], best: str, *, to_come: int = 0) -> str:
    """Return the states of an experiment's trials in a line.

    ::

        experiment 3 'mnist': 2 completed, 1 running, 4 to come; best loss 0.1 (trial 7)

    :param trials: state -> number of trials
    :param best: of :func:`best_text`
    :param to_come: number of planned trials that have not begun
    """
    parts = [f"{number} {state}" for state, number in sorted(trials.items())]
    parts += [f"{to_come} to come"] if to_come > 0 else []
    return f"experiment {experiment} '{name}': {', '.join(parts) or 'planned'}{best}"


def best_text(metric: str | None, best: object, trial: int | None) -> str:
    """Return the best trial as the end of a line, empty without one."""
    value = f"{best:.6g}" if isinstance(best, float | int) else best
    return "" if best is None else f"; best {metric} {value} (trial {trial})"
