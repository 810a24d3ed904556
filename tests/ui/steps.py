"""Steps of users on pages."""

from __future__ import annotations

from playwright.sync_api import Locator, Page

#: Longest wait for data and for the result of an action, on a busy machine.
WAIT_MS = 60_000


def act(page: Page, menu: str, action: str, *, answer: str = "") -> None:
    """Choose an action in a menu and confirm it, all with the keyboard.

    :param menu: name of the menu's button
    :param answer: typed into the field of the dialog; empty leaves it as it is
    """
    page.get_by_role("button", name=menu, exact=True).focus()
    page.keyboard.press("Enter")
    dialog = open_dialog(page, action)
    if answer:
        page.keyboard.press("Control+A")
        page.keyboard.type(answer)
    confirm = dialog.locator("button[type=submit]")
    for _ in range(10):
        if confirm.evaluate("button => button === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    dialog.wait_for(state="hidden", timeout=WAIT_MS)


def open_dialog(page: Page, action: str) -> Locator:
    """Choose an action in the open menu with the keyboard, and return its dialog."""
    item = page.get_by_role("menuitem", name=action, exact=True)
    item.wait_for(timeout=WAIT_MS)
    for _ in range(10):
        if item.get_attribute("data-highlighted") is not None:
            break
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog").or_(page.get_by_role("alertdialog"))
    dialog.wait_for(timeout=WAIT_MS)
    return dialog


def row(page: Page, text: str) -> Locator:
    """Return the first row of a table with a text."""
    return page.get_by_role("row").filter(has_text=text).first
