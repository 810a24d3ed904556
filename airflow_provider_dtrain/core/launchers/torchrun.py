"""``torchrun``, which reads defaults of its options from variables ``PET_...``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from airflow_provider_dtrain.core.launchers.program import Gang, Options, Program, count

__all__ = ["TORCHRUN"]

#: Options that take a value.
#: Source: ``get_args_parser`` of ``torch/distributed/run.py`` of PyTorch 2.4 to 2.13.
_VALUES: Final = (
    *("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts"),
    *("monitor-interval", "start-method", "event-log-handler", "role", "log-dir", "redirects", "tee"),
    *("local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters", "node-rank", "master-addr"),
    *("master-port", "local-addr", "logs-specs", "numa-binding", "signals-to-handle", "shutdown-timeout"),
)
_MODULE: Final = "torch.distributed.run"


def _contradictions(options: Options, gang: Gang) -> Iterator[str]:
    nodes = str(options.get("nnodes", gang.hosts))
    if nodes not in {str(gang.hosts), f"{gang.hosts}:{gang.hosts}"}:
        yield f"--nnodes {nodes}, but the trial has {count(gang.hosts, 'host')}"
    wanted = str(options.get("nproc_per_node", ""))
    if wanted and (gang.has_cpu_slots or wanted not in {"auto", "gpu"}):
        other = next(((host, slots) for host, slots in gang.slots.items() if wanted != str(slots)), None)
        if other is not None:
            yield f"--nproc-per-node {wanted}, but the trial has {count(other[1], 'slot')} on host '{other[0]}'"
    if gang.hosts > 1 and options.get("standalone"):
        yield f"--standalone is for 1 host, but the trial has {gang.hosts} hosts"


TORCHRUN: Final = Program(
    name="torchrun",
    commands=(("torchrun",),),
    module=_MODULE,
    start=lambda _: ("-m", _MODULE),
    contradictions=_contradictions,
    set_by_launch=("node_rank", "master_addr", "master_port", "rdzv_endpoint"),
    values=_VALUES,
    flags=("standalone", "module", "no-python", "run-path", "virtual-local-rank"),
    short={"-m": "module", "-r": "redirects", "-t": "tee"},
    abbreviates=True,
    separator="-",
)
