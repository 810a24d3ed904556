"""The log of a trial in a real Airflow: copied by its follower, read by the page and both programs, kept without host.

A DAG runs a trial with two ranks that write far more than the store keeps of a log by itself.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from airflow_provider_dtrain.cli.experiments_create import OPERATIONS_DAG_FILE
from airflow_provider_dtrain.client.main import main as dtrain
from testbed.browser import Visit, browser, chromium
from testbed.standalone import Standalone, wait_until
from tests.support.forking_cli import Done, ForkingCli

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.nightly]

CODE = Path(__file__).parents[1] / "jobs" / "code"
TRIAL = "1"
LINES, LAST_LINES = 200_000, 100
#: Lines of both levels in the log of each rank.
ERRORS, WARNINGS = LINES // 10_000, LINES // 1_000 - LINES // 10_000
WAIT_MS = 120_000
FOUND = re.compile(r"(\d+):(?:(\d\d:\d\d:\d\dZ):)? (.*)")

DAG = """
from airflow.sdk import DAG
from airflow_provider_dtrain.operators.trial import TrialOperator

CONFIG = {config!r}
with DAG("long_log", schedule=None):
    TrialOperator(task_id="train", config=CONFIG, deferrable=True, retries=0)
"""


class Site:
    """An Airflow on this machine, which is also its host, and a trial with a long log in its second attempt."""

    def __init__(self, folder: Path) -> None:
        self.shared, self.state = folder / "shared", folder / "state"
        home, dags = folder / "home", folder / "dags"
        for one in (self.shared, home, dags):
            one.mkdir()
        shutil.copytree(CODE, dags / "code")
        config = {
            "name": "long-log",
            "entrypoint": f"python long_log.py {LINES} {self.shared}",
            "model_dir": "code",
            "resources": {"slots_per_trial": 2, "pool": "local"},
            "max_restarts": 1,
        }
        (dags / "long_log.py").write_text(DAG.format(config=config))
        (dags / "dtrain_operations.py").write_text(OPERATIONS_DAG_FILE)
        self.airflow = Standalone(home, dags)
        self.commands: ForkingCli | None = None
        self.run_id = ""

    def start(self) -> None:
        """Start Airflow and the trial, and return when both ranks have written what they write before the file."""
        self.airflow.start()
        self.commands = ForkingCli(self.airflow.home, self.airflow.environment)
        self.airflow_command("hosts", "add", "local", "--slots", "cpu:2", "--state-dir", str(self.state))
        self.run_id = self.airflow.trigger("long_log")
        written = [self.shared / f"written-{rank}" for rank in (0, 1)]
        wait_until(lambda: all(one.exists() for one in written), timeout_s=300, what="the long log")

    def airflow_command(self, *arguments: str, check: bool = True) -> Done:
        assert self.commands is not None
        done = self.commands.run("dtrain", *arguments)
        assert not check or done.code == 0, done.out + done.err
        return done

    def begin(self, *arguments: str, to: Path) -> subprocess.Popen[bytes]:
        """Start a command in a process of its own, whose output goes to a file."""
        command = [sys.executable, "-m", "airflow", "dtrain", *arguments]
        with to.open("wb") as out:
            return subprocess.Popen(command, env=self.airflow.environment, stdout=out, stdin=subprocess.DEVNULL)

    def end(self) -> None:
        """Let the ranks end, and wait for the DAG run."""
        (self.shared / "go").touch()
        assert self.airflow.wait("long_log", self.run_id, timeout_s=300) == "success"

    def host_log(self, rank: int, attempt: int = 2) -> bytes:
        """Return what the host has of a log."""
        (path,) = (one for one in self.state.rglob(f"*rank{rank}/log") if f".{attempt}." in one.parent.parent.name)
        return path.read_bytes()

    def operation_runs(self) -> int:
        """Return the number of runs of the DAG that reaches hosts."""
        return int(self.airflow.api("GET", "/dags/dtrain_operations/dagRuns")["total_entries"])

    def close(self) -> None:
        (self.shared / "go").touch()
        self.airflow.stop()
        if self.commands is not None:
            self.commands.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("long_log"))
    try:
        found.start()
        yield found
    finally:
        found.close()


@pytest.fixture
def client(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Callable[..., tuple[int, str]]:
    """Run ``dtrain`` in this process, and return its exit code and what it prints."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("DTRAIN_SERVER", site.airflow.base)
    monkeypatch.setenv("DTRAIN_TOKEN", site.airflow.token("admin"))

    def run(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        code = dtrain(list(arguments))
        return code, capfd.readouterr().out

    return run


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    """The log view of both ranks in a browser."""
    if chromium() is None:
        pytest.skip("missing: chromium")
    with browser() as started:
        visit = Visit(started, site.airflow.base, site.airflow.token("admin"))
        visit.open(f"/plugin/dtrain/trials/{TRIAL}?tab=log&ranks=0&ranks=1")
        yield visit.page
        assert visit.errors == []


def shown(page: Page, text: str) -> None:
    expect(page.get_by_test_id("dtrain").get_by_text(text).first).to_be_visible(timeout=WAIT_MS)


def found(out: str) -> list[tuple[int, str]]:
    """Return number and text of each line that a search has printed."""
    rows = [FOUND.fullmatch(line) for line in out.splitlines()]
    assert None not in rows, out[:2000]
    return [(int(row[1]), row[3]) for row in rows if row is not None]


def broken(rank: int) -> list[tuple[int, str]]:
    """Return the lines of a log with errors."""
    numbers = range(9_999, LINES, 10_000)
    return [(number + 1, f"ERROR storage: rank {rank} cannot upload shard {number}") for number in numbers]


def test_the_follower_copies_the_log_of_a_running_trial_for_the_page(site: Site, page: Page) -> None:
    for rank in (0, 1):
        shown(page, f"Rank {rank} on local")
    expect(page.get_by_text(f"{LINES:,} lines, growing")).to_have_count(2, timeout=WAIT_MS)
    page.get_by_role("textbox", name="Search the log").fill("cannot upload")
    expect(page.get_by_text(f"{ERRORS} lines found")).to_have_count(2, timeout=WAIT_MS)
    shown(page, "ERROR storage: rank 1 cannot upload shard 9999")
    assert site.operation_runs() == 0, "a run of the DAG has copied what the follower should have"
    for rank in (0, 1):
        answer = site.airflow.page("GET", f"/trials/{TRIAL}/log/lines?rank={rank}&first=0&count=1")
        assert answer["copied_bytes"] == len(site.host_log(rank))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--grep", "CANNOT upload"], broken(0)),
        (["--regex", r"shard \d+5998$"], []),
        (["--regex", r"^ERROR .* shard (1|19)9999$"], [broken(0)[1], broken(0)[19]]),
        (["--level", "error", "--rank", "1"], broken(1)),
        (["--level", "error", "--grep", "shard 29999"], broken(0)[2:3]),
        (["--level", "error", "--since", "1h"], broken(0)),
        (["--level", "error", "--until", "1h"], []),
        (["--grep", "first attempt fails", "--attempt", "1"], None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value and isinstance(value[0], str) else "",
)
def test_both_programs_print_the_lines_that_a_search_finds(
    site: Site, client: Callable[..., tuple[int, str]], options: list[str], expected: list[tuple[int, str]] | None
) -> None:
    by_airflow = site.airflow_command("trials", "logs", TRIAL, *options).out
    assert client("trials", "logs", TRIAL, *options) == (0, by_airflow)
    lines = found(by_airflow)
    if expected is None:
        assert lines[-1][1] == "ValueError: the first attempt fails"
    else:
        assert lines == expected


def test_all_ranks_are_searched_with_their_numbers(site: Site, client: Callable[..., tuple[int, str]]) -> None:
    options = ["trials", "logs", TRIAL, "--level", "warning", "--all"]
    out = site.airflow_command(*options).out
    assert client(*options) == (0, out)
    for rank in (0, 1):
        own = [line for line in out.splitlines() if line.startswith(f"[rank {rank}] ")]
        assert len(own) == ERRORS + WARNINGS


def test_options_choose_bytes_ranks_and_attempts(site: Site) -> None:
    logs = {rank: site.host_log(rank).decode() for rank in (0, 1)}

    def out(*options: str) -> str:
        return site.airflow_command("trials", "logs", TRIAL, *options).out

    assert out() == logs[0]
    assert out("--rank", "1") == logs[1]
    assert out("--tail", "3", "--rank", "1") == logs[1][-3 * 1024 :]
    assert out("--from", "1000", "--to", "5000") == logs[0][1000:5000]
    assert out("--from", str(len(logs[0]) - 10)) == logs[0][-10:]
    assert out("--attempt", "1") == site.host_log(0, attempt=1).decode()
    assert "ValueError: the first attempt fails" in out("--attempt", "1")
    lines = out("--all").splitlines()
    for rank, log in logs.items():
        prefix = f"[rank {rank}] "
        assert [line.removeprefix(prefix) for line in lines if line.startswith(prefix)] == log.splitlines()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rank", "7"], "has no rank 7; it has 0 to 1"),
        (["--rank", "7", "--grep", "x"], "has no rank 7; it has 0 to 1"),
        (["--attempt", "9"], "has no attempt 9"),
        (["--attempt", "9", "--level", "error"], "has no attempt 9"),
        (["--grep", "x", "--regex", "y"], "--grep and --regex cannot be combined"),
        (["--grep", "x", "--tail", "1"], "cannot be combined with --tail"),
        (["--tail", "1", "--from", "1"], "cannot be combined"),
        (["--regex", "("], "The expression is not valid"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_both_programs_refuse_with_the_same_message(
    site: Site, client: Callable[..., tuple[int, str]], options: list[str], message: str, capfd: Any
) -> None:
    done = site.airflow_command("trials", "logs", TRIAL, *options, check=False)
    assert (done.code, message in done.err) == (1, True), done.err
    capfd.readouterr()
    assert dtrain(["trials", "logs", TRIAL, *options]) == 1
    assert message in capfd.readouterr().err


def test_followers_print_the_log_up_to_the_end_of_the_trial_and_the_copy_is_completed_by_a_run_of_the_dag(
    site: Site, tmp_path: Path, client: Callable[..., tuple[int, str]]
) -> None:
    whole, searched = tmp_path / "whole", tmp_path / "searched"
    processes = [
        site.begin("trials", "logs", TRIAL, "-f", "--all", to=whole),
        site.begin("trials", "logs", TRIAL, "-f", "--grep", "of the model", "--rank", "1", to=searched),
    ]
    wait_until(
        lambda: whole.stat().st_size > sum(len(site.host_log(rank)) for rank in (0, 1)), timeout_s=120, what="-f"
    )
    site.end()
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    lines = whole.read_text().splitlines()
    for rank in (0, 1):
        prefix = f"[rank {rank}] "
        own = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        assert own == site.host_log(rank).decode().splitlines()
    numbers = [number for number, _ in found(searched.read_text())]
    assert numbers == list(range(LINES + 1, LINES + LAST_LINES + 1))
    # The trial has no follower now: the rest of rank 0's log is fetched by a run of the DAG.
    before = site.operation_runs()
    code, out = client("trials", "logs", TRIAL, "--grep", "of the model")
    assert (code, len(found(out))) == (0, LAST_LINES)
    assert site.operation_runs() == before + 1


def test_the_copy_outlives_the_log_of_the_host(site: Site, client: Callable[..., tuple[int, str]]) -> None:
    logs = {rank: site.host_log(rank) for rank in (0, 1)}
    # Both ranks are completely copied.
    for rank in logs:
        site.airflow_command("trials", "logs", TRIAL, "--grep", "x", "--rank", str(rank))
    shutil.rmtree(next(path for path in site.state.rglob("*") if path.name.endswith("rank0")).parent.parent)
    for rank, log in logs.items():
        answer = site.airflow.page("GET", f"/trials/{TRIAL}/log/lines?rank={rank}&first=-1&count=1&tail=true")
        assert (answer["is_complete"], answer["copied_bytes"]) == (True, len(log))
        assert answer["total"] == LINES + LAST_LINES
        options = ["trials", "logs", TRIAL, "--level", "error", "--rank", str(rank)]
        out = site.airflow_command(*options).out
        assert client(*options) == (0, out)
        assert found(out) == broken(rank)
        assert site.airflow_command("trials", "logs", TRIAL, "--rank", str(rank)).out == log.decode()
        assert client("trials", "logs", TRIAL, "--rank", str(rank)) == (0, log.decode())


def test_the_page_shows_the_copy_without_the_host(site: Site, page: Page) -> None:
    expect(page.get_by_text(f"{LINES + LAST_LINES:,} lines", exact=True)).to_have_count(2, timeout=WAIT_MS)
    shown(page, f"rank 1 saves part {LAST_LINES - 1} of the model")
    page.get_by_role("textbox", name="Search the log").fill("cannot upload")
    expect(page.get_by_text(f"{ERRORS} lines found")).to_have_count(2, timeout=WAIT_MS)
