"""The answers on our pages."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from bench.dashboards.hand import Hand
from bench.dashboards.truth import ASHA, BROKEN, GRID, Truth

HOME = "/plugin/dtrain/experiments"


def _runs(hand: Hand, where: str) -> None:
    hand.link("Runs")
    hand.type(hand.page.get_by_label("Filter", exact=True), where)
    hand.press("Enter")


def _training(hand: Hand) -> None:
    """Open the only trial of an experiment."""
    hand.link("GPT-2 on support tickets")
    hand.click(hand.page.get_by_role("link", name=re.compile(r"^loss 0\.")))


def failed(hand: Hand, truth: Truth) -> None:
    _runs(hand, 'state = "errored"')
    hand.read(f"{len(truth.failed)} trials", *(f"Trial {one.trial_id}" for one in truth.failed))


def cause(hand: Hand, truth: Truth) -> None:
    hand.link(BROKEN)
    hand.read("FileNotFoundError: [Errno 2] No such file or directory: '/data/imagenet/shard-017.tar'", "data.py:19")


def last_lines(hand: Hand, truth: Truth) -> None:
    hand.link(BROKEN)
    hand.link(str(truth.only(BROKEN).trial_id))
    hand.read("loading shard 17 of 64")


def one_cause(hand: Hand, truth: Truth) -> None:
    hand.link(ASHA)
    hand.tab("Failures")
    hand.read(f"{len(truth.failed_of_search())} ×", "CUDA out of memory")


def changed(hand: Hand, truth: Truth) -> None:
    hand.link(ASHA)
    hand.tab("Failures")
    hand.link(str(truth.failed_of_search()[0].trial_id))
    hand.read("Changed since", re.compile("global_batch_size|dropout|lr"))


def best(hand: Hand, truth: Truth) -> None:
    trial = truth.trial(truth.best[0])
    hand.link(ASHA)
    hand.tab("Trials")
    row = hand.page.get_by_role("row").filter(has_text="(best)")
    hand.read(f"Trial {trial.trial_id} (best)", f"{trial.hparams['dropout']:.4g}", within=row)


def seed_average(hand: Hand, truth: Truth) -> None:
    (lr, mean), *_ = truth.seed_means()
    _runs(hand, f'experiment = "{GRID}"')
    hand.type(hand.page.get_by_role("combobox", name="Group by"), "params.lr")
    hand.press("Enter")
    hand.click(hand.page.get_by_role("button", name=re.compile("^best: mean")))
    row = hand.page.get_by_role("row").nth(1)
    hand.read(f"{lr:g}", re.compile(rf"^{mean:.4g} ±"), within=row)


def importance(hand: Hand, truth: Truth) -> None:
    hand.link(ASHA)
    hand.tab("Hyperparameters")
    hand.read("Importance for accuracy", re.compile(r"\d %"))


def together(hand: Hand, truth: Truth) -> None:
    hand.link(ASHA)
    hand.tab("Hyperparameters")
    for side, name in (("left to right", "lr"), ("bottom to top", "dropout")):
        field = hand.page.get_by_role("combobox", name=f"Hyperparameter from {side}")
        if field.input_value() != name:
            hand.click(field)
            hand.click(hand.page.get_by_role("option", name=name, exact=True))
    hand.read("accuracy over lr and dropout")


def stopped(hand: Hand, truth: Truth) -> None:
    hand.link(ASHA)
    hand.tab("Rungs")
    hand.button("Table")
    hand.read("stopped", re.compile("missed the cut-off .* by"))


def difference(hand: Hand, truth: Truth) -> None:
    hand.link(ASHA)
    hand.tab("Trials")
    for index in (1, 2):
        hand.click(hand.page.get_by_role("row").nth(index).get_by_role("checkbox"))
    hand.button("Compare 2")
    hand.read("Compare 2 trials", *(f"{truth.trial(one).hparams['dropout']:.6g}" for one, _ in truth.ranked[:2]))


def filtered(hand: Hand, truth: Truth) -> None:
    _runs(hand, 'tag = "paper" and params.lr < 0.01 and best > 0.85')
    count = len(truth.filtered())
    hand.read(f"{count} trial{'s' * (count != 1)}", *(re.compile(rf"Trial {one}\b") for one in truth.filtered()))


def slow_rank(hand: Hand, truth: Truth) -> None:
    _training(hand)
    hand.read(re.compile("Slow: rank 11 on"))


def load(hand: Hand, truth: Truth) -> None:
    _training(hand)
    hand.read("GPU utilization")


def waits(hand: Hand, truth: Truth) -> None:
    hand.link("Queue")
    row = hand.page.get_by_role("row").filter(has_text="bert-distill")
    hand.read(re.compile("slots|reserved|free"), within=row)


def made_of(hand: Hand, truth: Truth) -> None:
    hand.link(ASHA)
    hand.tab("Code")
    hand.read(re.compile("^9f2c41d"), "torch", "2.8.0")


def picture(hand: Hand, truth: Truth) -> None:
    hand.link(GRID)
    hand.tab("Trials")
    hand.link(f"Trial {truth.trials[GRID][0].trial_id}")
    hand.tab("Media")
    hand.click(hand.page.get_by_role("slider", name="Step"))
    hand.press("Home")
    hand.press("ArrowRight")
    expect(hand.page.get_by_role("img", name="samples/reconstruction, step 200")).to_be_visible()


def code(hand: Hand, truth: Truth) -> None:
    hand.link(ASHA)
    hand.tab("Code")
    hand.type(hand.page.get_by_role("combobox", name="Experiment to compare with"), "mnist")
    hand.press("Enter")
    hand.read("+def all_digits():")


def log_line(hand: Hand, truth: Truth) -> None:
    _training(hand)
    hand.tab("Logs")
    hand.type(hand.page.get_by_role("textbox", name="Search the log"), "upload of")
    hand.read(truth.upload_line(), re.compile(r"lines found$"))
    hand.read(re.compile(r"^\d\d:\d\d:\d\d$"), within=hand.page.get_by_role("region", name=re.compile("^Log of rank")))


def hours(hand: Hand, truth: Truth) -> None:
    hand.link("Cluster")
    hand.button("Use by day")
    hand.click(hand.page.get_by_role("group", name="Slot hours by").get_by_text("User"))
    hand.read(re.compile("Slot hours"), truth.busiest_user())
