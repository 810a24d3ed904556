"""One trial of a simulated run, as its follower and its hosts write it into the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.engine.attempt.xcom_result import trial_result
from airflow_provider_dtrain.store.records.trials import EndState, Ticket, TrialSubmission
from testbed.seed.simulation import AskedError, Awaits, EndedError, Life, Simulation

SUPERVISOR = "supervisor.events"
#: Bytes that an event moves its stream by. The store only compares offsets.
EVENT_BYTES = 100
Failure = Mapping[str, Any]
#: What the ranks of every seeded trial run with.
RUNTIME = {
    "python": "3.12.4", "executable": "/opt/venvs/train/bin/python", "torch": "2.8.0", "cuda": "12.8",
    "cudnn": "9.10.2", "nccl": "2.27.3",
}  # fmt: skip
PACKAGES = {
    "filelock": "3.18.0", "fsspec": "2025.5.1", "jinja2": "3.1.6", "mpmath": "1.3.0", "networkx": "3.5",
    "numpy": "2.3.1", "nvidia-cudnn-cu12": "9.10.2.21", "nvidia-nccl-cu12": "2.27.3", "pandas": "2.3.0",
    "pyarrow": "20.0.0", "sympy": "1.14.0", "torch": "2.8.0", "torchvision": "0.23.0", "transformers": "4.53.1",
    "triton": "3.4.0",
}  # fmt: skip


def killed(by: str) -> Failure:
    """Return the failure of a trial that a user killed."""
    message = f"The trial was killed by {by}."
    return {"error": "TrialKilledError", "kind": "user", "message": message, "host": None, "rank": None}


class Run:
    """A trial and its follower. Each method is what the follower of a real run writes at that point."""

    def __init__(self, site: Simulation, submission: TrialSubmission) -> None:
        self.site = site
        self.store = site.store
        self.pool = submission.pool
        self.trial_id = 0
        #: How the latest training ended, see :func:`testbed.seed.training.train`.
        self.verdict = ""
        #: Packages of the interpreter on its hosts: name -> version.
        self.packages = PACKAGES
        #: Start of the current attempt, Unix seconds.
        self.started_s = 0.0
        self._submission = submission
        self._seq: dict[tuple[str, str], int] = defaultdict(int)

    # -- the queue ------------------------------------------------------------------------------
    def submit(self) -> None:
        """Submit the trial."""
        self._follow(self.store.trials.submit(self._submission))
        self.trial_id = self.ticket.trial_id

    def start(self) -> Life:
        """Wait for the gang, and start the ranks."""
        while True:
            try:
                yield Awaits(self.ticket.allocation_id, self.pool, self._renew)
            except AskedError:
                self._end_waiting()
            if self.store.queue.take_up(self.ticket.attempt_id, self.watch) is not None:
                break
        yield 4.0
        self.launch()
        yield 6.0

    def _end_waiting(self) -> None:
        """End the trial, which holds no slots, as a user requested."""
        by = self.store.control.pending(self.ticket.attempt_id).kill_by
        self.finish("stopped" if by is None else "killed", None if by is None else killed(by))
        raise EndedError

    @property
    def is_asked(self) -> bool:
        """True when the trial has to end or to release its gang."""
        requests = self.store.control.pending(self.ticket.attempt_id)
        if self.ticket.attempt_id in self.site.leases:
            return bool(requests.kill_by or requests.stop_by or requests.pause_by or requests.preempted_for)
        return self.ticket.allocation_id in self.site.waiting and bool(requests.kill_by or requests.stop_by)

    def launch(self) -> None:
        """Start the ranks on the granted slots."""
        attempt = self.ticket.attempt_id
        view = self.store.attempts.get(attempt)
        self.placement = {host: slots or (-1,) for host, slots in view.placement.items()}
        places = [(host, slot) for host, slots in self.placement.items() for slot in slots]
        self.ranks: dict[str, list[int]] = defaultdict(list)
        plans: dict[str, dict[str, Any]] = {host: {"ranks": []} for host in self.placement}
        for rank, (host, slot) in enumerate(places):
            plans[host]["ranks"].append({"rank": rank, "local_rank": len(self.ranks[host]), "slot": slot})
            self.ranks[host].append(rank)
        self.first_host = places[0][0]
        self._record_launch()
        self.store.attempts.set_plan(attempt, self.watch, {"plans": plans}, {"host": self.first_host, "port": 29500})
        self._seq.clear()
        for host, ranks in self.ranks.items():
            pids = [{"rank": rank, "pid": 20_000 + 17 * rank + attempt} for rank in ranks]
            self.commit([{"kind": "prepared", "port": 29500}, {"kind": "started", "ranks": pids}], host, SUPERVISOR)
        self.store.attempts.set_running(attempt, self.watch)
        self.started_s = self.site.clock.unix
        self.has_gpus = self.store.hosts.get(self.first_host).slot_type == "cuda"
        self.site.leases[attempt] = self.watch
        self.commit([{"kind": "init", "device": "cuda:0", "backend": "nccl", **RUNTIME}, {"kind": "first_step"}])

    def _record_launch(self) -> None:
        hosts: dict[str, Any] = {}
        for name in self.placement:
            host = self.store.hosts.get(name)
            devices = {str(one.index): one.device and one.device_name for one in host.slots}
            own = {str(slot): devices.get(str(slot)) for slot in self.placement[name]}
            driver = "570.124.06" if host.slot_type == "cuda" else None
            facts = {"python": RUNTIME["python"], "executable": RUNTIME["executable"], "cuda": RUNTIME["cuda"]}
            hosts[name] = {"devices": own, "driver": driver, "image": None, "packages": self.packages, **facts}
        self.store.provenance.set_launch(self.ticket.attempt_id, self.watch, None, hosts)

    def _follow(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.watch = self.store.attempts.watch(ticket.attempt_id, watcher="triggerer on airflow-1")
        self.site.begin_follow(self)

    def _renew(self) -> None:
        self.store.queue.renew(self.ticket.attempt_id, self.watch)

    # -- reports --------------------------------------------------------------------------------
    def commit(self, events: list[dict[str, Any]], host: str | None = None, stream: str = "rank0.events") -> None:
        """Commit events of one file of a host, which have the time of the simulation unless they name one."""
        host = host or self.first_host
        before = self._seq[host, stream]
        self._seq[host, stream] += len(events)
        now = self.site.clock.unix
        batch = [{"at": now, **event, "seq": before + number} for number, event in enumerate(events, 1)]
        offsets = EVENT_BYTES * before, EVENT_BYTES * (before + len(events))
        self.store.events.commit(self.ticket.attempt_id, self.watch, host, stream, *offsets, batch)

    def decision(self, rung: int, units: int, metric: float | None, step: int) -> str | None:
        """Report at a rung, and return the searcher's decision."""
        self.commit([{"kind": "rung", "rung": rung, "units": units, "metric": metric, "step": step}])
        found = self.store.searches.decisions(self.trial_id)
        return found[-1].decision if found else None

    # -- ends -----------------------------------------------------------------------------------
    def exits(self, codes: Mapping[int, int], logs: Mapping[int, str], errors: Mapping[int, Failure] | None = None,
              *, sent_signal: bool = False) -> None:  # fmt: skip
        """Report the end of every rank.

        :param codes: exit codes of ranks that did not end with 0
        :param logs: last lines of the logs, by rank
        :param errors: ``message`` and ``traceback``, by rank
        """
        # From here on it is ending, and takes no further control request.
        self.site.leases.pop(self.ticket.attempt_id, None)
        for host, ranks in self.ranks.items():
            ended = [
                {
                    "kind": "exit",
                    "rank": rank,
                    "exit_code": codes.get(rank, 0),
                    "error": (errors or {}).get(rank),
                    "log_tail": logs.get(rank, ""),
                    "sent_signal": sent_signal and rank in codes and rank not in (errors or {}),
                }
                for rank in ranks
            ]
            over = {"kind": "ended", "reason": "failed" if codes and not sent_signal else "finished"}
            self.commit([*ended, over], host, SUPERVISOR)
        text = logs.get(0, "").encode()
        self.store.events.commit_log(
            self.ticket.attempt_id, self.watch, self.first_host, 0, len(text), text or None, closed=True
        )

    def release(self) -> None:
        """Release the slots, which every host confirms."""
        attempt = self.ticket.attempt_id
        if held := self.store.attempts.get(attempt).held_hosts:
            self.store.queue.release(attempt, self.watch, held, proof="clear")

    def finish(self, state: EndState = "completed", failure: Failure | None = None) -> None:
        """End the trial."""
        self.release()
        view = self.store.attempts.get(self.ticket.attempt_id)
        result = None if state == "killed" else trial_result(self.store, view, state)
        self.store.attempts.end(view.attempt_id, self.watch, state=state, failure=failure, result=result)

    def restart(self, failure: Failure, *, counted: bool = True) -> None:
        """Restart the trial on its gang after a failure."""
        self.site.leases.pop(self.ticket.attempt_id, None)
        self._follow(self.store.attempts.next(self.ticket.attempt_id, self.watch, failure=failure, counted=counted))

    def move_on(self, failure: Failure, host: str) -> bool:
        """Let the trial wait for other hosts than one that was lost. Its other hosts are released."""
        self.site.leases.pop(self.ticket.attempt_id, None)
        others = [name for name in self.placement if name != host]
        if others:
            self.store.queue.release(self.ticket.attempt_id, self.watch, others, proof="clear")
        ticket = self.store.attempts.move_on(self.ticket.attempt_id, self.watch, failure=failure, exclude_host=host)
        if ticket is not None:
            self._follow(ticket)
        return ticket is not None

    def give_way(self, reason: str, *, paused: bool = False) -> None:
        """Release the gang for a more urgent request or a pause, and wait again."""
        self.store.attempts.set_stopping(self.ticket.attempt_id, self.watch, reason)
        self.release()
        self._follow(self.store.attempts.yield_gang(self.ticket.attempt_id, self.watch, reason=reason, paused=paused))
