"""Random requests to each route of the API: no request makes the server fail.

The requests come from the committed OpenAPI document, those that it allows and those that it does not.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from testbed.seed import small
from testbed.seed.simulation import Simulation
from testbed.stores import new_sqlite
from tests.support.api_world import Api
from tests.support.budgets import budget, is_nightly


@schemathesis.serializer("application/gzip")
def archive(ctx: Any, value: Any) -> bytes:
    """Return a body that is hardly ever an archive."""
    return value if isinstance(value, bytes) else json.dumps(value).encode()


DOCUMENT = json.loads((Path(__file__).parents[2] / "ui" / "openapi.json").read_text())
OPERATIONS = [found.ok() for found in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()]
#: Path parameter -> values that exist in the store of :func:`api`. Random ids alone would find nothing.
KNOWN: dict[str, list[Any]] = {
    "experiment_id": [1, 2], "trial_id": [1, 2, 7], "allocation_id": [1, 8], "name": ["a100-01", "cpu-01"],
    "index": [0, 7], "checkpoint_id": [1], "operation_id": [1, 2], "comment_id": [1], "rank": [0, 1], "attempt": [1, 2],
    "view_id": [1], "sort": ["metrics.loss", "mean:metrics.loss", "params.lr"],
    "by": [["params"], ["params.lr", "state"]],
    "where": ["metrics.loss > 0.1 and tag != 'x'", "params.lr in (1, 'a') or not best = null", "best > "],
    "column": [["metrics.loss", "params.lr", "tag"]],
}  # fmt: skip
EXAMPLES = budget(40) if is_nightly() else 4


@pytest.fixture(scope="module")
def api(airflow_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Api:
    """The API on a store with a search that completed and a trial that failed."""
    site = Simulation(new_sqlite(tmp_path_factory.mktemp("fuzz") / "s.db"), datetime.now(UTC), 8)
    site.at(8, small.hosts(site))
    site.at(7.9, small.grid(site))
    site.at(2, small.broken(site))
    site.at(0.3, small.held_gangs(site))
    site.run()
    return Api(site.store)


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(schemathesis.GenerationMode.POSITIVE, id="allowed"),
        pytest.param(schemathesis.GenerationMode.NEGATIVE, id="not-allowed", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.label for operation in OPERATIONS])
def test_no_request_makes_the_server_fail(api: Api, operation: Any, mode: Any) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    def requests(case: Any, data: st.DataObject) -> None:
        for name in set(case.path_parameters or ()) & set(KNOWN):
            if data.draw(st.booleans()):
                case.path_parameters[name] = data.draw(st.sampled_from(KNOWN[name]))
        for name in set(case.query or ()) & set(KNOWN):
            if data.draw(st.booleans()):
                case.query[name] = data.draw(st.sampled_from(KNOWN[name]))
        try:
            answer = api.client.request(**case.as_transport_kwargs(base_url="http://testserver"))
        except httpx.InvalidURL:
            # The client sends no address of this length.
            reject()
        assert answer.status_code < 500, f"{answer.status_code} {answer.text[:500]}"

    requests()
