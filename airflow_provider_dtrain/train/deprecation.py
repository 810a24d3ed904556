"""Warnings for former names, which stay for one release."""

from __future__ import annotations

import warnings


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that a name has a new one.

    :param old: the former name, as users write it
    :param new: the name to use instead
    :param stacklevel: as in :func:`warnings.warn`; 3 = the caller of the function that has the former name
    """
    text = f"{old} is now called {new}. The next release removes the former name."
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)
