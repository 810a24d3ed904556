"""A headless Chromium of this machine, and visits of Airflow's UI in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, sync_playwright

#: Names under which distributions install it.
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1440, 900
#: Elements of our pages that are there while data are on their way.
LOADING = "[data-testid=dtrain] :is([aria-busy=true], [aria-label=Loading])"
#: Chromium ends all requests when an interface appears or goes, as those of the test hosts in network namespaces do.
DISTURBED, DISTURBED_MOST = "ERR_NETWORK_CHANGED", 5
#: Longest wait for a page on a busy machine.
PAGE_TIMEOUT_S = 60.0


def chromium() -> str | None:
    """Return the path of a Chromium, None without one."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser, yield it, and end it.

    :raises RuntimeError: this machine has no Chromium
    """
    program = chromium()
    if program is None:
        raise RuntimeError("No Chromium on this machine. On Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        # Without the sandbox, because tests run as root in containers. Only pages of the test's own server are opened.
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield started
        finally:
            started.close()


class Visit:
    """A tab of the browser in which a user is logged in to Airflow.

    :param base: URL of the API server
    :param token: of the user
    :param theme: ``light`` or ``dark``
    """

    def __init__(self, started: Browser, base: str, token: str, theme: str = "light", width: int = WIDTH) -> None:
        self.base = base
        self.context: BrowserContext = started.new_context(
            viewport={"width": width, "height": HEIGHT}, color_scheme="dark" if theme == "dark" else "light",
            timezone_id="UTC", locale="en-US",
        )  # fmt: skip
        self.context.set_default_timeout(PAGE_TIMEOUT_S * 1000)
        self.context.add_cookies([{"name": "_token", "value": token, "url": base}])
        # Airflow's switch between the modes writes the same entry.
        self.context.add_init_script(f"localStorage.setItem('theme', '{theme}')")
        self.page: Page = self.context.new_page()
        #: True: an interface of this machine changed while a page was loading.
        self.was_disturbed = False
        #: Errors in the console, and exceptions that no code caught.
        self.errors: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.errors.append(f"exception: {error}"))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type != "error":
            return
        if DISTURBED in message.text:
            self.was_disturbed = True
        else:
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def open(self, path: str) -> Page:
        """Open a page, and return once the bundle has shown data or an explanation.

        :param path: below the server's address, with a leading slash
        """
        for _ in range(DISTURBED_MOST):
            self.was_disturbed = False
            try:
                self.page.goto(self.base + path)
                self.settle()
            except Error:
                if not self.was_disturbed:
                    raise
            if not self.was_disturbed:
                break
        return self.page

    def settle(self) -> None:
        """Wait until nothing is loading."""
        self.page.get_by_test_id("dtrain").first.wait_for()
        self.page.wait_for_function(f"!document.querySelector({LOADING!r})")

    def close(self) -> None:
        self.context.close()
