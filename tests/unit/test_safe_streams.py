"""Texts that commands print cannot control a terminal, on any stream or in any format, except colors of logs."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import os
import subprocess
import sys
import unicodedata
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.terminal import safe_streams
from airflow_provider_dtrain.terminal.csv_output import show_csv
from airflow_provider_dtrain.terminal.log_text import LogWriter
from airflow_provider_dtrain.terminal.output import dump, note, show, show_one
from airflow_provider_dtrain.terminal.safe_streams import SafeStream, prepare_streams, unescaped
from tests.support.budgets import budget
from tests.support.hostile_server import CONTROLS

ROOT = Path(__file__).resolve().parents[2]
#: Signs that are drawn before others, and the joiners of emoji.
VISIBLE = {*range(0x600, 0x606), 0x6DD, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, 0x200C, 0x200D}


@contextlib.contextmanager
def terminal() -> Iterator[io.BytesIO]:
    """Replace both standard streams, and yield what they get."""
    received = io.BytesIO()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (io.TextIOWrapper(received, "utf-8", newline="", write_through=True) for _ in range(2))
    prepare_streams()
    kept = sys.stdout, sys.stderr
    try:
        yield received
    finally:
        sys.stdout, sys.stderr = before
        for stream in kept:
            # Otherwise its end closes what it wrote to.
            unescaped(stream).detach()


def test_every_invisible_character_that_changes_others_is_escaped() -> None:
    for code in range(sys.maxunicode + 1):
        one = chr(code)
        is_control = unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        if is_control and one not in "\n\t" and code not in VISIBLE:
            assert escaped(one).isascii(), hex(code)
        elif unicodedata.category(one) != "Cn":
            assert escaped(one) == one, hex(code)


@pytest.mark.parametrize("form", ["table", "plain", "json", "yaml"])
def test_names_and_values_of_rows_are_escaped_in_every_format(form: str) -> None:
    row = {CONTROLS: CONTROLS, "map": {CONTROLS: CONTROLS, "in": {CONTROLS: [CONTROLS]}}, "list": [CONTROLS]}
    args = Namespace(output=form)
    with terminal() as out:
        show(args, [row])
        show_one(args, row)
        note(CONTROLS)
        print(CONTROLS, file=sys.stderr)
        sys.stdout.writelines([CONTROLS])
    assert escaped(shown := out.getvalue().decode()) == shown
    assert shown.count("PWNED") >= 10


def test_a_table_has_the_width_of_what_is_shown() -> None:
    with terminal() as out:
        show(Namespace(output="plain"), [{CONTROLS: 1, "second": 2}])
        show_one(Namespace(output="table"), {"map": {CONTROLS: 1}, "second": 2})
    header, row, first, second = out.getvalue().decode().splitlines()
    assert header.index("second") == row.index("2")
    assert first.index("  1") == second.index("  2") or first.rindex("1") == second.rindex("2")


TEXTS = st.text() | st.text("a\u202e\u200f\x9b\x1b\ufeff: #'\"\\\n\t-", max_size=6)


@settings(max_examples=budget(400))
@given(st.recursive(TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8))
def test_json_and_yaml_keep_every_value(value: object) -> None:
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        received = io.StringIO()
        before, sys.stdout = sys.stdout, SafeStream(received)
        try:
            dump(form, value)
        finally:
            sys.stdout = before
        assert escaped(received.getvalue()) == received.getvalue()
        assert read(received.getvalue()) == value


def test_csv_has_no_formulas_and_no_control_characters() -> None:
    names = [CONTROLS, "=a", " =a", "\t=a", "+a", "-a", "@a", "plain"]
    with terminal() as out:
        show_csv([dict.fromkeys(names, "=cmd()"), {**dict.fromkeys(names, -1.5), CONTROLS: "\r\n@x"}], names)
    text = out.getvalue().decode()
    rows = list(csv.reader(io.StringIO(text)))
    assert escaped(text) == text
    assert not any(cell.lstrip().startswith(("=", "+", "@")) for row in rows for cell in row)
    assert rows[2][1:] == ["-1.5"] * 7


def test_the_stream_below_is_not_reached_by_accident() -> None:
    with terminal() as out:
        stream = sys.stdout
        prepare_streams()
        unescaped(sys.stdout).write("\x1b[1A")
        assert sys.stdout is stream
        assert not hasattr(stream, "buffer")
        assert not hasattr(stream, "detach")
        assert stream.encoding == "utf-8"
    assert out.getvalue() == b"\x1b[1A"


def test_only_views_logs_and_progress_bars_use_the_stream_below() -> None:
    users = {
        str(path.relative_to(ROOT / "airflow_provider_dtrain"))
        for path in (ROOT / "airflow_provider_dtrain").rglob("*.py")
        if "unescaped(" in path.read_text() or "sys.__std" in path.read_text() or "stdout.buffer" in path.read_text()
    }
    own = "terminal/safe_streams.py"
    on_hosts = {path for path in users if path.startswith(("supervisor/", "train/"))}
    assert users - on_hosts == {own, "terminal/log_text.py", "terminal/watch.py", "cli/gc.py", "cli/simulate.py"}


def test_log_records_on_a_standard_stream_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    received = io.StringIO()
    monkeypatch.setattr(sys, "stderr", received)
    handler = logging.StreamHandler(received)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    prepare_streams()
    logging.getLogger().error("a host said %s", CONTROLS)
    assert "a host said \\x1b]0;PWNED" in received.getvalue()


def test_a_traceback_of_the_interpreter_is_escaped() -> None:
    code = (
        "from airflow_provider_dtrain.terminal.safe_streams import prepare_streams\n"
        "prepare_streams()\nraise ValueError('\\x1b]0;PWNED')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert b"ValueError: \\x1b]0;PWNED" in done.stderr
    assert b"\x1b" not in done.stderr


# -- logs ----------------------------------------------------------------------------------------------------------

LOG = (
    "\x1b[31mred\x1b[0m \x1b]0;PWNED\x07 é日本 \u202e 50%\r100%\r\n\x9b31m \x1b[2J \xff \x1b[38;5;1m end".encode()
    + b"\xff\x9b\xe2\x80"
)
SHOWN = (
    "\x1b[31mred\x1b[0m \\x1b]0;PWNED\\x07 é日本 \\u202e 50%\r100%\r\n\\x9b31m \\x1b[2J \xff \x1b[38;5;1m end"
    "\\xff\\x9b\\xe2\\x80"
)


def test_a_log_keeps_colors_and_carriage_returns_only() -> None:
    with terminal() as out:
        writer = LogWriter()
        writer.write(LOG)
        writer.end()
    assert out.getvalue().decode() == SHOWN


@settings(max_examples=budget(200))
@given(st.lists(st.integers(0, len(LOG)), max_size=12))
def test_the_pieces_of_a_log_do_not_matter(cuts: list[int]) -> None:
    received = io.StringIO(newline="")
    before, sys.stdout = sys.stdout, SafeStream(received)
    try:
        writer = LogWriter()
        ends = [0, *sorted(cuts), len(LOG)]
        for start, end in zip(ends, ends[1:], strict=False):
            writer.write(LOG[start:end])
        writer.end()
    finally:
        sys.stdout = before
    assert received.getvalue() == SHOWN


@settings(max_examples=budget(200))
@given(st.lists(st.binary(max_size=12) | st.sampled_from([b"\x1b", b"[", b"31m", b"\xe2\x80", b"\xae", b"\n"])))
def test_no_bytes_of_a_log_control_the_terminal(pieces: list[bytes]) -> None:
    received = io.StringIO(newline="")
    before, sys.stdout = sys.stdout, SafeStream(received)
    try:
        for prefix in ("", "[rank 1] "):
            writer = LogWriter(prefix)
            for piece in pieces:
                writer.write(piece)
            writer.end()
    finally:
        sys.stdout = before
    rest = received.getvalue().replace("\r", "")
    while (start := rest.find("\x1b")) >= 0:
        end = rest.index("m", start)
        assert set(rest[start + 1 : end]) <= set("[0123456789;")
        rest = rest[:start] + rest[end + 1 :]
    assert escaped(rest) == rest


@pytest.mark.parametrize("prefix", ["", "[rank 1] "])
def test_a_file_gets_the_bytes_of_a_log(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "log").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        prepare_streams()
        writer = LogWriter(prefix)
        for start in range(0, len(LOG), 7):
            writer.write(LOG[start : start + 7])
        writer.end()
    expected = b"\n".join(prefix.encode() + line for line in LOG.split(b"\n")) + (b"\n" if prefix else b"")
    assert (tmp_path / "log").read_bytes() == expected


def test_a_program_gets_a_log_without_control_sequences() -> None:
    reads, writes = os.pipe()
    with open(writes, "w") as pipe, open(reads, "rb") as reader:
        before, sys.stdout = sys.stdout, safe_streams.SafeStream(pipe)
        try:
            writer = LogWriter()
            writer.write(b"\x1b]0;PWNED\x07\n")
            writer.end()
        finally:
            sys.stdout = before
        pipe.close()
        assert reader.read() == b"\\x1b]0;PWNED\\x07\n"
