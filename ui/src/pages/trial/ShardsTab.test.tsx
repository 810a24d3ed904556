import { screen } from "@testing-library/react";
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
  words: "40 % done", location: "s3://bucket/out", troubles: [], ...values,
});

const routes = (values: object = {}, more: object = {}) => ({
  "trials/7": { body: trial(7, { is_inference: true, ...values }) },
  "trials/7/shards": { body: shards() },
  "experiments/5": { body: experiment() },
  ...more,
});

beforeEach(serveCanvas);

describe("the shards of a trial", () => {
  it("are the first thing that the page of an inference shows", async () => {
    serve(routes());
    const { container } = show(<App />, ADDRESS);
    expect(await screen.findByRole("img", { name: "5 shards: 1 done, 1 running, 1 waiting, 1 failed, 1 set aside" })).toBeTruthy();
    expect([...container.querySelectorAll<HTMLElement>(".dtrain-shards .dtrain-shard")].map((cell) => cell.dataset.state)).toEqual(["done", "failed", "skipped", "running", "waiting"]);
    expect(screen.getByRole("progressbar").getAttribute("aria-valuenow")).toBe("40");
    expect(screen.getByText("10 of 50")).toBeTruthy();
    expect(screen.getByText("12,345")).toBeTruthy();
  });

  it("name failures as text", async () => {
    const troubles = [{ shard: 1, label: HOSTILE, state: "skipped", error: `ValueError: ${HOSTILE}` }];
    serve(routes({}, { "trials/7/shards": { body: shards({ troubles }) } }));
    const { container } = show(<App />, ADDRESS);
    expect(await screen.findByText(`ValueError: ${HOSTILE}`)).toBeTruthy();
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
