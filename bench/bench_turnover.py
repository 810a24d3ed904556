"""Time from the release of a gang's last slot until the next gang in the queue runs.

Trials that each need every slot wait in one queue. One process follows them, as a triggerer does. A rank logs its
start time. Hosts and store are on one machine, so their clocks agree.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.tables import allocation_slots, allocations, attempts
from bench.engine_worlds import World, quiet, world_of
from bench.framework.measuring import Run
from bench.framework.rows import OURS, Bench, Row

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


def measure(run: Run) -> None:
    quiet()
    trials = run.size(100, 15)
    with world_of(hosts=run.size(3, 2), ranks_per_host=2) as (world, slots, hosts):
        for granted, started in turnovers(world, asyncio.run(carry_all(world, trials, slots))):
            run.add("grant", "ours", granted)
            run.add("first line", "ours", started)
        run.note(f"{slots} slots on {hosts}, {trials} trials in one queue.")


BENCH = Bench(
    what="Release of a gang's last slot to the next gang, which needs all slots",
    rows=(
        Row(name="grant", what="Until the next gang has its slots", unit="s", sides={"ours": OURS}),
        Row(name="first line", what="Until its last rank has started", unit="s", sides={"ours": OURS}),
    ),
    measure=measure,
    rounds=(1, 1),
)
