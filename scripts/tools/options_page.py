"""Writes docs/options.md from the provider info: `python scripts/tools/options_page.py [--check]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from airflow_provider_dtrain.get_provider_info import get_provider_info

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
HEAD = """# Options of the provider

The section `[dtrain]` of Airflow's configuration. Each one can be set in `airflow.cfg` or as an environment variable,
for example `AIRFLOW__DTRAIN__ORPHAN_TIMEOUT=600`. This page is written by `scripts/tools/options_page.py`.

| option | type | default | meaning |
|---|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    options = get_provider_info()["config"]["dtrain"]["options"]
    rows = (
        f"| `{name}` | {option['type']} | {'`' + option['default'] + '`' if option['default'] else ''} "
        f"| {' '.join(option['description'].split())} |\n"
        for name, option in options.items()
    )
    return HEAD + "".join(rows) + "\nNext: [configuration of an experiment](configuration.md), [the store](store.md).\n"


def main() -> int:
    """Write the page. With --check, only return 1 when it is out of date."""
    parser = argparse.ArgumentParser(description="Writes the page of the options of [dtrain].")
    parser.add_argument("--check", action="store_true", help="only exit with 1 if it is out of date")
    if parser.parse_args().check:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
