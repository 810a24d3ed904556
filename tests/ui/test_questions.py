"""The pages answer the questions of docs/dashboards.md."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.dashboards import ours
from bench.dashboards.hand import measured
from bench.dashboards.questions import QUESTIONS, Question
from bench.dashboards.truth import Truth
from testbed.browser import Visit
from testbed.pages_site import PagesSite

pytestmark = [pytest.mark.nightly, pytest.mark.airflow, pytest.mark.slow]


@pytest.fixture(scope="module")
def truth(site: PagesSite) -> Truth:
    return Truth(site.store())


#: Clicks and keys to the most expensive answer. A page that needs more has become worse.
CLICKS_MOST = 8


@pytest.mark.parametrize("question", QUESTIONS, ids=[one.ours.__name__ for one in QUESTIONS])
def test_a_question_is_answered_within_a_few_clicks(
    question: Question, visit: Callable[..., Visit], truth: Truth
) -> None:
    page = visit().open(ours.HOME)
    answer = measured(page, lambda hand: question.ours(hand, truth))
    assert answer.clicks <= CLICKS_MOST
