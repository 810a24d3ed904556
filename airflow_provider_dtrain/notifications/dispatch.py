"""Runs notifiers. A notifier that raises, hangs or ends its thread never affects the trial."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import BaseNotifier

from airflow_provider_dtrain.core.lifecycle.timing import NOTIFIER_MOST_S, NOTIFIERS_MOST_S
from airflow_provider_dtrain.core.safe_repr import printable_line

if TYPE_CHECKING:
    from airflow_provider_dtrain.notifications.notice import Notice
    from airflow_provider_dtrain.store.store import Store


class WarningLog(Protocol):
    """Log of a task."""

    def warning(self, event: str, *args: Any) -> Any:
        """Log a warning."""


#: Notifiers that run at a time in one process, including those that hang.
MOST_AT_ONCE = 8
_free = threading.BoundedSemaphore(MOST_AT_ONCE)


def send_once(
    store: Store,
    log: WarningLog,
    found: Notice,
    notifiers: Sequence[BaseNotifier],
    context: Mapping[str, Any],
    *,
    search_id: int | None = None,
) -> bool:
    """Send a notification unless it was sent before, and return whether this call has sent it. Blocks.

    :param log: of the task
    :param context: Airflow's, or the part of it that a trigger has
    :param search_id: the search that the event is about; None: the notice's trial
    """
    of = {"search_id": search_id} if search_id is not None else {"trial_id": found.trial_id}
    mark = store.notifications.claim(found.event, **of)
    if mark is None:
        return False
    errors = send(log, found, notifiers, context)
    store.notifications.done(mark, printable_line("; ".join(errors), 1000))
    return True


def send(log: WarningLog, found: Notice, notifiers: Sequence[BaseNotifier], context: Mapping[str, Any]) -> list[str]:
    """Run the notifiers of an event one after the other, and return why some of them failed. Blocks for a minute."""
    errors = []
    give_up_at = time.monotonic() + NOTIFIERS_MOST_S
    for notifier in notifiers:
        most_s = min(NOTIFIER_MOST_S, give_up_at - time.monotonic())
        error = _run(notifier, {**context, "dtrain": found.to_context()}, most_s)
        if error is not None:
            log.warning("Notifier %s for '%s' failed: %s", type(notifier).__name__, found.event, error)
            errors.append(f"{type(notifier).__name__}: {error}")
    return errors


def _run(notifier: BaseNotifier, context: dict[str, Any], most_s: float) -> str | None:
    """Run a notifier in a thread of its own, and return why it failed, None when it did not."""
    if most_s <= 0 or not _free.acquire(timeout=most_s):
        return "other notifiers took too long"
    found: list[str] = []

    def work() -> None:
        try:
            _notify(copy.copy(notifier), context)
        except BaseException as error:  # a notifier may raise anything, and its thread ends here
            found.append(printable_line(f"{type(error).__name__}: {error}", 300))
        finally:
            _free.release()

    # A daemon: neither the task nor the interpreter waits for a notifier that hangs.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name="dtrain-notify", daemon=True)
    thread.start()
    thread.join(most_s)
    if thread.is_alive():
        return f"it did not return within {most_s:.0f} s"
    return found[0] if found else None


def _notify(notifier: BaseNotifier, context: Any) -> None:
    """Call a notifier. Rendering changes it, so this must be a copy."""
    if type(notifier).notify is not BaseNotifier.notify:
        notifier(context)
        return
    notifier.context = context

    async def wait() -> None:
        await notifier

    asyncio.run(wait())
