"""The gang as one rank sees it: rank numbers, sizes, and messages between the ranks."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import io
import os
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import CheckpointError, LeaderFailedError, SetupError
from airflow_provider_dtrain.train.process.heartbeat import CHIEF, FOLLOWERS, HERE, LEADER, MESSAGE, RANK_0
from airflow_provider_dtrain.train.process.import_hooks import after_import, run_actions

#: Time limit of ranks that wait for a leader, which may fetch a large data set, seconds.
LEADER_TIMEOUT_S = 6 * 3600
#: Large byte strings are sent in pieces of this size.
PIECE_BYTES = 64 * 1024 * 1024
#: Word of a leader that has succeeded, and most characters of the error of one that has failed.
DONE = b"done"
ERROR_CHARACTERS = 2000


class Distributed:
    """Rank numbers, and small messages between the ranks: ``ctx.distributed``.

    Messages use gloo on the CPU, never NCCL. All ranks must send them in the same order.
    """

    def __init__(self, env: RankEnvironment, *, group: Any = None, store: Any = None, owns_group: bool = True) -> None:
        self._env = env
        self._group = group
        self._store = store
        #: The library has created the default process group, and so it ends it.
        self._owns_group = owns_group
        self._leader_calls = self._chief_calls = 0
        #: Counters and posts of a gang of one rank.
        self._counters: dict[str, int] = {}
        self._posts: dict[str, str] = {}
        guess = -(-env.world_size // max(1, env.local_world_size))
        self._hosts = int(os.environ.get("GROUP_WORLD_SIZE") or guess)

    def get_rank(self) -> int:
        """Return the global rank, 0 .. size-1."""
        return self._env.rank

    def get_local_rank(self) -> int:
        """Return the rank among the ranks of this host."""
        return self._env.local_rank

    def get_size(self) -> int:
        """Return the number of ranks of the gang."""
        return self._env.world_size

    def get_host_rank(self) -> int:
        """Return the index of this host in the gang."""
        return self._env.group_rank

    def get_num_agents(self) -> int:
        """Return the number of hosts of the gang."""
        return self._hosts

    @property
    def rank(self) -> int:
        """The global rank, 0 .. size-1."""
        return self._env.rank

    @property
    def local_rank(self) -> int:
        """The rank among the ranks of this host."""
        return self._env.local_rank

    @property
    def size(self) -> int:
        """The number of ranks of the gang."""
        return self._env.world_size

    @property
    def local_size(self) -> int:
        """The number of ranks on this host."""
        return self._env.local_world_size

    @property
    def num_agents(self) -> int:
        """The number of hosts of the gang."""
        return self._hosts

    @property
    def cross_rank(self) -> int:
        """Number of this host in the gang, under the name of Determined."""
        return self.get_host_rank()

    @property
    def cross_size(self) -> int:
        """Number of hosts of the gang, under the name of Determined."""
        return self.get_num_agents()

    def barrier(self) -> None:
        """Wait until every rank has called it."""
        if self._group is not None:
            import torch.distributed as dist

            with HERE.at(MESSAGE):
                dist.barrier(group=self._group)

    def allgather(self, value: Any) -> list[Any]:
        """Return every rank's value, in order of rank, on every rank.

        :param value: any picklable value
        """
        if self._group is None:
            return [value]
        return [pickle.loads(part) for part in self._parts(pickle.dumps(value))]  # noqa: S301 - of a rank of this gang

    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's value, in order of rank, on rank 0, and None on the other ranks."""
        if self._group is None:
            return [value]
        parts = self._parts(pickle.dumps(value), to_chief=True)
        return [pickle.loads(part) for part in parts] if self.get_rank() == 0 else None  # noqa: S301 - as above

    def broadcast(self, value: Any = None) -> Any:
        """Return rank 0's value on every rank."""
        if self._group is None:
            return value
        mine = pickle.dumps(value) if self.get_rank() == 0 else None
        content = self.broadcast_bytes(mine)
        return value if mine is not None else pickle.loads(content)  # noqa: S301 - as above

    def _parts(self, mine: bytes, *, to_chief: bool = False) -> list[memoryview]:
        """Return every rank's bytes, in order of rank.

        PyTorch's own functions for objects need NumPy, on which PyTorch does not depend.

        :param to_chief: only rank 0 gets them
        """
        import torch
        import torch.distributed as dist

        ranks = range(self.get_size())
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in ranks]
        with HERE.at(MESSAGE):
            dist.all_gather(sizes, torch.tensor([len(mine)]), group=self._group)
        counts = [int(size) for size in sizes]
        room = max(counts)
        whole = bytearray(room * len(ranks) if self.get_rank() == 0 or not to_chief else 0)
        padded = torch.frombuffer(bytearray(mine.ljust(room, b"\0")), dtype=torch.uint8)
        rooms = list(torch.frombuffer(whole, dtype=torch.uint8).split(room)) if whole else None
        with HERE.at(MESSAGE):
            if to_chief:
                dist.gather(padded, rooms, dst=0, group=self._group)
            else:
                dist.all_gather(rooms, padded, group=self._group)
        view = memoryview(whole)
        return [view[room * rank : room * rank + counts[rank]] for rank in ranks] if whole else []

    def allgather_local(self, value: Any) -> list[Any]:
        """Return the values of this host's ranks, in order of rank, on each of them. Called by all ranks."""
        pairs = self.allgather((self._env.group_rank, value))
        return [item for host, item in pairs if host == self._env.group_rank]

    def gather_local(self, value: Any) -> list[Any] | None:
        """Return the values of this host's ranks on its local rank 0, None elsewhere. Called by all ranks."""
        values = self.allgather_local(value)
        return values if self._env.local_rank == 0 else None

    def broadcast_local(self, value: Any = None) -> Any:
        """Return the value of local rank 0 on every rank of its host. Called by all ranks."""
        return self.allgather_local(value if self._env.local_rank == 0 else None)[0]

    def any(self, flag: bool) -> bool:
        """Return whether any rank's flag is set. The answer is the same on every rank."""
        return bool(self.largest(int(flag)))

    def largest(self, number: int) -> int:
        """Return the largest of all ranks' numbers. The answer is the same on every rank."""
        return self.largest_each([number])[0]

    def largest_each(self, numbers: Sequence[int]) -> list[int]:
        """Return the largest of all ranks' numbers at each place, by one message of 32-bit numbers."""
        if self._group is None:
            return list(numbers)
        import torch
        import torch.distributed as dist

        votes = torch.tensor(numbers, dtype=torch.int32)
        with HERE.at(MESSAGE):
            dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self._group)
        return [int(vote) for vote in votes]

    def first_value(self, key: str, value: str) -> str:
        """Return the value of the rank that was the first to call this with the key. Waits for no other rank."""
        if self._store is None:
            return self._posts.setdefault(f"first/{key}", value)
        return bytes(self._store.compare_set(f"first/{key}", "", value)).decode()

    def count(self, key: str, amount: int = 1) -> int:
        """Add to a counter that all ranks share, and return its new value. Waits for no other rank.

        :param amount: 0 reads the counter
        """
        if self._store is None:
            self._counters[key] = self._counters.get(key, 0) + amount
            return self._counters[key]
        return int(self._store.add(f"count/{key}", amount))

    def post(self, key: str, text: str) -> None:
        """Leave a text for other ranks, which :meth:`posted` returns. Waits for no other rank."""
        if self._store is None:
            self._posts[key] = text
        else:
            self._store.set(f"post/{key}", text)

    def posted(self, key: str) -> str:
        """Return the text that a rank posted under a key. Waits for it, at most the time limit of an exchange."""
        return bytes(self._store.get(f"post/{key}")).decode() if self._store is not None else self._posts[key]

    def posted_or_none(self, key: str) -> str | None:
        """Return the text that a rank posted under a key, or None. Waits for no other rank."""
        if self._store is None:
            return self._posts.get(key)
        return self.posted(key) if self._store.check([f"post/{key}"]) else None

    def forget(self, key: str) -> None:
        """Remove the text that a rank posted under a key."""
        if self._store is None:
            self._posts.pop(key, None)
        else:
            self._store.delete_key(f"post/{key}")

    def broadcast_bytes(self, content: bytes | None = None) -> bytes:
        """Return rank 0's bytes on every rank. Nothing is unpickled."""
        if self._group is None:
            return content or b""
        import torch
        import torch.distributed as dist

        size = torch.tensor([len(content or b"")])
        with HERE.at(MESSAGE):
            dist.broadcast(size, src=0, group=self._group)
        # A copy, because torch requires writable memory.
        whole = bytearray(content) if content is not None else bytearray(int(size))
        for start in range(0, len(whole), PIECE_BYTES):
            piece = torch.frombuffer(whole, dtype=torch.uint8, offset=start, count=min(PIECE_BYTES, len(whole) - start))
            with HERE.at(MESSAGE):
                dist.broadcast(piece, src=0, group=self._group)
        return bytes(whole)

    def send_from(self, numbers: Any, rank: int, group: Any = None) -> None:
        """Send a tensor of bytes to a rank, which calls :meth:`receive_into` with one of the same size.

        :param group: a group of :meth:`new_group`; default: that of the other messages
        """
        import torch.distributed as dist

        # A message of another thread says nothing about what training waits for.
        with HERE.at(MESSAGE) if group is None else contextlib.nullcontext():
            dist.send(numbers, dst=rank, group=group or self._group)

    def receive_into(self, numbers: Any, rank: int, group: Any = None) -> None:
        """Fill a tensor with the bytes that a rank sends by :meth:`send_from`."""
        import torch.distributed as dist

        with HERE.at(MESSAGE) if group is None else contextlib.nullcontext():
            dist.recv(numbers, src=rank, group=group or self._group)

    def send_bytes(self, view: memoryview, rank: int, group: Any = None) -> None:
        """Send bytes to a rank, which calls :meth:`receive_bytes` with as much room."""
        import torch

        self.send_from(torch.frombuffer(view, dtype=torch.uint8), rank, group)

    def receive_bytes(self, view: memoryview, rank: int, group: Any = None) -> None:
        """Fill a view with the bytes that a rank sends by :meth:`send_bytes`."""
        import torch

        self.receive_into(torch.frombuffer(view, dtype=torch.uint8), rank, group)

    def new_group(self) -> Any:
        """Return another group of all ranks, for messages of another thread. Called by all ranks."""
        import torch.distributed as dist

        return dist.new_group(backend="gloo")

    def leave(self) -> None:
        """End the process group of a finished gang, because its threads must end before the interpreter does."""
        if self._group is None:
            return
        import torch.distributed as dist

        self._group = self._store = None
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()

    @contextlib.contextmanager
    def local_leader_first(self) -> Iterator[None]:
        """Run the block on local rank 0 of each host before the other ranks of that host run it.

        The other ranks wait at most 6 hours.

        :raises LeaderFailedError: on the waiting ranks, when the block failed on local rank 0
        """
        self._leader_calls += 1
        key = f"leader/{self._env.group_rank}/{self._leader_calls}"
        if self._store is None or self._env.local_rank == 0:
            with self._answering(key), HERE.at(LEADER):
                yield
            return
        with HERE.at(FOLLOWERS):
            self._store.wait([key], datetime.timedelta(seconds=LEADER_TIMEOUT_S))
        if (found := self._store.get(key)) != DONE:
            where = f"Local rank 0 of this host (host {self._env.group_rank} of the gang)"
            raise LeaderFailedError(f"{where} failed in local_leader_first: {_text(found)}")
        yield

    def on_chief(self, function: Callable[[], Any]) -> Any:
        """Return the result of the function on every rank. Only rank 0 runs it.

        The other ranks wait at most 6 hours.

        :raises LeaderFailedError: on the waiting ranks, when the function failed on rank 0
        """
        self._chief_calls += 1
        key = f"chief/{self._chief_calls}"
        if self._store is None or self._env.rank == 0:
            with self._answering(key), HERE.at(CHIEF):
                value = function()
            return self.broadcast(value)
        with HERE.at(RANK_0):
            self._store.wait([key], datetime.timedelta(seconds=LEADER_TIMEOUT_S))
        if (found := self._store.get(key)) != DONE:
            raise LeaderFailedError(f"Rank 0 failed in a call that only rank 0 runs: {_text(found)}")
        return self.broadcast()

    @contextlib.contextmanager
    def _answering(self, key: str) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._answer(key, f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS].encode(errors="replace"))
            raise
        self._answer(key, DONE)

    def _answer(self, key: str, word: bytes) -> None:
        if self._store is not None:
            self._store.set(key, word)


def _text(error: bytes) -> str:
    return error.decode(errors="replace")


class RankDevice:
    """Device of this rank, which is chosen and made the current one at the end of the import of torch.

    :param wanted: as for :func:`choose_device`
    """

    def __init__(self, env: RankEnvironment, wanted: str | None) -> None:
        self._env = env
        self._wanted = wanted
        self._device: Any = None
        after_import("torch", "device", self._choose)

    def __call__(self) -> Any:
        """Return the torch.device. torch is imported if it is not yet."""
        importlib.import_module("torch")
        run_actions("torch")
        return self._device

    def _choose(self) -> None:
        self._device = choose_device(self._env, self._wanted)


def choose_device(env: RankEnvironment, wanted: str | None) -> Any:
    """Return the torch device of this rank and make it the current one.

    :param wanted: e.g. ``"cpu"``; None: the rank's GPU when one is visible, else the CPU
    :raises SetupError: ``wanted`` is no device, or the host has fewer visible GPUs than ranks
    """
    import torch

    if wanted is not None:
        try:
            device = torch.device(wanted)
        except RuntimeError as error:
            raise SetupError(f"device must be cpu, cuda or cuda:N (e.g. cuda:1), got {wanted!r}.") from error
    elif not torch.cuda.is_available():
        device = torch.device("cpu")
    else:
        count = torch.cuda.device_count()
        # With resources.visible_devices: own, and for MIG instances, a rank of a gang sees its own device only.
        own_alone = env.on_cluster and "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ",")
        index = 0 if own_alone else env.local_rank
        if index >= count:
            raise SetupError(
                f"Local rank {env.local_rank} has no GPU of its own: {count} visible, {env.local_world_size} ranks on "
                'this host. Start fewer ranks, or train on the CPU: dtrain.init(device="cpu").'
            )
        device = torch.device("cuda", index)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def join(env: RankEnvironment, *, backend: str, timeout_s: float) -> Distributed:
    """Return the gang after this process joined its process group. A single process joins none.

    A script may have created the default process group before. Then it is used, and the script ends it.

    :param backend: ``nccl`` or ``gloo``; control messages use gloo in either case
    :param timeout_s: time limit of a collective operation, seconds
    :raises SetupError: the script's process group has other ranks than the environment
    """
    if env.world_size == 1:
        return Distributed(env)
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    from airflow_provider_dtrain.train.process.rendezvous import install

    # Before PyTorch 2.5, or when a program has disabled its entry points, nothing has called it yet.
    install()
    timeout = datetime.timedelta(seconds=timeout_s)
    HERE.collectives = entered_collectives
    if dist.is_initialized():
        return _join_existing(env, timeout)
    # The rendezvous is done here so that the key-value store can be used for more than the process group.
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    store.set_timeout(timeout)
    process_group_store = PrefixStore("default_pg", store)
    dist.init_process_group(backend, store=process_group_store, rank=rank, world_size=size, timeout=timeout)
    group = dist.group.WORLD if backend == "gloo" else dist.new_group(backend="gloo", timeout=timeout)
    return Distributed(env, group=group, store=PrefixStore("dtrain", store))


def entered_collectives() -> int:
    """Return how many collectives of the default process group this rank has entered, 0 without a group.

    Collectives of DistributedDataParallel are counted too. PyTorch counts them anyway, so the record costs nothing.
    """
    import torch.distributed as dist

    # Another thread may be destroying the group.
    with contextlib.suppress(Exception):
        group: Any = dist.group.WORLD
        return int(group._get_sequence_number_for_group())
    return 0


def _join_existing(env: RankEnvironment, timeout: datetime.timedelta) -> Distributed:
    """Return the gang over the default process group that the script has created. Called by all ranks."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    if (dist.get_rank(), dist.get_world_size()) != (env.rank, env.world_size):
        raise SetupError(
            f"The script's process group has rank {dist.get_rank()} of {dist.get_world_size()}, but RANK is {env.rank} "
            f"and WORLD_SIZE {env.world_size}. Create it with init_method='env://', or leave it to dtrain.init()."
        )
    store = PrefixStore("dtrain", _get_default_store())
    group = dist.new_group(backend="gloo", timeout=timeout)
    return Distributed(env, group=group, store=store, owns_group=False)


def load_bytes(content: bytes) -> Any:
    """Return the object that ``torch.save`` wrote, loaded without running any pickle.

    :raises CheckpointError: the bytes hold objects that only a pickle could load, or were written by something else
    """
    import torch

    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.findall(r"(?:GLOBAL|global) (\S+\.\S+)", str(error))
        what = f" ({named[0].rstrip('.')})" if named else ""
        raise CheckpointError(
            f"A file of the checkpoint holds an object that only a pickle could load{what}. Nothing of it was run, "
            "because a pickle runs code. The library saves tensors, numbers, strings, lists and dicts: this file was "
            "written by another program. Use another checkpoint."
        ) from None
