"""Modules of scripts/tools in tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[2] / "scripts" / "tools"


@contextmanager
def script_tool(name: str, *neighbours: str) -> Iterator[ModuleType]:
    """Import a module of scripts/tools for a while.

    :param neighbours: further modules of that folder, which it imports
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        yield importlib.import_module(name)
        for one in (name, *neighbours):
            sys.modules.pop(one, None)
