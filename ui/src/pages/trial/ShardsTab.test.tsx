import { screen, within } from "@testing-library/react";
import { beforeEach, describe, expect, it } from "vitest";

import { App } from "../../app/App";
import { serveCanvas } from "../../testing/canvas";
import { experiment, refusal, trial } from "../../testing/rows";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";

const ADDRESS = "/plugin/dtrain/trials/7";
const HOSTILE = "<img src=x onerror=alert(1)>";

const shards = (values: object = {}) => ({
  total: 5, states: "dfsrw", done: 1, running: 1, waiting: 1, failed: 1, skipped: 1, rows: 50, rows_done: 10, share: 0.4, rows_per_s: 12_345, eta_s: 90,
  rows_bad: 0, on_bad_row: "fail", words: "40 % done", location: "s3://bucket/out", troubles: [], ...values,
});

const results = (values: object = {}) => ({
  columns: [{ name: "id", type: "int64" }, { name: HOSTILE, type: "string" }], columns_in_all: 3, rows: [["1", null], ["2", HOSTILE]], shard: 4, label: "part-4", bad_rows: [], ...values,
});

const routes = (values: object = {}, more: object = {}) => ({
  "trials/7": { body: trial(7, { is_inference: true, ...values }) },
  "trials/7/shards": { body: shards() },
  "trials/7/results": { body: results() },
  "experiments/5": { body: experiment() },
  ...more,
});

beforeEach(serveCanvas);

describe("the shards of a trial", () => {
  it("are the first thing that the page of an inference shows", async () => {
    const shown = { total: 5, done: 1, missing: 5, computed: 1, skipped: 1, failed: 1, rows: 50, rows_done: 10, rows_bad: 0, share: 0.4, rows_per_s: 12_345, eta_s: 90 };
    serve(routes({ shards: shown }));
    const { container } = show(<App />, ADDRESS);
    expect(await screen.findByRole("img", { name: "5 shards: 1 done, 1 running, 1 waiting, 1 failed, 1 set aside" })).toBeTruthy();
    expect([...container.querySelectorAll<HTMLElement>(".dtrain-shards .dtrain-shard")].map((cell) => cell.dataset.state)).toEqual(["done", "failed", "skipped", "running", "waiting"]);
    expect(screen.getByRole("progressbar").getAttribute("aria-valuenow")).toBe("40");
    expect(screen.getByText("10 of 50")).toBeTruthy();
    expect(screen.getByText("12,345")).toBeTruthy();
  });

  it("name failures as text", async () => {
    const troubles = [{ shard: 1, label: HOSTILE, state: "skipped", error: `ValueError: ${HOSTILE}\u202e`, failures: 3 }];
    serve(routes({}, { "trials/7/shards": { body: shards({ troubles }) } }));
    const { container } = show(<App />, ADDRESS);
    expect(await screen.findByText(`ValueError: ${HOSTILE}\\u202e`)).toBeTruthy();
    expect(screen.getByText("3 times")).toBeTruthy();
    expect(container.querySelector("img")).toBeNull();
  });

  it("are explained before they are counted", async () => {
    const none = { total: 0, states: "", done: 0, running: 0, waiting: 0, failed: 0, skipped: 0, rows: null, rows_done: 0, share: 0, rows_per_s: null, eta_s: null };
    serve(routes({}, { "trials/7/shards": { body: shards(none) } }));
    show(<App />, ADDRESS);
    expect(await screen.findByText("There are no shards yet.")).toBeTruthy();
  });

  it("that are too many are only counted", async () => {
    serve(routes({}, { "trials/7/shards": { body: shards({ total: 200_000, states: "" }) } }));
    show(<App />, ADDRESS);
    expect(await screen.findByText("The input has too many shards for a grid.")).toBeTruthy();
  });

  it("stay away from the page of a training", async () => {
    serve(routes({ is_inference: false, metrics: [], attempts_list: [] }, { "trials/7/shards": refusal(404, "not_found", "no batch inference"), "trials/7/timeline": { body: { entries: [] } } }));
    show(<App />, ADDRESS);
    expect(await screen.findByText("The trial has not started yet.")).toBeTruthy();
    expect(screen.queryByRole("tab", { name: "Shards" })).toBeNull();
  });
});

describe("the page of a batch inference", () => {
  it("shows the first results as text", async () => {
    serve(routes());
    const { container } = show(<App />, ADDRESS);
    const table = await screen.findByRole("region", { name: "First results" });
    expect(within(table).getAllByText(HOSTILE)).toHaveLength(2);
    expect(within(table).getByText("null")).toBeTruthy();
    expect(container.querySelector("img")).toBeNull();
    expect(screen.getByText(/1 more column in the results/u)).toBeTruthy();
  });

  it("says which right the first results need, and shows nothing without a report", async () => {
    serve(routes({}, { "trials/7/results": refusal(403, "forbidden", "no logs") }));
    const first = show(<App />, ADDRESS);
    expect(await screen.findByText(/may read the task logs/u)).toBeTruthy();
    first.unmount();
    serve(routes({}, { "trials/7/results": { body: results({ columns: [], rows: [] }) }, "trials/7/shards": { body: shards({ rows_bad: 3, on_bad_row: "mark" }) } }));
    show(<App />, ADDRESS);
    expect(await screen.findByText("3 marked in the column error")).toBeTruthy();
    expect(screen.queryByText("First results")).toBeNull();
  });

  it("names bad rows, with marks of direction as escapes", async () => {
    const bad_rows = [{ shard: 17, row: 70_001, name: "invoice\u202egnp.exe", error: "no image" }];
    serve(routes({}, { "trials/7/results": { body: results({ bad_rows }) }, "trials/7/shards": { body: shards({ rows_bad: 1, on_bad_row: "skip" }) } }));
    show(<App />, ADDRESS);
    const table = await screen.findByRole("region", { name: "Bad rows" });
    expect(within(table).getByText("invoice\\u202egnp.exe")).toBeTruthy();
    expect(within(table).getByText("17")).toBeTruthy();
    expect(within(table).getByText("row id 70001")).toBeTruthy();
  });

  it("leaves out states that no shard of an ended run has", async () => {
    const ended = { total: 2, states: "ds", done: 1, running: 0, waiting: 0, failed: 0, skipped: 1 };
    serve(routes({ state: "completed", ended_at: "2026-01-31T12:30:00Z", progress: null }, { "trials/7/shards": { body: shards(ended) } }));
    show(<App />, ADDRESS);
    const legend = await screen.findByRole("list", { name: "Legend of the shards" });
    expect(within(legend).getAllByRole("listitem").map((item) => item.textContent)).toEqual(["1 done", "1 set aside"]);
  });

  it("has the words of an inference, and none of a training", async () => {
    const progress = { total: 5, done: 4, missing: 5, computed: 4, skipped: 1, failed: 0, rows: 50, rows_done: 40, rows_bad: 2, share: 0.8, rows_per_s: 1234, eta_s: null };
    serve(routes({ state: "completed", ended_at: "2026-01-31T12:30:00Z", progress: null, shards: progress }));
    show(<App />, ADDRESS);
    expect(await screen.findByText("40 of 50")).toBeTruthy();
    expect(screen.getByText("4 of 5, 1 set aside")).toBeTruthy();
    expect(screen.getByText("1,234")).toBeTruthy();
    for (const words of ["Trained for", "Best metric", "Best checkpoint", "Training", "Trains", "Checkpoints and outputs"]) expect(screen.queryByText(words)).toBeNull();
    for (const words of ["Computed for", "Metrics and timings", "Results and shards"]) expect(screen.getByText(words)).toBeTruthy();
  });
});
