"""Comments of an experiment or a trial, as a reader sees them."""

from __future__ import annotations

from airflow_provider_dtrain.core.lifecycle.control import Noun
from airflow_provider_dtrain.resources.comments import Comment, Comments
from airflow_provider_dtrain.store.queries.rights import Rights, readable_experiment, readable_trial
from airflow_provider_dtrain.store.store import Store


def comments_of(store: Store, rights: Rights, noun: Noun, number: int, *, user_id: str | None) -> Comments:
    """Return the comments of an experiment or a trial.

    :param user_id: Airflow's id of the reader; None = no user of Airflow
    :raises NotFoundError: there is none with this id, or the user may not read its DAG
    """
    if noun == "trial":
        dag_id = readable_trial(store, rights, number).key.dag_id
    else:
        dag_id = readable_experiment(store, rights, number).view.dag_id
    rows = [
        Comment(comment_id=one.comment_id, at=one.at, by=one.by, text=one.text, is_own=one.user_id == user_id)
        for one in store.comments.of(noun, number)
    ]
    return Comments(rows=rows, may_comment=bool(rights.may_edit([dag_id])))
