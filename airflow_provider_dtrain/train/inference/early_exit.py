"""Guard against user code that ends its process with status 0 before the inference is complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

#: Exit status of a rank whose processor called ``os._exit(0)``.
EXIT_EARLY = 67


@contextlib.contextmanager
def without_early_success() -> Iterator[None]:
    """Let ``sys.exit(0)`` and ``os._exit(0)`` of this process fail in the block. Child processes may use both.

    :raises RuntimeError: instead of ``SystemExit`` with status 0
    """
    own, leave = os.getpid(), os._exit

    def guarded(status: int) -> Any:
        leave(EXIT_EARLY if status == 0 and os.getpid() == own else status)

    os._exit = guarded
    try:
        yield
    except SystemExit as error:
        if error.code or os.getpid() != own:
            raise
        raise RuntimeError("The processor called sys.exit(0) before the inference was complete.") from error
    finally:
        os._exit = leave
