"""Command line of the seeding script."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from testbed.seed import failures, inference, large, live, small
from testbed.seed.airflow_side import seed_airflow
from testbed.seed.copies import copy_files
from testbed.seed.simulation import Simulation

#: Scene -> hours of its history, and the function that lets it happen.
SCENES: dict[str, tuple[float, Callable[[Simulation], None]]] = {
    "small": (small.HOURS, small.small),
    "failures": (failures.HOURS, failures.failures),
    "inference": (inference.HOURS, inference.inference),
    "large": (large.HOURS, large.large),
}


def arguments() -> argparse.Namespace:
    """Return the command-line options."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.seed",
        description="Fills a new store by a simulated run, through the store's public methods.",
    )
    example = "e.g. sqlite:////tmp/seeded.db; created if missing"
    parser.add_argument("--store", required=True, metavar="URL", help=example)
    parser.add_argument("--scene", choices=SCENES, default="small")
    parser.add_argument(
        "--airflow",
        action="store_true",
        help="also write DAGs, DAG runs and task instances of the trials into the Airflow of AIRFLOW_HOME",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="let the trials go on in real time, with one that reports each second, until Ctrl-C",
    )
    parser.add_argument(
        "--copies",
        type=Path,
        metavar="FOLDER",
        help="also write copies of checkpoints and outputs of one experiment, into the API server's checkpoint_dir",
    )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    began = time.monotonic()
    hours, scene = SCENES[options.scene]
    site = Simulation(options.store, datetime.now(UTC), hours)
    if options.live:
        site.at(0, live.live(site))
    scene(site)
    if options.copies:
        copy_files(site.store, small.WITH_COPIES, options.copies)
    if options.airflow:
        seed_airflow(site.store)
    print(f"Seeded {options.store} with the scene '{options.scene}' in {time.monotonic() - began:.1f} s.", flush=True)
    if options.live:
        go_on(site)
    site.store.close()


def go_on(site: Simulation) -> None:
    """Let the lives go on until a signal, or until the parent process has ended."""
    over: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: over.append(number))
    parent = os.getppid()
    print("The trials go on in real time. End them with Ctrl-C.", flush=True)
    site.follow(lambda: bool(over) or os.getppid() != parent)


if __name__ == "__main__":
    main()
