"""The periods and time-outs of the protocol: each is defined once, and they fit together."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import airflow_provider_dtrain
from airflow_provider_dtrain.core.lifecycle import timing

ROOT = Path(airflow_provider_dtrain.__file__).parent
TIMING = Path(timing.__file__)
#: Runs on the hosts, so it imports nothing of the package.
SUPERVISOR = set((ROOT / "supervisor").glob("*.py"))
#: Periods of Airflow's triggerer, of records in the task log, and of the store's time series; limits of a host's clock
#: and of a command beside a rank.
INNER = {"EARLIEST_EVENT_S", "LATE_S", "RECORD_EVERY_S", "CLOCK_LIMIT_S", "EXEC_MOST_S"}
NAMES = {name for name in vars(timing) if name.isupper()}


def assigned(path: Path) -> set[str]:
    nodes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign | ast.AnnAssign)]
    return {found.id for node in nodes for found in ast.walk(node) if isinstance(found, ast.Name)
            if isinstance(found.ctx, ast.Store)}  # fmt: skip


def test_no_module_defines_a_constant_of_the_protocol_again() -> None:
    assert assigned(TIMING) == NAMES
    modules = set(ROOT.rglob("*.py")) - {TIMING, *SUPERVISOR}
    assert {path.name: found for path in modules if (found := assigned(path) & NAMES)} == {}


def borrowed(path: Path) -> set[str]:
    """Return the periods that a module imports from another module than the one of all periods."""
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    others = [node for node in imports if node.module != timing.__name__]
    return {one.name for node in others for one in node.names if one.name.endswith("_S")}


@pytest.mark.parametrize("floor", ["engine", "triggers", "operators", "sensors", "hooks", "hosts"])
def test_a_period_that_several_modules_use_is_one_of_the_protocol(floor: str) -> None:
    found = set().union(*(borrowed(path) for path in (ROOT / floor).rglob("*.py")))
    assert found <= INNER


@pytest.mark.parametrize("renewals_s", [timing.ATTEMPT_RENEW_S, timing.REQUEST_RENEW_S, timing.RECONNECT_MOST_S])
def test_a_lease_survives_a_lost_renewal(renewals_s: float) -> None:
    assert 2 * renewals_s <= timing.LEASE_TTL_S


def test_every_part_of_the_control_side_counts_the_same_lease() -> None:
    leases = {timing.PROVED_S, timing.SILENT_S, timing.FOLLOWER_SILENT_S, timing.LEASE_TTL.total_seconds(),
              timing.SILENT_AFTER.total_seconds()}  # fmt: skip
    assert leases == {timing.LEASE_TTL_S}
