"""Notifiers of Airflow for tests: one that keeps what it sends, and others that misbehave."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from airflow.sdk import BaseNotifier


class KeepingNotifier(BaseNotifier):
    """Keeps the rendered text of each notification."""

    template_fields = ("text",)
    sent: ClassVar[list[str]] = []

    def __init__(self, text: str = "{{ dtrain.event }}: {{ dtrain.title }}", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text = text

    def notify(self, context: Any) -> None:
        self.sent.append(self.text)


class AsyncNotifier(KeepingNotifier):
    """Can only be awaited."""

    notify = BaseNotifier.notify

    async def async_notify(self, context: Any) -> None:
        self.sent.append(self.text)


class RaisingNotifier(BaseNotifier):
    """Raises.

    :param error: what it raises
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def notify(self, context: Any) -> None:
        raise self.error


class HangingNotifier(BaseNotifier):
    """Never returns before its test allows it."""

    free = threading.Event()

    def notify(self, context: Any) -> None:
        self.free.wait(60)
