"""Operator that finds out what limits a training."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_dtrain.hooks.arguments import (
    COUNT,
    DOCUMENT,
    FLAG,
    MAP,
    SECONDS,
    TEXT,
    CheckedArguments,
    Kind,
    configured,
    text_of_path,
)
from airflow_provider_dtrain.hooks.tasks import failing_at_once, task_facts
from airflow_provider_dtrain.links.pages import ExperimentLink, note_pages

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_dtrain.core.documents import JsonObject
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hooks.tasks import TaskFacts


class DiagnoseOperator(CheckedArguments, BaseOperator):
    """Runs a training several times for some steps on one gang, and returns what limits it.

    The worker follows the runs. Their trials belong to an experiment of their own with the tag ``diagnosis``, whose
    page shows the verdict. They write no checkpoints.

    XCom: ``experiment_id, limit, step_s, noise, shares, efficiency, contention, slow_ranks, sentences, suggestions,
    runs`` as plain JSON.

    :param config: experiment configuration: a path (relative to the DAG file), YAML text, or a dict; of a search, the
        first trial runs (templated)
    :param template: name of a stored template, a path, or a dict (templated)
    :param overrides: as for a ``TrialOperator`` (templated)
    :param steps: measured steps of each run (100), 5 at least (templated)
    :param most_s: time limit of each run, a timedelta or seconds (300), 10 at least (templated)
    :param is_confirming: try suggestions that need no change of the program, each in one more run
    :param report: file on the worker for the report as an HTML page; None: none (templated)
    """

    template_fields: Sequence[str] = ("config", "template", "overrides", "steps", "most_s", "report")
    template_fields_renderers: ClassVar[dict[str, str]] = {"config": "yaml", "template": "yaml"}
    operator_extra_links = (ExperimentLink(),)
    ui_color = "#fce8e6"
    ARGUMENTS: ClassVar[Mapping[str, Kind]] = {
        "config": DOCUMENT, "template": DOCUMENT, "overrides": MAP, "steps": COUNT, "most_s": SECONDS,
        "is_confirming": FLAG, "report": TEXT,
    }  # fmt: skip

    def __init__(
        self,
        *,
        config: str | Mapping[str, Any],
        template: str | Mapping[str, Any] | None = None,
        overrides: Mapping[str, Any] | None = None,
        steps: int | str = 100,
        most_s: timedelta | float | str = 300.0,
        is_confirming: bool = True,
        report: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        given = {"config": config, "template": template, "overrides": overrides, "steps": steps, "most_s": most_s}
        self.check_arguments(self.task_id, {**given, "is_confirming": is_confirming, "report": report})
        self.config = text_of_path(config)
        self.template = text_of_path(template)
        self.overrides = overrides
        self.steps = steps
        self.most_s = most_s
        self.is_confirming = is_confirming
        self.report = report
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]] | None = None

    @classmethod
    def documents(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
        """Yield the configuration with its overrides, and the template."""
        return configured(given)

    def execute(self, context: Context) -> JsonObject:
        """Return the verdict. The slots are free afterwards, also after an error.

        :raises AirflowFailException: the configuration or the training code is at fault, or the task was killed
        :raises DtrainError: a host or the store is at fault; a retry begins anew
        """
        from airflow_provider_dtrain.core.diagnosis.report import html_report
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook

        task = task_facts(context)
        try:
            with failing_at_once():
                result = asyncio.run(self._run(DtrainHook(), task))
        except asyncio.CancelledError:
            raise AirflowFailException("The diagnosis was ended by Airflow, and its slots are free.") from None
        note_pages(self, experiment_id=result["experiment_id"])
        for text in result["sentences"]:
            self.log.info("%s", text)
        if self.report is not None:
            page = html_report(result, task.key.dag_id, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
            (task.folder / self.report).write_text(page, encoding="utf-8")
            self.log.info("Wrote %s", task.folder / self.report)
        return result

    def on_kill(self) -> None:
        """End the runs and free the slots."""
        if self._running is not None:
            loop, running = self._running
            loop.call_soon_threadsafe(running.cancel)

    async def _run(self, hook: DtrainHook, task: TaskFacts) -> JsonObject:
        from airflow_provider_dtrain.engine.diagnosis import Diagnosis, DiagnosisRequest, limits_of
        from airflow_provider_dtrain.engine.logs.task_log import TaskLog
        from airflow_provider_dtrain.engine.submission.submit import overridden

        request = DiagnosisRequest(
            key=task.key,
            config=overridden(self.config, self.overrides, task.folder),
            template=self.template,
            folder=task.folder,
            limits=limits_of(self.steps, self.most_s),
            is_confirming=self.is_confirming,
            name=task.key.dag_id,
            try_number=getattr(task.context["ti"], "try_number", 1),
            bundle=task.bundle,
        )
        log = TaskLog(self.log, hook.settings.task_log_rate_bytes_per_s)
        diagnosis = Diagnosis(hook, request, log, self.log.info, watcher=f"worker on {socket.gethostname()}")
        running = asyncio.ensure_future(diagnosis.run())
        self._running = (asyncio.get_running_loop(), running)
        try:
            return await running
        finally:
            self._running = None
