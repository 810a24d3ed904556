"""Figures of the documentation: words, pictures and samples per page. `scripts/docs --figures` prints them.

A sample is a block of code of a page. It is run by a test, or checked by `tests/unit/test_samples.py` (a command with
the parser, a configuration with the models, Python with its compiler), or it is output, which is neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Page -> languages whose blocks a test runs, and the test.
RUN_BY = {
    "README.md": ({"python"}, "tests/integration/test_samples_run.py"),
    "docs/index.md": ({"python"}, "tests/integration/test_samples_run.py"),
    "docs/quickstart.md": ({"bash", "python"}, "tests/unit/test_quickstart_page.py"),
    "docs/operators.md": ({"python"}, "tests/integration/test_samples_run.py"),
    "docs/search.md": ({"python"}, "tests/integration/test_samples_run.py"),
    "docs/own-hosts.md": ({"bash"}, "tests/integration/test_host_tutorials.py"),
    "docs/ten-machines.md": ({"bash", "yaml"}, "tests/integration/test_host_tutorials.py"),
    "docs/first-search.md": ({"python", "yaml"}, "tests/integration/test_samples_run.py"),
    "docs/inference.md": ({"python"}, "tests/integration/test_inference_page.py"),
    "docs/slurm.md": ({"bash", "yaml", "sh"}, "tests/integration/test_slurm_pages.py"),
    "docs/coming-from-sbatch.md": ({"bash", "diff", "yaml", "python"}, "tests/integration/test_slurm_pages.py"),
    "docs/coming-from-torchrun.md": ({"diff", "yaml"}, "tests/integration/test_coming_from.py"),
    "docs/coming-from-ray-train.md": ({"diff", "yaml"}, "tests/integration/test_coming_from.py"),
    "docs/coming-from-wandb-sweeps.md": ({"diff", "yaml"}, "tests/integration/test_coming_from.py"),
    **{
        f"docs/training/{name}.md": ({"python"}, "tests/unit/test_training_page.py")
        for name in (
            "checkpoints",
            "core-api",
            "integrations",
            "large-batches",
            "media",
            "reference",
            "script",
            "trial-class",
        )
    },
}
#: Page -> numbers of the sections that its test runs. The others need machines with GPUs.
RUN_SECTIONS = {"quickstart": range(1, 7), "own-hosts": (1, 2, 5), "ten-machines": (2, 3, 4, 6)}
#: Languages of programs and configurations. Blocks of other ones are output, or diagrams.
PROGRAMS = {"bash", "console", "diff", "python", "sh", "sql", "yaml"}
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.M | re.S)
_PICTURE = re.compile(r"!\[[^\]]*\]\(|<img |^ *```mermaid$", re.M)
_NEXT = re.compile(r"^(Next:|## Next steps$)", re.M)


class Way(Enum):
    """Treatment of a sample by the tests."""

    RUN = "run"
    CHECKED = "checked"
    OUTPUT = "output"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A block of code.

    :param page: path in the repository
    :param number: place among the blocks of its page, from 0
    """

    page: str
    number: int
    language: str
    text: str
    way: Way


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Contents of a page, in numbers."""

    page: str
    words: int
    pictures: int
    samples: tuple[Sample, ...]
    has_next_step: bool

    def count(self, way: Way) -> int:
        """Return the number of samples that the tests treat in this way."""
        return sum(sample.way is way for sample in self.samples)


def pages() -> list[Path]:
    """Return the pages for users: README.md and docs/, without the records of decisions."""
    found = (path for path in DOCS.rglob("*.md") if "decisions" not in path.parts)
    return [ROOT / "README.md", *sorted(found)]


def samples(path: Path) -> Iterator[Sample]:
    """Return the blocks of a page that are not diagrams."""
    page, whole = path.relative_to(ROOT).as_posix(), path.read_text()
    languages = RUN_BY[page][0] if page in RUN_BY else set()
    sections = RUN_SECTIONS.get(path.stem)
    for number, block in enumerate(_BLOCK.finditer(whole)):
        indent, language, text = block.groups()
        if language == "mermaid":
            continue
        way = Way.CHECKED if language in PROGRAMS else Way.OUTPUT
        headings = re.findall(r"^## (\d+)\. ", whole[: block.start()], re.M)
        if language in languages and (sections is None or (headings and int(headings[-1]) in sections)):
            way = Way.RUN
        plain = re.sub(rf"^{indent}", "", text, flags=re.M)
        yield Sample(page=page, number=number, language=language, text=plain, way=way)


def figures(path: Path) -> Figures:
    """Return the figures of a page."""
    text = path.read_text()
    return Figures(
        page=path.relative_to(ROOT).as_posix(),
        words=len(_BLOCK.sub("", text).split()),
        pictures=len(_PICTURE.findall(text)),
        samples=tuple(samples(path)),
        has_next_step=bool(_NEXT.search(text)),
    )


def report() -> str:
    """Return the table of all pages and the sums."""
    found = [figures(path) for path in pages()]
    lines = [f"{'page':44} {'words':>6} {'pictures':>8} {'run':>4} {'checked':>7} {'output':>6}"]
    for one in found:
        counts = f"{one.count(Way.RUN):4} {one.count(Way.CHECKED):7} {one.count(Way.OUTPUT):6}"
        lines.append(f"{one.page:44} {one.words:6,} {one.pictures:8} {counts}")
    words = sorted(one.words for one in found)
    without = [one.page for one in found if not one.pictures]
    sums = {way: sum(one.count(way) for one in found) for way in Way}
    lines += [
        "",
        f"{len(found)} pages, {sum(words):,} words; per page median {words[len(words) // 2]:,}, most {words[-1]:,}",
        f"{len(without)} pages without a picture: {', '.join(without)}",
        f"samples: {sums[Way.RUN]} run by a test, {sums[Way.CHECKED]} checked by a test, {sums[Way.OUTPUT]} are output",
    ]
    return "\n".join(lines)
