"""Projects: names under which experiments are grouped."""

from __future__ import annotations

from typing import Final

from airflow_provider_dtrain.errors import UserError

PROJECT_CHARS: Final = 128
#: Project of an experiment whose configuration names none. Source: Determined's default project.
DEFAULT_PROJECT: Final = "Uncategorized"


def check_project(text: str) -> str:
    """Return the name of a project without spaces around it.

    :raises UserError: it is empty, too long, or has an unprintable character
    """
    name = text.strip()
    if not 0 < len(name) <= PROJECT_CHARS or not name.isprintable():
        raise UserError(f"A project must be 1 to {PROJECT_CHARS} printable characters, got {text[:100]!r}.")
    return name
