"""Names, descriptions and tags of experiments and trials."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.errors import NotFoundError, UserError
from airflow_provider_dtrain.store.labels import TAGS_MAX
from airflow_provider_dtrain.store.records.pages import ExperimentQuery, Labels, TrialQuery


def test_tags_are_added_and_removed_without_touching_the_others(world, submit):
    trial = submit().trial_id
    world.control.set("trial", trial, tags=["a", "b"], description="why", by="ann")
    world.control.set("trial", trial, add_tags=["c", " a "], remove_tags=["b", "absent"], by="ann")
    assert world.labels.get("trial", trial) == Labels(description="why", tags=("a", "c"))


@pytest.mark.each_change
def test_tags_that_several_users_add_at_once_are_all_kept(world, submit):
    trial = submit().trial_id
    names = [f"tag{number}" for number in range(8)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda name: world.control.set("trial", trial, add_tags=[name, "same"], by="ann"), names))
    assert set(world.labels.get("trial", trial).tags) == {*names, "same"}


def test_the_limit_counts_the_tags_that_an_object_has_already(world, submit):
    trial = submit().trial_id
    world.control.set("trial", trial, tags=[str(number) for number in range(TAGS_MAX)], by="ann")
    with pytest.raises(UserError, match="at most 20 tags, got 21"):
        world.control.set("trial", trial, add_tags=["more"], by="ann")
    world.control.set("trial", trial, add_tags=["more"], remove_tags=["0"], by="ann")
    with pytest.raises(NotFoundError, match="no trial 999"):
        world.control.set("trial", 999, add_tags=["x"], by="ann")


def test_trials_are_found_by_all_of_their_tags(world, submit):
    both, one, _ = (submit().trial_id for _ in range(3))
    world.control.set("trial", both, tags=["a", "b"], by="ann")
    world.control.set("trial", one, tags=["a"], by="ann")
    assert [view.trial_id for view in world.trials.list(tags=["a"])] == [one, both]
    assert [view.trial_id for view in world.trials.list(tags=["a", "b"])] == [both]
    assert world.trials.list(tags=["a", "a", "b", "c"]) == []


def test_a_filter_by_any_number_of_tags_is_one_query_of_the_tags(world, submit):
    trial = submit().trial_id
    experiment = world.trials.get(trial).experiment_id
    names = [f"t{number}" for number in range(1000)]
    for kind, of in (("trial", trial), ("experiment", experiment)):
        world.control.set(kind, of, tags=names[:TAGS_MAX], by="ann")
    statements: list[str] = []
    sa.event.listen(
        world.db.engine, "before_cursor_execute", lambda _c, _r, statement, *_: statements.append(statement)
    )
    for chosen, found in ((names[:TAGS_MAX], 1), (names[1 : TAGS_MAX + 1], 0), (names, 0)):
        assert len(world.trials.list(tags=chosen)) == found
        assert world.trial_table.page(TrialQuery(experiment_id=experiment, tags=tuple(chosen)))[1] == found
        assert world.experiment_table.page(ExperimentQuery(tags=tuple(chosen)))[1] == found
    filters = [one for one in statements if "tags.tag IN" in one]
    assert len(filters) > 6
    assert all(one.count("FROM tags") == 1 for one in filters)
