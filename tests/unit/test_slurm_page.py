"""Statements of docs/slurm.md that must match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_dtrain.core.slurm.reasons import slurm_reason
from airflow_provider_dtrain.terminal import definition
from airflow_provider_dtrain.terminal.arguments import Group, InOrder

PAGE = (Path(__file__).parents[2] / "docs/slurm.md").read_text()


def table(header: str) -> list[list[str]]:
    """Return the rows of the table with a header."""
    text = PAGE.partition(f"| {header} |\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()[1:]]


@pytest.mark.parametrize("row", table("reason | sentence | what to do"), ids=lambda row: row[0].strip("` "))
def test_a_reason_has_the_sentence_that_users_read(row: list[str]) -> None:
    assert slurm_reason(row[0].strip("` ")).sentence == row[1]


def test_the_table_has_each_option_of_a_pool() -> None:
    named = [flag for row in table("option | meaning") for flag in re.findall(r"`(--[a-z-]+)`", row[0])]
    groups = [one for one in definition.commands() if isinstance(one, Group)]
    (options,) = [
        one
        for group in groups
        for command in group.commands
        if (group.name, command.name) == ("pools", "set")
        for one in command.args
        if isinstance(one, InOrder)
    ]
    args = dict(options.groups)["Slots of another scheduler"]
    assert sorted(named) == sorted(one.flags[0] for one in args)
