"""``airflow dtrain pools``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.errors import ConflictError, NotNowError, UsageError
from airflow_provider_dtrain.terminal.output import confirm, hint, note, show, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.core.launch.containers import ContainerRules
    from airflow_provider_dtrain.core.scheduling.model import PoolOptions
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook


@command
def list_pools(args: Namespace) -> None:
    """List the pools."""
    hook = _hook()
    rows = [_row(hook, pool.name) for pool in hook.store.pools.list()]
    show(args, rows, empty="No pools. The first host of a pool creates it: airflow dtrain hosts add --help")


@command
def describe(args: Namespace) -> None:
    """Show a pool with its options, hosts and queue."""
    hook = _hook()
    pool = hook.store.pools.get(args.pool)
    names = [host.name for host in hook.store.hosts.list(pool.name)]
    row = {
        **_row(hook, pool.name),
        **_options(pool.options, pool.containers),
        "hosts": names,
        "defaults": dict(pool.defaults),
    }
    show_one(args, row)
    hint(f"airflow dtrain slots list --pool {pool.name}")


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
    }
    given = {key: value for key, value in options.items() if value is not None}
    if not given:
        raise UsageError(f"Nothing to set for pool '{args.pool}'. Options: airflow dtrain pools set --help")
    pool = _hook().store.pools.set(args.pool, **given, by=user())
    show_one(args, {"name": pool.name, **_options(pool.options, pool.containers), "defaults": dict(pool.defaults)})


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


def _row(hook: DtrainHook, name: str) -> dict[str, object]:
    store = hook.store
    pool = store.pools.get(name)
    slots = store.hosts.slots(name)
    tasks = store.queue_view.tasks(name)
    waiting = sum(task.state == "waiting" for task in tasks)
    return {
        "name": pool.name,
        "slot_type": pool.slot_type,
        "slots": len(slots),
        "held": sum(slot.allocation_id is not None for slot in slots),
        "running": len(tasks) - waiting,
        "waiting": waiting,
        "fit": pool.options.fit,
    }


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
