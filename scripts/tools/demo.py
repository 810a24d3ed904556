"""Implementation of scripts/demo: set-up, start of Airflow, training of the example, result, teardown."""

from __future__ import annotations

import argparse
import fcntl
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import borrow
import environment
import processes
from follow import DAG, Run, RunFailed, Screen, summary
from standalone import CODE, EXAMPLES, AirflowError, Standalone, free_ports, leftover, taken

FOLDER = environment.ROOT / ".demo"
PORT = 28080


class DemoError(Exception):
    """The demo cannot continue. The message gives the reason and the remedy."""


#: Failures of a run after which --keep leaves Airflow running.
FAILURES = (AirflowError, RunFailed)


def arguments() -> argparse.Namespace:
    """Return the command-line options."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Trains a small network on handwritten digits in a separate Airflow below .demo/, prints the "
        "accuracy, the checkpoint and the host of each rank, and ends every process that it started.",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave Airflow running, even after a failure; prints its address and login"
    )
    parser.add_argument("--stop", action="store_true", help="only end the Airflow that --keep left running")
    parser.add_argument("--fresh", action="store_true", help="delete the runs of earlier demos (removes .demo/airflow)")
    parser.add_argument(
        "--torch-from",
        type=Path,
        metavar="PATH",
        help="use the PyTorch of this Python interpreter instead of downloading it",
    )
    parser.add_argument(
        "--port",
        type=int,
        help=f"port of Airflow's web UI; the next two ports are used too (default {PORT} or the next free one)",
    )
    options = parser.parse_args()
    if options.port is not None and not 1024 <= options.port <= 65533:
        parser.error(f"--port must be between 1024 and 65533, got {options.port}")
    if options.torch_from:
        options.torch_from = options.torch_from.absolute()
    return options


@contextmanager
def alone() -> Iterator[None]:
    """Lock the folder, so that two demos never share it.

    :raises DemoError: another demo holds the lock
    """
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DemoError(
                f"Another scripts/demo is running in {FOLDER}. Wait for it, or end it with Ctrl-C."
            ) from error
        yield


def stop_leftover() -> bool:
    """End the Airflow of an earlier call and return whether there was one."""
    found = leftover(FOLDER)
    if found is None:
        return False
    print(f"Ending the Airflow that an earlier demo left running on port {found[1]}.", flush=True)
    processes.end(found[0], str(FOLDER))
    (FOLDER / "airflow.json").unlink(missing_ok=True)
    return True


def choose_port(named: int | None) -> int:
    """Return the first of three free ports: the one that the user named, otherwise any free one.

    :raises DemoError: the user named it, and it is in use
    """
    first = named if named is not None else PORT
    busy = [str(port) for port in range(first, first + 3) if taken(port)]
    if not busy:
        return first
    words = f"Port {busy[0]} is" if len(busy) == 1 else f"Ports {', '.join(busy)} are"
    free = free_ports(first + 10)
    if named is None:
        print(f"{words} in use by another program: Airflow gets {free}, {free + 1} and {free + 2}.", flush=True)
        return free
    raise DemoError(
        f"{words} in use by another program; the demo needs {first}, {first + 1} and {first + 2}. "
        f"Omit --port, or try: scripts/demo --port {free}"
    )


def train(airflow: Standalone, *, keep: bool) -> dict[str, Any]:
    """Return the result of the trial, after starting Airflow and running the example to its end.

    :param keep: leave a run that failed or timed out as it is, for inspection
    """
    screen = Screen()
    print(f"Starting Airflow on {airflow.address} (its output: {environment.shown(airflow.log)}).", flush=True)
    run = None
    try:
        airflow.start()
        airflow.wait(lambda missing: screen.show(f"waiting for: {missing}"))
        screen.done()
        run = Run(airflow=airflow, screen=screen)
        airflow.login(run.deadline)
        run.trigger()
        screen.done()
        print(f"Running the DAG {DAG} ({run.run_id}).", flush=True)
        run.follow()
        return run.result()
    except BaseException as error:
        screen.done()
        if run is not None and not (keep and isinstance(error, FAILURES)):
            with suppress(AirflowError):
                run.cancel()
                wait_for_ranks(airflow)
        raise


def wait_for_ranks(airflow: Standalone, patience_s: float = 10.0) -> None:
    """Wait until Airflow has stopped the ranks of a cancelled run.

    :param patience_s: longest wait
    """
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and any(supervises(one.pid) for one in processes.ours(airflow.pid, str(FOLDER))):
        time.sleep(0.2)


def supervises(pid: int) -> bool:
    """Return whether a process is a supervisor or a rank of a run."""
    with suppress(OSError):
        return b"DTRAIN_RUN=" in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def demo(options: argparse.Namespace) -> None:
    """Run the whole demo, or only end the leftover Airflow with --stop."""
    had_one = stop_leftover()
    if options.stop:
        print("It has ended." if had_one else "No Airflow of an earlier demo is running.", flush=True)
        return
    if options.port is not None:
        # The set-up takes minutes, and ports are in use by then that were free before.
        choose_port(options.port)
    if options.fresh:
        shutil.rmtree(FOLDER / "airflow", ignore_errors=True)
    wanted = environment.Wanted(folder=FOLDER / "venv", extras=("examples",), torch_from=options.torch_from)
    python = environment.ensure(wanted)
    airflow = Standalone(folder=FOLDER, python=python, port=choose_port(options.port))
    print("Starting Airflow and the run take about a minute on an idle machine.", flush=True)
    keep = options.keep
    try:
        result = train(airflow, keep=keep)
    except FAILURES:
        # An Airflow that has ended cannot be inspected.
        keep = keep and processes.read(airflow.pid) is not None
        raise
    except BaseException:
        keep = False
        raise
    finally:
        quiet()
        if keep:
            show_kept(airflow)
        else:
            print("Ending Airflow.", flush=True)
            airflow.stop()
    print("\nTrained " + DAG + ":\n" + "\n".join(summary(result)), flush=True)
    if keep:
        print(f"Its page: {trial_page(airflow.address, result)}", flush=True)


def trial_page(address: str, result: Mapping[str, Any]) -> str:
    """Return the address of the page of a trial.

    :param address: of the Airflow UI
    :param result: of the trial
    """
    return f"{address.rstrip('/')}/plugin/dtrain/trials/{result['trial_id']}"


def show_kept(airflow: Standalone) -> None:
    """Print how to reach, use and end the Airflow that keeps running."""
    try:
        password = airflow.password()
    except (OSError, ValueError, KeyError):
        password = f"in {environment.shown(airflow.log)}, once Airflow has started"
    print(f"\nAirflow keeps running: {airflow.address}  user admin  password {password}")
    print(f"Its experiments: {airflow.address}/plugin/dtrain/experiments")
    print(f"Its DAGs folder: {environment.shown(airflow.dags)}, beside the examples in {environment.shown(EXAMPLES)}")
    print(f"To start an experiment: {airflow.address}/plugin/dtrain/experiments/new (model_dir: {CODE})")
    print(f"To use the airflow command: source {environment.shown(airflow.write_environment())}")
    print("After that, to load a new DAG file at once: airflow dags reserialize")
    print("End it with: scripts/demo --stop", flush=True)


def quiet() -> None:
    """Ignore signals: the clean-up is bounded in time and must not be interrupted."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def interrupted(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt for a signal, as Ctrl-C does."""
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo and return its exit code. The reason of a known failure is printed."""
    if not Path("/proc/self/stat").exists():
        print("The demo needs Linux: hosts are supervised through /proc.", file=sys.stderr)
        return 1
    options = arguments()
    # SIGINT too: a shell without job control starts background commands with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        with alone():
            demo(options)
    except (DemoError, AirflowError, RunFailed, environment.SetupError, borrow.BorrowError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; everything that was started has ended.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
