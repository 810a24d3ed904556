"""Time from the release of a gang's last slot until the next gang in the queue runs.

Trials that each need every slot wait in one queue. One process follows them, as a triggerer does. A rank logs its
start time. Hosts and store are on one machine, so their clocks agree.

    python bench/bench_turnover.py [--trials 100] [--hosts 3] [--ranks-per-host 2] [--local]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from engine_worlds import World, add_host_options, load_words, world_of  # noqa: E402

from airflow_provider_dtrain.store.database.tables import allocation_slots, allocations, attempts  # noqa: E402

ENTRYPOINT = ["bash", "-c", "date +%s.%N; exec sleep 0.3"]


async def carry_all(world: World, trials: int, slots: int) -> list[int]:
    """Run the trials one after the other, and return the ids of their attempts."""
    tickets = [world.submit(ENTRYPOINT, slots=slots) for _ in range(trials)]
    followed = [await world.follow(ticket) for ticket in tickets]
    for _, task in followed:
        outcome = await task
        assert outcome.failure is None, outcome.failure
    return [ticket.attempt_id for ticket in tickets]


def turnovers(world: World, found: list[int]) -> list[tuple[float, float]]:
    """Return the seconds from each release to the next grant, and to the start of its last rank."""
    import sqlalchemy as sa

    released = sa.func.max(allocation_slots.c.released_at)
    query = (
        sa.select(attempts.c.id, allocations.c.granted_at, released)
        .join(allocations, allocations.c.id == attempts.c.allocation_id)
        .join(allocation_slots, allocation_slots.c.allocation_id == allocations.c.id)
        .where(attempts.c.id.in_(found))
        .group_by(attempts.c.id, allocations.c.granted_at)
        .order_by(allocations.c.granted_at)
    )
    with sa.create_engine(world.hook.settings.sql_alchemy_conn).connect() as connection:
        rows = connection.execute(query).all()
    figures = []
    for (_, _, released_at), (attempt_id, granted_at, _) in pairwise(rows):
        started_at = max(float(rank.log_tail.split()[0]) for rank in world.hook.store.events.ranks(attempt_id))
        since = released_at.timestamp()
        figures.append((granted_at.timestamp() - since, started_at - since))
    return figures


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100)
    add_host_options(parser)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with world_of(options) as (world, slots, hosts):
        figures = turnovers(world, asyncio.run(carry_all(world, options.trials, slots)))
    print(
        f"{len(figures)} turnovers of {slots} slots on {hosts}, {options.trials} trials in one queue ({load_words()})"
    )
    print(f"{'from the release to':<28} {'median s':>9} {'p95 s':>7} {'max s':>7}")
    for name, values in zip(("the next grant", "its last rank's first line"), zip(*figures, strict=True), strict=True):
        ordered = sorted(values)
        p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
        print(f"{name:<28} {ordered[len(ordered) // 2]:>9.2f} {p95:>7.2f} {ordered[-1]:>7.2f}")


if __name__ == "__main__":
    main()
