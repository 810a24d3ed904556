"""Stop requests under the names of ``determined.core.PreemptContext``."""

from __future__ import annotations

import enum

from airflow_provider_dtrain.train.core_context import CoreContext
from airflow_provider_dtrain.train.determined.refusals import refuse_worker
from airflow_provider_dtrain.train.errors import NotOfferedError


class PreemptMode(enum.Enum):
    """Ranks that call ``should_preempt``."""

    #: All ranks, in step. They get the same answer.
    WorkersAskChief = "WORKERS_ASK_CHIEF"
    #: Rank 0, which tells the other ranks.
    ChiefOnly = "CHIEF_ONLY"
    #: Each rank for itself. Not offered.
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class PreemptContext:
    """Requests to end the trial now: for a pause, a preemption, a stop, or by the decision of the searcher.

    :raises NotOfferedError: the mode is ``WorkersAskMaster``
    """

    def __init__(self, ctx: CoreContext, mode: PreemptMode) -> None:
        if mode is PreemptMode.WorkersAskMaster:
            raise NotOfferedError(
                "PreemptMode.WorkersAskMaster is not offered. Use WorkersAskChief, with should_preempt() on all ranks."
            )
        self._ctx = ctx
        self._mode = mode

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Return whether to save a checkpoint and end.

        It is also True once a validation has reported the end of ``searcher.max_length``. After a validation at which
        the searcher decides, it waits for the answer. Each call exchanges a message between the ranks.

        :param auto_ack: must be True: a trial that has seen the request and ends is resumed later
        """
        if not auto_ack:
            raise NotOfferedError(
                "should_preempt(auto_ack=False) is not offered, because a request that was seen counts as obeyed. Call "
                "should_preempt() where the script is ready to save a checkpoint and end."
            )
        step = self._ctx.last_step
        if self._mode is PreemptMode.ChiefOnly:
            refuse_worker(self._ctx.rank, "preempt.should_preempt() with PreemptMode.ChiefOnly")
            return self._ctx.chief_should_stop(step)
        return self._ctx.should_stop(step, at_once=True)

    def acknowledge_preemption_signal(self) -> None:
        """Do nothing: :meth:`should_preempt` has acknowledged the request."""
