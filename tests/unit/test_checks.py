"""scripts/test repeats the few tests that failed in a full run, and says where its time goes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

TOOLS = Path(__file__).parents[2] / "scripts" / "tools"
ONCE = """
import pathlib
def test_once():
    seen = pathlib.Path(__file__).with_name("seen")
    was_here = seen.exists()
    seen.touch()
    assert was_here
"""
ALWAYS = "import pytest\n@pytest.mark.parametrize('n', range({}))\ndef test_always(n):\n    assert n < 0\n"


@pytest.fixture
def look(tmp_path, monkeypatch, capfd):
    """Run the checks on one file of tests, and return the exit code and the output."""
    monkeypatch.syspath_prepend(str(TOOLS))
    import checks

    monkeypatch.setattr(checks, "ROOT", tmp_path)
    # Loading the plugins would take longer than these tests.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(text: str) -> tuple[int, str]:
        tests = tmp_path / "test_it.py"
        tests.write_text(text)
        python = Path(sys.executable)
        books = checks._books("pytest")
        code = checks.run({"pytest": [str(python), "-m", "pytest", *books, "--import-mode=importlib", "-q"]}, python)
        return code, capfd.readouterr().out

    return run


def test_what_passes_gets_no_second_look(look):
    code, said = look("def test_it():\n    pass\n")
    assert code == 0
    assert "re-run" not in said


def test_what_fails_once_is_named_and_does_not_count(look):
    code, said = look(ONCE)
    assert code == 0
    assert "re-run of 1: ok" in said
    assert "UNSTEADY, failed in the full run and passed alone:\n  test_it.py::test_once" in said


def test_what_fails_again_counts(look):
    code, said = look(ONCE + ALWAYS.format(1))
    assert code == 1
    assert "re-run of 2: FAILED" in said
    assert "UNSTEADY" not in said
    assert "Failed: pytest" in said


def test_many_failures_get_no_second_look(look):
    code, said = look(ALWAYS.format(4))
    assert code == 1
    assert "4 tests failed: too many to re-run." in said


def test_an_error_of_the_tests_themselves_gets_no_second_look(look):
    code, said = look("import nothing_of_that_name\n")
    assert code != 0
    assert "re-run" not in said


def test_the_times_of_checks_and_files_are_shown_slowest_first(look):
    spent = "import time\ndef test_it():\n    while time.process_time() < {}:\n        pass\n"
    code, said = look(spent.format(0.6))
    assert code == 0
    table = said.partition("  CPU s  wall s  check\n")[2]
    assert re.search(r"^ +[1-9] +\d+  pytest\n\n  CPU s  wall s  slowest files\n +0 +[0-9]+  test_it.py$", table, re.M)


def test_the_slowest_rows_come_first_and_the_quick_ones_are_left_out(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import checks

    files = {f"tests/test_{number}.py": (float(number), 1.0) for number in range(100)}
    lines = checks._times({}, files)
    assert len(lines) == 2 + checks.FILES_SHOWN
    assert lines[2].split() == ["99", "1", "tests/test_99.py"]


def test_every_folder_with_tests_is_run(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import checks

    found = {str(path.parent.relative_to(checks.ROOT)) for path in checks.ROOT.glob("tests/**/test_*.py")}
    assert found == {*checks.FOLDERS, "tests/ui"}


def test_the_workflow_installs_what_the_tests_need_and_runs_what_ci_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import checks

    workflow = yaml.safe_load((checks.ROOT / ".github" / "workflows" / "ci.yml").read_text())
    commands = " ".join(step.get("run", "") for step in workflow["jobs"]["run"]["steps"]).split()
    assert {tool.package for tool in checks.TOOLS} <= set(commands)
    assert commands.index("safe.directory") < commands.index(".ci/run"), "git refuses the clone of another account"
