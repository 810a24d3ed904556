"""Many ``airflow`` commands for the cost of one start: Airflow is imported once, and each command is a fork.

As a program it reads one JSON array per line (the arguments, more variables, then the paths of standard input, output
and error), runs Airflow's own ``main`` in a fork, and prints the exit status.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: What commands import when they run.
NEEDED = (
    "airflow_provider_dtrain.store.store",
    "airflow_provider_dtrain.engine.attempt.runner",
    "airflow_provider_dtrain.engine.submission.submit",
    "airflow.providers.ssh.hooks.ssh",
)


@dataclass(frozen=True)
class Done:
    """Result of a finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, parsed as JSON."""
        return json.loads(self.out)


class ForkingCli:
    """Runs commands with one environment.

    :param folder: for the files that replace standard input, output and error
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, dict(environment)
        self._server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment, text=True
        )

    def run(self, *arguments: str, given: bytes = b"", variables: Mapping[str, str] | None = None) -> Done:
        """Run ``airflow`` with these arguments, this standard input and more variables."""
        paths = [self.folder / name for name in ("stdin", "stdout", "stderr")]
        paths[0].write_bytes(given)
        code = self._run(arguments, variables, *map(str, paths))
        return Done(code, paths[1].read_text(errors="replace"), paths[2].read_text(errors="replace"))

    def run_on_terminal(self, terminal: str, *arguments: str, variables: Mapping[str, str] | None = None) -> int:
        """Run ``airflow`` on a terminal, given by its path, and return the exit status."""
        return self._run(arguments, variables, *[terminal] * 3)

    def _run(self, arguments: Sequence[str], variables: Mapping[str, str] | None, *files: str) -> int:
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps([list(arguments), dict(variables or {}), *files]) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        assert answer, "the command server has ended"
        return int(answer)

    def close(self) -> None:
        """Stop the server."""
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait(timeout=180)


def _serve() -> None:
    import airflow.__main__
    import airflow.cli.cli_parser
    import airflow.models
    import sqlalchemy.orm

    import airflow_provider_dtrain.cli

    commands = pkgutil.iter_modules(airflow_provider_dtrain.cli.__path__, "airflow_provider_dtrain.cli.")
    for module in (*(one.name for one in commands), *NEEDED):
        importlib.import_module(module)
    airflow.cli.cli_parser.get_parser()
    airflow.models.import_all_models()
    sqlalchemy.orm.configure_mappers()
    # The garbage collector of a fork would examine, and so copy, all objects of these modules.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        arguments, variables, *paths = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.environ.update(variables)
            _become(airflow.__main__.main, arguments, *paths)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(status, flush=True)


def _become(main: Any, arguments: list[str], stdin: str, stdout: str, stderr: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for fd, opened in ((0, os.open(stdin, os.O_RDONLY)), (1, os.open(stdout, flags)), (2, os.open(stderr, flags))):
        os.dup2(opened, fd)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["airflow", *arguments]
    code = 0
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
