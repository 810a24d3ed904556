"""Command line of the seeding script."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import UTC, datetime

from testbed.seed import large, small
from testbed.seed.airflow_side import seed_airflow
from testbed.seed.simulation import Simulation

#: Scene -> hours of its history, and the function that lets it happen.
SCENES: dict[str, tuple[float, Callable[[Simulation], None]]] = {
    "small": (small.HOURS, small.small),
    "large": (large.HOURS, large.large),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m testbed.seed",
        description="Fills a new store by a simulated run, through the store's public methods.",
    )
    parser.add_argument(
        "--store", required=True, metavar="URL", help="e.g. sqlite:////tmp/seeded.db; created if missing"
    )
    parser.add_argument("--scene", choices=SCENES, default="small")
    parser.add_argument(
        "--airflow",
        action="store_true",
        help="also write DAGs, DAG runs and task instances of the trials into the Airflow of AIRFLOW_HOME",
    )
    options = parser.parse_args()
    began = time.monotonic()
    hours, scene = SCENES[options.scene]
    site = Simulation(options.store, datetime.now(UTC), hours)
    scene(site)
    if options.airflow:
        seed_airflow(site.store)
    site.store.close()
    print(f"Seeded {options.store} with the scene '{options.scene}' in {time.monotonic() - began:.1f} s.")


if __name__ == "__main__":
    main()
