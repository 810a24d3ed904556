"""Ranks under the names of ``determined.core.DistributedContext``."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import NotOfferedError, SetupError


class DistributedContext:
    """Numbers of this rank, and messages between the ranks once ``core.init`` has joined them.

    The ranks are those of the trial, or of ``torchrun``. The numbers must be theirs.

    :param chief_ip: has no effect, because the ranks meet at ``MASTER_ADDR``; so have ports
    :raises SetupError: the numbers are those of other ranks than the environment has
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        local_rank: int,
        local_size: int,
        cross_rank: int,
        cross_size: int,
        chief_ip: str | None = None,
        **ports: Any,
    ) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.cross_rank = cross_rank
        self.cross_size = cross_size
        self._ranks: Distributed | None = None
        actual = Distributed(RankEnvironment.read())
        given = (rank, size, local_rank, local_size, cross_rank, cross_size)
        if given != _numbers(actual):
            names = "rank, size, local_rank, local_size, cross_rank and cross_size"
            raise SetupError(
                f"DistributedContext has {names} {given}, but this process is {_numbers(actual)} by its environment. "
                "Use DistributedContext.from_torch_distributed(): the trial, or torchrun, starts the ranks, and the "
                "script starts none."
            )

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Return the ranks of the environment of ``torchrun``, which a trial has as well.

        :param chief_ip: has no effect
        :raises KeyError: the environment has no ranks
        """
        os.environ["RANK"], os.environ["WORLD_SIZE"]  # noqa: B018 - scripts catch the KeyError of a single process
        return cls.of(Distributed(RankEnvironment.read()))

    @classmethod
    def of(cls, ranks: Distributed) -> DistributedContext:
        """Return the ranks of the library."""
        rank, size, local_rank, local_size, cross_rank, cross_size = _numbers(ranks)
        return cls(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            cross_rank=cross_rank,
            cross_size=cross_size,
        )

    @classmethod
    def from_horovod(cls, *_: Any, **__: Any) -> NoReturn:
        """Raise: Horovod has a launcher of its own."""
        raise NotOfferedError(
            "DistributedContext.from_horovod is not offered. Use torch.distributed, and "
            "DistributedContext.from_torch_distributed()."
        )

    @classmethod
    def from_deepspeed(cls, *_: Any, **__: Any) -> NoReturn:
        """Raise: the launcher of DeepSpeed sets other variables."""
        raise NotOfferedError(
            "DistributedContext.from_deepspeed is not offered. The environment is that of torchrun: use "
            "DistributedContext.from_torch_distributed()."
        )

    def bind(self, ranks: Distributed) -> None:
        """Send the messages through the ranks that ``core.init`` has joined."""
        self._ranks = ranks

    def close(self) -> None:
        """Do nothing: the end of ``core.init`` closes the connections."""

    def get_rank(self) -> int:
        """Return the global rank."""
        return self.rank

    def get_local_rank(self) -> int:
        """Return the rank among the ranks of this host."""
        return self.local_rank

    def get_size(self) -> int:
        """Return the number of ranks."""
        return self.size

    def get_num_agents(self) -> int:
        """Return the number of hosts."""
        return self.cross_size

    def allgather(self, stuff: Any) -> list[Any]:
        """Return every rank's value, in order of rank, on every rank. Called by all ranks."""
        return self._joined().allgather(stuff)

    def gather(self, stuff: Any) -> list[Any] | None:
        """Return every rank's value on rank 0, and None on the other ranks. Called by all ranks."""
        return self._joined().gather(stuff)

    def broadcast(self, stuff: Any) -> Any:
        """Return rank 0's value on every rank. Called by all ranks."""
        return self._joined().broadcast(stuff)

    def allgather_local(self, stuff: Any) -> list[Any]:
        """Return the values of this host's ranks on each of them. Called by all ranks of all hosts."""
        return self._joined().allgather_local(stuff)

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """Return the values of this host's ranks on its local rank 0. Called by all ranks of all hosts."""
        return self._joined().gather_local(stuff)

    def broadcast_local(self, stuff: Any = None) -> Any:
        """Return the value of local rank 0 on every rank of its host. Called by all ranks of all hosts."""
        return self._joined().broadcast_local(stuff)

    def _joined(self) -> Distributed:
        if self._ranks is None:
            raise SetupError("The ranks exchange messages inside core.init(distributed=...), which joins them.")
        return self._ranks


def _numbers(ranks: Distributed) -> tuple[int, ...]:
    return (ranks.rank, ranks.size, ranks.local_rank, ranks.local_size, ranks.cross_rank, ranks.cross_size)
