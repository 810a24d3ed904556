"""Offset of a host's clock, as text."""

from __future__ import annotations


def offset_text(offset_s: float | None, uncertainty_s: float | None) -> str:
    """Return the offset of a host's clock with its uncertainty, e.g. ``+0.120 s ± 0.004 s``."""
    return "-" if offset_s is None else f"{offset_s:+.3f} s ± {uncertainty_s or 0.0:.3f} s"
