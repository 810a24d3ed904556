"""Commands of both programs on the machine of Airflow: they call the functions behind the routes in this process."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from airflow_provider_dtrain.cli._documents import StoreDocuments
from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.engine.control import StoreControl, Takeover, lost_followers
from airflow_provider_dtrain.errors import HostError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.terminal.arguments import Command
from airflow_provider_dtrain.terminal.output import note, user
from airflow_provider_dtrain.terminal.shared import run_shared
from airflow_provider_dtrain.terminal.source import Source


def run(shared: Command, args: Namespace) -> None:
    """Run a shared command with all rights."""

    @command
    def in_process(args: Namespace) -> int | None:
        hook = DtrainHook()
        return run_shared(shared, args, source_of(hook), control_of(hook), StoreDocuments(hook))

    in_process(args)


def source_of(hook: DtrainHook) -> Source:
    """Return the records of the store, without limits."""
    return StoreSource(hook.store)


def control_of(hook: DtrainHook) -> StoreControl:
    """Return the control requests of the user of this process, which itself acts in place of followers."""

    def reach(host: str) -> None:
        from airflow_provider_dtrain.engine.operations.probes import probe_again

        record = hook.store.hosts.get(host)
        if problem := probe_again(hook, record, user())["problem"]:
            raise HostError(host, f"Host '{host}' stays {record.state}: {problem}")

    def remove(_experiments: Sequence[int]) -> str:
        from airflow_provider_dtrain.engine.upkeep.deletion import remove_marked

        note("Removing files on hosts, copies and rows. After an interruption, 'airflow dtrain gc' continues.")
        return " ".join(one.sentence for one in remove_marked(hook))

    return StoreControl(hook.store, user(), _takeover(hook), reach, remove)


def _takeover(hook: DtrainHook) -> Takeover:
    def here(trials: Sequence[int], _command: str) -> str:
        from airflow_provider_dtrain.engine.upkeep.orphaned_trials import carry_out

        begin = lost_followers(trials)
        note(f"{begin}. This command acts instead, and waits until ranks that stop have written checkpoints.")
        done = carry_out(hook, trials)
        return f"{lost_followers(done)}: this command carried it out." if done else "Another process has taken it over."

    return here
