"""Runs a tool of this folder in the environment of the tests: `in_environment.py TOOL [arguments]`."""

from __future__ import annotations

import os
import sys

import borrow
import checks
import environment


def main() -> int:
    """Create or reuse the environment and run the tool, or print the reason for a failed set-up.

    Its help needs no environment.
    """
    tool, *arguments = sys.argv[1:]
    command = [str(environment.ROOT / "scripts" / "tools" / tool), *arguments]
    if {"-h", "--help"} & set(arguments):
        os.execv(sys.executable, [sys.executable, *command])
    wanted = environment.Wanted(folder=environment.ROOT / ".venv-test", extras=checks.EXTRAS)
    try:
        python = str(environment.ensure(wanted))
    except (environment.SetupError, borrow.BorrowError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    os.execv(python, [python, *command])


if __name__ == "__main__":
    raise SystemExit(main())
