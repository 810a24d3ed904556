"""Data loaders divided into the ranks' shares, for scripts and trial classes alike."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils import data as torch_data

from airflow_provider_dtrain.train.data.first_batches import FirstBatches
from airflow_provider_dtrain.train.data.held_generators import HeldGenerators, SeedPlan
from airflow_provider_dtrain.train.data.index_comparison import IndexVerdict, Sharing, compare, draw_alike
from airflow_provider_dtrain.train.data.index_source import IndexSource, is_indexed, known_length
from airflow_provider_dtrain.train.data.loader import pooled_epoch, rank_batches, torch_loader
from airflow_provider_dtrain.train.data.stream import Stream, StreamEpoch, has_iterable
from airflow_provider_dtrain.train.data.worker_pool import WorkerPool, named_errors
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import EmptyLoaderError, SetupError
from airflow_provider_dtrain.train.process.seeding import derive
from airflow_provider_dtrain.train.reports.gathered_samples import gather_samples

log = logging.getLogger(__name__)

#: Options of a torch DataLoader that are passed on to the loader of a rank's share.
KEPT_OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)


class Shares:
    """One rank's share of a data loader, epoch by epoch.

    The ranks compare the first epoch's indices. Then they cut the loader, use it unchanged, or treat it as a stream,
    see :class:`Sharing`. Created by all ranks.

    :param loader: a torch DataLoader, the DataLoader of a trial class, or any object that can be iterated repeatedly
    :param what: ``training`` or ``validation``, for messages
    :param left_alone: treat every loader except the DataLoader of a trial class as a stream, without a warning
    :param whole: the loader is torch's own over the whole data set, on all ranks: it is cut without an exchange
    :param limit: largest number of batches per epoch and rank
    :param pool: workers of an earlier loader of the same data and options
    :param logged: messages about loaders of this program that were logged before; none is logged twice
    :param repeated: repeats the first batch of each epoch's training data; None: data is not repeated
    :raises SetupError: the ranks' indices overlap, or the sampler failed on a rank
    """

    def __init__(
        self,
        loader: Any,
        distributed: Distributed,
        seed: int,
        what: str,
        *,
        left_alone: bool = False,
        whole: bool = False,
        limit: int | None = None,
        pool: WorkerPool | None = None,
        logged: set[str] | None = None,
        repeated: FirstBatches | None = None,
    ) -> None:
        self.loader: Any = getattr(loader, "torch_loader", loader)
        #: Workers that outlive an epoch.
        self.pool = pool if pool is not None else WorkerPool()
        self._limit = limit
        self._repeated = repeated
        self._distributed = distributed
        self._seed = seed
        self._what = what
        self._rank = distributed.get_rank()
        self._size = distributed.get_size()
        self._left_alone = left_alone and self.loader is loader
        self._logged = logged if logged is not None else set()
        if whole:
            self._plan = SeedPlan()
            self._verdict = IndexVerdict(Sharing.CUT, source=IndexSource(self.loader, seed, self._plan))
        else:
            self._plan = SeedPlan.agreed(distributed.allgather(HeldGenerators.of_loader(self.loader).digests()))
            self._verdict = compare(self._find_source, self.loader, distributed, what)
        #: Way in which the ranks share the loader.
        self.sharing = self._verdict.sharing
        #: None: the loader is a stream.
        self._source = self._verdict.source
        plan = None if self._left_alone else self._plan
        self._stream = Stream(self.loader, distributed, seed, what, plan, self.nothing, self._logged)
        self._unsettled: StreamEpoch | None = None
        self._by_sample = self._source is not None and self._source.by_sample
        self._samples = known_length(self.loader.dataset) if self._source is not None else None
        #: Number of batches in the epoch that :meth:`training` began last, the same on all ranks; None: not counted.
        self.drawn: int | None = None
        #: Distance by which one batch moves the position.
        self.stride = 1
        if self._source is not None:
            per_slot: Any = self.loader.batch_size if self._by_sample else 1
            self.stride = self._size * per_slot
        self._log_shares()

    def _find_source(self) -> IndexSource | None:
        if not hasattr(self.loader, "__iter__"):
            raise SetupError(f"The {self._what} data loader must be iterable, got {type(self.loader).__name__}.")
        left = self._left_alone or not is_indexed(self.loader)
        return None if left else IndexSource(self.loader, self._seed, self._plan)

    def length(self) -> int | None:
        """Return the number of batches per epoch and rank, the same on all ranks, or None if it is unknown.

        Called by all ranks.

        :raises EmptyLoaderError: the loader yields no batch
        """
        if self._source is None:
            whole = self._stream.length()
            if whole is None:
                return self._limit
        elif self.sharing is Sharing.OWN:
            whole = self._own_length(self._verdict.batches)
        else:
            whole = self._cut_length(len(self._source))
        if not whole:
            raise self.nothing()
        return self._limited(whole)

    def _limited(self, batches: int) -> int:
        return batches if self._limit is None else min(batches, self._limit)

    def _cut_length(self, items: int) -> int:
        """Return the number of batches per rank in an epoch of this many samples, or batches of a user's sampler."""
        return items // self.stride if self._drops() else -(-items // self.stride)

    def _own_length(self, counts: Sequence[int]) -> int:
        """Return the number of batches per rank in an epoch in which the ranks draw these numbers of batches."""
        if not all(counts) and self._what != "validation":
            return 0
        return (min if self._drops() and all(counts) else max)(counts)

    def nothing(self) -> EmptyLoaderError:
        """Return the error of a loader that yields no batch."""
        samples = known_length(self.loader.dataset) if self._source is not None else None
        of = f" ({samples} samples)" if samples is not None else ""
        if self.sharing is Sharing.OWN:
            counts = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(self._verdict.batches))
            return EmptyLoaderError(f"The {self._what} data loader yields no batch on a rank ({counts} batches).")
        less = (
            f" A batch of all {self._size} slots takes {self.stride} samples and drop_last drops smaller ones."
            if self._drops()
            else ""
        )
        rank = f" on rank {self._rank}" if self.sharing is Sharing.STREAM and self._size > 1 else ""
        return EmptyLoaderError(f"The {self._what} data loader yields no batch{of}{rank}.{less} Check its data set.")

    def training(self, epoch: int, offset: int, length: int | None) -> Iterator[Any]:
        """Return this rank's batches of an epoch, as :meth:`_training` does, or its first batch repeated."""
        batches = self._training(epoch, offset, length)
        if self._repeated is None:
            return batches
        # The length of a stream that is not read cannot turn out to be another one.
        self._unsettled = None
        return self._repeated.of(getattr(self.loader, "dataset", self.loader), batches)

    def _training(self, epoch: int, offset: int, length: int | None) -> Iterator[Any]:
        """Return this rank's batches of an epoch, from a position on. Called by all ranks.

        :param offset: where the first batch begins, in units of :attr:`stride`
        :param length: number of batches in the epoch; a rank whose own data ends earlier repeats it from the start. A
            sampler whose epochs differ in length overrides it, see :attr:`drawn`.
        """
        if self._source is None:
            stream = self._stream.epoch(epoch, offset, length)
            self.drawn = length
            self._unsettled = None if stream.settles_at is None else stream
            return self._named(stream)
        self._refuse_other_length(self._source, epoch)
        first = offset // self.stride
        self.drawn = length
        if self.sharing is Sharing.OWN:
            batches = self._own(self._source.draw(epoch), drops=self._drops())
            if epoch and self._source.plain is None:
                length = self.drawn = self._limited(self._own_length(self._distributed.allgather(len(batches))))
            if not batches or length == 0:
                raise self.nothing()
            batches = [batches[i % len(batches)] for i in range(first, length or len(batches))]
        else:
            order = self._drawn(self._source, epoch)
            self.drawn = self._limited(self._cut_length(len(order)))
            if self._limit is not None:
                order = order[: self._limit * self.stride]
            batches = (
                list(
                    rank_batches(
                        order,
                        start=offset,
                        per_slot=self.loader.batch_size,
                        rank=self._rank,
                        size=self._size,
                        drop_last=self._drops(),
                    )
                )
                if self._by_sample
                else self._dealt(order)[first:]
            )
        return self._named(self._load(batches, derive(self._seed, "loader", epoch, self._rank), first))

    @property
    def settles_at(self) -> int | None:
        """Number of batches of the epoch after which the ranks must :meth:`settle`, None if its length is final."""
        return None if self._unsettled is None else self._unsettled.settles_at

    def settle(self) -> bool:
        """Agree where the epoch ends, and return whether :attr:`drawn` has changed. Called by all ranks."""
        assert self._unsettled is not None
        stream = self._unsettled
        self._unsettled = None
        before = self.drawn
        stream.settle()
        self.drawn = stream.length
        return self.drawn != before

    def validation(self) -> Iterator[Any]:
        """Return this rank's batches, in order. Each sample is on exactly one rank."""
        if self._source is None:
            return self._named(self._stream.one_pass())
        return self._named(self._load(self._validated(), derive(self._seed, "validation"), 0))

    def validation_length(self) -> int:
        """Return the number of batches of :meth:`validation`. A stream has none.

        :raises TypeError: the loader is a stream without a length
        """
        return len(self.loader) if self._source is None else len(self._validated())

    def _validated(self) -> list[Any]:
        assert self._source is not None
        drawn = self._source.draw(0, shuffle=False)
        if self.sharing is Sharing.CUT:
            drawn = list(drawn)[self._rank :: self._size]
        return self._own(drawn, drops=False)

    def gather(self, values: Any) -> Any:
        """Return the ranks' values of the samples of :meth:`validation`. Called by all ranks."""
        source = self._source if self._by_sample and self.sharing is Sharing.CUT else None
        return gather_samples(self._distributed.allgather, values, len(source) if source is not None else None)

    def validation_part(self) -> Any:
        """Return the data set of :meth:`validation`, cut to this rank if the samples are known by their indices."""
        if self._source is None or not self._by_sample:
            return self.loader.dataset
        drawn = self._source.draw(0, shuffle=False)
        mine = drawn[self._rank :: self._size] if self.sharing is Sharing.CUT else drawn
        return torch_data.Subset(self.loader.dataset, mine)

    def _drawn(self, source: IndexSource, epoch: int) -> Sequence[Any]:
        """Return the indices of an epoch of a loader that is cut, the same on all ranks."""
        if source.plain is not None or not epoch:  # The first epoch was compared at the start.
            return source.draw(epoch)
        return draw_alike(source, epoch, self._distributed, self._what)

    def _refuse_other_length(self, source: IndexSource, epoch: int) -> None:
        """Raise when a loader's data set has another length than at the start, which its epochs keep.

        :raises SetupError: names both lengths
        """
        if source.plain is None:
            return
        length = known_length(self.loader.dataset)
        if length != self._samples:
            raise SetupError(
                f"The {self._what} data set ({type(self.loader.dataset).__name__}) must keep its length while its "
                f"loader is in use, got {length} samples in epoch {epoch} and {self._samples} at the start. Pass the "
                "data set itself to ctx.loader in each epoch, or restart the trial to train on other data."
            )

    def _own(self, drawn: Sequence[Any], *, drops: bool) -> list[Any]:
        """Return the batches of the indices that belong to this rank alone."""
        if not self._by_sample:
            return list(drawn)
        size = self.loader.batch_size
        end = len(drawn) // size * size if drops else len(drawn)
        return [list(drawn[begin : begin + size]) for begin in range(0, end, size)]

    def _dealt(self, batches: Sequence[Any]) -> list[Any]:
        """Return this rank's part of the batches of a user's sampler. All ranks get the same number."""
        missing = -len(batches) % self._size
        return [*batches, *(batches[i % len(batches)] for i in range(missing))][self._rank :: self._size]

    def _drops(self) -> bool:
        return self._by_sample and bool(self.loader.drop_last)

    def _load(self, batches: list[Any], seed: int, first: int) -> Iterator[Any]:
        options = {name: getattr(self.loader, name) for name in KEPT_OPTIONS if hasattr(self.loader, name)}
        collates = self.loader.batch_sampler is not None
        if options.get("num_workers") and options.get("persistent_workers"):
            return pooled_epoch(self.pool, self.loader.dataset, batches, seed, first, options, collates=collates)
        return iter(torch_loader(self.loader.dataset, batches, seed, first, options, collates=collates))

    def release(self) -> None:
        """End workers that outlive an epoch, once the last epoch is over."""
        self.pool.end()
        self.pool = WorkerPool()

    def _named(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the batches, such that the loss of a loader worker is an error of this library."""
        return named_errors(batches, self._what) if getattr(self.loader, "num_workers", 0) else batches

    def log_resumed(self, sharing: str, ranks: int, offset: int) -> None:
        """Log the effect of a checkpoint from the middle of an epoch on a loader that the library does not cut.

        :param sharing: value of the checkpoint's :class:`Sharing`, empty without a checkpoint
        :param ranks: number of ranks of the run that wrote it
        :param offset: position in the epoch
        """
        cut = {Sharing.CUT.value} >= {sharing, self.sharing.value}
        if not offset or not ranks or ranks == self._size or cut or self._rank:
            return
        log.warning(
            "The library does not cut this training data, and training resumes in the middle of an epoch with %d ranks "
            "instead of %d. In this epoch, some samples may be repeated or skipped. The next epoch is complete.",
            self._size,
            ranks,
        )

    def converted(self, offset: int, batches: int, sharing: str) -> int:
        """Return the position of a checkpoint in the units of this loader. A stream counts batches, not samples.

        :param offset: position in the epoch, in the units of the loader at that time
        :param batches: number of batches trained in the epoch
        :param sharing: value of the checkpoint's :class:`Sharing`, empty if it is not known
        """
        stream = self.sharing is Sharing.STREAM
        if not (sharing or stream) or (sharing == Sharing.STREAM.value) == stream or offset == batches * self.stride:
            return offset
        if not self._rank:
            log.warning(
                "The sharing of the training data is %r now and was %r when the checkpoint was written. Training "
                "resumes after %d batches of the epoch. In this epoch, some samples may be repeated or skipped. The "
                "next epoch is complete.",
                self.sharing.value,
                sharing or "unknown",
                batches,
            )
        return batches * self.stride

    def _log_shares(self) -> None:
        """Log, on rank 0, how the ranks use a loader that the library does not cut."""
        if self._size == 1 or self._rank:
            return
        kind = type(getattr(self.loader, "dataset", self.loader)).__name__
        if self.sharing is Sharing.OWN:
            counts = self._verdict.batches
            again = f"; {self._verdict.repeated} samples are on several ranks" if self._verdict.repeated else ""
            again = "; its generators are seeded by rank" if self._verdict.by_rank else again
            self._log(
                logging.INFO,
                f"The {self._what} data loader ({kind}) gives each rank its own part and is used unchanged: "
                f"{_span(counts)} batches per rank{again}.",
            )
            if max(counts) - min(counts) > 1 and self._what == "training":
                rest = "drop_last drops the surplus." if self._drops() else "Ranks with fewer batches repeat theirs."
                self._log(
                    logging.WARNING,
                    f"The ranks' parts of the training data differ in length ({_span(counts)} batches). {rest}",
                )
        elif self._source is not None and self._source.plain is None:
            items = len(self._source)
            self._log(
                logging.INFO,
                f"The {self._what} data loader ({kind}) draws the same {items} "
                f"{'samples' if self._by_sample else 'batches'} on all ranks ({type(self._source.sampler).__name__}). "
                f"Each rank gets {-(-items // self._size)} of them.",
            )
        elif self.sharing is Sharing.STREAM and not self._left_alone:
            if isinstance(self.loader, torch_data.DataLoader) and not has_iterable(self.loader):
                kind = f"{type(self.loader).__name__} with {type(_sampler(self.loader)).__name__}"
            effect = (
                "The ranks compare their first batches of training, and equal ones are an error."
                if self._what == "training"
                else "A sample that several ranks get counts several times."
            )
            self._log(
                logging.WARNING,
                f"The {self._what} data ({kind}) is not divided by the library, because its samples have no index: "
                f"each of the {self._size} ranks iterates its loader unchanged, which must give it a part of its own "
                f"(ctx.rank and ctx.world_size; in a trial class, context.distributed). {effect}",
            )

    def _log(self, level: int, text: str) -> None:
        """Log a message about the loader, unless an equal loader had the same: scripts may make one per epoch."""
        if text not in self._logged:
            self._logged.add(text)
            log.log(level, "%s", text)


def _sampler(loader: Any) -> Any:
    return loader.sampler if loader.batch_size is not None or loader.batch_sampler is None else loader.batch_sampler


def _span(counts: Sequence[int]) -> str:
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
