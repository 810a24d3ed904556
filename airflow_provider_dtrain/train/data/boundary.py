"""Boundaries of a training loop: the places at which a resumed program can enter it again."""

from __future__ import annotations


class Boundary:
    """Receiver of the boundaries that the program reaches. This one ignores them."""

    #: :meth:`reach` has something to do. Loops check it, because they reach a boundary in each batch.
    is_awaited = False
    #: A loader has ended its epoch early. No further loop begins.
    has_left = False

    def reach(self, *, begins_pass: bool = False) -> None:
        """Note that the program asks for a batch or an epoch. Called by all ranks.

        :param begins_pass: it begins a further pass
        """

    def leave(self) -> None:
        """Note that a loader ends its epoch early, because the program must stop. Called by all ranks."""
