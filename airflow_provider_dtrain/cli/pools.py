"""``airflow dtrain pools``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.errors import ConflictError, NotNowError, UsageError
from airflow_provider_dtrain.terminal.output import confirm, hint, note, show, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.store.records.trials import Pool
    from airflow_provider_dtrain.store.store import Store


@command
def list_pools(args: Namespace) -> None:
    """List the pools."""
    store = _store()
    rows = [_row(store, pool) for pool in store.pools.list()]
    show(args, rows, empty="No pools. The first host of a pool creates it: airflow dtrain hosts add --help")


@command
def describe(args: Namespace) -> None:
    """Show a pool with its options, hosts and queue."""
    store = _store()
    pool = store.pools.get(args.pool)
    names = [host.name for host in store.hosts.list(pool.name)]
    show_one(args, {**_row(store, pool), **_options(pool), "hosts": names, "defaults": dict(pool.defaults)})
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
    }
    given = {key: value for key, value in options.items() if value is not None}
    if not given:
        raise UsageError(f"Nothing to set for pool '{args.pool}'. Options: airflow dtrain pools set --help")
    pool = _store().pools.set(args.pool, **given, by=user())
    show_one(args, {"name": pool.name, **_options(pool), "defaults": dict(pool.defaults)})


@command
def remove(args: Namespace) -> None:
    """Remove a pool that has no hosts."""
    store = _store()
    pool = store.pools.get(args.pool)
    if not confirm(f"Remove pool '{pool.name}' and its options?", yes=args.yes):
        note("Nothing was changed.")
        return
    try:
        store.pools.remove(pool.name, by=user())
    except ConflictError as error:
        raise NotNowError(str(error)) from error
    note(f"Pool '{pool.name}' is removed.")


def _store() -> Store:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    return DtrainHook().store


def _row(store: Store, pool: Pool) -> dict[str, object]:
    slots = store.hosts.slots(pool.name)
    tasks = [task for task in store.queue_view.tasks() if task.pool == pool.name]
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


def _options(pool: Pool) -> dict[str, object]:
    return {
        "fit": pool.options.fit,
        "heterogeneous": pool.options.allow_heterogeneous,
        "preemption": pool.options.preemption,
        "reservations": pool.options.reservations,
        "max_wait_s": pool.options.max_wait_s,
        "protected_share": pool.options.protected_share,
        "fresh_s": pool.options.fresh_s,
        "young_s": pool.options.young_s,
        "min_run_s": pool.options.min_run_s,
    }


def _defaults(path: str) -> dict[str, Any]:
    from airflow_provider_dtrain.cli._inputs import check_template, read

    source = read(path, what="pool defaults")
    check_template(source)
    return source.document
