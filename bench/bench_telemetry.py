"""Cost of telemetry: on a host, in a rank, in the engine and in the store, its growth, and the time of queries.

A host has 8 GPUs and 8 ranks with 10 steps per second. CPU times are of one core. The store is SQLite, and PostgreSQL
where its programs are installed.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from airflow_provider_dtrain.core.series.measurements import Clock, Measured, read
from airflow_provider_dtrain.core.series.metrics import FACTS, FACTS_S, OF_RANKS, SYSTEM_METRICS, is_of_gpu
from airflow_provider_dtrain.core.series.points import Key, Points
from airflow_provider_dtrain.core.series.step_times import LINE_S, RANK_METRICS, WHOLE, SlowRule
from airflow_provider_dtrain.core.series.stragglers import Place, StragglerWatch
from airflow_provider_dtrain.core.series.tiers import SLICE_S, TIERS
from airflow_provider_dtrain.store.database.tables import telemetry_chunks, telemetry_hosts
from airflow_provider_dtrain.store.records.telemetry import HostTelemetry
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store
from airflow_provider_dtrain.store.telemetry.host_rows import TelemetryKey, chunks_of, insert_chunks
from airflow_provider_dtrain.store.telemetry.sparklines import MINUTE_S, MINUTES, with_utilization
from airflow_provider_dtrain.supervisor.files.events import encode_event
from airflow_provider_dtrain.supervisor.files.layout import Layout, RunFolder
from airflow_provider_dtrain.supervisor.files.segments import SegmentWriter, read_measurements
from airflow_provider_dtrain.supervisor.run.sampler import Sampler
from bench.framework.measuring import Run
from bench.framework.rows import LIMIT, OURS, Bench, Goal, Row
from testbed.stores import Server, host, new_sqlite, server_programs

GPUS = 8
HOUR, DAY = 3600, 86_400
#: Timings that a loop with a loader has.
TIMINGS = [
    name for name in RANK_METRICS if name not in (WHOLE, "checkpoint", "from_device", "reduce_metrics", "callbacks")
]
UUIDS = [f"GPU-{number:08x}-1111-2222-3333-444444444444" for number in range(GPUS)]
COMMIT_S = 10


def measure(run: Run) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    bench_host(run, run.size(20.0, 3.0))
    bench_rank(run)
    with databases() as stores:
        for name, open_store in stores.items():
            if run.is_quick and name != "SQLite":
                continue
            bench_engine(run, name, open_store(), turns=run.size(60, 10))
            if not run.is_quick:
                bench_growth(run, name, open_store())
            bench_query(run, name, open_store(), days=run.size(30, 1), hosts=run.size(8, 4))


@contextlib.contextmanager
def databases() -> Iterator[dict[str, Callable[[], Store]]]:
    """Yield functions that open an empty store on each database."""
    folder = Path(tempfile.mkdtemp(prefix="dtrain-telemetry-"))
    numbers = iter(range(100))
    stores = {"SQLite": lambda: Store.open(new_sqlite(folder / f"{next(numbers)}" / "dtrain.db"))}
    programs = server_programs()
    if programs is None:
        yield stores
        return
    server = Server(programs)
    server.start()
    try:
        with contextlib.ExitStack() as stack:
            yield {**stores, "PostgreSQL": lambda: Store.open(stack.enter_context(server.new_store()))}
    finally:
        server.stop()


# -- a host ---------------------------------------------------------------------------------------------
def bench_host(run: Run, seconds: float) -> None:
    """Print the CPU of the sampler, and of the answers to the control side."""
    folder = Path(tempfile.mkdtemp(prefix="dtrain-sampler-"))
    for name, has_facts in ((SAMPLER, True), (NO_FACTS, False)):
        run.add("host", name, 100 * sampler_share(folder / name.replace(" ", "-"), seconds, has_facts=has_facts))
    layout = Layout.__new__(Layout)
    files = RunFolder.__new__(RunFolder)
    files.layout, files.name, files.path = layout, "run", str(folder / "run")
    write_files(Path(files.path), COMMIT_S)
    offsets = {"samples": 0, **{f"rank{rank}.timings": 0 for rank in range(GPUS)}}
    sending = timed(lambda: read_measurements(files, offsets, 256 << 10), 200)
    run.add("host", ANSWERS, 100 * sending / COMMIT_S)
    run.note(f"{len(gpus_here())} GPUs in this machine, a sample per second, answers every {COMMIT_S} s.")


def sampler_share(path: Path, seconds: float, *, has_facts: bool) -> float:
    """Return the part of a core that a sampler of 8 ranks uses.

    :param has_facts: False: without the facts that may explain a slow rank
    """
    ranks = [{"rank": rank, "pid": os.getpid(), "device": None} for rank in range(GPUS)]
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            sampler = Sampler(str(path), 1.0, gpus_here(), ranks=ranks)
            if not has_facts:
                sampler.facts.is_due = lambda now: False  # type: ignore[method-assign]
                sampler.gpu_facts.is_due = lambda: False  # type: ignore[method-assign]
            sampler.run()
        os._exit(0)
    time.sleep(seconds)
    os.kill(pid, 9)
    usage = os.wait4(pid, 0)[2]
    return (usage.ru_utime + usage.ru_stime) / seconds


def gpus_here() -> list[str]:
    """Return the UUIDs of the GPUs of this machine."""
    from airflow_provider_dtrain.supervisor.machine.gpu import gpus

    return [str(gpu["uuid"]) for gpu in gpus()]


def bench_rank(run: Run) -> None:
    """Print the cost per batch of the timings in a rank."""
    from airflow_provider_dtrain.train.reports.events import EventWriter
    from airflow_provider_dtrain.train.reports.samples import SampleFile
    from airflow_provider_dtrain.train.reports.seconds import SecondsFile
    from airflow_provider_dtrain.train.reports.timings import RankTimings

    folder = Path(tempfile.mkdtemp(prefix="dtrain-rank-"))
    for name, files in (
        (WITHOUT, None),
        (SINGLE, (SampleFile(folder / "samples"),)),
        (SUMS, (SampleFile(folder / "samples2"), SecondsFile(folder / "timings"))),
    ):
        for turn in range(5):
            timings = RankTimings() if files is None else RankTimings(EventWriter(folder / f"events{turn}"), *files)
            run.add("rank", name, loop(timings))


def loop(timings: Any, batches: int = 20_000, batch_s: float = 150e-6) -> float:
    """Return the CPU microseconds per batch of a loop whose clock runs by 150 us per batch."""
    names = ("to_device", "backward", "step_optimizer", "step_lr_schedulers")
    adders = [timings.adder(name) for name in names]
    began = time.process_time()
    now = 1000.0
    for _ in range(batches):
        now += batch_s
        for add in adders:
            add(2e-5)
        timings.batch_done(now)
    timings.close()
    return (time.process_time() - began) / batches * 1e6


# -- engine and store ---------------------------------------------------------------------------------
def write_files(folder: Path, seconds: int) -> None:
    """Write the files of a run as its sampler and its ranks do."""
    noise = random.Random(1)
    now, boot = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    folder.mkdir(parents=True)
    files = [SegmentWriter(str(folder / "samples"), 1 << 30)]
    for rank in range(GPUS):
        (folder / f"rank{rank}").mkdir()
        files.append(SegmentWriter(str(folder / f"rank{rank}" / "timings"), 1 << 30))
    for second in range(seconds):
        at = {"seq": second + 1, "at": now - seconds + second, "boot": boot - seconds + second}
        for number, file in enumerate(files):
            if number and second % LINE_S:
                continue
            fields = (
                {"kind": "timings", "first": 0, "batches": 10, "us": durations(noise)}
                if number
                else sample(noise, second)
            )
            file._append(encode_event({**at, **fields}))


def sample(noise: random.Random, second: int) -> dict[str, Any]:
    """Return the fields of a line of the sampler."""
    names = [name for name in SYSTEM_METRICS if name not in FACTS or second % FACTS_S == 0]
    of_ranks = OF_RANKS.intersection(names)
    of_gpus = {name for name in names if is_of_gpu(name)}

    def values(some: Iterable[str]) -> dict[str, float]:
        return {name: round(noise.uniform(0, 100), 2) for name in some}

    found = {"kind": "system", **values(name for name in names if name not in of_ranks | of_gpus)}
    found["gpus"] = [{"uuid": uuid, **values(of_gpus)} for uuid in UUIDS]
    return {**found, "ranks": [{"rank": rank, **values(of_ranks)} for rank in range(GPUS)]} if of_ranks else found


def durations(noise: random.Random) -> dict[str, list[int]]:
    """Return the timings of a second."""
    found = {}
    for name in TIMINGS:
        low = noise.randrange(8000, 9000)
        found[name] = [10 * LINE_S, 11 * LINE_S * low, low, low + noise.randrange(5000)]
    return found


def started(store: Store, hosts: int) -> tuple[int, int, int]:
    """Return trial, attempt and watch of a trial that runs on hosts with 8 GPUs each."""
    names = [f"h{number:02}" for number in range(hosts)]
    for name in names:
        store.hosts.add(host(name, GPUS))
    config = store.configs.put({"entrypoint": "python train.py"}, origins={})
    key = TrialKey(dag_id="d", run_id="r", task_id="t", max_tries=0)
    values = {"experiment_name": "e", "pool": "gpus", "slots": hosts * GPUS, "number": 0}
    ticket = store.trials.submit(TrialSubmission(key=key, config_id=config.config_id, **values))
    watch = store.attempts.watch(ticket.attempt_id, watcher="bench")
    store.queue.schedule("gpus")
    store.queue.take_up(ticket.attempt_id, watch)
    ranks = iter(range(10_000))
    plans = {
        name: {"ranks": [{"rank": next(ranks), "local_rank": i, "slot": i} for i in range(GPUS)]} for name in names
    }
    store.attempts.set_plan(ticket.attempt_id, watch, {"plans": plans})
    store.attempts.set_running(ticket.attempt_id, watch)
    return ticket.trial_id, ticket.attempt_id, watch


def bench_engine(run: Run, name: str, store: Store, turns: int, hosts: int = 4) -> None:
    """Print the CPU of parsing and committing, per host and collection."""
    _, attempt_id, watch = started(store, hosts)
    folder = Path(tempfile.mkdtemp(prefix="dtrain-engine-"))
    write_files(folder / "run", COMMIT_S)
    data = {"samples": (folder / "run" / "samples").read_bytes()}
    data |= {f"rank{rank}": (folder / "run" / f"rank{rank}" / "timings").read_bytes() for rank in range(GPUS)}
    boot_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.time()
    parsing, committing, walls = [], [], []
    for turn in range(turns):
        # Each collection is 10 s later than the one before.
        clock = Clock(boot_s=boot_s - turn * COMMIT_S, wall_s=0.0)
        began = time.process_time()
        parts = [parsed(f"h{number:02}", data, clock) for number in range(hosts)]
        middle, wall = time.process_time(), time.perf_counter()
        store.telemetry.add(attempt_id, watch, parts)
        parsing.append((middle - began) / hosts)
        committing.append((time.process_time() - middle) / hosts)
        walls.append(time.perf_counter() - wall)
    began = time.process_time()
    store.telemetry.compact(attempt_id)
    compacting = (time.process_time() - began) / hosts / turns
    watching = watch_cost(data, boot_s, hosts)
    total = statistics.median(parsing) + statistics.median(committing) + compacting + watching
    run.add(f"engine, {name}", "parse", *(1e3 * value for value in parsing))
    run.add(f"engine, {name}", "commit", *(1e3 * value for value in committing))
    run.add(f"engine, {name}", "compaction, spread", 1e3 * compacting)
    run.add(f"engine, {name}", WATCH, 1e3 * watching)
    run.add(f"engine, {name}", ALL, 1e3 * total)
    run.add(f"transaction, {name}", "4 hosts", *(1e3 * value for value in walls))
    store.close()


def watch_cost(data: dict[str, bytes], boot_s: float, hosts: int, turns: int = 30) -> float:
    """Return the CPU seconds per host and collection for the comparison of the ranks."""
    ranks = {(host, rank): host * GPUS + rank for host in range(hosts) for rank in range(GPUS)}
    places = {number: Place(host=f"h{host:02}", device=UUIDS[rank]) for (host, rank), number in ranks.items()}
    watch = StragglerWatch(places, SlowRule())
    parts = [
        (f"h{host:02}", {
            key if key.rank is None else key._replace(rank=ranks[host, key.rank]): points for key, points in one.items()
        })
        for turn in range(turns)
        for host in range(hosts)
        for one in [parsed("", data, Clock(boot_s=boot_s - turn * COMMIT_S, wall_s=0.0)).series]
    ]  # fmt: skip
    began = time.process_time()
    for number, (name, series) in enumerate(parts, 1):
        watch.add(name, series)
        if number % hosts == 0:
            watch.check()
    return (time.process_time() - began) / turns / hosts


def parsed(name: str, data: dict[str, bytes], clock: Clock) -> HostTelemetry:
    """Return the points of a host as the collector makes them."""
    series: dict[Key, Points] = {}
    for stream, content in data.items():
        rank = None if stream == "samples" else int(stream.removeprefix("rank"))
        source = Measured(rank=rank, devices=frozenset(UUIDS), ranks=frozenset(range(GPUS)))
        series |= read(content, source, clock, earliest_s=0, latest_s=1e11).series
    return HostTelemetry(host=name, series=series)


def of_host(start: int, count: int, step: int, noise: random.Random, metrics: list[str]) -> dict[Key, Points]:
    """Return random points of a host, with extremes where an interval has several samples."""
    keys: list[Key] = []
    for metric in metrics:
        if metric.startswith("gpu_") and metric in SYSTEM_METRICS:
            keys += [Key(metric, uuid) for uuid in UUIDS]
        elif metric in SYSTEM_METRICS and metric not in OF_RANKS:
            keys.append(Key(metric))
        else:
            keys += [Key(metric, "", rank) for rank in range(GPUS)]
    return {
        key: noisy(start, count, step, noise, key.rank is not None and key.metric not in FACTS)
        if key.metric not in FACTS or step > 1
        else noisy(start, count, step, noise, False).reduced(FACTS_S)
        for key in keys
    }


def noisy(start: int, count: int, step: int, noise: random.Random, is_timing: bool) -> Points:
    """Return points that vary by a tenth around a mean, as a busy machine's."""
    mean = 0.1 if is_timing else 50.0
    means = [mean * (1 + 0.1 * (noise.random() - 0.5)) for _ in range(count)]
    if is_timing and step == 1:
        # A rank writes a line each 5 s.
        times = list(range(start, start + count, LINE_S))
        means = means[: len(times)]
        low, high = [value * 0.9 for value in means], [value * (1.1 + 0.2 * noise.random()) for value in means]
        return Points(times, [10 * LINE_S] * len(times), means, low, high)
    if step == 1:
        return Points(list(range(start, start + count)), [1] * count, means, means, means)
    low, high = [value * 0.9 for value in means], [value * (1.1 + 0.2 * noise.random()) for value in means]
    return Points(list(range(start, start + count * step, step)), [10 * step] * count, means, low, high)


METRICS = [*SYSTEM_METRICS, *TIMINGS]


def bench_growth(run: Run, name: str, store: Store) -> None:
    """Print the bytes in the store after a day of one host, by tier, and per GPU-day."""
    _, attempt_id, watch = started(store, 1)
    now = int(time.time())
    first = now - DAY
    first -= first % (6 * HOUR)
    noise = random.Random(1)
    for start in range(first, first + DAY, 600):
        part = HostTelemetry(host="h00", series=of_host(start, 600, 1, noise, METRICS))
        store.telemetry.add(attempt_id, watch, [part])
        store.telemetry.compact(attempt_id)
        if (start - first) % HOUR == 3000:
            before(store, start + 600)
    of = telemetry_chunks.c
    size, per = sa.func.sum(sa.func.length(of.data)), sa.func.count()
    with store.db.engine.connect() as connection:
        rows = connection.execute(sa.select(of.step_s, per, size).group_by(of.step_s).order_by(of.step_s)).all()
    for step, _, total in rows:
        run.add(f"growth, {name}", f"tier of {step} s", int(total) / GPUS / 1e6)
    run.add(f"growth, {name}", ALL, sum(int(row[2]) for row in rows) / GPUS / 1e6)
    run.add(f"growth, {name}", "on the disk, with indexes", disk_bytes(store) / GPUS / 1e6)
    store.close()


def before(store: Store, now: int) -> None:
    """Remove what is too old at a time."""
    store.db.clock = lambda: datetime.fromtimestamp(now, UTC)
    for _ in store.telemetry.prune(30):
        pass


def disk_bytes(store: Store) -> int:
    """Return the size of the tables of the telemetry on the disk."""
    with store.db.engine.connect() as connection:
        if store.db.engine.dialect.name == "postgresql":
            query = "SELECT pg_total_relation_size('telemetry_chunks') + pg_total_relation_size('telemetry_hosts')"
            return int(connection.scalar(sa.text(query)) or 0)
        pages = connection.exec_driver_sql("SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%telemetry%'")
        return int(pages.scalar() or 0)


# -- queries ------------------------------------------------------------------------------------------
def bench_query(run: Run, name: str, store: Store, days: int, hosts: int) -> None:
    """Print the times of queries with 64 GPUs and 30 days in the store."""
    trial_id, attempt_id, watch = started(store, hosts)
    end = int(time.time())
    end -= end % (6 * HOUR)
    fill(store, attempt_id, watch, [f"h{number:02}" for number in range(hosts)], end, days)
    add_hosts(store, attempt_id, 1000)
    store.db.clock = lambda: datetime.fromtimestamp(end, UTC)
    at = lambda seconds: datetime.fromtimestamp(end - seconds, UTC)  # noqa: E731
    telemetry = store.telemetry
    run.note(f"Queries on {name}: {hosts * GPUS} GPUs, {days} days.")
    questions: dict[str, Callable[[], Any]] = {
        "a day of cpu_util of one host": lambda: telemetry.series(
            trial_id, metrics=["cpu_util"], hosts=["h03"], since=at(DAY)),
        "the same, 20 days ago": lambda: telemetry.series(
            trial_id, metrics=["cpu_util"], hosts=["h03"], since=at(20 * DAY), until=at(19 * DAY)),
        "a day of train_batch of one rank": lambda: telemetry.series(
            trial_id, metrics=["train_batch"], kind="rank", hosts=["h03"], ranks=[24], since=at(DAY)),
        "a day of gpu_util of one host's 8 GPUs": lambda: telemetry.series(
            trial_id, metrics=["gpu_util"], hosts=["h03"], since=at(DAY)),
        "an hour of gpu_util of 64 GPUs": lambda: telemetry.series(
            trial_id, metrics=["gpu_util"], since=at(HOUR)),
        "a day of gpu_util of 64 GPUs": lambda: telemetry.series(
            trial_id, metrics=["gpu_util"], since=at(DAY)),
        "30 days of gpu_util of 64 GPUs": lambda: telemetry.series(trial_id, metrics=["gpu_util"]),
        "a day of all system metrics": lambda: telemetry.series(trial_id, since=at(DAY)),
        "step times of 64 ranks, a day": lambda: telemetry.step_times(trial_id, since=at(DAY)).ranks,
        "step times of 64 ranks, 30 days": lambda: telemetry.step_times(trial_id).ranks,
        "parts of a step, a day": lambda: telemetry.timings(trial_id, since=at(DAY)).parts,
        "sparklines of 1,000 hosts with 8 GPUs": lambda: telemetry.sparklines(
            [f"s{number}" for number in range(1000)], at(HOUR)),
    }  # fmt: skip
    for words, question in questions.items():
        question()
        for _ in range(7):
            wall, cost = time.perf_counter(), time.process_time()
            question()
            run.add(f"query, {name}", words, 1e3 * (time.perf_counter() - wall))
            run.add(f"query, CPU, {name}", words, 1e3 * (time.process_time() - cost))
    store.close()


def fill(store: Store, attempt_id: int, watch: int, hosts: list[str], end: int, days: int) -> None:
    """Store what followers, compaction and retention leave of some days: each tier for as long as it is kept."""
    noise = random.Random(1)
    spans = dict(zip(TIERS, (2 * HOUR, DAY + 6 * HOUR, days * DAY, days * DAY), strict=True))
    for number, name in enumerate(hosts):
        part = HostTelemetry(host=name, series=of_host(end - 10, 10, 1, noise, METRICS))
        store.telemetry.add(attempt_id, watch, [renumbered(part, number)])
        token = store.telemetry.states(attempt_id)[name].token
        key = TelemetryKey(attempt_id, token, name)
        for tier, span in spans.items():
            # One window of random values is enough. Each chunk has its own times.
            series = of_host(end - span, tier.chunk_s // tier.step_s, tier.step_s, noise, METRICS)
            for start in range(end - span, end, tier.chunk_s):
                series = again(series, start)
                rows = chunks_of(renumbered(HostTelemetry(host=name, series=series), number).series, tier, start)
                with store.db.engine.begin() as connection:
                    insert_chunks(connection, key, rows)
        with store.db.engine.begin() as connection:
            update = telemetry_hosts.update().where(telemetry_hosts.c.host == name)
            connection.execute(update.values(first_s=end - days * DAY))
            # The chunks have its points.
            connection.execute(telemetry_chunks.delete().where(telemetry_chunks.c.step_s == SLICE_S))
    with store.db.engine.begin() as connection:
        if store.db.engine.dialect.name == "postgresql":
            connection.exec_driver_sql("ANALYZE telemetry_chunks")


def again(series: dict[Key, Points], start: int) -> dict[Key, Points]:
    """Return the same values at later times."""
    by = start - next(iter(series.values())).at[0]
    return {
        key: Points([at + by for at in one.at], one.count, one.mean, one.minimum, one.maximum)
        for key, one in series.items()
    }


def renumbered(part: HostTelemetry, number: int) -> HostTelemetry:
    """Return the points of a host with ranks and devices of its own."""
    series = {
        key._replace(
            rank=None if key.rank is None else key.rank % GPUS + GPUS * number,
            device=key.device and f"{key.device[:36]}-{number:02}",
        ): points
        for key, points in part.series.items()
    }
    return HostTelemetry(host=part.host, series=series)


def add_hosts(store: Store, attempt_id: int, count: int) -> None:
    """Store two hours of utilization of further hosts."""
    with store.db.engine.begin() as connection:
        row = dict(connection.execute(sa.select(telemetry_hosts)).mappings().first() or {})
        now = datetime.fromtimestamp(row["last_s"], UTC)
        utilization = hours_of_utilization(row["last_s"])
        for number in range(count):
            values = {**row, "host": f"s{number}", "utilization": utilization, "updated_at": now}
            connection.execute(telemetry_hosts.insert().values(values))


def hours_of_utilization(end: int) -> bytes:
    """Return the utilization of a host with 8 GPUs."""
    start = end - MINUTES * MINUTE_S
    series = of_host(start - start % MINUTE_S, MINUTES, MINUTE_S, random.Random(1), ["cpu_util", "gpu_util"])
    return with_utilization(None, series)


def timed(function: Callable[[], Any], times: int) -> float:
    """Return the CPU seconds of one call."""
    began = time.process_time()
    for _ in range(times):
        function()
    return (time.process_time() - began) / times


SAMPLER, NO_FACTS, ANSWERS = "sampler", "sampler without facts", "answers"
WATCH = "comparison of the ranks"
WITHOUT, SINGLE, SUMS = "without measurements", "events and single batches", "and sums per second"
ALL = "together"
DAY_OF_ONE = "a day of cpu_util of one host"
QUERIES = (
    DAY_OF_ONE,
    "the same, 20 days ago",
    "a day of train_batch of one rank",
    "a day of gpu_util of one host's 8 GPUs",
    "an hour of gpu_util of 64 GPUs",
    "a day of gpu_util of 64 GPUs",
    "30 days of gpu_util of 64 GPUs",
    "a day of all system metrics",
    "step times of 64 ranks, a day",
    "step times of 64 ranks, 30 days",
    "parts of a step, a day",
    "sparklines of 1,000 hosts with 8 GPUs",
)


def _rows(name: str) -> tuple[Row, ...]:
    """Return the rows of one database."""
    parts = dict.fromkeys(("parse", "commit", "compaction, spread", WATCH, ALL), OURS)
    tiers = dict.fromkeys((*(f"tier of {tier.step_s} s" for tier in TIERS), ALL, "on the disk, with indexes"), OURS)
    queries = dict.fromkeys(QUERIES, OURS)
    return (
        Row(
            name=f"engine, {name}",
            what="Per host and collection of 10 s",
            unit="ms of CPU",
            sides=parts,
            goals=(Goal(side=ALL, at_most=100),),
        ),
        Row(name=f"transaction, {name}", what="Wall clock", unit="ms", sides={"4 hosts": OURS}),
        Row(
            name=f"growth, {name}",
            what="A day of one host with 8 GPUs; not with --quick",
            unit="MB per GPU",
            sides=tiers,
            goals=(Goal(side=ALL, at_most=3),),
        ),
        Row(
            name=f"query, {name}",
            what="Wall clock",
            unit="ms",
            sides=queries,
            goals=(Goal(side=DAY_OF_ONE, at_most=50),),
        ),
        Row(name=f"query, CPU, {name}", what="CPU of this process", unit="ms of CPU", sides=queries),
    )


BENCH = Bench(
    what="Cost of telemetry",
    rows=(
        Row(
            name="host",
            what="CPU on a host",
            unit="% of a core",
            sides={SAMPLER: OURS, NO_FACTS: LIMIT, ANSWERS: OURS},
            base=NO_FACTS,
            goals=(Goal(side=SAMPLER, at_most=1),),
        ),
        Row(
            name="rank",
            what="CPU per batch of 150 us",
            unit="us of CPU",
            sides={WITHOUT: LIMIT, SINGLE: OURS, SUMS: OURS},
            base=WITHOUT,
        ),
        *_rows("SQLite"),
        *_rows("PostgreSQL"),
    ),
    measure=measure,
    rounds=(1, 1),
)
