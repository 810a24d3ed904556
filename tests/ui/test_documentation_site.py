"""The built documentation site in a browser: accessibility, keyboard, and a search that answers without a network."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route

from testbed.accessibility import faults
from testbed.browser import chromium

pytestmark = [pytest.mark.nightly, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "docs" / "site"
#: One Sphinx build, on a busy machine.
BUILD_S = 900
#: Folders of pages with one form each, of which every tenth is checked; `DTRAIN_ALL_DOCS=1` checks all.
ALIKE = ("decisions", "examples")
#: Each colour and each width in which users read the pages: neither has faults of its own in the other pairs.
VIEWS = [("light", 1440), ("dark", 390)]
PARTS = 4
#: Question, as a user types it -> page that answers it.
QUESTIONS = {
    "conda environment on a host": "faq",
    "slack message when a training fails": "faq",
    "which ports are used": "faq",
    "continue from a checkpoint after a crash": "failures",
    "why does my trial wait": "faq",
    "several triggerers": "faq",
    "install packages from requirements.txt": "faq",
    "sbatch time limit": "coming-from-sbatch",
    "learning rate search": "first-search",
    "two machines": "own-hosts",
    "PostgreSQL": "store",
    "remove a host": "own-hosts",
    "training is slow": "diagnose",
    "AMD GPUs": "faq",
    "permission denied (publickey)": "faq",
    "ssh through a bastion": "faq",
    "cuda oom": "faq",
    "stop a running job": "faq",
    "see output of rank 3": "faq",
    "jupyter": "faq",
    "nccl timeout multi-node": "faq",
    "machine rebooted during training": "faq",
    "trial stuck in deferred": "faq",
    "give up on bad hyperparameters early": "faq",
    "retrain when new data arrives": "faq",
    "save checkpoints to s3": "training/checkpoints",
}

#: Question of a new user, as typed -> heading to which the first result leads, and the end of the answer below it.
#: docs/decisions/0125-the-search-of-the-site-ranks-sections.md has the figures. `-s` shows them.
FIRST_RESULTS = {
    "job hangs at init_process_group on 2 nodes": (
        "faq.html#my-training-hangs-at-init-process-group-or-in-a-collective-nccl-timeout-where",
        "the task log names both.",
    ),
    "how do I give a trial more GPUs": (
        "faq.html#how-do-i-give-a-trial-more-gpus-or-4-gpus-on-one-machine",
        "a slot is a GPU.",
    ),
    "resume after the host rebooted": (
        "faq.html#does-a-restart-of-airflow-or-a-reboot-of-a-host-end-my-trainings",
        "from their latest checkpoints.",
    ),
    "how to run without SSH as root": (
        "faq.html#can-it-run-without-root-and-without-ssh-as-root",
        "needs root or sudo.",
    ),
    "use my own docker container": (
        "faq.html#how-do-i-use-my-own-container-image-docker-podman-apptainer",
        "podman, docker or apptainer.",
    ),
    "trial uses wrong network interface": (
        "faq.html#nccl-or-gloo-uses-the-wrong-network-interface-how-do-i-choose-another-one",
        "Set network_interface: eth1 in the configuration",
    ),
    "limit how many GPUs a team takes": (
        "faq.html#how-do-i-limit-how-many-gpus-a-team-may-use-quota",
        "no quota per user or team in a shared pool.",
    ),
    "run the same DAG on Slurm": ("slurm.html", "is the only line that differs."),
    "how do I export metrics": (
        "faq.html#how-do-i-export-metrics-to-prometheus-grafana-or-a-file",
        "trials metrics TRIAL --csv",
    ),
    "upgrade without losing running trials": (
        "upgrade.html#upgrade-without-losing-running-trials",
        "airflow dtrain maintenance end.",
    ),
}
#: A user reads 240 words per minute and types 5 characters per second. The answer must be there within a minute.
WORDS_PER_S, CHARACTERS_PER_S, ANSWER_S = 4, 5, 60

#: The latest one for Node.js 20, and pages of each kind. `-s` shows the scores.
LIGHTHOUSE, SCORE = "lighthouse@12.8.2", 95
JUDGED = ("index", "first-search", "reference/commands", "reference/operators", "scheduling")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The site, served on this machine. With ``DTRAIN_BUILT_DOCS`` it is the one that `scripts/docs` has built."""
    if not os.environ.get("DTRAIN_BUILT_DOCS"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(ROOT / "scripts" / "tools" / "docs.py")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUILD_S)
        assert done.returncode == 0, done.stdout + done.stderr
    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def page(chrome: Browser, address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A tab that reaches nothing but the site."""
    theme, width = getattr(request, "param", ("light", 1280))
    context = chrome.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
    context.set_default_timeout(60_000)

    def only_the_site(route: Route) -> None:
        route.continue_() if route.request.url.startswith(address) else route.abort()

    context.route("**/*", only_the_site)
    yield context.new_page()
    context.close()


def paths() -> list[str]:
    found = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
    alike = [path for path in found if path.split("/")[0] in ALIKE and not path.endswith("/index.html")]
    left_out = set() if os.environ.get("DTRAIN_ALL_DOCS") else set(alike) - set(alike[::10])
    return [path for path in found if path not in left_out and not path.startswith("_static")]


def drawn(page: Page) -> None:
    """Wait until the diagrams of a page are drawn."""
    page.wait_for_function("[...document.querySelectorAll('pre.mermaid')].every(one => one.dataset.processed)")


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("page", VIEWS, ids=str, indirect=True)
def test_every_page_is_accessible(page: Page, address: str, part: int) -> None:
    found = {}
    for path in paths()[part::PARTS]:
        page.goto(f"{address}/{path}")
        drawn(page)
        if wrong := faults(page, within="html"):
            found[path] = wrong
    assert found == {}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_typed_into_the_search_finds_its_page_among_the_first_three(
    page: Page, address: str, question: str
) -> None:
    page.goto(f"{address}/index.html")
    field = page.get_by_role("textbox", name="Search").first
    field.fill(question)
    field.press("Enter")
    page.wait_for_selector("#search-results p.search-summary:not(:empty)")
    page.wait_for_function("!document.querySelector('#search-progress')?.textContent.includes('...')")
    links = page.locator("#search-results ul.search li > a")
    found = [str(link.get_attribute("href")).split("#")[0].split("?")[0] for link in links.all()]
    pages = list(dict.fromkeys(found))
    assert f"{QUESTIONS[question]}.html" in pages[:3], pages[:8]


#: Words from a heading, or from the top of a page, to the end of an answer. Null without that answer.
WORDS_TO_ANSWER = """([anchor, answer]) => {
  const start = anchor ? document.getElementById(anchor) : document.querySelector("article");
  const text = start.innerText.replace(/\\s+/g, " ");
  const at = text.indexOf(answer);
  return at < 0 ? null : text.slice(0, at + answer.length).split(" ").length;
}"""


@pytest.mark.parametrize("question", FIRST_RESULTS)
def test_a_new_user_finds_the_answer_within_a_minute(page: Page, address: str, question: str) -> None:
    place, answer = FIRST_RESULTS[question]
    page.goto(f"{address}/index.html")
    began = time.monotonic()
    field = page.get_by_role("textbox", name="Search").first
    field.click()
    field.fill(question)
    field.press("Enter")
    first = page.locator("#search-results ul.search > li").first
    first.locator(".context").wait_for()
    listed = len(first.inner_text().split())
    link = first.locator("a").first
    assert link.get_attribute("href") == place
    link.click()
    page.wait_for_url(f"{address}/{place}")
    words = page.evaluate(WORDS_TO_ANSWER, [place.partition("#")[2], answer])
    browser_s = time.monotonic() - began
    assert words is not None, f"{place} does not say: {answer}"
    seconds = len(question) / CHARACTERS_PER_S + browser_s + (listed + words) / WORDS_PER_S
    print(f"| {question} | {place} | 2 clicks, Enter | {listed} + {words} | {browser_s:.1f} | {seconds:.0f} |")
    assert seconds < ANSWER_S


def test_the_site_works_from_files_without_a_server(chrome: Browser, address: str) -> None:
    context = chrome.new_context(offline=True)
    page = context.new_page()
    page.goto(f"file://{SITE}/search.html?q=postgresql")
    page.wait_for_selector("#search-results ul.search li > a")
    assert "store.html" in str(
        page.locator("#search-results ul.search li > a").evaluate_all(
            "links => links.map(link => link.getAttribute('href')).join(' ')"
        )
    )
    context.close()


def test_the_keyboard_reaches_content_search_and_diagrams(page: Page, address: str) -> None:
    page.goto(f"{address}/scheduling.html")
    drawn(page)
    seen = []
    for _ in range(200):
        page.keyboard.press("Tab")
        now = page.evaluate(
            "(() => { const at = document.activeElement; const style = getComputedStyle(at); return [at.tagName,"
            " at.className, at.getAttribute('href') || at.name || '', style.outlineStyle, style.boxShadow]; })()"
        )
        seen.append(now)
        if now[0] == "PRE":
            break
    assert seen[0][2].endswith("#furo-main-content"), "the first stop skips the navigation"
    assert any(tag == "INPUT" and name == "q" for tag, _, name, *_ in seen)
    assert seen[-1][0] == "PRE", "a diagram that scrolls can be reached"
    # A focus that cannot be seen is a trap.
    invisible = [one for one in seen if one[3] == "none" and one[4] == "none" and one[0] in ("A", "PRE")]
    assert invisible == []


def test_a_diagram_has_a_name_and_a_text_for_screen_readers(page: Page, address: str) -> None:
    page.goto(f"{address}/life-of-a-trial.html")
    drawn(page)
    for drawing in page.locator("pre.mermaid svg").all():
        assert drawing.get_attribute("aria-labelledby")
        assert drawing.get_attribute("aria-describedby")


@pytest.mark.parametrize("name", JUDGED)
def test_lighthouse_finds_a_page_accessible(chrome: Browser, address: str, name: str, tmp_path: Path) -> None:
    if not shutil.which("npm"):
        pytest.skip("missing: npm")
    report = tmp_path / "report.json"
    options = ["--only-categories=accessibility", "--output=json", f"--output-path={report}", "--quiet"]
    command = ["npm", "exec", "--yes", LIGHTHOUSE, "--", f"{address}/{name}.html", *options]
    environment = {**os.environ, "CHROME_PATH": str(chromium())}
    done = subprocess.run(
        [*command, "--chrome-flags=--headless=new --no-sandbox --disable-gpu"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(report.read_text())
    score = round(100 * found["categories"]["accessibility"]["score"])
    failed = [audit["id"] for audit in found["audits"].values() if audit["score"] == 0]
    print(f"{name}: accessibility {score}")
    assert score >= SCORE, failed
