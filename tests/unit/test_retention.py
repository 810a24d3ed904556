"""Selection of the kept checkpoints of an experiment."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.core.checkpoint_policy import KeptCheckpoints, Saved, unkept


def saved(number: int, trial: int, step: int, metric: float | None, attempt: int = 1) -> Saved:
    return Saved(checkpoint_id=number, trial_id=trial, attempt=attempt, step=step, metric=metric)


#: Two trials, five checkpoints each; the metric is a loss.
EXPERIMENT = [
    saved(1, 1, 100, 0.90),
    saved(2, 1, 200, 0.50),
    saved(3, 1, 300, 0.30),
    saved(4, 1, 400, 0.20),
    saved(5, 1, 500, 0.40),
    saved(6, 2, 100, 0.80),
    saved(7, 2, 200, 0.70),
    saved(8, 2, 300, 0.60),
    saved(9, 2, 400, 0.65),
    saved(10, 2, 500, 0.75),
]


def left(kept: KeptCheckpoints, checkpoints: list[Saved] = EXPERIMENT) -> list[int]:
    gone = unkept(checkpoints, kept)
    return [one.checkpoint_id for one in checkpoints if one not in gone]


def test_of_ten_checkpoints_of_two_trials_five_survive() -> None:
    # Best of the experiment: 4 (0.20), 3 (0.30), 5 (0.40). Best of the trials: 4 and 8. Latest: 5 and 10.
    assert left(KeptCheckpoints(experiment_best=3, trial_best=1, trial_latest=1)) == [3, 4, 5, 8, 10]


def test_without_best_of_the_experiment_each_trial_keeps_its_best_and_its_latest() -> None:
    assert left(KeptCheckpoints(experiment_best=0, trial_best=1, trial_latest=1)) == [4, 5, 8, 10]


def test_where_larger_is_better_the_others_survive() -> None:
    # Best of the experiment: 1 (0.90), 6 (0.80), 10 (0.75). Best of the trials: 1 and 6. Latest: 5 and 10.
    assert left(KeptCheckpoints(experiment_best=3, smaller_is_better=False)) == [1, 5, 6, 10]


def test_nothing_is_kept_where_all_numbers_are_zero() -> None:
    assert left(KeptCheckpoints(trial_best=0, trial_latest=0)) == []


def test_no_metric_and_nan_are_never_best() -> None:
    odd = [saved(1, 1, 1, math.nan), saved(2, 1, 2, None), saved(3, 1, 3, 0.5), saved(4, 1, 4, -math.inf)]
    assert left(KeptCheckpoints(experiment_best=4, trial_best=4, trial_latest=0), odd) == [3]


def test_of_equals_the_later_one_is_better() -> None:
    equal = [saved(1, 1, 1, 0.5), saved(2, 1, 2, 0.5), saved(3, 1, 3, 0.5)]
    assert left(KeptCheckpoints(trial_latest=0), equal) == [3]


def test_a_later_attempt_is_later_also_at_a_lower_step() -> None:
    both = [saved(1, 1, 500, None, attempt=1), saved(2, 1, 100, None, attempt=2)]
    assert left(KeptCheckpoints(), both) == [2]


experiments = st.lists(
    st.tuples(
        st.integers(1, 3), st.integers(1, 2), st.integers(0, 4),
        st.one_of(st.none(), st.just(math.nan), st.sampled_from([0.1, 0.2, 0.3])),
    ),
    max_size=12,
).map(lambda rows: [saved(number, t, s, m, a) for number, (t, a, s, m) in enumerate(rows, start=1)])  # fmt: skip
numbers = st.builds(
    KeptCheckpoints, experiment_best=st.integers(0, 4), trial_best=st.integers(0, 3), trial_latest=st.integers(0, 3),
    smaller_is_better=st.booleans(),
)  # fmt: skip


def is_among_best(one: Saved, others: list[Saved], count: int, kept: KeptCheckpoints) -> bool:
    """Return whether fewer than ``count`` checkpoints are better, by a literal reading of the rule."""
    if one.metric is None or math.isnan(one.metric):
        return False
    better = 0
    for other in others:
        if other.metric is None or math.isnan(other.metric):
            continue
        ahead = other.metric < one.metric if kept.smaller_is_better else other.metric > one.metric
        better += ahead or (other.metric == one.metric and other.checkpoint_id > one.checkpoint_id)
    return better < count


@given(experiments, numbers)
def test_the_rule_holds_for_every_checkpoint(checkpoints: list[Saved], kept: KeptCheckpoints) -> None:
    gone = unkept(checkpoints, kept)
    for one in checkpoints:
        own = [other for other in checkpoints if other.trial_id == one.trial_id]
        later = sum(
            (other.attempt, other.step, other.checkpoint_id) > (one.attempt, one.step, one.checkpoint_id)
            for other in own
        )
        stays = (
            is_among_best(one, checkpoints, kept.experiment_best, kept)
            or is_among_best(one, own, kept.trial_best, kept)
            or later < kept.trial_latest
        )
        assert (one in gone) != stays


@given(experiments, numbers)
def test_what_is_deleted_early_would_be_deleted_at_the_end(checkpoints: list[Saved], kept: KeptCheckpoints) -> None:
    middle = len(checkpoints) // 2
    early = unkept(checkpoints[:middle], kept)
    # A later checkpoint of an earlier attempt does not exist: what comes later is later.
    monotone = all(
        a.age < b.age for a in checkpoints[:middle] for b in checkpoints[middle:] if a.trial_id == b.trial_id
    )
    if monotone:
        at_once = unkept(checkpoints, kept)
        in_two = [*early, *unkept([one for one in checkpoints if one not in early], kept)]
        assert {one.checkpoint_id for one in at_once} == {one.checkpoint_id for one in in_two}
