"""Injected failures and the causes that were found: runs the cases, and writes their table.

A folder keeps the result of each case, so a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import dataclasses
import json
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

#: A case that takes longer has failed, seconds.
MOST_S = 300.0
Result = Mapping[str, Any]


def run_case(pair: Any, kind: str, number: int) -> dict[str, Any]:
    """Run a case in a store of its own, and return its result.

    :param pair: two test hosts
    :param number: index of its variation
    """
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hooks.settings import settings
    from testbed.stores import new_sqlite
    from tests.support import causes
    from tests.support.engines import Engine

    begun = datetime.now(UTC)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="dtrain-cause-") as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        patch.setenv("HOME", name)
        url = new_sqlite(folder / "dtrain.db")
        options = dataclasses.replace(
            settings(), sql_alchemy_conn=url, checkpoint_dir=folder / "checkpoints", kill_grace_s=2.0
        )
        hook = DtrainHook(options)
        try:
            case = causes.injected(Engine(hook), pair, patch, kind, causes.VARIATIONS[number], most_s=MOST_S)
            found = dataclasses.asdict(asyncio.run(case))
        finally:
            hook.links.close_all()
    return {
        "kind": kind,
        "variation": number,
        "at": begun.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - begun).total_seconds(), 1),
        "load": round(max(load_before, os.getloadavg()[0]), 1),
        **found,
    }


def read(file: Path) -> dict[tuple[str, int], Result]:
    """Return the latest result of each case."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {(one["kind"], one["variation"]): one for one in map(json.loads, lines)}


def run_missing(folder: Path, cases: Sequence[tuple[str, int]], *, repeats_wrong: bool) -> None:
    """Run the cases that have no result yet, and print a line for each.

    A case that raises an error has none: it says nothing about causes.

    :param repeats_wrong: run the cases with a wrong result as well
    """
    from testbed.netns import NamespaceHosts
    from tests.support import causes

    results = folder / "results.jsonl"
    pair = NamespaceHosts(count=2, slots=2)
    try:
        for kind, number in cases:
            known = read(results).get((kind, number))
            if known is not None and not (repeats_wrong and known["problem"]):
                continue
            try:
                result = run_case(pair, kind, number)
            except (AssertionError, TimeoutError) as error:
                print(f"{kind} {number}: no result: {error!r}", flush=True)
                # Ranks may be left, and hold slots.
                pair.close()
                pair = NamespaceHosts(count=2, slots=2)
                continue
            with results.open("a") as file:
                file.write(json.dumps(result) + "\n")
            verdict = f"WRONG: {result['problem']}" if result["problem"] else "right"
            print(f"{kind} {number}, {result['seconds']} s, load {result['load']}: {verdict}", flush=True)
    finally:
        pair.close()
        causes.remove_groups()


def table(results: Iterable[Result]) -> str:
    """Return a table in Markdown: a line per injected cause with the causes that were named, and the sums."""
    kinds: dict[str, list[Result]] = {}
    for one in results:
        kinds.setdefault(one["kind"], []).append(one)
    every = [one for of_kind in kinds.values() for one in of_kind]
    lines = ["| injected | cases | named as | right | wrong rank or host | longest, s |", "|---|---|---|---|---|---|"]
    for kind, of_kind in kinds.items():
        named = Counter(str(one["cause_kind"]) for one in of_kind)
        names = ", ".join(f"`{name}` {count}" for name, count in named.most_common())
        lines.append(f"| {kind} | {len(of_kind)} | {names} | {_sums(of_kind)} |")
    lines.append(f"| all | {len(every)} | | {_sums(every)} |")
    loads = [one["load"] for one in every] or [0.0]
    days = sorted({one["at"][:10] for one in every})
    lines += ["", f"{' to '.join(days[:1] + days[1:][-1:])}, load {min(loads):.0f} to {max(loads):.0f}."]
    return "\n".join(lines) + "\n"


def _sums(results: Sequence[Result]) -> str:
    right = sum(not one["problem"] for one in results)
    blamed = sum(one["is_blamed_wrongly"] for one in results)
    return f"{right} | {blamed} | {max((one['took_s'] for one in results), default=0.0):.0f}"


def main() -> int:
    """Run the chosen cases, write the table of all results, and return the exit code."""
    from tests.support import causes

    parser = argparse.ArgumentParser(prog="python -m tests.faults.cause_table", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of results.jsonl and table.md")
    parser.add_argument("--kinds", nargs="+", choices=causes.EXPECTED, default=list(causes.EXPECTED))
    numbers = range(len(causes.VARIATIONS))
    parser.add_argument("--variations", nargs="+", type=int, choices=numbers, default=list(numbers))
    parser.add_argument("--again", action="store_true", help="run the cases with a wrong result again")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    every = [(kind, causes.VARIATIONS.index(variation)) for kind, variation in causes.cases()]
    able = [(kind, number) for kind, number in every if not causes.needs(kind)]
    chosen = [one for one in able if one[0] in options.kinds and one[1] in options.variations]
    run_missing(options.out, chosen, repeats_wrong=options.again)
    found = read(options.out / "results.jsonl")
    text = table(found[case] for case in sorted(found, key=lambda case: list(causes.EXPECTED).index(case[0])))
    (options.out / "table.md").write_text(text)
    print(text)
    return int(any(one["problem"] for one in found.values()))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="dtrain-cause-home-")
    os.environ["AIRFLOW__CORE__FERNET_KEY"] = base64.urlsafe_b64encode(os.urandom(32)).decode()
    sys.exit(main())
