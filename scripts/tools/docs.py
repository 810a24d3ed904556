"""Implementation of scripts/docs: the environment of the tests, and in it the build of the documentation site."""

from __future__ import annotations

import os
import sys

import borrow
import checks
import environment


def main() -> int:
    """Build the site, or print the reason for a failed set-up."""
    wanted = environment.Wanted(folder=environment.ROOT / ".venv-test", extras=checks.EXTRAS)
    try:
        python = str(environment.ensure(wanted))
    except (environment.SetupError, borrow.BorrowError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    os.execv(python, [python, str(environment.ROOT / "scripts" / "tools" / "docs_site.py"), *sys.argv[1:]])  # noqa: S606


if __name__ == "__main__":
    raise SystemExit(main())
