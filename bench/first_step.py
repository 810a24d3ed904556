"""A script of one training step, and the time at which the engine's ranks take it."""

from __future__ import annotations

import json
import re

from bench.engine_worlds import World

SCRIPT = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(8, 64)).sum().backward()
optimizer.step()
print(f"first step at {time.time():.4f}", flush=True)
dist.destroy_process_group()
"""
RANKS = 2
#: The third launch is the first one whose parent has imported PyTorch. It may wait for these imports.
LAUNCHES_BEFORE = 3
_STEP = re.compile(r"first step at ([\d.]+)")


def last_step(*outputs: str) -> float:
    """Return the time of the later of the two first steps."""
    steps = [float(at) for output in outputs for at in _STEP.findall(output)]
    assert len(steps) == RANKS, outputs
    return max(steps)


async def launch(world: World, *, is_warm: bool, **variables: str) -> dict[str, float]:
    """Run ``train.py`` of the world's code on two slots.

    :returns: seconds to the later of the two first steps: from the grant, and on this machine from the launch
    """
    section = {"variables": {"OMP_NUM_THREADS": "1", **variables}}
    ticket = world.submit("python train.py", slots=RANKS, warm_start=is_warm, environment=section)
    outcome = await (await world.follow(ticket))[1]
    assert outcome.failure is None, outcome.failure
    store = world.hook.store
    view = store.attempts.get(ticket.attempt_id)
    stepped_at = last_step(*(rank.log_tail for rank in store.events.ranks(ticket.attempt_id)))
    found = {"grant": stepped_at - view.granted_at.timestamp()}
    started = world.home / "state" / "runs" / view.run / "started"
    if started.exists():
        found["launch"] = stepped_at - json.loads(started.read_text())["at"]
    return found
