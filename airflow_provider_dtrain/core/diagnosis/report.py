"""Report of a diagnosis as one HTML page that loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from airflow_provider_dtrain.core.diagnosis.verdict import PARTS, percent

_COLORS: Mapping[str, str] = {
    "communication": "#c2410c", "input": "#1d4ed8", "imbalance": "#a21caf", "compute": "#15803d",
}  # fmt: skip
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #111;
  background: #fff }
table { border-collapse: collapse; width: 100% } td, th { padding: .3rem .6rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid #ddd } td.number { text-align: right; white-space: nowrap }
.bar { display: flex; height: 1.6rem; border-radius: 4px; overflow: hidden; background: #eee }
.key { display: inline-block; width: .8rem; height: .8rem; margin-right: .3rem; border-radius: 2px }
"""


def html_report(result: Mapping[str, Any], title: str, made_at: str) -> str:
    """Return the page. Every text is escaped.

    :param result: of :func:`.as_data`
    :param title: name of the configuration
    :param made_at: time of the diagnosis, for readers
    """
    shares: Mapping[str, float | None] = result["shares"]
    bar = "".join(
        f'<div style="width: {100 * (shares[part] or 0):.1f}%; background: {_COLORS[part]}" title="{part}"></div>'
        for part in PARTS
    )
    keys = " ".join(
        f'<span class="key" style="background: {_COLORS[part]}"></span>{part} {percent(shares[part])}&emsp;'
        for part in PARTS
    )
    sentences = "".join(f"<p>{escape(text)}</p>" for text in result["sentences"])
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Diagnosis of {escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>Diagnosis of {escape(title)}</h1><p>{escape(made_at)}</p>"
        f'<h2>Where a step of {_milliseconds(result["step_s"])} goes</h2><div class="bar">{bar}</div><p>{keys}</p>'
        f"<h2>Verdict</h2>{sentences}"
        f"<h2>What to change</h2>{_suggestions(result['suggestions'])}"
        f"<h2>Runs</h2>{_runs(result['runs'])}</body></html>\n"
    )


def _suggestions(found: Sequence[Mapping[str, Any]]) -> str:
    if not found:
        return "<p>Nothing.</p>"
    rows = (
        f'<tr><td>{escape(one["text"])}</td><td class="number">{_share(one["expected"])}</td>'
        f'<td class="number">{_share(one["measured"])}</td><td>{escape(one["problem"] or "")}</td></tr>'
        for one in found
    )
    head = "<tr><th>Change</th><th>Expected to save</th><th>Saved in a run</th><th>Not measured</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _runs(found: Sequence[Mapping[str, Any]]) -> str:
    rows = (
        f'<tr><td>{escape(run["title"])}</td><td class="number">{run["trial_id"] or ""}</td>'
        f'<td class="number">{run["steps"]}</td><td class="number">{_milliseconds(run["step_s"])}</td>'
        f"<td>{escape(run['problem'] or _ranks(run['ranks']))}</td></tr>"
        for run in found
    )
    head = "<tr><th>Run</th><th>Trial</th><th>Steps</th><th>Step</th><th>Ranks</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _ranks(ranks: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"rank {one['rank']} ({one['host']}) {_milliseconds(one['step_s'])}" for one in ranks)


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{1000 * value:.2f} ms"
