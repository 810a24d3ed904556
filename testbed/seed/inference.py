"""The scene ``inference``: batch inferences with bad rows, running, failed in a shard, with shards set aside."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_provider_dtrain.engine.attempt.outcome import Failure
from airflow_provider_dtrain.errors import BadShardError
from testbed.seed.experiments import Planned
from testbed.seed.run import Run, killed
from testbed.seed.scenes import key
from testbed.seed.simulation import AskedError, Life, Simulation
from testbed.seed.small import hosts

HOURS = 30.0
#: Values of a row of the results that break a page or terminal which does not escape them.
HOSTILE_VALUES = (
    "<img src=x onerror=window.hacked=1><b>bold</b>",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07",
    "invoice\u202egnp.exe",
    "a \u2067right\u2069 b",
    '=HYPERLINK("http://evil.example")',
)
HOSTILE_COLUMN = "<script>window.hacked=1</script>\u202e"
BROKEN_IMAGE = "UnidentifiedImageError: cannot identify image file 'scan-0081733.jpg'"
BROKEN_TABLE = "InputError: column 'text' has a value of type int64 in row 614,471, expected string"


CAPTIONS = [
    "a dog runs along the beach",
    "two people look at a map in front of a station",
    "a bus leaves the tunnel",
    "a bowl of soup on a wooden table",
    "snow falls on an empty street",
]


@dataclass(kw_only=True)
class Input:
    """Shards of an input, and what becomes of them.

    :param seconds: that a rank takes for a shard
    :param fails: shard -> error of each of its tries
    """

    shards: int
    rows: int
    location: str
    suffix: str = "parquet"
    seconds: float = 20.0
    #: The number of rows is reported.
    counts_rows: bool = True
    #: Shard -> bad rows in it.
    bad_rows: Mapping[int, int] = field(default_factory=dict)
    fails: Mapping[int, str] = field(default_factory=dict)
    #: Shards whose first try fails, with the error.
    fails_once: Mapping[int, str] = field(default_factory=dict)
    #: Error of each bad row.
    bad_error: str = "ValueError: the clip has no frames"
    preview: Mapping[str, Any] | None = None

    def rows_of(self, shard: int) -> int:
        share, rest = divmod(self.rows, self.shards)
        return share + (shard < rest)

    def label(self, shard: int) -> str:
        rows = self.rows_of(shard)
        return f"part-{shard // 8:04d}.{self.suffix} rows {shard % 8 * rows}-{(shard % 8 + 1) * rows - 1}"


def inference(site: Simulation) -> None:
    """Let the scene happen, up to now."""
    site.at(HOURS, hosts(site))
    site.at(20, marked_rows(site))
    site.at(9, shards_aside(site))
    site.at(5, failed_shard(site))
    site.at(0.5, running(site))
    site.run()


def submitted(site: Simulation, name: str, hours: float, *, slots: int, **section: Any) -> Run:
    """Submit a batch inference."""
    described = {
        "name": name,
        "inference": {"processor": "predict:Classifier", **section},
        "resources": {"slots_per_trial": slots, "pool": "a100"},
    }
    run = Run(site, Planned(site.store, key(site, name.replace("-", "_"), hours, "predict"), described).submission())
    run.submit()
    return run


def announced(run: Run, data: Input) -> None:
    """Report the shards that are missing: all of them."""
    rows = data.rows if data.counts_rows else None
    counts = {"total": data.shards, "missing": data.shards, "rows": rows, "rows_done": 0, "rows_bad": 0}
    run.commit([{"kind": "shards", **counts, "location": data.location, "batch_size": 256, "resumed": False}])


def computed(run: Run, data: Input, *, skips: bool = False) -> Life:
    """Compute all shards. A rank takes the next one as soon as it has finished one.

    :param skips: set a shard aside whose tries have failed; else the life ends there
    """
    noise = random.Random(data.shards)  # noqa: S311
    places = [(host, rank) for host, ranks in run.ranks.items() for rank in ranks]
    left = [(shard, 0) for shard in range(data.shards)]
    free = [(0.0, *place) for place in places]
    now, is_shown = 0.0, data.preview is None
    while left:
        free.sort()
        at, host, rank = free.pop(0)
        if at > now:
            yield at - now
            now = at
        shard, tries = left.pop(0)
        stream = f"rank{rank}.events"
        named = {"shard": shard, "label": data.label(shard)}
        run.commit([{"kind": "shard_started", **named, "tries": tries}], host, stream)
        took_s = data.seconds * noise.uniform(0.8, 1.2)
        error = data.fails.get(shard) or (data.fails_once.get(shard) if tries == 0 else None)
        if error is not None:
            yield 1.0
            now += 1.0
            tries += 1
            is_final = tries == 3 or error.startswith("InputError")
            failed = {"kind": "shard_failed", **named, "error": error, "tries": tries, "is_final": is_final}
            run.commit([failed], host, stream)
            if is_final and not skips:
                yield 2 * data.seconds
                return
            if is_final:
                run.commit([{"kind": "shard_skipped", **named, "error": error}], host, stream)
            else:
                left.append((shard, tries))
            free.append((now, host, rank))
            continue
        run.site.soon(finished(run, data, shard, host, stream, is_first=not is_shown), took_s)
        is_shown = True
        free.append((now + took_s, host, rank))
    yield max(at for at, *_ in free) - now + 1.0


def finished(run: Run, data: Input, shard: int, host: str, stream: str, *, is_first: bool) -> Life:
    """Report a shard that is done, and the first results with the first one."""
    if run.ticket.attempt_id not in run.site.leases:
        return
    bad = data.bad_rows.get(shard, 0)
    facts = {
        "rows": data.rows_of(shard),
        "rows_bad": bad,
        "bytes": 40 * data.rows_of(shard),
        "part": f"part-{shard}",
        "bad_rows": [bad_row(data, shard, number) for number in range(min(3, bad))],
    }
    run.commit(
        [{"kind": "shard_done", "shard": shard, **facts, "sha256": "a" * 64, "seconds": data.seconds}], host, stream
    )
    if is_first and data.preview is not None:
        run.commit(
            [{"kind": "results_preview", "shard": shard, "label": data.label(shard), **data.preview}], host, stream
        )
    yield 0.0


def bad_row(data: Input, shard: int, number: int) -> list[Any]:
    """Return what a rank reports about a bad row."""
    row = shard * data.rows_of(shard) + 13 + 100 * number
    if data.suffix == "jsonl":
        error = f"the line is no JSON object: Expecting ',' delimiter: column {40 + number} {HOSTILE_VALUES[1]}"
        return [(shard << 40) + row, f"mail-{shard:03d}.jsonl line {row}", error]
    return [row, data.label(shard), data.bad_error]


def published(run: Run, data: Input) -> None:
    """Report the manifest and the end of the ranks."""
    skipped = [{"shard": shard, "label": data.label(shard), "error": error} for shard, error in data.fails.items()]
    rows = data.rows - sum(data.rows_of(shard) for shard in data.fails)
    facts = {"rows": rows, "rows_bad": sum(data.bad_rows.values()), "shards": data.shards, "bytes": 40 * rows}
    run.commit(
        [
            {
                "kind": "manifest",
                "location": data.location,
                **facts,
                "skipped": skipped,
                "sha256": "b" * 64,
                "schema": {"row": "int64"},
            }
        ]
    )
    run.exits({}, {0: f"Published {rows:,} rows in {data.location}\n"})
    run.finish("completed")


def preview(columns: Iterable[tuple[str, str]], rows: Iterable[Iterable[str | None]]) -> dict[str, Any]:
    named = [list(one) for one in columns]
    return {"columns": named, "columns_in_all": len(named), "rows": [list(row) for row in rows]}


def marked_rows(site: Simulation) -> Life:
    """A completed inference whose bad rows are marked, and whose first results are hostile texts."""
    columns = [
        ("row", "int64"),
        ("file", "string"),
        ("label", "string"),
        ("score", "float32"),
        (HOSTILE_COLUMN, "string"),
        ("embedding", "list<float32>"),
        ("error", "string"),
    ]
    labels = ("street", "forest", "harbour", "office")
    rows: list[list[str | None]] = []
    for number in range(20):
        file, score = f"scans/2026/11/scan-{81_720 + number:07d}.jpg", f"{0.91 - number / 50:.4f}"
        vector = f"[{', '.join(f'{(number * item) % 7 / 7:.4f}' for item in range(1, 21))}, ... 768 in all]"
        text = HOSTILE_VALUES[number] if number < len(HOSTILE_VALUES) else f"caption {number}"
        rows.append([str(number), file, labels[number % 4], score, text, vector[:197] + "...", None])
    rows[13] = ["13", "scans/2026/11/scan-0081733.jpg", *[None] * 4, BROKEN_IMAGE]
    data = Input(
        shards=256,
        rows=1_048_576,
        location="s3://vision-results/2026-11/labels",
        seconds=22,
        bad_error=f"UnidentifiedImageError: cannot identify image file {HOSTILE_VALUES[2]}",
        bad_rows={0: 1, 17: 4, 93: 2},
        preview=preview(columns, rows),
    )
    outputs = {"path": data.location, "columns": ["file"], "row_id": "row"}
    run = submitted(
        site, "label-images", 20, slots=8, inputs={"path": "s3://vision/scans"}, outputs=outputs, on_bad_row="mark"
    )
    yield from run.start()
    announced(run, data)
    yield from computed(run, data)
    published(run, data)


def shards_aside(site: Simulation) -> Life:
    """A completed inference of text files, with two shards set aside and bad rows left out."""
    data = Input(
        shards=40,
        rows=812_345,
        location="/data/results/mail-index",
        suffix="jsonl",
        counts_rows=False,
        bad_rows={3: 12, 30: 1},
        fails={
            11: BROKEN_TABLE,
            26: "RuntimeError: CUDA error: device-side assert "
            "triggered\nCUDA kernel errors might be asynchronously reported at some other API call.",
        },
        preview=preview(
            [("row", "int64"), ("output", "list<float32>")], [[str(n), "[0.1, 0.25, 0.5]"] for n in range(20)]
        ),
    )
    run = submitted(
        site,
        "index-mail",
        9,
        slots=4,
        inputs={"path": "/data/mail/*.jsonl"},
        outputs={"path": data.location, "row_id": "row"},
        on_bad_row="skip",
        on_bad_shard="skip",
    )
    yield from run.start()
    announced(run, data)
    yield from computed(run, data, skips=True)
    published(run, data)


def failed_shard(site: Simulation) -> Life:
    """An inference that ends because a shard failed three times."""
    error = f"ValueError: embedding has 767 values in row 41, expected 768 {HOSTILE_VALUES[0]}"
    data = Input(
        shards=120,
        rows=4_000_000,
        location="s3://search/embeddings",
        fails={37: error},
        seconds=30,
        preview=preview(
            [("id", "int64"), ("embedding", "list<float32>")], [[str(n), "[0.5, 0.25, 0.125]"] for n in range(20)]
        ),
    )
    run = submitted(
        site,
        "embed-corpus",
        5,
        slots=4,
        inputs={"path": "s3://search/corpus"},
        outputs={"path": data.location},
        weights="trial:7",
    )
    yield from run.start()
    announced(run, data)
    yield from computed(run, data)
    host, rank = next((host, ranks[0]) for host, ranks in run.ranks.items())
    shard = f"Shard 37 ({data.label(37)})"
    codes = {one: -15 for ranks in run.ranks.values() for one in ranks} | {rank: 66}
    run.exits(codes, {rank: f"{shard} failed 3 times\n"}, sent_signal=True)
    message = (
        f"{shard} failed 3 times in rank {rank} on host '{host}': {error}\nFinished shards are kept: a new "
        "run computes only the missing ones. To set bad shards aside, use inference.on_bad_shard: skip."
    )
    run.finish("errored", asdict(Failure.of(BadShardError(message))))


def running(site: Simulation) -> Life:
    """An inference that runs now, with shards that failed once, and goes on in real time."""
    data = Input(
        shards=2_560,
        rows=61_440_000,
        location="s3://vision-results/captions",
        seconds=9.0,
        bad_rows={5: 3, 40: 1},
        fails_once={70: "OSError: [Errno 5] s3 read timed out after 60 s"},
        preview=preview(
            [("id", "string"), ("caption", "string"), ("tokens", "int32")],
            [[f"clip-{n:05d}", caption, str(len(caption.split()))] for n, caption in enumerate(CAPTIONS * 4)],
        ),
    )
    run = submitted(
        site,
        "caption-archive",
        0.5,
        slots=8,
        inputs={"path": "s3://vision/clips"},
        outputs={"path": data.location, "columns": ["id"]},
        on_bad_row="skip",
    )
    yield from run.start()
    announced(run, data)
    try:
        yield from computed(run, data)
    except AskedError:
        by = site.store.control.pending(run.ticket.attempt_id).kill_by
        run.exits({}, {0: "ended on request\n"})
        return run.finish("stopped" if by is None else "killed", None if by is None else killed(by))
    published(run, data)
