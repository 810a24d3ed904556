"""Conversion of a host's ``ok: false`` answer into an error of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.errors import HostError, HostLostError, HostRefusedError, SlotBusyError
from airflow_provider_dtrain.hosts.wire import plain


def refusal(host: str, cmd: str, answer: Mapping[str, Any]) -> HostError:
    """Return the error for an answer that is not ok.

    ``details`` has all fields of the answer except code and message.
    """
    code = plain(answer.get("code", "unknown"), 64)
    details = {key: value for key, value in answer.items() if key not in ("ok", "code", "message")}
    reason = plain(answer.get("message", "no reason given"))
    message = f"Host '{host}' refused '{cmd}' ({code}): {reason}"
    if code == "slot_busy":
        return SlotBusyError(host, message, details=details)
    if code == "lost":
        return HostLostError(host, message)
    return HostRefusedError(host, message, code=code, reason=reason, details=details)
