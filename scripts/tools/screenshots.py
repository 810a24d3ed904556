"""Write the screenshots of docs/images: pages of the seeded site, light and dark.

``python scripts/tools/screenshots.py`` starts sites of its own, one for each scene; ``--site FOLDER`` uses the one that
``python -m testbed.pages_site FOLDER`` keeps running, for pictures of its scene. Names as arguments limit the run to
some pictures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Page  # noqa: E402 - the root of the repository is on the path from here on

from testbed.browser import Visit, browser  # noqa: E402
from testbed.pages_site import PagesSite  # noqa: E402
from testbed.pictures import with_palette  # noqa: E402

IMAGES = ROOT / "docs" / "images"
#: Largest picture that belongs into the repository.
BYTES_MOST = 150_000
#: Time for charts to be painted after the last data, and for a card to appear.
SETTLE_MS = 1500
#: Space above a heading: the border of its card, and buttons that are higher than the heading.
ABOVE = "28px"
#: Longest wait for a page: the pictures are worth it on a busy machine.
BUSY_TIMEOUT_MS = 300_000


def _nothing(page: Page) -> None:
    """Take the page as it opens."""


def _to(heading: str) -> Callable[[Page], None]:
    """Return a step that scrolls to a heading."""

    def scroll(page: Page) -> None:
        found = page.get_by_test_id("dtrain").get_by_role("heading", name=heading, exact=True).first
        found.evaluate("(heading, above) => { heading.style.scrollMarginTop = above }", ABOVE)
        found.evaluate("heading => heading.scrollIntoView({ block: 'start' })")

    return scroll


def _slot_card(page: Page) -> None:
    page.get_by_role("button", name="a100-04 slot 3:").click()


def _pointer(page: Page) -> None:
    """Point at the curves of the first chart."""
    box = page.get_by_test_id("chart").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + box["height"] * 0.5)


def _importance(page: Page) -> None:
    """Wait for the importance of hyperparameters."""
    page.get_by_text("It is being computed.").wait_for(state="hidden")
    _to("32 trials by accuracy")(page)


def _mistake(page: Page) -> None:
    """Make a mistake in a configuration."""
    editor = page.get_by_role("textbox", name="Configuration as YAML")
    text = editor.input_value()
    editor.fill(text.replace("max_trials: 32", "max_trials: many").replace("minval: -4", "minval: -5"))
    page.get_by_role("button", name="Error in line").first.click()


def _packages(page: Page) -> None:
    """Wait for the list of packages."""
    page.get_by_role("region", name="Packages of the interpreter").wait_for()


def _shards(page: Page) -> None:
    """Wait for the first results."""
    page.get_by_role("region", name="First results").wait_for()


@dataclass(frozen=True)
class Picture:
    """A page in a state that shows what it is for.

    :param path: see :meth:`~testbed.pages_site.PagesSite.address`
    :param prepare: steps of a user before the picture
    :param scene: of ``python -m testbed.seed``
    """

    name: str
    path: str
    prepare: Callable[[Page], None] = _nothing
    scene: str = "small"


def _media(page: Page) -> None:
    """Wait for the image, and choose an earlier step."""
    page.get_by_role("img", name="samples/reconstruction, step 400").wait_for()
    page.get_by_role("slider", name="Step").focus()
    page.keyboard.press("ArrowLeft")


_CIFAR = "/plugin/dtrain/experiments/{experiment cifar10-asha}"
_GPT2 = "/plugin/dtrain/trials/{trial gpt2-finetune/0}"
_FOUR = "&".join(f"trial={{trial cifar10-asha/{number}}}" for number in (1, 17, 4, 14))
_SCATTER = quote('["scatter","best","params.lr"]')
_CURVES = quote('["curves","metrics.accuracy",""]')
_COLUMNS = "".join(f"&columns={name}" for name in ("experiment", "state", "best", "params.lr", "params.dropout", "tag"))
_PAPER = quote('tag = "paper" and best > 0.5 and params.lr < 0.01')
PICTURES = (
    Picture("cluster", "/plugin/dtrain/cluster", _slot_card),
    Picture("queue", "/plugin/dtrain/queue"),
    Picture("experiments", "/plugin/dtrain/experiments"),
    Picture("experiment", _CIFAR, _pointer),
    Picture("trials", _CIFAR + "?tab=trials"),
    Picture("hyperparameters", _CIFAR + "?tab=hyperparameters", _importance),
    Picture("rungs", _CIFAR + "?tab=rungs"),
    Picture("trial", _GPT2),
    Picture("trial-steps", _GPT2, _to("Where the time goes")),
    Picture("provenance", _GPT2 + "?tab=code", _packages),
    Picture("failure", "/plugin/dtrain/trials/{trial cifar10-asha/7}"),
    Picture("log", _GPT2 + "?tab=log&ranks=0&ranks=1"),
    Picture("media", "/plugin/dtrain/trials/{trial mnist-grid/0}?tab=media", _media),
    Picture("runs", f"/plugin/dtrain/runs?where={_PAPER}{_COLUMNS}&chart={_SCATTER}&chart={_CURVES}"),
    Picture("use", "/plugin/dtrain/cluster?view=use&by=dag"),
    Picture("compare", "/plugin/dtrain/compare?" + _FOUR),
    Picture("editor", "/plugin/dtrain/experiments/new?fork={experiment cifar10-asha}", _mistake),
    Picture("tab", "/dags/gpt2_finetune/runs/{run gpt2_finetune}/tasks/train/plugin/dtrain-trial"),
    Picture("inference", "/plugin/dtrain/trials/{trial caption-archive/0}", _shards, scene="inference"),
)


def take(picture: Picture, visit: Visit, site: PagesSite) -> bytes:
    """Return a picture of a page as PNG with a palette."""
    page = visit.open(site.address(picture.path))
    picture.prepare(page)
    page.wait_for_timeout(SETTLE_MS)
    return with_palette(page, page.screenshot())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *(one.name for one in PICTURES)], metavar="NAME")
    parser.add_argument("--site", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    too_large = []
    chosen = [picture for picture in PICTURES if not options.names or picture.name in options.names]
    for scene in dict.fromkeys(picture.scene for picture in chosen):
        too_large += write([one for one in chosen if one.scene == scene], scene, options.site)
    if too_large:
        sys.exit(f"Larger than {BYTES_MOST / 1000:.0f} kB: {', '.join(too_large)}")


def write(pictures: list[Picture], scene: str, folder: Path | None) -> list[str]:
    """Write the pictures of a scene, and return the names of those that are too large."""
    too_large = []
    with PagesSite.of(folder, scene) as site, browser() as chrome:
        for theme in ("light", "dark"):
            visit = Visit(chrome, site.server.base, site.server.token("admin"), theme)
            visit.context.set_default_timeout(BUSY_TIMEOUT_MS)
            for picture in pictures:
                content = take(picture, visit, site)
                path = IMAGES / f"{picture.name}-{theme}.png"
                path.write_bytes(content)
                print(f"{path.relative_to(ROOT)}: {len(content) / 1000:.0f} kB", flush=True)
                if len(content) > BYTES_MOST:
                    too_large.append(path.name)
            visit.close()
    return too_large


if __name__ == "__main__":
    main()
