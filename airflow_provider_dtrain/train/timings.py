"""Timings: how long each part of a batch took."""

from __future__ import annotations


class Timings:
    """Durations of one rank, cheap enough for every batch."""

    def add(self, name: str, duration_s: float) -> None:
        """Note one duration.

        :param name: ``dataloader_next``, ``to_device``, ``train_batch``, ``backward``, ...
        """
