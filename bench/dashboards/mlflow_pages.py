"""The answers in MLflow's pages."""

from __future__ import annotations

import re

from bench.dashboards.hand import Hand
from bench.dashboards.truth import ASHA, BROKEN, GRID, LANGUAGE, Truth

HOME = "/#/experiments"
#: Choices of a user who has been there before: trainings instead of agents, and no open assistant.
STORAGE = {
    "mlflow.workflowType_v1": '"machine_learning"',
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
    "mlflow.assistant.panelOpen_v1": "false",
}


def _open(hand: Hand, experiment: str, trial_id: int | None = None) -> None:
    hand.link(experiment)
    if trial_id is not None:
        hand.link(f"trial-{trial_id}")


def _filter(hand: Hand, where: str) -> None:
    field = hand.page.get_by_placeholder(re.compile("^metrics.rmse"))
    field.first.focus()
    hand.clicks += 1
    hand.write(where)
    hand.press("Enter")


def _all(hand: Hand) -> None:
    """Open the runs of all experiments."""
    hand.click(hand.page.get_by_role("row").first.get_by_role("checkbox"))
    hand.button("Compare")


def _by_accuracy(hand: Hand) -> None:
    """Sort by the last accuracy: MLflow keeps the last value of a metric beside a run."""
    hand.click(hand.page.get_by_role("button", name=re.compile("^Sort")))
    hand.click(hand.page.get_by_role("menuitemcheckbox", name="validation/accuracy"))


def _file(hand: Hand, *path: str) -> None:
    hand.tab("Artifacts")
    for part in path:
        hand.text(part)


def _row(hand: Hand, trial_id: int) -> None:
    name = hand.page.get_by_role("link", name=f"trial-{trial_id}", exact=True)
    hand.click(
        hand.page.locator(".ag-pinned-left-cols-container .ag-row").filter(has=name).get_by_role("checkbox").first
    )


def failed(hand: Hand, truth: Truth) -> None:
    _all(hand)
    _filter(hand, 'status = "FAILED"')
    hand.read(*(f"trial-{one.trial_id}" for one in truth.failed))


def cause(hand: Hand, truth: Truth) -> None:
    _open(hand, BROKEN, truth.only(BROKEN).trial_id)
    hand.read(re.compile("FileNotFoundError: .*shard-017"), re.compile('data.py", line 19'))


def last_lines(hand: Hand, truth: Truth) -> None:
    _open(hand, BROKEN, truth.only(BROKEN).trial_id)
    _file(hand, "logs", "rank1.log")
    hand.read(re.compile("loading shard 17 of 64"))


def one_cause(hand: Hand, truth: Truth) -> None:
    _open(hand, ASHA)
    _filter(hand, 'status = "FAILED"')
    for number, trial in enumerate(truth.failed_of_search()):
        if number:
            hand.back()
        hand.link(f"trial-{trial.trial_id}")
        hand.read(re.compile("CUDA out of memory"))


def changed(hand: Hand, truth: Truth) -> None:
    failed_id = truth.failed_of_search()[0].trial_id
    _open(hand, ASHA)
    _row(hand, failed_id)
    _row(hand, truth.good_before(failed_id))
    hand.button("Compare")
    hand.read(*map(re.compile, truth.dropouts(failed_id, truth.good_before(failed_id))))


def best(hand: Hand, truth: Truth) -> None:
    _open(hand, ASHA)
    _by_accuracy(hand)
    hand.link(f"trial-{truth.best[0]}")
    hand.read(*map(re.compile, truth.dropouts(truth.best[0])))


def seed_average(hand: Hand, truth: Truth) -> None:
    _open(hand, GRID)
    hand.click(hand.page.get_by_role("button", name=re.compile("^Group by")))
    hand.click(hand.page.get_by_role("menuitemcheckbox", name="lr"))
    hand.press("Escape")
    _by_accuracy(hand)
    (lr, mean), *_ = truth.seed_means()
    hand.read(f"Group: {lr:g}", re.compile(rf"^{str(mean)[:6]}"))


def together(hand: Hand, truth: Truth) -> None:
    _open(hand, ASHA)
    hand.click(hand.page.locator(".ag-header").get_by_role("checkbox").first)
    hand.button("Compare")
    hand.tab("Contour Plot")
    hand.read("X-axis:", "Y-axis:", "Z-axis:")


def difference(hand: Hand, truth: Truth) -> None:
    _open(hand, ASHA)
    _by_accuracy(hand)
    for trial_id, _ in truth.ranked[:2]:
        _row(hand, trial_id)
    hand.button("Compare")
    hand.read(*map(re.compile, truth.dropouts(*(one for one, _ in truth.ranked[:2]))))


def load(hand: Hand, truth: Truth) -> None:
    _open(hand, LANGUAGE, truth.only(LANGUAGE).trial_id)
    hand.tab("System metrics")
    hand.read(re.compile("gpu_0_utilization_percentage"))


def made_of(hand: Hand, truth: Truth) -> None:
    _open(hand, ASHA, truth.trials[ASHA][0].trial_id)
    hand.read("9f2c41d", re.compile("2.8.0"))


def picture(hand: Hand, truth: Truth) -> None:
    _open(hand, GRID, truth.trials[GRID][0].trial_id)
    _file(hand, "work", "media", "samples", "reconstruction", "200-attempt1-image.png")
    hand.read(re.compile("200-attempt1-image.png"))
    hand.page.locator("img[src*='200-attempt1-image'], img[src^='blob:'], img[src^='data:image/png']").first.wait_for()


def log_line(hand: Hand, truth: Truth) -> None:
    _open(hand, LANGUAGE, truth.only(LANGUAGE).trial_id)
    _file(hand, "logs", "rank0.log")
    hand.read(re.compile(re.escape(truth.upload_line())))
