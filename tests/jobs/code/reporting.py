"""A program that reports media, fails in its first attempt, and continues in the second one."""

import os

import airflow_provider_dtrain.train as dtrain

with dtrain.init() as ctx:
    attempt = ctx._env.attempt
    steps = (1, 2) if attempt == 1 else (2, 3)
    for step in steps:
        ctx.report_text("a/b", f"attempt {attempt}, rank {ctx.rank}", step=step)
    ctx.report_histogram("values", [1.0, 2.0], bins=2, step=steps[-1])
    if ctx.is_chief:
        os.makedirs("media/a%2Fb", exist_ok=True)
        os.symlink("/etc/hostname", "media/a%2Fb/9-attempt1-text.txt")
    if attempt == 1:
        raise SystemExit(3)
