"""The answers in Optuna Dashboard."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from bench.dashboards.hand import Hand
from bench.dashboards.truth import ASHA, BROKEN, GRID, Truth

HOME = "/dashboard/"


def _study(hand: Hand, experiment: str) -> None:
    hand.click(hand.page.get_by_text(re.compile(rf"^\d+\. {experiment}$|^{experiment}\b")).first)


def _trials(hand: Hand, experiment: str) -> None:
    _study(hand, experiment)
    hand.link("Trials (List)")


def _also(hand: Hand, number: int) -> None:
    """Show one more trial below those that are shown."""
    row = hand.page.get_by_role("button").filter(has_text=re.compile(rf"^Trial {number}(?!\d)"))
    row.first.click(modifiers=["Shift"])
    hand.clicks += 1


def cause(hand: Hand, truth: Truth) -> None:
    _trials(hand, BROKEN)
    hand.read(re.compile("FileNotFoundError: .*shard-017"), re.compile('data.py", line 19'))


def one_cause(hand: Hand, truth: Truth) -> None:
    _trials(hand, ASHA)
    for trial in truth.failed_of_search():
        hand.click(hand.page.get_by_role("button").filter(has_text=re.compile(rf"^Trial {trial.number}(?!\d)")).first)
        hand.read(f"Trial {trial.number} (trial_id={trial.trial_id})", re.compile("CUDA out of memory"))


def changed(hand: Hand, truth: Truth) -> None:
    failed = truth.failed_of_search()[0]
    good = truth.trial(truth.good_before(failed.trial_id))
    _trials(hand, ASHA)
    for number, trial in enumerate((failed, good)):
        _also(hand, trial.number) if number else hand.click(
            hand.page.get_by_role("button").filter(has_text=re.compile(rf"^Trial {trial.number}(?!\d)")).first
        )
    hand.read(*(re.compile(f"dropout {one}") for one in truth.dropouts(failed.trial_id, good.trial_id)))


def best(hand: Hand, truth: Truth) -> None:
    trial = truth.trial(truth.best[0])
    _study(hand, ASHA)
    hand.read(f"Best Trial (number={trial.number})", re.compile(f"dropout: {truth.dropouts(trial.trial_id)[0]}"))


def importance(hand: Hand, truth: Truth) -> None:
    _study(hand, ASHA)
    hand.read("Hyperparameter Importance")
    expect(hand.page.locator(".bartext").first).to_be_visible()


def together(hand: Hand, truth: Truth) -> None:
    _study(hand, ASHA)
    hand.link("Analytics")
    fields = hand.page.get_by_role("combobox")
    for text, name in (("x:", "lr"), ("y:", "dropout")):
        box = hand.page.get_by_text(text, exact=True).first.locator("xpath=..").get_by_role("combobox")
        hand.click(box)
        hand.click(hand.page.get_by_role("option", name=name, exact=True))
    expect(fields.filter(has_text="lr").first).to_be_visible()
    hand.read("Contour")


def made_of(hand: Hand, truth: Truth) -> None:
    _trials(hand, ASHA)
    hand.read(re.compile("9f2c41d"), re.compile("2.8.0"))


def picture(hand: Hand, truth: Truth) -> None:
    _trials(hand, GRID)
    hand.read(re.compile("200-attempt1-image"))
    hand.page.locator("img").first.wait_for()
