"""Follows one DAG run and reads its result, through Airflow's REST API."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from standalone import AirflowError, NoAnswerError, Standalone

DAG = "dtrain_digits"
LISTED_S = 600.0
RUN_S = 1800.0
#: Seconds after which an unchanged status is a line again, where lines are not rewritten.
REPEATED_S = 20.0
NUMBER = r"\D{0,3}?([0-9]+(?:\.[0-9]+)?)"
SIGNS = {"success": "+", "running": ">", "deferred": ">", "up_for_retry": "~", "failed": "x", "upstream_failed": "x"}


class RunFailed(Exception):
    """The DAG run did not succeed. The message has the task and the end of its log."""


class Screen:
    """Status line: rewritten in place on a terminal, elsewhere one line per change, and one each 20 s."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self.last = ""
        self.began = self.written = time.monotonic()

    def show(self, text: str) -> None:
        """Show a status that a later call replaces."""
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            line = f"  [{time.monotonic() - self.began:4.0f} s] {text}"
            sys.stdout.write("\r\033[K" + line[:width])
        elif text != self.last or time.monotonic() - self.written > REPEATED_S:
            sys.stdout.write(f"  [{time.monotonic() - self.began:4.0f} s] {text}\n")
            self.written = time.monotonic()
        sys.stdout.flush()
        self.last = text

    def done(self) -> None:
        """Keep the current line and continue below it."""
        if self.live and self.last:
            sys.stdout.write("\n")
        sys.stdout.flush()
        self.last = ""


@dataclass(kw_only=True)
class Run:
    """One run of the example DAG."""

    airflow: Standalone
    screen: Screen
    run_id: str = ""
    #: Time of the monotonic clock at which the run times out.
    deadline: float = field(default_factory=lambda: time.monotonic() + RUN_S)
    #: (task id, try) of the failed tries that were printed
    told: set[tuple[str, int]] = field(default_factory=set)

    @property
    def path(self) -> str:
        """Path of the run in the REST API."""
        return f"/api/v2/dags/{DAG}/dagRuns/{self.run_id}"

    def trigger(self) -> None:
        """Start a run, after Airflow has parsed the DAG and the runs of earlier calls were ended.

        :raises AirflowError: the DAG cannot be imported, or did not appear
        """
        self.wait_listed()
        self.fail_old_runs()
        self.ask("PATCH", f"/api/v2/dags/{DAG}", {"is_paused": False})
        # The client chooses the run id: a request that is repeated after a late answer starts only one run.
        run_id = f"demo__{time.strftime('%Y-%m-%dT%H:%M:%S')}"
        try:
            self.ask("POST", f"/api/v2/dags/{DAG}/dagRuns", {"logical_date": None, "dag_run_id": run_id})
        except AirflowError as error:
            if "HTTP 409" not in str(error):
                raise
        self.run_id = run_id

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer of one REST call, which is retried until the run's deadline."""
        return self.airflow.ask(method, path, body, deadline=self.deadline)

    def wait_listed(self) -> None:
        """Wait until Airflow knows the DAG.

        :raises AirflowError: the DAG has an import error, or did not appear within 10 minutes
        """
        deadline = time.monotonic() + LISTED_S
        while time.monotonic() < deadline:
            errors = self.ask("GET", "/api/v2/importErrors")["import_errors"]
            for error in errors:
                if error["filename"].endswith(f"{DAG}.py"):
                    raise AirflowError(f"Airflow cannot import {error['filename']}:\n{error['stack_trace']}")
            dags = self.ask("GET", f"/api/v2/dags?dag_id_pattern={DAG}")["dags"]
            if any(dag["dag_id"] == DAG for dag in dags):
                return
            self.screen.show(f"waiting until Airflow has parsed {DAG}")
            time.sleep(0.5)
        raise AirflowError(f"Airflow did not find the DAG {DAG} within {LISTED_S:.0f} s. See {self.airflow.log}.")

    def fail_old_runs(self) -> None:
        """Fail the runs that an interrupted call left unfinished."""
        for state in ("queued", "running"):
            for run in self.ask("GET", f"/api/v2/dags/{DAG}/dagRuns?state={state}")["dag_runs"]:
                self.ask("PATCH", f"/api/v2/dags/{DAG}/dagRuns/{run['dag_run_id']}", {"state": "failed"})

    def follow(self) -> None:
        """Show the run's progress until it has ended.

        :raises RunFailed: it failed, or timed out
        """
        while time.monotonic() < self.deadline:
            state = self.ask("GET", self.path)["state"]
            tasks = self.tasks()
            self.tell_retries(tasks)
            self.screen.show(self.line(tasks))
            if state in ("success", "failed"):
                self.screen.done()
            if state == "success":
                return
            if state == "failed":
                raise RunFailed(self.why(tasks))
            time.sleep(1.0)
        raise RunFailed(f"The run did not end within {RUN_S:.0f} s. See {self.airflow.log}.")

    def tell_retries(self, tasks: list[dict[str, Any]]) -> None:
        """Print once for each failed try that Airflow retries the task, with the end of its log."""
        for task in tasks:
            mark = (task["task_id"], task["try_number"])
            if task["state"] == "up_for_retry" and mark not in self.told:
                self.told.add(mark)
                self.screen.done()
                print(
                    f"Try {mark[1]} of task {mark[0]} failed; Airflow retries it.\n{self.log_end(task, 4)}", flush=True
                )

    def tasks(self) -> list[dict[str, Any]]:
        """Return the task instances in the order of the DAG."""
        found = self.ask("GET", f"{self.path}/taskInstances?order_by=id")["task_instances"]
        return sorted(found, key=lambda task: (task["start_date"] or "9", task["task_id"]))

    def line(self, tasks: list[dict[str, Any]]) -> str:
        """Return the state of all tasks and the last step in the running task's log."""
        shown = [f"{SIGNS.get(task['state'] or '', '.')} {task['task_id']}" for task in tasks]
        now = [task for task in tasks if task["state"] in ("running", "deferred")]
        progress = last_progress(self.log_lines(now[-1])) if now else ""
        return "  ".join(shown) + (f"  |  {progress}" if progress else "")

    def log_lines(self, task: Mapping[str, Any]) -> Iterator[str]:
        """Return the lines of a task instance's log so far, none when Airflow does not answer."""
        attempt = max(1, task["try_number"] or 1)
        place = f"{self.path}/taskInstances/{task['task_id']}/logs/{attempt}"
        place += f"?map_index={task['map_index']}&full_content=true"
        try:
            content = self.airflow.call("GET", place)["content"]
        except AirflowError:
            return iter(())
        return (text(item) for item in content)

    def why(self, tasks: list[dict[str, Any]]) -> str:
        """Return the reason of a failure: the first failed task and the end of its log."""
        failed = [task for task in tasks if task["state"] == "failed"]
        if not failed:
            return f"The run failed before a task did. See {self.airflow.log}."
        return f"Task {failed[0]['task_id']} failed. The end of its log:\n{self.log_end(failed[0], 12)}"

    def log_end(self, task: Mapping[str, Any], count: int) -> str:
        """Return the last entries of a task's log, indented. Long entries are cut to their last 30 lines."""
        # Airflow begins each log with the path of its file.
        lines = [line for line in self.log_lines(task) if line.strip() and not re.match(r"::|/\S*\.log$", line)]
        if not lines:
            return f"    (empty: Airflow could not begin the task; see {self.airflow.log})"
        return "\n".join("    " + part for line in lines[-count:] for part in line.splitlines()[-30:])

    def result(self) -> dict[str, Any]:
        """Return the trial's XCom.

        :raises RunFailed: no task of the run has returned one
        """
        for task in self.tasks():
            place = f"{self.path}/taskInstances/{task['task_id']}/xcomEntries/return_value?deserialize=true"
            try:
                value = self.ask("GET", place)["value"]
            except NoAnswerError:
                raise
            except AirflowError:
                continue
            if isinstance(value, dict) and {"experiment_id", "hosts"} <= value.keys():
                return value
        raise RunFailed("The run succeeded, but none of its tasks returned the result of a trial.")

    def cancel(self) -> None:
        """Fail the run, so that Airflow stops the ranks on their hosts."""
        if self.run_id:
            self.airflow.call("PATCH", self.path, {"state": "failed"})


def text(item: object) -> str:
    """Return one entry of a task log as text, with its traceback."""
    if not isinstance(item, Mapping):
        return str(item)
    parts = [str(item.get("event", ""))]
    for error in item.get("error_detail") or ():
        parts.append(f"{error.get('exc_type')}: {error.get('exc_value')}")
    return "\n".join(parts)


def last_progress(lines: Iterator[str]) -> str:
    """Return the last accuracy in a log with its step, as text, and the last step where no line has an accuracy."""
    found: dict[str, str] = {}
    # One entry of the log may have many lines.
    for line in (one for entry in lines for one in entry.splitlines()):
        values = {name: matches[-1] for name in ("step", "accuracy") if (matches := _numbers(name, line))}
        if "accuracy" in values or "accuracy" not in found:
            found.update(values)
    return ", ".join(f"{name} {value}" for name, value in found.items())


def _numbers(name: str, line: str) -> list[str]:
    """Return the numbers after a name in a line, integers without leading zeros."""
    found = re.findall(rf"\b{name}\b{NUMBER}", line)
    return [one if "." in one else str(int(one)) for one in found]


def summary(result: Mapping[str, Any]) -> list[str]:
    """Return the lines of the result: metric, checkpoint, host and slot of each rank."""
    metrics = result.get("metrics") or {}
    accuracy = metrics.get("accuracy", result.get("metric"))
    lines = [f"accuracy {accuracy:.4f}" if isinstance(accuracy, float) else f"accuracy {accuracy}"]
    checkpoint = result.get("checkpoint")
    if isinstance(checkpoint, Mapping):
        checkpoint = checkpoint.get("path") or checkpoint.get("url")
    lines.append(f"checkpoint {checkpoint or 'none kept'}")
    places = [
        (rank["rank"], host["host"], rank["slot"]) for host in result.get("hosts") or () for rank in host["ranks"]
    ]
    lines += [f"rank {rank} on {host} slot {slot}" for rank, host, slot in sorted(places)]
    return lines
