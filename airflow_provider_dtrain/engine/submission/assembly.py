"""From documents to an effective configuration, and the checks that it passes before it can start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.engine.submission.fit import never_fits
from airflow_provider_dtrain.errors import ConfigError, NotFoundError, Problem
from airflow_provider_dtrain.hooks.hosts import LOCAL_HOST, LOCAL_POOL

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import Effective
    from airflow_provider_dtrain.core.search.plan import Outline
    from airflow_provider_dtrain.store.store import Store


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """An effective configuration, and the pool in which it would run."""

    effective: Effective
    #: Empty: the documents name none, and there are several.
    pool: str
    #: Message about a pool that does not exist or is not chosen; None: it exists.
    no_pool: str | None


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A configuration that can start, and its size."""

    shape: Outline
    #: About settings that are valid but probably a mistake.
    slips: tuple[str, ...]
    #: Why the hosts of the pool can never run a trial; None: they can.
    never_fits: str | None


def assembled(
    store: Store, document: Mapping[str, Any], template: Mapping[str, Any] | None, *, pool: str | None = None
) -> Assembled:
    """Merge the defaults of the pool, a template and a document, and validate the result. Stores nothing.

    A pool that does not exist has no defaults: the problems of the documents come first, because the name of the pool
    may be one of them.

    :param pool: for documents that name none; None = see :func:`choose_pool`
    :raises ConfigError: all problems at once
    """
    from airflow_provider_dtrain.core.config import assemble

    chosen, defaults, missing = "", None, None
    try:
        chosen = choose_pool(store, pool_wanted(document, template) or pool)
        defaults = dict(store.pools.get(chosen).defaults) or None
    except NotFoundError as error:
        missing = str(error)
    return Assembled(effective=assemble(template, document, pool_defaults=defaults), pool=chosen, no_pool=missing)


def checked(store: Store, found: Assembled, *, max_map_length: int) -> Checked:
    """Check what the task that plans would find later.

    :param max_map_length: ``[core] max_map_length`` of Airflow
    :raises ConfigError: an unsupported field, a pool that does not exist, or a search that cannot be planned
    """
    from airflow_provider_dtrain.core.config import refuse_unsupported
    from airflow_provider_dtrain.core.search.lint import slips
    from airflow_provider_dtrain.core.search.plan import outline, plan

    config = found.effective.config
    refuse_unsupported(config, found.effective.origins)
    try:
        if not found.pool:
            raise NotFoundError(found.no_pool)
        reason = never_fits(store, found.pool, config)
    except NotFoundError as error:
        raise ConfigError([Problem(path="resources.pool", message=str(error))]) from error
    plan(config, config.reproducibility.experiment_seed or 0, max_map_length=max_map_length)
    shape = outline(config)
    return Checked(shape=shape, slips=tuple(slips(config, shape)), never_fits=reason)


def pool_wanted(*documents: Mapping[str, Any] | None) -> str | None:
    """Return the pool of the first document that names one."""
    for document in documents:
        resources = (document or {}).get("resources")
        if isinstance(resources, Mapping):
            for key in ("pool", "resource_pool"):
                if isinstance(resources.get(key), str):
                    return str(resources[key])
    return None


def choose_pool(store: Store, wanted: str | None) -> str:
    """Return the pool of a configuration: the one it names, else the only one, else ``default``.

    ``local`` is the default only while no other host is registered.

    :raises NotFoundError: none is named and several exist
    """
    if wanted is not None:
        return wanted
    own = store.hosts.pools_with_hosts(without=LOCAL_HOST)
    names = sorted(own | {pool.name for pool in store.pools.list() if pool.is_external})
    if not names:
        return LOCAL_POOL
    if len(names) == 1:
        return names[0]
    if "default" in names:
        return "default"
    pools = [pool.name for pool in store.pools.list()]
    raise NotFoundError(
        f"The configuration names no pool and there are several: {', '.join(sorted(pools))}. Set resources.pool."
    )
