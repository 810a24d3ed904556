"""The recording of a terminal in README.md: `recording.py record`, then `recording.py render`.

``record`` clones this repository, runs the demo there in a pseudo-terminal and writes its output with times to
docs/images/demo.cast (asciicast v2, which asciinema plays), then does what ``render`` does: make an animated SVG from
that file. Waits are shortened there; the clock in its title bar shows the time of the run.

Programs that make SVGs from such files (svg-term-cli, termtosvg) have had no release for years and write no text
alternative; agg writes GIFs. rich decodes the terminal's output.
"""

from __future__ import annotations

import argparse
import codecs
import html
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
CAST, PICTURE = ROOT / "docs" / "images" / "demo.cast", ROOT / "docs" / "images" / "demo.svg"
WIDTH, HEIGHT = 92, 24
COMMANDS = (
    "scripts/demo --keep",
    "source .demo/env.sh",
    "airflow dtrain trials list",
    "airflow dtrain trials metrics 1 --group validation",
)
STOP = "scripts/demo --stop"
PASSWORD = re.compile(r"(?<=password )\S+")
#: Longest time that the picture shows a screen, a screen of which only the last line changes, all screens but the last
#: one, and the last one. Screens that follow each other faster than FRAME_S are one.
WAIT_S, STATUS_S, WHOLE_S, END_S, FRAME_S = 2.5, 0.2, 48.0, 8.0, 0.25
CHARACTER, LINE, MARGIN, TITLE = 8.4, 18, 14, 34
GROUND, TEXT, FAINT, PROMPT = "#1d2129", "#e6e8eb", "#a3abb8", "#7fd88f"
ABOUT = "A terminal: scripts/demo installs the provider, starts Airflow, trains on two slots and prints the accuracy"
#: Output of a terminal, with seconds since its start.
Events = list[tuple[float, str]]
#: Lines of a screen.
Rows = list[list[Segment]]


def record() -> Events:
    """Run the commands in a fresh clone, and return their output.

    :raises SystemExit: one of them failed
    """
    events: Events = []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    began = time.monotonic()

    def read(terminal: int) -> bytes:
        data = os.read(terminal, 65536)
        events.append((round(time.monotonic() - began, 2), decoder.decode(data)))
        return data

    with tempfile.TemporaryDirectory(prefix="dtrain-recording-") as folder:
        clone = Path(folder, "airflow-provider-dtrain")
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True, timeout=300)
        shown = "".join(f"printf '\\e[32m$\\e[0m %s\\n' {shlex.quote(one)}\n{one}\n" for one in COMMANDS)
        script = f"set -e\ncd {clone}\nstty cols {WIDTH} rows {HEIGHT}\nexport TERM=xterm-256color\n{shown}"
        try:
            code = os.waitstatus_to_exitcode(pty.spawn(["bash", "-c", script], read))
        finally:
            subprocess.run([clone / STOP.split()[0], "--stop"], check=False, timeout=300)
    if code:
        raise SystemExit(f"Exit code {code}.")
    # The password is that of an Airflow that has ended. It is no secret, but programs that search for some report it.
    return [(at, PASSWORD.sub("********", text.replace(f"{clone}/", ""))) for at, text in events]


def write(events: Events, path: Path) -> None:
    """Write events as an asciicast."""
    head = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": COMMANDS[0]}
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (head, *([at, "o", text] for at, text in events))))


def read(path: Path) -> Events:
    """Return the events of an asciicast."""
    return [(at, text) for at, _, text in map(json.loads, path.read_text().splitlines()[1:])]


def screens(events: Events) -> list[tuple[float, Rows]]:
    """Return the screens of a terminal with their times."""
    console = Console(width=WIDTH)
    found: list[tuple[float, Rows]] = []
    output = ""
    for place, (at, text) in enumerate(events):
        output += text
        if place + 1 < len(events) and events[place + 1][0] - at < FRAME_S:
            continue
        lines = Text.from_ansi(output.replace("\r\n", "\n"), overflow="fold")
        rows = console.render_lines(lines, pad=False)[-HEIGHT:]
        if not found or rows != found[-1][1]:
            found.append((at, rows))
    return found


def starts(shown: list[tuple[float, Rows]]) -> list[float]:
    """Return when the picture shows each screen: waits are shortened, and all of it if it would be too long."""
    places = [0.0]
    for (before, old), (after, new) in pairwise(shown):
        longest = STATUS_S if old[:-1] == new[:-1] else WAIT_S
        places.append(places[-1] + min(after - before, longest))
    factor = min(1.0, WHOLE_S / max(places[-1], 1.0))
    return [round(factor * place, 2) for place in places]


def render(events: Events) -> str:
    """Return an animated SVG, which plays once and then keeps its last screen."""
    shown = screens(events)
    wide, high = round(WIDTH * CHARACTER) + 2 * MARGIN, HEIGHT * LINE + TITLE + MARGIN
    places = starts(shown)
    whole, last = places[-1] + END_S, (len(shown) - 1) * wide
    names: dict[str, str] = {}
    strip = []
    for number, (at, rows) in enumerate(shown):
        clock = f"{int(at) // 60} min {int(at) % 60:02} s"
        uses = [
            f'<use href="#{names.setdefault(drawn, f"r{len(names)}")}" y="{TITLE + LINE * place}"/>'
            for place, row in enumerate(rows, 1)
            if (drawn := draw(row))
        ]
        strip.append(f'<svg x="{number * wide}"><text x="{wide - 95}" y="22">{clock}</text>{"".join(uses)}</svg>')
    steps = "".join(
        f"{100 * at / whole:.2f}%{{transform:translateX(-{number * wide}px)}}" for number, at in enumerate(places)
    )
    drawing = "\n".join(strip)
    lines = "".join(f'<g id="{name}">{drawn}</g>\n' for drawn, name in names.items())
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" aria-labelledby="t">
<title id="t">{ABOUT}</title>
<style>
text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;fill:{TEXT}}}
.f{{fill:{FAINT}}}.p{{fill:{PROMPT}}}.b{{font-weight:bold}}
#s{{animation:play {whole:.2f}s step-end forwards}}
@keyframes play{{{steps}to{{transform:translateX(-{last}px)}}}}
@media(prefers-reduced-motion:reduce){{#s{{animation:none}}}}
</style>
<rect width="{wide}" height="{high}" rx="8" fill="{GROUND}"/>
<text class="f" x="{MARGIN}" y="22">{COMMANDS[0]}</text>
<text class="f" x="{wide - 330}" y="22">waits shortened, real time</text>
<defs>
{lines}</defs>
<g id="s" transform="translate(-{last} 0)">
{drawing}
</g>
</svg>
"""


def draw(row: list[Segment]) -> str:
    """Return the texts of a line. Their width does not depend on the font."""
    texts, column = [], 0
    for text, style, _ in row:
        if word := text.strip():
            x = MARGIN + (column + len(text) - len(text.lstrip())) * CHARACTER
            kind = "" if style is None else "p" if style.color else "f" if style.dim else "b" if style.bold else ""
            attributes = f' class="{kind}"' if kind else ""
            width = f'textLength="{len(word) * CHARACTER:.1f}" lengthAdjust="spacingAndGlyphs"'
            texts.append(f'<text x="{x:.1f}" {width}{attributes}>{html.escape(word)}</text>')
        column += len(text)
    return "".join(texts)


def main() -> int:
    """Record, or render what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "render"))
    if parser.parse_args().action == "record":
        write(record(), CAST)
    PICTURE.write_text(render(read(CAST)))
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
