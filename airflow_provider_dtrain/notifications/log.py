"""Notifier that writes to the task log. It needs no account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

if TYPE_CHECKING:
    from airflow.sdk import Context


class LogNotifier(BaseNotifier):
    """Notifier that writes one line to the task log, to try notifications out.

    :param message: the line (templated)
    """

    template_fields = ("message",)

    def __init__(self, message: str = "{{ dtrain.text }}", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.message = message

    def notify(self, context: Context) -> None:
        """Write the line."""
        self.log.info("Notification: %s", self.message)
