"""Record of a gang that is followed: its attempt, its channels, and the facts about its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.lifecycle.rank_exits import DeviceFault, HostFacts, RankExit, RankPlace
from airflow_provider_dtrain.core.untrusted_json import is_count
from airflow_provider_dtrain.engine.logs.task_log import printable
from airflow_provider_dtrain.errors import DtrainError, HostError, HostLostError
from airflow_provider_dtrain.hosts.wire import plain

if TYPE_CHECKING:
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.store.records.trials import AttemptView


@dataclass
class GangEnd:
    """State of a gang's processes, as far as it is known."""

    exits: list[RankExit] = field(default_factory=list)
    #: ranks that use the training library
    joined: set[int] = field(default_factory=set)
    #: ranks that finished a step
    stepping: set[int] = field(default_factory=set)
    #: The ranks were asked to stop: a rank that then ends by the follower's signal has not failed.
    asked: bool = False
    #: Rank 0 left its loop because it was asked to: training is not complete.
    left_early: bool = False
    #: The last step that it had finished then, as it reported it.
    left_at: int | None = None
    #: host -> reason of its ``ended`` event
    ended: dict[str, str] = field(default_factory=dict)
    #: host -> why it was given up
    lost: dict[str, HostError] = field(default_factory=dict)
    #: Error for which the control side ended the gang, whatever its ranks report.
    over: DtrainError | None = None

    @property
    def failed(self) -> bool:
        """True once the gang can no longer complete."""
        return (
            self.over is not None
            or bool(self.lost)
            or any(leaving.exit_code != 0 and not (self.asked and leaving.sent_signal) for leaving in self.exits)
            or any(reason != "completed" and not (self.asked and reason == "stopped") for reason in self.ended.values())
        )

    def has_finished(self, view: AttemptView) -> bool:
        """Return whether every rank is known to have reached the end of its program.

        Of ranks that were stopped on a host that does not answer, nothing is known.
        """
        if any(leaving.exit_code != 0 for leaving in self.exits):
            return False
        has_completed = {host for host, reason in self.ended.items() if reason == "completed"}
        return has_completed >= view.placement.keys() or self.has_succeeded(view)

    def has_succeeded(self, view: AttemptView) -> bool:
        """Return whether every rank has ended by itself with exit code 0, whatever happened to its host afterwards."""
        count = sum(len(slots) for slots in view.placement.values())
        return self.over is None and len(self.exits) == count and all(one.exit_code == 0 for one in self.exits)

    def note(self, host: str, event: Mapping[str, Any], offset_s: float) -> None:
        """Record an event of a host.

        :param offset_s: seconds by which the host's clock is ahead of this process's clock
        """
        match event["kind"]:
            case "init":
                self.joined.add(int(event.get("rank", -1)))
            case "first_step":
                self.joined.add(int(event.get("rank", -1)))
                self.stepping.add(int(event.get("rank", -1)))
            case "stopped":
                self.left_early = True
                self.left_at = event["step"] if is_count(event.get("step")) else self.left_at
            case "exit":
                # A rank ends once, however often its host reports it.
                if all(known.rank != event["rank"] for known in self.exits):
                    self.exits.append(self._exit(host, event, offset_s))
            case "ended":
                self.ended[host] = str(event.get("reason"))
                if event.get("reason") == "lost":
                    self.lost[host] = _lost(host, event.get("cause"))

    def _exit(self, host: str, event: Mapping[str, Any], offset_s: float) -> RankExit:
        return RankExit(
            rank=int(event["rank"]),
            host=host,
            exit_code=event.get("exit_code"),
            at=float(event["at"]),
            offset_s=offset_s,
            error={name: text and printable(text) for name, text in (event.get("error") or {}).items()} or None,
            sent_signal=bool(event.get("sent_signal")),
            log_tail=printable(str(event.get("log_tail") or "")),
            has_stepped=int(event["rank"]) in self.stepping,
            place=_place(event.get("place")),
            stack=printable(str(event.get("stack") or "")),
            facts=_facts(event.get("facts")),
        )


def _place(values: Mapping[str, Any] | None) -> RankPlace | None:
    if not values:
        return None
    return RankPlace(**{**values, "phase": plain(values["phase"], 60), "what": plain(values["what"], 60)})


def _facts(values: Mapping[str, Any] | None) -> HostFacts:
    if not values:
        return HostFacts()
    names = ("oom_kills", "memory_limit_bytes", "memory_bytes", "peak_bytes", "open_files")
    full = [plain(path, 200) for path in values["full"]]
    faults = [
        DeviceFault(uuid=plain(one["uuid"], 96), xid=one["xid"], at=one["at"]) for one in values.get("faults") or ()
    ]
    return HostFacts(**{name: values[name] for name in names}, full=full, faults=faults)


def _lost(host: str, cause: Any) -> HostLostError:
    if cause == "reboot":
        return HostLostError(host, f"Host '{host}' was restarted while the run was on it.")
    return HostLostError(host, f"The supervisor of the run on host '{host}' was killed, and the ranks with it.")


@dataclass(kw_only=True, eq=False)
class Gang:
    """Gang of one attempt, as the parts of its follower share it."""

    #: The attempt when its follower began.
    view: AttemptView
    run_name: str
    end: GangEnd
    #: Channels that are open or were, by host.
    links: dict[str, HostLink] = field(default_factory=dict)
    #: Set when something has happened that the gang's follower must see at once.
    changed: asyncio.Event = field(default_factory=asyncio.Event)
