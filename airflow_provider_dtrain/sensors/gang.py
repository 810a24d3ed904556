"""Sensor that acquires a gang for several tasks."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException, AirflowTaskTimeout

from airflow_provider_dtrain.core.documents import ConfigDocument
from airflow_provider_dtrain.errors import DtrainError, UserError
from airflow_provider_dtrain.hooks.arguments import (
    COUNT,
    DOCUMENT,
    FLAG,
    SECONDS,
    TEXT,
    CheckedArguments,
    Kind,
    configured,
    known,
    text_of_path,
)
from airflow_provider_dtrain.hooks.tasks import (
    as_airflow,
    failing_at_once,
    log_mistaken_pool,
    task_facts,
)
from airflow_provider_dtrain.links.pages import QueueLink, keep_pages, note_pages, store_pages

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_dtrain.engine.upkeep.held_gangs import GangResult, GangWaiter
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.gangs import GangSubmission, GangView
    from airflow_provider_dtrain.store.records.trials import TrialKey
    from airflow_provider_dtrain.triggers.gang import GangEvent


class GangSensor(CheckedArguments, BaseSensorOperator):
    """Waits in a pool's queue for a gang of slots and holds it for the tasks that follow.

    Pass its XCom to these tasks as ``allocation``, and end the gang with a ``ReleaseGangOperator`` as teardown. The
    gang is also released when no task has used it for ``hold_for``, or when its DAG run has ended.

    XCom: ``{"allocation_id": int, "token": int, "slots": {host: [slot, ...]}}``.

    :param config: experiment configuration whose ``resources`` describe the gang: a path, YAML text or a dict
        (templated); None: ``slots`` describes it
    :param template: name of a stored template, a path, or a dict, for ``config`` (templated)
    :param slots: number of slots, if there is no ``config`` (templated)
    :param host_pool: pool of hosts to wait in; None: the pool that the configuration names, else the only pool
        (templated). ``pool`` is Airflow's pool of the task, as everywhere
    :param hold_for: how long the gang is held after the last task that used it, a timedelta or seconds (templated)
    :param priority: 1 to 99, smaller first; None: the configuration's, else 42 (templated)
    :param is_single_host: all slots on one host; None: the configuration's, else no
    :param deferrable: wait in the triggerer; default: ``[operators] default_deferrable``. The worker takes a gang
        whose slots are free at once.
    :param timeout: seconds or timedelta after which the task times out; as for every sensor, with ``soft_fail``
    :param retries: retries of infra and platform failures (3); a retry gets the gang that an earlier try was granted
    """

    template_fields: Sequence[str] = ("config", "template", "slots", "host_pool", "hold_for", "priority")
    template_fields_renderers: ClassVar[dict[str, str]] = {"config": "yaml", "template": "yaml"}
    operator_extra_links = (QueueLink(),)
    ui_color = "#fef7e0"
    ARGUMENTS: ClassVar[Mapping[str, Kind]] = {
        "config": DOCUMENT, "template": DOCUMENT, "slots": COUNT, "host_pool": TEXT, "hold_for": SECONDS,
        "priority": COUNT, "is_single_host": FLAG, "deferrable": FLAG,
    }  # fmt: skip

    def __init__(
        self,
        *,
        config: str | Mapping[str, Any] | None = None,
        template: str | Mapping[str, Any] | None = None,
        slots: int | str | None = None,
        host_pool: str | None = None,
        hold_for: timedelta | float | str = timedelta(minutes=15),
        priority: int | str | None = None,
        is_single_host: bool | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=30),
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        if (config is None) == (slots is None):
            raise ValueError("GangSensor expects exactly one of config and slots, got both or neither.")
        if self.mode != "poke":
            raise ValueError(
                "GangSensor does not support mode='reschedule', because it must renew its request continuously. "
                "Set deferrable=True."
            )
        given = {
            "config": config,
            "template": template,
            "slots": slots,
            "host_pool": host_pool,
            "hold_for": hold_for,
            "priority": priority,
            "is_single_host": is_single_host,
            "deferrable": deferrable,
        }
        self.check_arguments(self.task_id, given)
        self.config = text_of_path(config)
        self.template = text_of_path(template)
        self.slots = slots
        self.host_pool = host_pool
        self.hold_for = hold_for
        self.priority = priority
        self.is_single_host = is_single_host
        self.deferrable = deferrable
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], GangWaiter] | None = None

    @classmethod
    def documents(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
        """Yield the configuration and the template, and the resources that the other arguments describe."""
        from airflow_provider_dtrain.engine.submission.inference import whole

        yield from configured(given)
        fields = {"slots_per_trial": given.get("slots"), "priority": given.get("priority")}
        resources = {name: whole(known(value)) for name, value in fields.items() if value is not None}
        if resources:
            yield "", {"resources": resources}, False

    def execute(self, context: Context) -> GangResult | None:
        """Return the gang once it is held, or defer to the triggerer, which waits for it.

        :raises AirflowFailException: no set of the pool's hosts can serve the request, or the request is not valid
        :raises AirflowSensorTimeout: the gang was not granted within ``timeout``
        :raises DtrainError: the store is at fault; a retry keeps its place in the queue
        """
        from airflow_provider_dtrain.engine.upkeep.held_gangs import as_xcom, ask_for_gang
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook

        task = task_facts(context)
        with failing_at_once():
            hook = DtrainHook()
            asked = ask_for_gang(hook, self._submission(hook, task.key, task.folder))
            note_pages(self, allocation_id=asked.allocation_id)
            store_pages(self, context)
            view = self._wait(hook, asked.allocation_id, task.key)
            if view is not None:
                return as_xcom(view)
        from airflow_provider_dtrain.triggers.gang import GangTrigger

        trigger = GangTrigger(allocation_id=asked.allocation_id, deadline=self._deadline())
        self.defer(trigger=trigger, method_name="execute_complete")
        return None

    def execute_complete(self, context: Context, event: GangEvent | None = None) -> GangResult:
        """Return the gang that the trigger was granted. Raises like :meth:`execute`.

        :param event: event of the trigger
        """
        from airflow_provider_dtrain.engine.attempt.outcome import Failure

        found = event or {}
        keep_pages(self)
        if "timed_out" in found:
            raise self._timed_out(found["timed_out"])
        if "failure" in found:
            raise as_airflow(Failure(**found["failure"]).exception())
        return found["gang"]

    def on_kill(self) -> None:
        """Withdraw the request without taking a lock or opening a connection."""
        if self._waiting is not None:
            loop, waiting, _ = self._waiting
            loop.call_soon_threadsafe(waiting.cancel)

    # -- the request ----------------------------------------------------------------------------
    def _submission(self, hook: DtrainHook, key: TrialKey, folder: Path) -> GangSubmission:
        from airflow_provider_dtrain.core.config import ExperimentConfig
        from airflow_provider_dtrain.engine.submission.assembly import choose_pool
        from airflow_provider_dtrain.engine.submission.submit import render
        from airflow_provider_dtrain.store.records.gangs import GangSubmission

        if self.config is None:
            document: ConfigDocument = {"resources": {"slots_per_trial": _number(self.slots, "slots")}}
        else:
            document = dict(render(hook, self.config, self.template, folder, pool=self.host_pool).document)
        config = ExperimentConfig.model_validate(document)
        wanted = config.resources
        single = self.is_single_host
        hook.ensure_local()
        log_mistaken_pool(self, self.host_pool or wanted.pool, hook.store)
        return GangSubmission(
            key=key,
            pool=choose_pool(hook.store, self.host_pool or wanted.pool),
            slots=wanted.slots_per_trial,
            priority=wanted.priority if self.priority is None else _number(self.priority, "priority"),
            is_single_host=wanted.is_single_host if single is None else single,
            hold_for_s=_seconds(self.hold_for),
            on_unplaceable=config.on_unplaceable,
        )

    def _deadline(self) -> float:
        limits = [self.timeout, *([self.execution_timeout.total_seconds()] if self.execution_timeout else [])]
        return time.time() + min(limits)

    def _timed_out(self, message: str) -> Exception:
        return AirflowSkipException(message) if self.soft_fail else AirflowSensorTimeout(message)

    # -- waiting in the worker ------------------------------------------------------------------
    def _wait(self, hook: DtrainHook, allocation_id: int, key: TrialKey) -> GangView | None:
        """Return the gang, or None if its slots are not free now and the triggerer should wait."""
        from airflow_provider_dtrain.engine.upkeep.held_gangs import GangTimeout

        try:
            return asyncio.run(self._main(hook, allocation_id, key))
        except GangTimeout as error:
            raise self._timed_out(str(error)) from error

    async def _main(self, hook: DtrainHook, allocation_id: int, key: TrialKey) -> GangView | None:
        from airflow_provider_dtrain.engine.logs.task_log import TaskLog
        from airflow_provider_dtrain.engine.upkeep.held_gangs import GangTimeout, GangWaiter, end_older_gangs

        log = TaskLog(self.log, hook.settings.task_log_rate_bytes_per_s)
        watcher = f"worker on {socket.gethostname()}"
        await end_older_gangs(hook, key, log, watcher=watcher)
        waiter = GangWaiter(hook, allocation_id, log, watcher=watcher, deadline=self._deadline())
        waiting = asyncio.ensure_future(waiter.run(patient=not self.deferrable))
        self._waiting = (asyncio.get_running_loop(), waiting, waiter)
        try:
            return await waiting
        except (asyncio.CancelledError, AirflowTaskTimeout, GangTimeout, DtrainError) as error:
            # After a failure of the store, the next try keeps its place in the queue.
            is_passing = isinstance(error, DtrainError) and error.kind != "user"
            if waiter.watch is not None and not is_passing:
                await waiter.withdraw(f"the task that requested it ended: {error or type(error).__name__}")
            raise
        finally:
            self._waiting = None


def _number(value: Any, name: str) -> int:
    """Return a templated number.

    :raises UserError: the value is not a whole number
    """
    try:
        return int(str(value).strip())
    except ValueError:
        raise UserError(f"{name} must be a whole number, got {value!r}.") from None


def _seconds(value: timedelta | float | str) -> float:
    """Return a templated time in seconds.

    :raises UserError: the value is neither a timedelta nor a number
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    try:
        return float(str(value).strip())
    except ValueError:
        raise UserError(f"hold_for must be a timedelta or a number of seconds, got {value!r}.") from None
