import { screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { beforeEach, describe, expect, it } from "vitest";

import { App } from "../../app/App";
import { serveCanvas } from "../../testing/canvas";
import { experiment } from "../../testing/rows";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";

const ADDRESS = "/plugin/dtrain/experiments/5?tab=timeline";
const HOSTILE = "<img src=x onerror=alert(1)>";

const span = (trial_id: number, values: object = {}) => ({
  trial_id, number: trial_id - 1, state: "completed", metric: 0.5, attempt: 1, attempt_state: "completed", granted_at: "2026-01-31T12:00:00Z", started_at: "2026-01-31T12:00:30Z",
  ended_at: "2026-01-31T12:10:00Z", placement: { "gpu-1": [0, 1] }, ...values,
});

beforeEach(serveCanvas);

describe("the timeline of an experiment", () => {
  it("shows its trials on their slots, and the same as a table", async () => {
    const spans = [span(1), span(2, { granted_at: "2026-01-31T12:10:00Z", started_at: null, ended_at: "2026-01-31T12:20:00Z", placement: { [HOSTILE]: [0] } })];
    serve({ "experiments/5": { body: experiment({ state: "completed" }) }, "experiments/5/timeline": { body: { total: 9, spans } } });
    const { container } = show(<App />, ADDRESS);
    expect(await screen.findByRole("group", { name: /^Timeline of 2 attempts on their slots\. The table has the same attempts\./ })).toBeTruthy();
    expect(container.querySelector("[data-bars]")?.getAttribute("data-bars")).toBe("2");
    expect(screen.getByText("The latest 2 of 9 attempts.")).toBeTruthy();
    expect(screen.getByText(/held these slots for 50 % of the time/)).toBeTruthy();
    await userEvent.click(screen.getByRole("button", { name: "Table" }));
    const rows = within(screen.getByRole("region", { name: "Attempts with their slots" })).getAllByRole("row").slice(1);
    expect(rows.map((row) => within(row).getAllByRole("cell").map(({ textContent }) => textContent))).toEqual([
      ["Trial 1", "1", "completed", "gpu-1 (0-1)", "2026-01-31, 12:00:00", "30 s", "10 min"],
      ["Trial 2", "1", "completed", `${HOSTILE} (0)`, "2026-01-31, 12:10:00", "", "10 min"],
    ]);
    expect(container.querySelector("img")).toBeNull();
  });

  it("tells that no trial has held a slot yet", async () => {
    serve({ "experiments/5": { body: experiment() }, "experiments/5/timeline": { body: { total: 0, spans: [] } } });
    show(<App />, ADDRESS);
    expect(await screen.findByText("No trial of this experiment has held a slot yet.")).toBeTruthy();
  });
});
