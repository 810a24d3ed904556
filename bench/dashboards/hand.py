"""Count the clicks and keys of a user on pages, and the seconds that an answer takes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from playwright.sync_api import Locator, Page, expect

#: Longest wait for one text of an answer, on a busy machine.
WAIT_MS = 60_000


class Hand:
    """A user's hand in a browser. It acts as soon as a page shows what it acts on.

    :param page: of a browser, on the first page of a program
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        page.set_default_timeout(WAIT_MS)
        #: Clicks, and key presses that are no text; typed characters.
        self.clicks = self.chars = 0

    def click(self, target: Locator) -> None:
        target.click()
        self.clicks += 1

    def press(self, key: str) -> None:
        self.page.keyboard.press(key)
        self.clicks += 1

    def back(self) -> None:
        """Use the browser's button."""
        self.page.go_back()
        self.clicks += 1

    def type(self, target: Locator, text: str) -> None:
        """Click into a field and type a text."""
        self.click(target)
        self.write(text)

    def write(self, text: str) -> None:
        """Type a text into the field that has the focus."""
        self.page.keyboard.type(text)
        self.chars += len(text)

    def link(self, name: str) -> None:
        self.click(self.page.get_by_role("link", name=name, exact=True).first)

    def tab(self, name: str) -> None:
        self.click(self.page.get_by_role("tab", name=name, exact=True))

    def button(self, name: str) -> None:
        self.click(self.page.get_by_role("button", name=name, exact=True).first)

    def text(self, name: str) -> None:
        self.click(self.page.get_by_text(name, exact=True).filter(visible=True).first)

    def read(self, *texts: str | re.Pattern[str], within: Locator | None = None) -> None:
        """Check that texts of the answer are visible.

        :raises AssertionError: one of them is not
        """
        place = self.page.locator("body") if within is None else within
        for text in texts:
            expect(place.get_by_text(text).filter(visible=True).first).to_be_visible(timeout=WAIT_MS)


@dataclass(frozen=True)
class Answer:
    """Cost of an answer.

    :param seconds: from the first act to the last text of the answer
    """

    clicks: int
    chars: int
    seconds: float

    def __str__(self) -> str:
        typed = f" + {self.chars} ch." if self.chars else ""
        return f"{self.clicks}{typed}, {self.seconds:.1f} s"


def measured(page: Page, steps: Callable[[Hand], None]) -> Answer:
    """Return the cost of the steps of an answer, on a page that is open."""
    hand = Hand(page)
    began = time.monotonic()
    steps(hand)
    return Answer(hand.clicks, hand.chars, time.monotonic() - began)
