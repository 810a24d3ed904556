"""Data loaders whose indices are not known: each rank iterates its own, in epochs of the same length."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils import data as torch_data

from airflow_provider_dtrain.train.data.held_generators import HeldGenerators, SeedPlan
from airflow_provider_dtrain.train.data.index_source import known_length, sampler_parts, set_epoch
from airflow_provider_dtrain.train.data.sample_digest import content_digest
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.process import seeding
from airflow_provider_dtrain.train.process.seeding import derive

log = logging.getLogger(__name__)

#: Batches of validation data without a length after which a warning says that it may never end.
MANY_BATCHES = 10_000
#: Mark after each pass through the data.
_END = object()


class Stream:
    """A loader that the library does not cut, on one rank.

    :param loader: any object that can be iterated repeatedly
    :param what: ``training`` or ``validation``
    :param plan: of the generators that the loader holds; None: the loader is left alone
    :param nothing: returns the error of a loader that yields no batch
    :param logged: messages that were logged before; none is logged twice
    """

    def __init__(
        self,
        loader: Any,
        distributed: Distributed,
        seed: int,
        what: str,
        plan: SeedPlan | None,
        nothing: Callable[[], Exception],
        logged: set[str] | None = None,
    ) -> None:
        self._loader = loader
        self._distributed = distributed
        self._seed = seed
        self._what = what
        self._plan = plan
        self._nothing = nothing
        self._rank = distributed.get_rank()
        #: Number of batches per epoch by the loaders' lengths, and the most by which rounding in workers changes it.
        self._length = None
        self._rounding = 0
        self._logged = logged if logged is not None else set()
        #: The ranks compare their first batches: equal ones are those of copies of the data.
        self._compares = plan is not None and what == "training" and distributed.get_size() > 1

    def length(self) -> int | None:
        """Return the number of batches per epoch and rank by the loaders' lengths. Called by all ranks."""
        workers = self._loader.num_workers if has_iterable(self._loader) else 0
        ranks = self._distributed.allgather((known_length(self._loader), workers))
        known = [length for length, _ in ranks if length is not None]
        if len(known) < len(ranks):
            return None
        self._rounding = max(0, min(workers for _, workers in ranks) - 1)
        # A rank without validation data has no metrics. The other ranks' metrics count.
        self._length = max(known) if self._what == "validation" else min(known)
        return self._length

    def epoch(self, epoch: int, skip: int, length: int | None) -> StreamEpoch:
        """Return an epoch, from a batch on. The first one compares the ranks' batches.

        :param skip: number of batches that were trained before
        :param length: number of batches in the epoch; None: until the data ends
        """
        batches = self._batches(epoch, skip, repeats=length is not None)
        rounding = self._rounding if length == self._length else 0
        if self._compares and length is not None:
            self._compares = False
            batches = self._compared(batches)
        return StreamEpoch(batches, skip, length, rounding, self._distributed, lambda *what: self._warn(length, *what))

    def one_pass(self) -> Iterator[Any]:
        """Yield the batches of one pass through the data.

        :raises SetupError: the loader yields more than twice as many batches as its length, so it may never end
        """
        length = known_length(self._loader)
        workers = self._loader.num_workers if has_iterable(self._loader) else 0
        most = None if length is None else 2 * length + workers
        for number, batch in enumerate(self.epoch(0, 0, None)):
            if most is None and number == MANY_BATCHES:
                self._log_once(
                    f"The {self._what} data ({type(self._loader).__name__}) has no length and has yielded "
                    f"{number} batches in one pass. If its __iter__ never ends, neither does this validation: end it, "
                    "or give the data a __len__."
                )
            if most is not None and number >= most:
                raise SetupError(
                    f"The {self._what} data ({type(self._loader).__name__}) must end, got more than {most} batches "
                    f"from a loader of length {length}. End its __iter__ after one pass through the data."
                )
            yield batch

    def _compared(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches. Before the second one, compare the first two with those of the other ranks.

        :raises SetupError: all ranks have the same first batch, although the data is not the same in each batch
        """
        first = next(batches)
        digest = b"" if first is _END else content_digest(first)
        yield first
        second = next(batches)
        changes = second is not _END and content_digest(second) != digest
        ranks = self._distributed.allgather((digest, changes))
        if digest and len({found for found, _ in ranks}) == 1 and any(changes for _, changes in ranks):
            kind = type(getattr(self._loader, "dataset", self._loader)).__name__
            raise SetupError(
                f"The {self._what} data ({type(self._loader).__name__} of {kind}) must give each rank a part of its "
                f"own, but all {len(ranks)} ranks got the same first batch: each of them would train on all samples. "
                "Pass the data set or a plain torch DataLoader, which the library divides; or give the loader a "
                "DistributedSampler, or its data set the part of the rank (ctx.rank, ctx.world_size). A trial class "
                "that wants equal batches calls context.experimental.disable_dataset_reproducibility_checks()."
            )
        yield second
        yield from batches

    def _batches(self, epoch: int, skip: int, *, repeats: bool) -> Iterator[Any]:
        """Yield the batches of one or any number of passes through the data, and a mark after each pass."""
        for number in itertools.count() if repeats else range(1):
            with self._seeded_generators(epoch, number):
                iterator, taken, last = self._opened(epoch, number, skip)
                if repeats and not taken:
                    raise self._nothing()
                yield from itertools.chain([last] if taken and not skip else [], iterator)
            skip -= min(skip, taken)
            yield _END

    def _opened(self, epoch: int, number: int, skip: int) -> tuple[Iterator[Any], int, Any]:
        """Start a pass through the data and skip the batches that were trained before.

        Random numbers that the loader draws until its first batch, e.g. for an order, are the same in a resumed run.
        Later ones come from the rank's own generators, whose states the checkpoint holds.

        :param number: number of the pass in its epoch
        :return: the iterator, the number of batches taken from it, and the last of them
        """
        for part in _parts(self._loader):
            set_epoch(part, epoch)
        # Samplers that shuffle and then take the rank's part must shuffle alike on all ranks.
        sampled = isinstance(self._loader, torch_data.DataLoader) and not has_iterable(self._loader)
        rank = () if sampled else (self._rank,)
        taken = 0
        last = None
        with seeding.seeded(derive(self._seed, "stream", self._what, epoch, number, *rank)):
            iterator = iter(self._loader)
            for batch in itertools.islice(iterator, max(1, skip)):
                taken += 1
                last = batch
        return iterator, taken, last

    def _seeded_generators(self, epoch: int, number: int) -> contextlib.AbstractContextManager[None]:
        if self._plan is None:
            return contextlib.nullcontext()
        seed = derive(self._seed, "stream", self._what, epoch, number)
        return HeldGenerators.of_loader(self._loader).seeded(seed, self._plan, self._rank)

    def _warn(self, length: int | None, fault: str, effect: str) -> None:
        """Log once that the data has another length than the loader, if that is the length of an epoch."""
        if length != self._length:
            return
        kind = type(getattr(self._loader, "dataset", self._loader)).__name__
        self._log_once(
            f"The {self._what} data ({kind}) yields {fault} batches than its length of {length}, on the rank where it "
            f"is shortest. An epoch has this length, and {effect}."
        )

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            log.warning("%s", text)


class StreamEpoch:
    """Iterator over the batches of one epoch of a stream. It repeats data that ends before the epoch.

    Each worker of an iterable data set makes a smaller last batch of its own, or drops it, so that the data may end up
    to ``num_workers - 1`` batches before or after the loader's length. The ranks agree on the end in :meth:`settle`.

    :param batches: batches with a mark after each pass through the data
    :param done: number of batches that were trained before
    :param rounding: the most by which the number of batches may differ from ``length``
    :param warn: logs that the data has another length
    """

    def __init__(
        self,
        batches: Iterator[Any],
        done: int,
        length: int | None,
        rounding: int,
        distributed: Distributed,
        warn: Callable[[str, str], None],
    ) -> None:
        self._batches = batches
        self._done = done
        self._rounding = rounding
        self._distributed = distributed
        self._warn = warn
        #: Number of batches in the epoch; None: until the data ends.
        self.length = length
        #: Number of batches after which the ranks must agree on the length; None: it is final.
        self.settles_at: int | None = None
        if length is not None and rounding and done <= length + rounding:
            self.settles_at = max(done, length - rounding - 1)
        #: Batches drawn in search of the end of the data.
        self._ahead: deque[Any] = deque()
        self._repeats = False

    def __iter__(self) -> StreamEpoch:
        return self

    def __next__(self) -> Any:
        while self.length is None or self._done < self.length:
            batch = self._ahead.popleft() if self._ahead else next(self._batches)
            if batch is not _END:
                self._done += 1
                return batch
            if self.length is None:
                break
            self._repeat()
        raise StopIteration

    def settle(self) -> None:
        """Agree with the other ranks where the epoch ends. Called by all ranks, at :attr:`settles_at`."""
        self.settles_at = None
        ends = self._distributed.allgather(self._find_end())
        if None not in ends:
            self.length = min(ends)

    def _find_end(self) -> int | None:
        """Return the number of batches until the data ends, or None if rounding does not explain where it ends."""
        assert self.length is not None
        shortest = self.length - self._rounding
        longest = self.length + self._rounding
        for end in range(self._done, longest + 1) if not self._repeats else ():
            self._ahead.append(next(self._batches))
            if self._ahead[-1] is _END:
                return end if end >= shortest else None
        if not self._repeats:
            self._warn("more", "the rest is left out")
        return None

    def _repeat(self) -> None:
        self._repeats = True
        self._warn("fewer", "the data is repeated")


def has_iterable(loader: Any) -> bool:
    """Return whether an object is a torch DataLoader over an iterable data set."""
    return isinstance(loader, torch_data.DataLoader) and isinstance(loader.dataset, torch_data.IterableDataset)


def _parts(loader: Any) -> list[Any]:
    """Return a stream and its parts that may need the epoch."""
    if not isinstance(loader, torch_data.DataLoader):
        return [loader]
    return [loader, loader.dataset, *sampler_parts(loader.sampler), *sampler_parts(loader.batch_sampler)]
