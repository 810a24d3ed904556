"""Links from task instances to the provider's pages in Airflow's UI.

The paths are relative: the browser resolves them against the address of Airflow's UI, which the worker may not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink

from airflow_provider_dtrain.core.page_paths import experiment_page, queue_page, trial_page, trials_page

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey

#: Attribute of a task with its links: key of the link -> path.
_NOTED = "_noted_pages"


class PageLink(BaseOperatorLink):
    """Link to a page that the task has noted with :func:`note_pages`."""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the path, an empty string without one."""
        return str(getattr(operator, _NOTED, {}).get(self.xcom_key, ""))


class TrialLink(PageLink):
    """Link to the page of the task's trial, or to the list of the trials if the task has several."""

    name = "Trial page"


class ExperimentLink(PageLink):
    """Link to the page of the task's experiment."""

    name = "Experiment page"


class QueueLink(PageLink):
    """Link to the queue, with the task's gang."""

    name = "Queue page"


def note_pages(
    task: BaseOperator,
    *,
    trial_id: int | None = None,
    experiment_id: int | None = None,
    has_several: bool = False,
    allocation_id: int | None = None,
) -> None:
    """Note the pages of a task, which Airflow stores when this process ends.

    :param has_several: the task has several trials of the experiment
    """
    pages = {
        TrialLink().xcom_key: None if trial_id is None else trial_page(trial_id),
        ExperimentLink().xcom_key: None if experiment_id is None else experiment_page(experiment_id),
        QueueLink().xcom_key: None if allocation_id is None else queue_page(allocation_id),
    }
    if has_several and experiment_id is not None:
        pages[TrialLink().xcom_key] = trials_page(experiment_id)
    noted = {key: path for key, path in pages.items() if path is not None}
    setattr(task, _NOTED, {**getattr(task, _NOTED, {}), **noted})


def store_pages(task: BaseOperator, context: Context) -> None:
    """Store the noted pages of a task now, so that the links work while the task waits and runs. Blocks."""
    for key, path in getattr(task, _NOTED, {}).items():
        try:
            context["ti"].xcom_push(key=key, value=path)
        except Exception as error:  # whatever Airflow's client raises: a link must not fail a task
            task.log.debug("The link %s could not be stored: %s", key, error)


def keep_pages(task: BaseOperator) -> None:
    """Keep the pages of a task that has been deferred: Airflow stored their links then.

    At its end Airflow would send a request for each link again.
    """
    task.operator_extra_links = tuple(link for link in task.operator_extra_links if not isinstance(link, PageLink))
