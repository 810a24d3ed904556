"""``airflow dtrain pools``."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.cli._schedulers import check_options, refresh_facts
from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.core.host_rates import HostCheckRule
from airflow_provider_dtrain.errors import ConflictError, NotNowError, UsageError
from airflow_provider_dtrain.terminal import definition
from airflow_provider_dtrain.terminal.jobs import described_facts, job_line
from airflow_provider_dtrain.terminal.output import confirm, hint, is_table, note, show, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.core.launch.containers import ContainerRules
    from airflow_provider_dtrain.core.scheduling.model import PoolOptions
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.resources.hosts import Cluster


@command
def list_pools(args: Namespace) -> None:
    """List the pools."""
    hook = _hook()
    rows = [_row(hook, pool) for pool in hook.store.pools.list()]
    show(
        args,
        rows,
        empty="No pools. The first host of a pool creates it: airflow dtrain hosts add --help. A pool of a scheduler: "
        "airflow dtrain pools set NAME --backend ...",
    )


@command
def describe(args: Namespace) -> None:
    """Show a pool with its options, hosts and queue, and with partitions and jobs of its external scheduler."""
    hook = _hook()
    refresh_facts(hook, args.pool)
    pool = hook.store.pools.get(args.pool)
    cluster = StoreSource(hook.store).cluster(pool.name)
    row = {**_row(hook, pool), **_shown(pool), "hosts": [host.name for host in cluster.hosts]}
    if pool.is_external:
        row["states_of_jobs_as_of"] = pool.polled_at
    show_one(args, {**row, **(_scheduled(cluster, as_lines=is_table(args)) if pool.is_external else {})})
    hint(f"airflow dtrain {'queue' if pool.is_external else 'slots'} list --pool {pool.name}")


def _scheduled(cluster: Cluster, *, as_lines: bool) -> dict[str, object]:
    """Return what the external scheduler of a pool has.

    :param as_lines: texts for a terminal instead of records
    """
    facts = next(iter(cluster.schedulers.values()), None)
    if not as_lines:
        return {"scheduler": None if facts is None else asdict(facts), "jobs": [asdict(one) for one in cluster.jobs]}
    described = {} if facts is None else described_facts(facts)
    return {**described, "jobs": "\n".join(job_line(one) for one in cluster.jobs) or None}


@command
def set_pool(args: Namespace) -> None:
    """Change options of a pool."""
    options: dict[str, Any] = {
        "fit": args.fit,
        "allow_heterogeneous": args.heterogeneous,
        "preemption": args.preemption,
        "reservations": args.reservations,
        "max_wait_s": args.max_wait,
        "protected_share": args.protected_share,
        "fresh_s": args.fresh,
        "young_s": args.young,
        "min_run_s": args.min_run,
        "defaults": _defaults(args.defaults) if args.defaults else None,
        "containers": _containers(args),
        "host_check": None if args.check_before_gangs is None else HostCheckRule(args.check_before_gangs),
        "host_check_every_s": args.check_every,
    }
    scheduled = _set_scheduler(args)
    given = {key: value for key, value in options.items() if value is not None}
    if not given and not scheduled:
        raise UsageError(f"Nothing to set for pool '{args.pool}'. Options: airflow dtrain pools set --help")
    pool = _hook().store.pools.set(args.pool, **given, by=user())
    if scheduled:
        refresh_facts(_hook(), pool.name)
    show_one(args, {"name": pool.name, **_shown(pool)})


def _set_scheduler(args: Namespace) -> bool:
    """Set the scheduler of a pool and its options, and return whether any was given.

    :raises ConfigError: all problems of the options at once
    """
    from airflow_provider_dtrain.core.external_jobs import OWN_BACKEND
    from airflow_provider_dtrain.hosts.schedulers.registry import scheduler_kind
    from airflow_provider_dtrain.terminal.input_text import read_input

    prefix = definition.SCHEDULER
    given = {name.removeprefix(prefix): value for name, value in vars(args).items() if name.startswith(prefix)}
    given = {name: value for name, value in given.items() if value is not None}
    if args.backend is None and not given and not args.unset:
        return False
    store = _hook().store
    known = next((pool for pool in store.pools.list() if pool.name == args.pool), None)
    backend = args.backend or (known.backend if known is not None else OWN_BACKEND)
    names = {_option(name): name for name in (*given, *(known.scheduler if known is not None else ()))}
    if backend == OWN_BACKEND:
        if given or args.unset:
            raise UsageError(
                f"The queue of this store gives out the slots of pool '{args.pool}', so it has no option "
                f"--{next(iter([*map(_option, given), *args.unset]))}. Set --backend as well."
            )
        raise UsageError(f"Pool '{args.pool}' gets its hosts by: airflow dtrain hosts add --pool {args.pool}")
    if "setup" in given:
        given["setup"] = read_input(given["setup"], what="setup lines").text
    kind = scheduler_kind(backend)
    before = known.scheduler if known is not None and known.backend == backend else {}
    if unknown := [option for option in args.unset if names.get(option) not in before]:
        set_ones = ", ".join(sorted(map(_option, before))) or "none"
        raise UsageError(f"Pool '{args.pool}' has no option --{unknown[0]} that is set. These are: {set_ones}.")
    left = {name: value for name, value in before.items() if _option(name) not in args.unset}
    options = kind.checked({**left, **given})
    check_options(args.pool, backend, options)
    store.pools.set_scheduler(
        args.pool, backend=backend, slot_type=kind.slot_type(options), scheduler=options, by=user()
    )
    return True


def _option(name: str) -> str:
    """Return the name of an argument by which an option of a scheduler is set."""
    other = {"conn_id": "conn", "sbatch_options": "sbatch-option", "without_options": "without-option"}
    return {**other, "output": "job-output"}.get(name, name.replace("_", "-"))


@command
def remove(args: Namespace) -> None:
    """Remove a pool that has no hosts."""
    store = _hook().store
    pool = store.pools.get(args.pool)
    if not confirm(f"Remove pool '{pool.name}' and its options?", yes=args.yes):
        note("Nothing was changed.")
        return
    try:
        store.pools.remove(pool.name, by=user())
    except ConflictError as error:
        raise NotNowError(str(error)) from error
    note(f"Pool '{pool.name}' is removed.")


def _hook() -> DtrainHook:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    return DtrainHook()


def _row(hook: DtrainHook, pool: Any) -> dict[str, object]:
    """Return the columns of a pool. The slots of an external scheduler are those that its jobs have now."""
    store = hook.store
    slots = store.hosts.slots(pool.name)
    tasks = store.queue_view.tasks(pool.name)
    waiting = sum(task.state == "waiting" for task in tasks)
    return {
        "name": pool.name,
        "backend": pool.backend,
        "slot_type": pool.slot_type,
        "slots": len(slots),
        "held": sum(slot.allocation_id is not None for slot in slots),
        "running": len(tasks) - waiting,
        "waiting": waiting,
        "fit": None if pool.is_external else pool.options.fit,
    }


def _shown(pool: Any) -> dict[str, object]:
    """Return what a pool is configured with."""
    if not pool.is_external:
        checks = {"check_before_gangs": pool.host_check.value, "check_every_s": pool.host_check_every_s}
        rules = {**_options(pool.options, pool.containers), **checks}
    else:
        # The number of slots has that name already.
        rules = {"slot_kind" if name == "slots" else name: value for name, value in pool.scheduler.items()}
    return {"backend": pool.backend, **rules, "defaults": dict(pool.defaults)}


def _options(options: PoolOptions, containers: ContainerRules) -> dict[str, object]:
    return {
        "fit": options.fit,
        "heterogeneous": options.allow_heterogeneous,
        "preemption": options.preemption,
        "reservations": options.reservations,
        "max_wait_s": options.max_wait_s,
        "protected_share": options.protected_share,
        "fresh_s": options.fresh_s,
        "young_s": options.young_s,
        "min_run_s": options.min_run_s,
        "container_runtime": containers.runtime or "auto",
        "container_mounts": list(containers.mounts),
        "container_devices": list(containers.devices),
        "container_capabilities": list(containers.capabilities),
    }


def _containers(args: Namespace) -> ContainerRules | None:
    """Return the rules of the pool after the change, None without one."""
    names = ("mounts", "devices", "capabilities")
    given = {name: getattr(args, f"container_{name}") for name in names}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if args.container_runtime is not None:
        changed["runtime"] = None if args.container_runtime == "auto" else args.container_runtime
    return replace(_hook().store.pools.get(args.pool).containers, **changed) if changed else None


def _defaults(path: str) -> dict[str, Any]:
    from airflow_provider_dtrain.cli._inputs import check_template, read

    source = read(path, what="pool defaults")
    check_template(source)
    return source.document
