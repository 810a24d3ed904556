"""Implementation of scripts/quickstart: runs the commands of docs/quickstart.md as they stand there, in an empty home.

Section 7 needs a second machine, and section 8 the trial of section 7. All other ones are run, in their order.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import processes
from demo import interrupted, quiet
from environment import ROOT
from standalone import FOREIGN, AirflowError, free_ports

PAGE = ROOT / "docs" / "quickstart.md"
PORT = 28180
#: Most seconds of one block of commands, which may download, and of one wait for Airflow or the trial.
BLOCK_S = 900.0
WAIT_S = 300.0
INTERRUPTS = 4
#: Time between two of them.
INTERRUPT_S = 20.0
#: The command that runs in the first terminal, and the line by which the page recognizes that Airflow is ready.
STANDALONE, READY = "airflow standalone", "Airflow is ready"
#: Blocks that the page asks to run after an event.
AFTER_THE_TRIGGER, AFTER_THE_TRIAL = "airflow dtrain queue list", "airflow dtrain trials describe"
AFTER_THE_FILE = "airflow dags unpause"
SECTIONS = range(1, 7)


class QuickstartError(Exception):
    """The page does not work as it stands. The message has the command and the end of its output."""


@dataclass(frozen=True)
class Block:
    """A block of code of the page."""

    language: str
    text: str
    #: The text since the block before.
    intro: str


def blocks(page: str) -> dict[int, list[Block]]:
    """Return the blocks of each numbered section of the page.

    :param page: text of the page
    """
    found: dict[int, list[Block]] = {}
    for number, section in re.findall(r"^## (\d+)\. (.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL):
        parts = re.split(r"^```(\w+)\n(.*?)^```\n", section, flags=re.MULTILINE | re.DOTALL)
        triples = zip(parts[1::3], parts[2::3], parts[0::3], strict=False)
        found[int(number)] = [Block(language, text, intro) for language, text, intro in triples]
    return found


def file_of(block: Block) -> str:
    """Return the path that the page names for a file, e.g. ``$AIRFLOW_HOME/dags/first/train.py``.

    :raises QuickstartError: the text before the block names none
    """
    names = re.findall(r"`(\$AIRFLOW_HOME/\S+?\.py)`", block.intro)
    if not names:
        raise QuickstartError(f"The page must name the file of this block before it:\n{block.text}")
    return str(names[-1])


def promised(text: str) -> list[str]:
    """Return the outputs that a text of the page promises: ``It prints `tensor([0, 1])```."""
    return re.findall(r"[Ii]t prints `([^`]+)`", text)


@dataclass
class Terminals:
    """The first terminal, which Airflow runs in, and the second one, which runs the other commands.

    :param folder: home of the account, empty before
    """

    folder: Path
    #: Lines that the page gives for each terminal that runs ``airflow``.
    lines: str = ""
    airflow: subprocess.Popen[bytes] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    #: Everything that the second terminal has printed.
    printed: str = ""

    def __post_init__(self) -> None:
        self.environment = environment(self.folder, os.environ)

    @property
    def log(self) -> Path:
        """Output of the first terminal."""
        return self.folder / "airflow.log"

    def command(self, text: str) -> list[str]:
        """Return the command line of a shell that runs a block and ends with its first failure."""
        return ["bash", "-euo", "pipefail", "-c", f"{self.lines}\n{text}"]

    def run(self, text: str) -> str:
        """Run a block in the second terminal, print what it prints, and return it.

        :raises QuickstartError: a command failed, or took too long
        """
        for line in text.splitlines():
            print(f"  $ {line}", flush=True)
        began = time.monotonic()
        try:
            done = subprocess.run(
                self.command(text),
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=BLOCK_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise QuickstartError(f"These commands did not end within {BLOCK_S:.0f} s:\n{text}") from error
        if done.returncode != 0:
            raise QuickstartError(f"Exit code {done.returncode} of:\n{text}\nIts output:\n{done.stdout[-6000:]}")
        self.printed += done.stdout
        shown = done.stdout.splitlines()[-12:]
        print("\n".join(f"    {line}" for line in shown), flush=True)
        print(f"  -- {time.monotonic() - began:.0f} s", flush=True)
        return done.stdout

    def start(self) -> None:
        """Start Airflow in the first terminal and wait until it is ready.

        :raises QuickstartError: it ended, or is not ready in time
        """
        with self.log.open("wb") as sink:
            self.airflow = subprocess.Popen(
                self.command(f"exec {STANDALONE}"),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        self.wait("Airflow", lambda: READY in self.log.read_text(errors="replace"))

    def wait(self, what: str, has_happened: Callable[[], bool]) -> None:
        """Wait for an event of the page.

        :raises QuickstartError: Airflow has ended, or the time is up
        """
        began = time.monotonic()
        while not has_happened():
            if self.airflow is not None and self.airflow.poll() is not None:
                raise QuickstartError(f"Airflow has ended. The end of its output:\n{self.tail()}")
            if time.monotonic() - began > WAIT_S:
                raise QuickstartError(f"Waited {WAIT_S:.0f} s for {what}. The end of Airflow's output:\n{self.tail()}")
            time.sleep(0.5)
        print(f"  -- waited {time.monotonic() - began:.0f} s for {what}", flush=True)

    def tail(self) -> str:
        """Return the end of Airflow's output."""
        return self.log.read_text(errors="replace")[-4000:]

    def state_of_trial(self, number: int) -> str | None:
        """Return the state of a trial, None before there is one of this number.

        It is read from the store's file, because a command of Airflow takes three seconds of CPU time.
        """
        with closing(sqlite3.connect(f"file:{self.folder}/dtrain/airflow/dtrain.db?mode=ro", uri=True)) as store:
            row = store.execute("SELECT state FROM trials WHERE id = ?", (number,)).fetchone()
        return str(row[0]) if row else None

    def has_dag(self, dag_id: str) -> bool:
        """Return whether Airflow can trigger a DAG. ``airflow dags reserialize`` races with the DAG processor."""
        with closing(sqlite3.connect(f"file:{self.folder}/dtrain/airflow/airflow.db?mode=ro", uri=True)) as database:
            return database.execute("SELECT 1 FROM serialized_dag WHERE dag_id = ?", (dag_id,)).fetchone() is not None

    def interrupt(self) -> None:
        """Press Ctrl-C in Airflow's terminal until it ends, which the page asks for.

        The triggerer of Airflow 3.3 may block on the lock of its own log when two signals arrive at once. The third
        Ctrl-C ends the wait of ``airflow standalone`` for its components.

        :raises QuickstartError: it does not end
        """
        assert self.airflow
        for _ in range(INTERRUPTS):
            os.killpg(self.airflow.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.airflow.wait(INTERRUPT_S)
                return
        raise QuickstartError(f"Airflow did not end after {INTERRUPTS} Ctrl-C. The end of its output:\n{self.tail()}")

    def end(self) -> None:
        """End every process that is left."""
        processes.end(self.airflow.pid if self.airflow else -1, str(self.folder))


def environment(folder: Path, caller: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an account whose home is an empty folder.

    Downloads come from the caller's index and cache, and Airflow gets free ports.
    """
    kept = {name: value for name, value in caller.items() if not name.startswith(FOREIGN)}
    home = Path(caller.get("HOME", "/"))
    caches = Path(caller.get("XDG_CACHE_HOME", home / ".cache"))
    settings = [path for path in (home / ".config/pip/pip.conf", home / ".pip/pip.conf") if path.is_file()]
    found = {"PIP_CONFIG_FILE": str(settings[0])} if settings else {}
    port = free_ports(PORT)
    address = f"http://localhost:{port}"
    own = {
        "HOME": str(folder),
        "PATH": f"{python_folder(folder)}{os.pathsep}{caller.get('PATH', os.defpath)}",
        "NO_PROXY": ",".join(filter(None, [caller.get("NO_PROXY"), "127.0.0.1,localhost"])),
        processes.MARK: str(folder),
        # As on a terminal: into a file, Airflow would print that it is ready only with the next 8 KiB.
        "PYTHONUNBUFFERED": "1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": address,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(port + 1),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(port + 2),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    return {"PIP_CACHE_DIR": str(caches / "pip"), **found} | kept | own


def python_folder(folder: Path) -> Path:
    """Return a folder in which ``python3`` is the interpreter of this program, which the page requires."""
    made = folder / "path"
    made.mkdir(exist_ok=True)
    base = getattr(sys, "_base_executable", None) or sys.executable
    (made / "python3").write_text(f'#!/bin/sh\nexec "{base}" "$@"\n')
    (made / "python3").chmod(0o755)
    return made


def follow(page: str, terminals: Terminals) -> None:
    """Do what the page says.

    :raises QuickstartError: a command fails, or does not print what the page promises
    """
    sections = blocks(page)
    for number in SECTIONS:
        print(f"== section {number}", flush=True)
        for block in sections[number]:
            if block.language == "python":
                terminals.run(f"cat > {file_of(block)} <<'END-OF-FILE'\n{block.text}END-OF-FILE\n")
            elif "export AIRFLOW_HOME" in block.text:
                terminals.lines = block.text
            elif STANDALONE in block.text:
                terminals.start()
            else:
                run(block, terminals)
        for output in promised(page.partition(f"## {number}.")[2].partition("\n## ")[0]):
            if output not in terminals.printed:
                raise QuickstartError(f"Section {number} must print {output!r}.")
    print("== section 8", flush=True)
    terminals.interrupt()


def run(block: Block, terminals: Terminals) -> None:
    """Run the commands of a block, once the event has happened that they wait for."""
    if block.text.startswith(AFTER_THE_FILE):
        dag_id = block.text.removeprefix(AFTER_THE_FILE).split()[0]
        terminals.wait(f"the DAG {dag_id}", lambda: terminals.has_dag(dag_id))
    if block.text.startswith(AFTER_THE_TRIGGER):
        terminals.wait("the trial", lambda: terminals.state_of_trial(1) is not None)
    if block.text.startswith(AFTER_THE_TRIAL):
        number = int(block.text.removeprefix(AFTER_THE_TRIAL).split()[0])
        running = {None, "queued", "running"}
        terminals.wait(f"the end of trial {number}", lambda: terminals.state_of_trial(number) not in running)
        if (state := terminals.state_of_trial(number)) != "completed":
            raise QuickstartError(f"Trial {number} must end as completed, got {state}.")
    terminals.run(block.text)


def main() -> int:
    """Run the page and return the exit code."""
    argparse.ArgumentParser(prog="scripts/quickstart", description=__doc__).parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    folder = Path(tempfile.mkdtemp(prefix="dtrain-quickstart-"))
    terminals = Terminals(folder)
    began = time.monotonic()
    try:
        follow(PAGE.read_text(), terminals)
    except (QuickstartError, AirflowError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; everything that was started has ended.", file=sys.stderr)
        return 130
    finally:
        quiet()
        terminals.end()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\nThe quickstart works as it stands, in {time.monotonic() - began:.0f} s.", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
