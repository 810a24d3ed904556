"""``airflow dtrain simulate`` as a command, without a store and Airflow's database."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.forking_cli import Done, ForkingCli

ROOT = Path(__file__).parents[2]
EXCERPT = ROOT / "tests" / "data" / "philly_excerpt.csv"
HEADER = "job_id,submit_s,gpus,duration_s\n"
SMALL = f"{HEADER}a,0,8,100\nb,10,4,50\nc,20,8,10\nd,30,4,50\n"

pytest_plugins = ["tests.support.cli_world"]
pytestmark = pytest.mark.airflow


@pytest.fixture
def cli(airflow_commands: ForkingCli) -> ForkingCli:
    return airflow_commands


def simulate(cli: ForkingCli, *arguments: str, given: str = SMALL) -> Done:
    done = cli.run("dtrain", "simulate", "--trace", "-", *arguments, given=given.encode())
    assert "Traceback" not in done.err
    return done


def test_a_table_has_a_column_for_each_rule(cli: ForkingCli) -> None:
    done = simulate(cli, "--hosts", "1x8")
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    assert ["this", "pool", "first", "in,", "first", "out", "no", "reservation"] in lines
    assert ["wait,", "longest", "2.17", "min", "2.17", "min", "2.17", "min"] in lines


def test_json_has_numbers_in_seconds_and_names_what_was_left_out(cli: ForkingCli) -> None:
    done = simulate(cli, "--hosts", "1x8,1x2", "-o", "json", given=f"{SMALL}e,40,12,60\n")
    found = done.json
    assert (found["hosts"], found["left_out"]) == ("1x8,1x2", {"12": 1})
    rules = {rule["rule"]: rule for rule in found["rules"]}
    assert list(rules) == ["this pool", "first in, first out", "no reservation"]
    assert {rule["jobs"] for rule in rules.values()} == {4}
    assert rules["first in, first out"]["longest_wait_s"] == 130
    assert "Left out 1 of 5 jobs that these hosts can never serve: 1 of 12 slots." in done.err


def test_columns_that_mean_nothing_are_named(cli: ForkingCli) -> None:
    done = simulate(cli, "--hosts", "1x8", given="job_id,submit_s,gpus,duration_s,prio,user\na,0,8,100,1,eve\n")
    assert done.code == 0, done.err
    assert "ignored: 'prio', 'user'. Known: job_id" in done.err
    assert "ignored" not in simulate(cli, "--hosts", "1x8").err


def test_an_end_before_the_begin_is_a_usage_error(cli: ForkingCli) -> None:
    done = simulate(cli, "--hosts", "1x8", "--from", "2h", "--to", "1h")
    assert (done.code, "--from 7200 s is not before --to 3600 s" in done.err) == (2, True)


def test_help_is_in_the_order_of_its_headings(cli: ForkingCli) -> None:
    for command in (("simulate",), ("pools", "set")):
        text = cli.run("dtrain", *command, "--help").out
        places = [text.index(f"  {word}") for word in ("--fresh", "--young", "--max-wait", "--preemption", "--min-run")]
        assert places == sorted(places)
        assert all(f"default {value})" in text for value in ("5h", "17h", "28h", "0.49", "20m"))


def test_yaml_is_what_json_is(cli: ForkingCli) -> None:
    form = simulate(cli, "--hosts", "1x8", "-o", "yaml").out
    assert yaml.safe_load(form) == simulate(cli, "--hosts", "1x8", "-o", "json").json


def test_the_same_call_has_the_same_answer(cli: ForkingCli) -> None:
    arguments = ("dtrain", "simulate", "--trace", str(EXCERPT), "--hosts", "5x8", "--preemption", "slices",
                 "--not-preemptible", "25%", "--seed", "3", "--limit", "150", "-o", "json")  # fmt: skip
    first, second = cli.run(*arguments), cli.run(*arguments)
    assert first.code == 0, first.err
    assert first.out == second.out


def test_a_part_of_the_trace_can_be_chosen(cli: ForkingCli) -> None:
    def jobs(*arguments: str) -> int:
        return simulate(cli, "--hosts", "1x8", "-o", "json", *arguments).json["rules"][0]["jobs"]

    assert jobs("--limit", "3") == 3
    assert jobs("--from", "10", "--to", "30s") == 2


def test_a_trace_that_cannot_be_used_is_refused_with_its_lines(cli: ForkingCli) -> None:
    done = simulate(cli, "--hosts", "1x8", given=f"{HEADER}a,0,8,100\nb,-5,4,50\nc,0,x,1\n")
    assert done.code == 1
    assert done.out == ""
    assert done.err.splitlines()[-3:] == [
        "standard input: 2 problems",
        "  line 3: submit_s is '-5'; it must be a number of seconds from 0 on",
        "  line 4: gpus is 'x'; it must be a whole number from 0 to 1000000",
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [("", "the file is empty"), (HEADER, "no jobs follow the header"), ("job_id,gpus\n", "no column submit_s")],
)
def test_an_empty_or_foreign_file_is_refused(cli: ForkingCli, given: str, message: str) -> None:
    done = simulate(cli, "--hosts", "1x8", given=given)
    assert done.code == 1
    assert message in done.err


def test_a_file_that_cannot_be_read_is_named(cli: ForkingCli, tmp_path: Path) -> None:
    latin = tmp_path / "latin.csv"
    latin.write_bytes(HEADER.encode() + b"\xe9,0,1,1\n")
    for path, message in [(tmp_path / "none.csv", "No such file"), (tmp_path, "directory"), (latin, "not UTF-8")]:
        done = cli.run("dtrain", "simulate", "--trace", str(path), "--hosts", "1x8")
        assert done.code == 1
        assert str(path) in done.err
        assert message in done.err


def test_standard_input_that_is_no_text_is_refused(cli: ForkingCli) -> None:
    done = cli.run("dtrain", "simulate", "--trace", "-", "--hosts", "1x8", given=HEADER.encode() + b"\xe9,0,1,1\n")
    assert done.code == 1
    assert "standard input: not UTF-8" in done.err


def test_jobs_that_all_are_too_large_are_an_error(cli: ForkingCli) -> None:
    done = simulate(cli, "--hosts", "1x2")
    assert done.code == 1
    assert "None of the 4 jobs fits 1x2." in done.err


def test_a_part_without_jobs_is_a_usage_error(cli: ForkingCli) -> None:
    done = simulate(cli, "--hosts", "1x8", "--from", "2d")
    assert done.code == 2
    assert "No job of standard input was submitted" in done.err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--hosts", "80", "hosts must be HOSTSxSLOTS"),
        ("--hosts", "0x8", "hosts must be"),
        ("--hosts", "8x0", "hosts must be"),
        ("--hosts", "8x8,,4x4", "hosts must be"),
        ("--hosts", "99999x8,99999x8", "at most 100,000"),
        ("--cost", "-1", "a time must be"),
        ("--cost", "much", "a time must be"),
        ("--max-wait", "36 hours", "a time must be"),
        ("--not-preemptible", "1.5", "a share must be from 0 to 1"),
        ("--protected-share", "200%", "a share must be from 0 to 1"),
        ("--preemption", "always", "invalid choice"),
        ("--limit", "few", "must be a whole number"),
    ],
)
def test_an_option_that_makes_no_sense_is_a_usage_error(cli: ForkingCli, option: str, value: str, message: str) -> None:
    hosts = () if option == "--hosts" else ("--hosts", "1x8")
    done = simulate(cli, *hosts, option, value)
    assert done.code == 2
    assert message in done.err


def test_trace_and_hosts_must_be_given(cli: ForkingCli) -> None:
    done = cli.run("dtrain", "simulate")
    assert done.code == 2
    assert "--trace, --hosts" in done.err


def test_the_example_of_the_page_is_what_the_command_prints(cli: ForkingCli) -> None:
    page = (ROOT / "docs" / "scheduling.md").read_text()
    command, *shown = page.partition("$ airflow ")[2].partition("\n```")[0].splitlines()
    arguments = [str(EXCERPT) if word == "tests/data/philly_excerpt.csv" else word for word in command.split()]
    done = cli.run(*arguments)
    assert done.code == 0
    assert [line.rstrip() for line in done.out.splitlines()] == shown[1:-1]
    assert [shown[0], shown[-1]] == done.err.splitlines()[-2:]
