"""Views in a terminal: little is sent, and hostile texts control nothing."""

from __future__ import annotations

import os

import pytest

from airflow_provider_dtrain.terminal.watch import Screen, View, spark, watch

SIZE = os.terminal_size((20, 5))


def screen() -> Screen:
    return Screen(is_terminal=True, size=lambda: SIZE)


def test_only_lines_that_differ_are_sent(capsys):
    shown = screen()
    shown.draw(["one", "two", "three"])
    capsys.readouterr()
    shown.draw(["one", "TWO", "three"])
    assert capsys.readouterr().out == "\x1b[3A\r\n\x1b[2KTWO\n\n"


def test_lines_that_are_gone_are_removed_and_long_ones_cut(capsys):
    shown = screen()
    shown.draw(["x" * 30, "two"])
    shown.draw(["one"])
    out = capsys.readouterr().out
    assert "x" * 21 not in out
    assert out.endswith("\x1b[2Kone\n\x1b[J")


def test_a_view_is_never_higher_than_the_terminal(capsys):
    screen().draw([str(number) for number in range(50)])
    assert capsys.readouterr().out.count("\n") == SIZE.lines - 1


def test_a_text_of_a_host_cannot_control_the_terminal(capsys):
    screen().draw(["\x1b]0;owned\x07"])
    assert "\x1b]" not in capsys.readouterr().out


def test_a_file_gets_a_view_only_after_a_change(capsys):
    views = iter([["a"], ["a"], ["b"]])
    pauses: list[float] = []

    def read(width: int | None) -> View:
        assert width is None
        lines = next(views)
        return View(lines=lines, is_last=lines == ["b"])

    watch(read, Screen(is_terminal=False), sleep=pauses.append)
    assert (capsys.readouterr().out, len(pauses)) == ("a\n\nb\n\n", 2)


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([None], ""),
        ([1.0, 1.0], "▁▁"),
        ([0.0, None, 7.0], "▁█"),
        (list(map(float, range(8))), "▁▂▃▄▅▆▇█"),
        ([-1e308, 1e308], "▁▁"),
    ],
)
def test_numbers_are_bars(values, bars):
    assert spark(values) == bars


def test_many_numbers_fit_the_width():
    assert len(spark([float(number) for number in range(1000)], 40)) == 40
