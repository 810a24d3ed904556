"""Runs a Python function as the ranks of a gang. Each rank computes a share, and rank 0 returns the XCom."""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

with DAG(
    "dtrain_task_decorator",
    description="A function on several slots at a time",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "slots_per_trial": Param(2, type="integer", minimum=0, description="processes that compute together"),
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
        "samples": Param(400_000, type="integer", minimum=1, description="samples per process"),
    },
):

    @task.dtrain(slots="{{ params.slots_per_trial }}", host_pool="{{ params.pool or '' }}", deferrable=True)
    def estimate_pi(samples: int | str, seed: int = 7) -> dict:
        # Only these lines are sent to the hosts, so imports belong inside the function.
        import random

        import airflow_provider_dtrain.train as dtrain

        with dtrain.init() as ctx:
            rank = ctx.rank
            points = random.Random(seed + rank)  # noqa: S311
            inside = sum(points.random() ** 2 + points.random() ** 2 <= 1 for _ in range(int(samples)))
            print(f"rank {rank}: {inside} of {samples} points are inside")
            mean = ctx.reduce({"inside": inside / int(samples)})["inside"]
            return {"pi": 4 * mean, "ranks": ctx.world_size}

    @task
    def show(result: dict) -> float:
        print(f"{result['ranks']} ranks found pi to be {result['pi']:.4f}")
        return result["pi"]

    show(estimate_pi("{{ params.samples }}"))
