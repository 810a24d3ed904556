"""What scripts/demo runs: sets up, starts Airflow, trains the example, shows the result, ends everything."""

from __future__ import annotations

import argparse
import fcntl
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import borrow
import environment
import processes
from follow import DAG, Run, RunFailed, Screen, summary
from standalone import AirflowError, Standalone, leftover, taken

FOLDER = environment.ROOT / ".demo"
PORT = 28080


class DemoError(Exception):
    """The demo cannot go on; the text says why and what to do."""


def arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Trains a small network on handwritten digits in an Airflow of its own below .demo/, prints the "
        "accuracy, the checkpoint and where each rank ran, and ends everything that it started.",
    )
    parser.add_argument("--keep", action="store_true", help="leave Airflow running; prints its address and login")
    parser.add_argument(
        "--stop", action="store_true", help="end the Airflow that --keep left running, and nothing else"
    )
    parser.add_argument("--fresh", action="store_true", help="forget the runs of earlier demos (removes .demo/airflow)")
    parser.add_argument(
        "--torch-from",
        type=Path,
        metavar="PATH",
        help="use the PyTorch of this Python program instead of downloading it",
    )
    parser.add_argument(
        "--port", type=int, default=PORT, help=f"port of Airflow's pages; the two above are used too (default {PORT})"
    )
    options = parser.parse_args()
    if not 1024 <= options.port <= 65533:
        parser.error(f"--port {options.port} is not between 1024 and 65533")
    if options.torch_from:
        options.torch_from = options.torch_from.absolute()
    return options


@contextmanager
def alone() -> Iterator[None]:
    """Hold the folder, so that two demos never share it."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DemoError(
                f"Another scripts/demo is at work in {FOLDER}. Wait for it, or end it with Ctrl-C."
            ) from error
        yield


def stop_leftover() -> bool:
    """End the Airflow of an earlier call; return whether there was one."""
    found = leftover(FOLDER)
    if found is None:
        return False
    print(f"Ending the Airflow that an earlier demo left running on port {found[1]}.", flush=True)
    processes.end(found[0], str(FOLDER))
    (FOLDER / "airflow.json").unlink(missing_ok=True)
    return True


def check_ports(first: int) -> None:
    """Refuse to start when a port is in use."""
    busy = [port for port in range(first, first + 3) if taken(port)]
    if busy:
        free = next(port for port in range(first + 10, 65500, 10) if not any(taken(port + n) for n in range(3)))
        raise DemoError(
            f"Port {', '.join(map(str, busy))} is in use by another program; "
            f"the demo needs {first}, {first + 1} and {first + 2}. Try: scripts/demo --port {free}"
        )


def train(airflow: Standalone) -> list[str]:
    """Start Airflow, run the example to its end and return the lines of the result."""
    screen = Screen()
    run = Run(airflow=airflow, screen=screen)
    print(f"Starting Airflow on {airflow.address} (its output: {environment.shown(airflow.log)}).", flush=True)
    try:
        airflow.start()
        airflow.wait(lambda missing: screen.show(f"waiting for: {missing}"))
        screen.done()
        airflow.login()
        run.trigger()
        screen.done()
        print(f"Running the DAG {DAG} ({run.run_id}).", flush=True)
        run.follow()
        return summary(run.result())
    except BaseException:
        screen.done()
        with suppress(AirflowError):
            run.cancel()
            wait_for_ranks(airflow)
        raise


def wait_for_ranks(airflow: Standalone, patience_s: float = 10.0) -> None:
    """Give Airflow the time to stop the ranks of a cancelled run."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and any(supervises(one.pid) for one in processes.ours(airflow.pid, str(FOLDER))):
        time.sleep(0.2)


def supervises(pid: int) -> bool:
    """Return whether a process is a supervisor or a rank of a run."""
    with suppress(OSError):
        return b"DTRAIN_RUN=" in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def demo(options: argparse.Namespace) -> None:
    """Run the whole demo."""
    had_one = stop_leftover()
    if options.stop:
        print("It has ended." if had_one else "No Airflow of an earlier demo is running.", flush=True)
        return
    check_ports(options.port)
    if options.fresh:
        shutil.rmtree(FOLDER / "airflow", ignore_errors=True)
    wanted = environment.Wanted(folder=FOLDER / "venv", extras=("examples",), torch_from=options.torch_from)
    airflow = Standalone(folder=FOLDER, python=environment.ensure(wanted), port=options.port)
    keep = False
    try:
        lines = train(airflow)
        keep = options.keep
    finally:
        quiet()
        if not keep:
            print("Ending Airflow.", flush=True)
            airflow.stop()
    if keep:
        print(f"\nAirflow stays up: {airflow.address}  user admin  password {airflow.password()}")
        print(f"Its DAGs folder: {environment.shown(airflow.dags)}")
        print(f"For the airflow command: source {environment.shown(airflow.write_environment())}")
        print("End it with: scripts/demo --stop")
    print("\nTrained " + DAG + ":\n" + "\n".join(lines), flush=True)


def quiet() -> None:
    """Let the clean-up finish: it is bounded and must not be interrupted half-way."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def interrupted(number: int, frame: FrameType | None) -> None:
    """Turn a signal into the exception that Ctrl-C raises."""
    raise KeyboardInterrupt


def main() -> int:
    """Run, and turn every known failure into words and an exit code."""
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
