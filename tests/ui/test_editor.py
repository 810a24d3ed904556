"""The editor of configurations: problems at their lines, forks, and starts up to the DAG run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from testbed.browser import Visit
from testbed.pages_site import PagesSite
from tests.ui.steps import WAIT_MS

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]
EDITOR = "Configuration as YAML"


def test_problems_appear_at_their_lines_while_a_user_types(visit: Callable[..., Visit]) -> None:
    page = visit("admin").open("/plugin/dtrain/experiments/new")
    editor = page.get_by_role("textbox", name=EDITOR)
    editor.fill("name: mine\nentrypoint: python train.py\nresources:\n  pool: cpu\n  slots_per_trial: ")
    editor.press("End")
    page.keyboard.type("many")
    problem = page.get_by_role("button", name="Error in line 5, resources.slots_per_trial")
    expect(problem).to_be_visible(timeout=WAIT_MS)
    expect(editor).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_disabled()
    for _ in "many":
        page.keyboard.press("Backspace")
    page.keyboard.type("1")
    expect(page.get_by_text("The configuration is valid.")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_text("The hosts of the pool can run a trial.")).to_be_visible()


def test_an_admin_forks_an_experiment_with_other_hyperparameters(visit: Callable[..., Visit], site: PagesSite) -> None:
    page = visit("admin").open(site.address("/plugin/dtrain/experiments/{experiment cifar10-asha}"))
    page.get_by_role("button", name="Fork").click()
    editor = page.get_by_role("textbox", name=EDITOR)
    expect(editor).to_be_visible(timeout=WAIT_MS)
    editor.fill(editor.input_value().replace("minval: -4", "minval: -5"))
    expect(page.get_by_text("1 line differs from the source.")).to_be_visible()
    start = page.get_by_role("button", name="Start", exact=True)
    expect(start).to_be_enabled(timeout=WAIT_MS)
    start.click()
    page.get_by_role("alertdialog").or_(page.get_by_role("dialog")).get_by_role("button", name="Start").click()
    notice = page.get_by_text("of dtrain_experiment plans the experiment 'cifar10-asha'").first
    expect(notice).to_be_visible(timeout=WAIT_MS)
    token = site.server.token("admin")
    _, answer = site.server.request("GET", "/api/v2/dags/dtrain_experiment/dagRuns?order_by=-id&limit=1", token=token)
    (run,) = answer["dag_runs"]
    config = site.store().configs.get(run["conf"]["config"]["config_id"])
    assert config.document["hyperparameters"]["lr"]["minval"] == -5
    assert (run["triggering_user_name"], bool(run["conf"]["payload"])) == ("admin", True)
