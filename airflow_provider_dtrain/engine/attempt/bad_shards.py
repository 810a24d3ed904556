"""Failures of a batch inference that belong to one of its shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.rank_exits import first_failure
from airflow_provider_dtrain.core.lifecycle.shard_blame import EXIT_BAD_SHARD, FAILED, SKIPPED, unfinished_shard
from airflow_provider_dtrain.errors import BadShardError, DtrainError, RankFailedError, RankHangsError, ShardFailedError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.lifecycle.after_failure import Facts
    from airflow_provider_dtrain.engine.attempt.gang import GangEnd
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.records.trials import AttemptView

#: What to do about a shard that the ranks cannot process.
_REMEDY = (
    "Finished shards are kept: a new run computes only the missing ones. To set bad shards aside, use "
    "inference.on_bad_shard: skip."
)


async def given_up(rt: Runtime, view: AttemptView, end: GangEnd) -> BadShardError | None:
    """Return the error of a rank that gave a shard up after its own retries, or None."""
    found = first_failure(end.exits)
    if found is None or found.exit_code != EXIT_BAD_SHARD or found.sent_signal:
        return None
    events = await rt.db(rt.store.shards.of_rank, view.attempt_id, found.rank)
    # A shard that was set aside did not end the run.
    aside = {one["shard"] for one in events if one["kind"] == SKIPPED}
    given_up = (one for one in reversed(events) if one["kind"] == FAILED and one.get("is_final"))
    last = next((one for one in given_up if one["shard"] not in aside), None)
    where = f"rank {found.rank} on host '{found.host}'"
    if last is None:
        reason = found.message.strip() or "no reason was given"
        return BadShardError(f"The batch inference ended in {where}: {reason}")
    times = "failed" if last["tries"] == 1 else f"failed {last['tries']} times"
    return BadShardError(f"Shard {last['shard']} ({last['label']}) {times} in {where}: {last['error']}\n{_REMEDY}")


async def blamed_on_shard(rt: Runtime, view: AttemptView, error: DtrainError) -> DtrainError:
    """Return the failure of a rank with the shard that it was processing, or the failure itself without one."""
    rank = getattr(error, "rank", None)
    if type(error) not in (RankFailedError, RankHangsError) or rank is None:
        return error
    shard = unfinished_shard(await rt.db(rt.store.shards.of_rank, view.attempt_id, rank))
    if shard is None:
        return error
    finished = await rt.db(rt.store.shards.finished, view.attempt_id)
    return ShardFailedError(error, shard=shard.index, label=shard.label, finished=finished)


def bad_shard(error: ShardFailedError, facts: Facts) -> BadShardError:
    """Return the error of a run that ends because of a shard."""
    name = f"Shard {error.shard['index']} ({error.shard['label']})"
    if facts.is_fruitless:
        head = f"{facts.fruitless + 1} attempts in a row finished no shard: the processor fails. {name} was the latest."
    else:
        head = f"{name} failed {facts.shard_failures + 1} times and ends the run."
    return BadShardError(f"{head} {_REMEDY}\n{error}")
