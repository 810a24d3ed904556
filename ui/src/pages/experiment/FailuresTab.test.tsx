import { screen } from "@testing-library/react";
import { beforeEach, describe, expect, it } from "vitest";

import { App } from "../../app/App";
import { serveCanvas } from "../../testing/canvas";
import { experiment } from "../../testing/rows";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { haveMostFailed } from "./FailuresTab";

const HOSTILE = "<img src=x onerror=alert(1)>";
const CAUSE = "OutOfMemoryError: CUDA out of memory. Tried to allocate ... GiB";

const failures = (values: object = {}) => ({
  text: "8 of 10 trials failed with the same error.", failed: 8, ended: 10, is_most: true, compared: 8,
  groups: [{ cause: CAUSE, count: 8, trials: [18, 17, 16], error: "RankFailedError", cause_kind: "device_memory", raised: [{ text: HOSTILE, frames: [], library_frames: 1 }], advice: "Use a smaller batch per slot." }],
  ...values,
});

const routes = (trials: object, values: object = {}) => ({
  "experiments/5": { body: experiment({ state: "completed", ended_at: "2026-01-31T13:00:00Z", trials }) },
  "experiments/5/failures": { body: failures(values) },
  trials: { body: { rows: [], total: 0 } },
  "experiments/5/curves": { body: { series: [], total_trials: 0, metric: "loss", group: "validation" } },
});

beforeEach(serveCanvas);

describe("the page of an experiment with failed trials", () => {
  it("opens on the cause when most trials failed", async () => {
    serve(routes({ errored: 8, completed: 2 }));
    show(<App />, "/plugin/dtrain/experiments/5");
    const alert = await screen.findByRole("alert");
    expect(alert.textContent).toContain("8 of 10 trials failed with the same error.");
    expect(alert.textContent).toContain(CAUSE);
    expect((await screen.findByRole("tab", { name: "Failures" })).getAttribute("aria-selected")).toBe("true");
    expect(screen.getByRole("link", { name: "18" }).getAttribute("href")).toContain("/trials/18");
    expect(screen.getByRole("link", { name: "18" }).closest("p")?.textContent).toBe("Trials 18, 17, 16 and 5 more");
    expect(screen.getByText(HOSTILE)).toBeTruthy();
    expect(document.querySelector("img")).toBeNull();
  });

  it("keeps its curves first when few trials failed", async () => {
    serve(routes({ errored: 1, completed: 9 }, { is_most: false, failed: 1 }));
    show(<App />, "/plugin/dtrain/experiments/5");
    expect((await screen.findByRole("tab", { name: "Curves" })).getAttribute("aria-selected")).toBe("true");
    expect(screen.getByRole("tab", { name: "Failures" })).toBeTruthy();
    expect(screen.queryByRole("alert")).toBeNull();
  });

  it("has no tab for failures without any", async () => {
    serve(routes({ completed: 9 }));
    show(<App />, "/plugin/dtrain/experiments/5");
    expect(await screen.findByRole("tab", { name: "Curves" })).toBeTruthy();
    expect(screen.queryByRole("tab", { name: "Failures" })).toBeNull();
  });
});

describe("most trials", () => {
  it("are more than half of those that have ended", () => {
    expect(haveMostFailed({ errored: 1, completed: 1 })).toBe(false);
    expect(haveMostFailed({ errored: 2, completed: 1, running: 5 })).toBe(true);
    expect(haveMostFailed({})).toBe(false);
  });
});
