"""Invariants of the output folder of a batch inference. Each function returns its violations."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from tests.faults.inference_gangs import Gang, Place, done_shards


def after_gang(place: Place, gang: Gang) -> list[str]:
    """Return the violations of a gang that has ended while no other one ran."""
    found = []
    again = gang.shards("shard_started") & gang.done_before
    if again and not gang.overwrite:
        found.append(f"gang {gang.number} computed shards again that were done: {sorted(again)}")
    if gang.is_well and gang.events("manifest"):
        found += published(place)
    if not gang.is_well and not gang.has_refused and not any(code < 0 for code in gang.codes()):
        found.append(f"gang {gang.number} ended with {gang.codes()}, and no rank was killed\n{gang.output()}")
    return found


def published(place: Place) -> list[str]:
    """Return what differs between folder, manifest and expected rows."""
    content = place.out / "_manifest.json"
    if not content.exists():
        return ["there is no manifest"]
    manifest = json.loads(content.read_text())
    names = {one["name"] for one in manifest["objects"]}
    there = set(os.listdir(place.out)) - {"_dtrain", "_manifest.json"}
    found = [f"{name} is not in the manifest" for name in sorted(there - names)]
    found += [f"{name} of the manifest is missing" for name in sorted(names - there)]
    for one in manifest["objects"]:
        if one["name"] in there:
            found += _wrong_object(place.out / one["name"], one)
    if found:
        return found
    return _wrong_rows(place, manifest)


def _wrong_object(path: Path, one: dict[str, Any]) -> list[str]:
    content = path.read_bytes()
    now = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return [f"{path.name} has {name} {now[name]}, not {one[name]}" for name in now if now[name] != one[name]]


def _wrong_rows(place: Place, manifest: dict[str, Any]) -> list[str]:
    expected = place.expected(manifest["skipped"])
    rows = [row for one in manifest["objects"] for row in read(place.out / one["name"], place.kind)]
    numbers = [row["row"] for row in rows]
    found = []
    if sorted(numbers) != sorted(expected):
        twice = sorted({number for number in numbers if numbers.count(number) > 1})
        lost = sorted(expected.keys() - set(numbers))
        found.append(f"{len(rows)} rows, not {len(expected)}: twice {twice[:9]}, lost {lost[:9]}")
    wrong = [row for row in rows if row["score"] != expected.get(row["row"]) or row["id"] != row["row"]]
    if wrong:
        found.append(f"{len(wrong)} rows have wrong values: {wrong[:3]}")
    if manifest["rows"] != len(rows):
        found.append(f"the manifest has {manifest['rows']} rows, the objects {len(rows)}")
    if {one["shard"] for one in manifest["objects"]} & {one["shard"] for one in manifest["skipped"]}:
        found.append(f"shards have objects and are skipped: {manifest['skipped']}")
    metrics = {"count": len(expected), "total": sum(expected)} if expected else {}
    if manifest["metrics"] != metrics:
        found.append(f"metrics are {manifest['metrics']}, not {metrics}")
    return found


def at_the_end(place: Place, last: Gang) -> list[str]:
    """Return the violations after a gang without faults, the last one."""
    found = after_gang(place, last)
    if last.has_refused:
        return found + ["there is a manifest without a row"] * (place.out / "_manifest.json").exists()
    if not last.is_well:
        return [*found, f"the last gang ended with {last.codes()}\n{last.output()}"]
    manifest = json.loads((place.out / "_manifest.json").read_text())
    own = place.out / "_dtrain"
    left = [str(path.relative_to(own)) for path in own.rglob("*") if path.is_file()]
    kept = {"run.json", "plan.json"}
    found += [f"_dtrain/{name} is left" for name in left if name not in kept and name[:5] not in ("done/", "skipp")]
    done = done_shards(place)
    if done != {one["shard"] for one in manifest["objects"]}:
        found.append(f"the ledger has shards {sorted(done)} as done, not those of the manifest")
    entries = len(os.listdir(own / "done")) if (own / "done").exists() else 0
    if entries != len(done):
        found.append(f"the ledger has {entries} entries for {len(done)} shards")
    return found


def read(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the rows of an object."""
    if kind == "parquet":
        import pyarrow.parquet as pq

        return list(pq.read_table(path).to_pylist())
    return [json.loads(line) for line in path.read_text().splitlines()]
