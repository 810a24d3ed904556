"""The recording in README.md: its screens, its times, and that the picture is made from the committed recording."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.script_tools import script_tool

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    with script_tool("recording") as found:
        yield found


def texts(screen: tuple[float, Any]) -> list[str]:
    return ["".join(segment.text for segment in row) for row in screen[1]]


def test_a_line_that_is_written_again_replaces_itself_and_long_lines_fill_several_rows(tool: ModuleType) -> None:
    events = [(0, "$ demo\r\n"), (1, "\r\x1b[K  [1 s] one"), (2, "\r\x1b[K  [2 s] two"), (3, "\r\n" + 100 * "x")]
    assert [texts(screen) for screen in tool.screens(events)] == [
        ["$ demo", ""],
        ["$ demo", "  [1 s] one"],
        ["$ demo", "  [2 s] two"],
        ["$ demo", "  [2 s] two", tool.WIDTH * "x", (100 - tool.WIDTH) * "x"],
    ]


def test_the_screen_keeps_the_last_lines(tool: ModuleType) -> None:
    (screen,) = tool.screens([(0, "\r\n".join(str(number) for number in range(100)))])
    assert texts(screen) == [str(number) for number in range(100 - tool.HEIGHT, 100)]


def test_long_waits_are_shortened_and_the_clock_shows_the_time_of_the_run(tool: ModuleType) -> None:
    events = [(0, "a\n"), (0.5, "b\n"), (80, "c\nstatus"), (90, "\rother")]
    places = tool.starts(tool.screens(events))
    assert places == [0, 0.5, 0.5 + tool.WAIT_S, 0.5 + tool.WAIT_S + tool.STATUS_S]
    assert "1 min 30 s" in tool.render(events)
    many = [(2.0 * number, f"{number}\n") for number in range(100)]
    assert tool.starts(tool.screens(many))[-1] == tool.WHOLE_S


def test_the_picture_of_the_readme_is_that_of_the_recording_small_and_ends_with_the_result(tool: ModuleType) -> None:
    events = tool.read(tool.CAST)
    screens = tool.screens(events)
    picture = tool.PICTURE.read_text()
    assert picture == tool.render(events), "run: python scripts/tools/recording.py render"
    assert len(picture) < 300_000
    assert tool.starts(screens)[-1] + tool.END_S <= 60
    assert re.search(r"accuracy 0\.9\d", "".join(text for _, text in events))
    assert "completed" in "\n".join(texts(screens[-1]))
    assert not re.search(r"/(tmp|root|home|work)\b", picture), "a path of the machine"


def test_the_picture_has_a_name_plays_once_and_without_motion_shows_its_end(tool: ModuleType) -> None:
    picture = tool.render([(0, "a & b\n"), (1, "c")])
    root = ET.fromstring(picture)
    (strip,) = (one for one in root.iter(f"{SVG}g") if one.get("id") == "s")
    width = root.get("viewBox", "").split()[2]
    assert [one.get("x") for one in strip] == ["0", width]
    assert strip.get("transform") == f"translate(-{width} 0)"
    assert re.search(r"prefers-reduced-motion:reduce\)\{#s\{animation:none", picture)
    assert "infinite" not in picture
    assert root.findtext(f"{SVG}title") == tool.ABOUT
    assert "a &amp; b" in picture
