"""Data loaders of a training script: a data set or a ready loader, divided between the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_provider_dtrain.train.data.boundary import Boundary
from airflow_provider_dtrain.train.data.dataset_comparison import DatasetComparison
from airflow_provider_dtrain.train.data.first_batches import FirstBatches
from airflow_provider_dtrain.train.data.loader import refuse_empty
from airflow_provider_dtrain.train.data.passes import Pass
from airflow_provider_dtrain.train.data.position import Progress
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import EmptyLoaderError, SetupError
from airflow_provider_dtrain.train.process import seeding
from airflow_provider_dtrain.train.process.heartbeat import COMPUTE, DATA, HERE
from airflow_provider_dtrain.train.process.streams import Streams
from airflow_provider_dtrain.train.reports.timings import RankTimings
from airflow_provider_dtrain.train.values import Options


class ScriptLoaders:
    """Makes the shares of the data that a script passes to ``ctx.loader`` and ``ctx.validation_loader``.

    A map-style data set is cut without an exchange between the ranks. For everything else, all ranks make the call.

    :param repeated: repeats the first batch of training data; None: data is not repeated
    """

    def __init__(self, distributed: Distributed, seed: int, repeated: FirstBatches | None = None) -> None:
        self._distributed = distributed
        self._seed = seed
        self._repeated = repeated
        self._datasets = DatasetComparison(distributed)
        #: Messages about loaders that were logged, because a script may make a loader per epoch.
        self._logged: set[str] = set()
        #: Workers of the latest loader of each data set, with its options. The data set is held, as below.
        self._pools: dict[tuple[int, str], tuple[Any, Options, Any]] = {}
        #: Ready loaders whose indices were compared. The loader is held, so that no other one gets its id.
        self._ready: dict[tuple[int, str, int | None], tuple[Any, Any]] = {}

    def shares(
        self,
        data: Any,
        call: str,
        what: str,
        *,
        per_slot: Callable[[], int],
        batch_size: int | None,
        shuffle: bool | None,
        drop_last: bool = False,
        limit: int | None = None,
        options: Mapping[str, Any],
    ) -> Any:
        """Return the shares of a data set or of a ready loader.

        :param call: name of the method, for messages
        :param what: ``training`` or ``validation``
        :param per_slot: returns the batch size of the configuration
        :param shuffle: None: shuffle for training, where the library chooses the order
        :param limit: largest number of batches per epoch
        :raises SetupError: the data cannot be divided, or has options that it cannot have
        """
        # Imported here, because the library must be importable without torch.
        from torch.utils import data as torch_data

        if limit is not None and limit < 1:
            raise EmptyLoaderError(
                f"max_batches must be 1 or more, got {limit}: no batch is left. Leave it out to take all data."
            )
        ready = getattr(data, "torch_loader", data)
        is_set = isinstance(data, torch_data.Dataset) or hasattr(data, "__getitem__")
        if isinstance(ready, torch_data.DataLoader) or not is_set:
            given = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last or None, **options}
            refused = {name for name, value in given.items() if value is not None}
            return self._of_loader(data, call, what, limit, refused)
        chosen = {"batch_size": batch_size or per_slot(), "drop_last": drop_last, **options}
        if isinstance(data, torch_data.IterableDataset):
            if shuffle:
                raise SetupError(
                    f"{call} cannot shuffle the iterable data set {type(data).__name__}. Leave shuffle out, and "
                    "shuffle in its __iter__."
                )
            return self._made(torch_data.DataLoader(data, **chosen), what, limit)
        return self._of_data_set(data, call, what, shuffle, limit, chosen)

    def release(self) -> None:
        """End the workers of persistent loaders, at the end of training."""
        for _, _, pool in self._pools.values():
            pool.end()
        for _, shares in self._ready.values():
            shares.release()
        self._pools.clear()
        self._ready.clear()

    def _of_data_set(
        self, data: Any, call: str, what: str, shuffle: bool | None, limit: int | None, chosen: Options
    ) -> Any:
        from torch.utils import data as torch_data

        if not hasattr(data, "__len__"):
            raise SetupError(
                f"{type(data).__name__} has no length, so it cannot be sharded by index. Give it a __len__, or pass an "
                "IterableDataset or a DataLoader."
            )
        if "generator" in chosen:
            raise SetupError(f"{call} shuffles by the trial's seed, got generator. Remove the option.")
        refuse_empty(data, what)
        if {"sampler", "batch_sampler"} & chosen.keys():
            if shuffle:
                raise SetupError(f"{call} takes shuffle=True or a sampler, got both. Remove one of them.")
            if "batch_sampler" in chosen:
                chosen = {name: chosen[name] for name in chosen.keys() - {"batch_size", "drop_last"}}
            return self._made(torch_data.DataLoader(data, **chosen), what, limit)
        is_shuffled = what == "training" if shuffle is None else shuffle
        loader = torch_data.DataLoader(data, shuffle=is_shuffled, **chosen)
        self._datasets.refuse_part(loader, call, what)
        return self._made(loader, what, limit, whole=True, pool=self._pool(data, what, chosen))

    def _pool(self, data: Any, what: str, chosen: Options) -> Any:
        """Return the workers of the previous epoch, or new ones if the data set or its options are others."""
        from airflow_provider_dtrain.train.data.worker_pool import WorkerPool

        if not chosen.get("persistent_workers"):
            return None
        known = self._pools.get((id(data), what))
        if known is None or known[1] != chosen:
            known = self._pools[id(data), what] = data, chosen, WorkerPool()
        return known[2]

    def _of_loader(self, data: Any, call: str, what: str, limit: int | None, given: set[str]) -> Any:
        if given:
            raise SetupError(
                f"{call} uses the {type(data).__name__} as it is, got {', '.join(sorted(given))} for it. Remove these "
                "options, or pass its data set."
            )
        if not hasattr(data, "__iter__") or iter_is_itself(data):
            raise SetupError(
                f"{call} takes a data set, a DataLoader, or an object that can be iterated once per epoch, got "
                f"{type(data).__name__}. Wrap a generator in a class whose __iter__ starts it."
            )
        key = id(data), what, limit
        if key not in self._ready:
            self._ready[key] = data, self._made(data, what, limit)
        return self._ready[key][1]

    def _made(self, loader: Any, what: str, limit: int | None, *, whole: bool = False, pool: Any = None) -> Any:
        from airflow_provider_dtrain.train.data.shares import Shares

        logged = self._logged
        repeated = self._repeated if what == "training" else None
        return Shares(
            loader,
            self._distributed,
            self._seed,
            what,
            whole=whole,
            limit=limit,
            pool=pool,
            logged=logged,
            repeated=repeated,
        )


def iter_is_itself(data: Any) -> bool:
    """Return whether an object is an iterator, which can be iterated once."""
    return hasattr(data, "__next__")


class Loader:
    """One epoch of training data for one rank, from the restored position on.

    Iterate it once per epoch. With several ranks, all ranks iterate it.

    :param ranks: number of ranks
    :param on_last: called before the last batch of the last epoch is handed out
    :param leaves: whether the epoch must end before its next batch; called inside ``ctx.epochs`` only
    :param streams: random numbers of the rank; None: those of the process
    :param boundary: receives the places at which the program asks for a batch
    :raises EmptyLoaderError: no batch is left
    """

    def __init__(
        self,
        shares: Any,
        progress: Progress,
        *,
        ranks: int = 1,
        timings: RankTimings | None = None,
        on_last: Callable[[], None] | None = None,
        leaves: Callable[[], bool] | None = None,
        streams: Streams | None = None,
        boundary: Boundary | None = None,
    ) -> None:
        self._shares = shares
        self._progress = progress
        self._timings = timings or RankTimings()
        self._on_last = on_last
        self._leaves = leaves if progress.in_epochs else None
        self._streams = streams
        self._boundary = boundary or Boundary()
        self._ranks = ranks
        self._length: int | None = shares.length()
        if self._length is None and ranks > 1:
            raise SetupError(
                "The training data has no length, so the ranks cannot agree on where an epoch ends. Give it a __len__, "
                "or set max_batches."
            )

    @property
    def dataset(self) -> Any:
        """The whole data set."""
        return self._shares.loader.dataset

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        if self._length is None:
            raise TypeError("The training data has no length. Set max_batches.")
        return self._length

    def __iter__(self) -> Iterator[Any]:
        # Not a generator: loops that run together, as in zip(), begin together.
        if self._boundary.has_left:
            return iter(())
        if self._boundary.is_awaited:
            self._boundary.reach(begins_pass=True)
        current = self._progress.begin_pass(getattr(self._shares.loader, "dataset", self._shares.loader))
        if current.finished:
            self._progress.had_empty_loop = True
            return iter(())
        batches = self._batches(current)
        current.open(batches)
        return batches

    def _batches(self, current: Pass) -> Iterator[Any]:
        shares = self._shares
        progress = self._progress
        boundary = self._boundary
        work = progress.work
        shares.log_resumed(current.sharing, current.ranks, current.samples)
        current.sharing, current.ranks = shares.sharing.value, self._ranks
        if self._streams is not None:
            self._streams.part()
            if current.is_restored and not current.is_again:
                self._streams.enter()
        batches = shares.training(current.number, current.samples, self._length)
        done = current.samples // shares.stride
        stride = current.stride = shares.stride
        current.length = (shares.drawn or 0) * stride
        is_whole = shares.drawn is not None and done >= shares.drawn
        HERE.now = DATA
        try:
            for batch, is_last in self._timings.batches(self._marked(batches, done, current)):
                HERE.now = COMPUTE
                is_whole = current.is_last = is_last
                if is_last and self._on_last is not None and progress.last_epoch:
                    self._on_last()
                current.samples += stride
                progress.handed += 1
                current.handed_at = progress.handed
                current.first_at = current.first_at or progress.handed
                current.backwards = current.accounted = work.backwards
                passes = progress.passes
                if len(passes) != 1 or passes[0] is not current:
                    progress.note_batch(current)
                yield batch
                if is_last:
                    continue
                if boundary.is_awaited and progress.leads(current):
                    boundary.reach()
                if self._leaves is not None and self._leaves() and progress.leads(current):
                    boundary.leave()
                    return
                HERE.now = DATA
            HERE.now = COMPUTE
            current.is_exhausted = True
        finally:
            # Also when the loop does not ask for a further batch, e.g. behind a shorter loader in zip().
            progress.end_pass(current, is_whole=is_whole)

    def _marked(self, batches: Iterator[Any], done: int, current: Pass) -> Iterator[tuple[Any, bool]]:
        """Yield each batch with whether it is the last of the epoch. Without a length, one batch is read ahead."""
        shares = self._shares
        end = object()
        iterator = iter(batches)
        ahead: Any = None
        if shares.drawn is None:
            current.reads_ahead = True
            ahead = self._loaded(iterator, end, current)
            if ahead is end:
                raise shares.nothing()
        while True:
            if shares.settles_at is not None and done >= shares.settles_at:
                shares.settle()
            if shares.drawn is None:
                batch = ahead
                ahead = end if batch is end else self._loaded(iterator, end, current)
            elif done >= shares.drawn:
                batch = end
            elif current.is_again or not current.handed_at or self._progress.keeps_random_states:
                batch = self._loaded(iterator, end, current)
            else:
                batch = next(iterator, end)
            if batch is end:
                return
            done += 1
            yield batch, done == shares.drawn if shares.drawn is not None else ahead is end

    def _loaded(self, iterator: Iterator[Any], end: Any, current: Pass) -> Any:
        """Return the next batch, loaded with the random numbers of an unbroken run. Keep the random states before it.

        A batch that was loaded before the checkpoint was saved is loaded again with the states of that time.
        """
        if current.is_again and current.before is not None:
            seeding.apply(current.before)
        current.before = seeding.capture()
        batch = next(iterator, end)
        if self._progress.is_unsure:
            self._progress.note_draws(not seeding.are_equal(seeding.capture(), current.before))
        if current.is_again:
            current.is_again = False
            if self._streams is not None:
                self._streams.enter(is_last=False)
        return batch


class ValidationLoader:
    """Validation data of one rank, in order. Each sample of a data set is on exactly one rank.

    :param begins: called when a loop begins
    """

    def __init__(self, shares: Any, begins: Callable[[ValidationLoader], None] | None = None) -> None:
        self._shares = shares
        self._begins = begins
        shares.length()

    @property
    def dataset(self) -> Any:
        """The part of the data set that this rank evaluates, or the data set itself if the library does not cut it."""
        return self._shares.validation_part()

    def __len__(self) -> int:
        """Return the number of batches of this rank."""
        length: int = self._shares.validation_length()
        return length

    def __iter__(self) -> Iterator[Any]:
        if self._begins is not None:
            self._begins(self)
        return iter(self._shares.validation())

    def gather(self, values: Any) -> Any:
        """Return values of all ranks' samples, e.g. predictions, without duplicates. Called once by all ranks.

        :param values: the values of all batches, in a tensor whose first dimension is the samples, or in such tensors
            in a dict, list or tuple; None on a rank without samples
        :return: the same structure on the CPU, equal on all ranks and in the order of the data set
        """
        return self._shares.gather(values)
