"""Facts of one notification, which the templates of a notifier find as ``dtrain``."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk.configuration import conf

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.timeline import duration
from airflow_provider_dtrain.core.page_paths import trial_page
from airflow_provider_dtrain.core.safe_repr import printable_line
from airflow_provider_dtrain.core.search.names import metric_text, trial_name
from airflow_provider_dtrain.engine.attempt.end_summary import ending_text
from airflow_provider_dtrain.engine.attempt.outcome import Failure
from airflow_provider_dtrain.notifications.events import NotifyEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_dtrain.store.records.trials import TrialKey, TrialView
    from airflow_provider_dtrain.store.store import Store

#: Characters of a title and of a text.
TITLE_CHARS, TEXT_CHARS = 300, 1000


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Facts of one notification. Texts are single printable lines, with names from user code in them."""

    event: str
    #: The event in one sentence.
    title: str
    #: The title, the task, and the address of the page.
    text: str
    #: Address of the page in Airflow's UI; None: the event has no page.
    link: str | None
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    experiment_id: int | None = None
    experiment: str | None = None
    trial_id: int | None = None
    #: Number and hyperparameters of the trial.
    name: str | None = None
    state: str | None = None
    #: Name and value of the searcher's metric, and its best value before.
    metric: str | None = None
    value: float | None = None
    before: float | None = None
    #: Reason why it waits, or the sentence that names a slow rank, and seconds that it has waited.
    reason: str | None = None
    waited_s: float | None = None
    #: Cause of a failure in one line.
    cause: str | None = None

    def to_context(self) -> JsonObject:
        """Return the facts for templates, with ``html`` and ``slack``: the text with escaped names.

        Slack acts on ``<!channel>`` and ``<address|words>`` in a text, and decodes these three characters only.
        Source: https://docs.slack.dev/messaging/formatting-message-text
        """
        page = f' <a href="{html.escape(self.link)}">{html.escape(self.link)}</a>' if self.link else ""
        plain = self.text.removesuffix(f" {self.link}") if self.link else self.text
        return {**asdict(self), "html": html.escape(plain) + page, "slack": html.escape(self.text, quote=False)}


def address(path: str) -> str:
    """Return the address of a page in Airflow's UI. Without ``[api] base_url`` it is the path alone."""
    base = str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return f"{base}/{path}"


def notice(event: NotifyEvent, key: TrialKey, title: str, path: str | None, **facts: Any) -> Notice:
    """Return a notice about a task instance.

    :param path: of the page
    """
    index = f"[{key.map_index}]" if key.map_index >= 0 else ""
    link = None if path is None else address(path)
    title = printable_line(title, TITLE_CHARS)
    text = (
        f"{title}{'' if title.endswith(('.', '…')) else '.'} Task {key.dag_id}.{key.task_id}{index}, run {key.run_id}."
    )
    return Notice(
        event=str(event),
        title=title,
        text=" ".join(filter(None, [printable_line(text, TEXT_CHARS), link])),
        link=link,
        dag_id=key.dag_id,
        run_id=key.run_id,
        task_id=key.task_id,
        map_index=key.map_index,
        **facts,
    )


def trial_notice(
    event: NotifyEvent,
    store: Store,
    trial_id: int,
    *,
    reason: str | None = None,
    waited_s: float | None = None,
    before: float | None = None,
    failure: Failure | None = None,
) -> Notice:
    """Return a notice about a trial. Blocks.

    :param before: best value of the searcher's metric before
    :param failure: why its task fails; None: the stored failure
    """
    trial = store.trials.get(trial_id)
    document = store.configs.get(trial.config_id).document
    search = store.searches.of_trial(trial_id)
    metric = search.metric if search is not None else (document.get("searcher") or {}).get("metric")
    failure = failure or (Failure(**trial.failure) if trial.failure else None)
    cause = None if failure is None else printable_line(failure.cause, TITLE_CHARS)
    subject = f"Trial {trial_id} of {printable_line(trial.experiment, 60)}"
    titles = {
        NotifyEvent.FINISHED: f"{subject} finished: {ending_text(store, trial_id)}",
        NotifyEvent.FAILED: f"{subject} failed: {cause}",
        NotifyEvent.TRIAL_FAILED: f"{subject} failed: {cause}",
        NotifyEvent.WAITED: f"{subject} has waited {duration(waited_s or 0)} for slots: {reason or 'no reason yet'}",
        NotifyEvent.STRAGGLER: f"{subject} has a slow rank: {reason}",
        NotifyEvent.BEST: f"{subject} is the new best: {_metric(metric, trial)}{_before(before)}",
    }
    return notice(
        event,
        trial.key,
        titles[event],
        trial_page(trial_id),
        experiment_id=trial.experiment_id,
        experiment=trial.experiment,
        trial_id=trial_id,
        name=_name(trial, document),
        state=trial.state,
        metric=metric,
        value=trial.best_metric,
        before=before,
        reason=reason,
        waited_s=waited_s,
        cause=cause,
    )


def _name(trial: TrialView, document: Mapping[str, Any]) -> str:
    task = (trial.key.task_id, trial.key.map_index)
    return trial_name(trial.number, trial.hparams, document.get("hyperparameters") or {}, task=task)


def _metric(name: str | None, trial: TrialView) -> str:
    return metric_text(name or "metric", trial.best_metric)


def _before(value: float | None) -> str:
    return "" if value is None else f" (before: {value:.6g})"
