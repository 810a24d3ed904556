"""Commands that both programs have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.terminal.arguments import Command
    from airflow_provider_dtrain.terminal.control import Control
    from airflow_provider_dtrain.terminal.documents import Documents
    from airflow_provider_dtrain.terminal.source import Source


def run_shared(command: Command, args: Namespace, source: Source, control: Control, documents: Documents) -> int | None:
    """Run a command of this package with what a program offers, and return its exit code, None for 0."""
    module, _, name = command.target.rpartition(".")
    function: Any = getattr(import_module(f"airflow_provider_dtrain.terminal.{module}"), name)
    ports = {"source": (source,), "control": (source, control), "documents": (documents,)}
    code: int | None = function(args, *ports[command.port or "source"])
    return code
