import { screen, within } from "@testing-library/react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { App } from "../app/App";
import { serveCanvas } from "../testing/canvas";
import { phone } from "../testing/phone";
import { curve, experiment, trial, trialRow } from "../testing/rows";
import { serve } from "../testing/server";
import { show } from "../testing/show";

const curves = { body: { metric: "loss", group: "validation", x: "batches", total_trials: 1, series: [curve(1)] } };

beforeEach(serveCanvas);
afterEach(() => vi.unstubAllGlobals());

describe("a phone", () => {
  it("shows progress and the best value of an experiment at once, and folds the rest", async () => {
    phone(true);
    serve({ "experiments/5": { body: experiment() }, "experiments/5/curves": curves });
    const { unmount } = show(<App />, "/plugin/dtrain/experiments/5");
    const best = await screen.findByRole("link", { name: "loss 0.25" });
    expect(best.closest("details")).toBeNull();
    expect(screen.getByText("Searcher").closest("details")).not.toBeNull();
    unmount();
    phone(false);
    show(<App />, "/plugin/dtrain/experiments/5");
    expect((await screen.findByText("Searcher")).closest("details")).toBeNull();
  });

  it("shows state, place and best value of a trial at once", async () => {
    phone(true);
    serve({ "trials/7": { body: trial(7) }, "experiments/5": { body: experiment() }, "trials/7/curves": { body: { series: [] } } });
    show(<App />, "/plugin/dtrain/trials/7");
    expect((await screen.findByText("Best metric")).closest("details")).toBeNull();
    expect(screen.getByText("2 slots on gpu-1 (0-1)").closest("details")).toBeNull();
    for (const folded of ["Request", "Attempts", "Best checkpoint"]) expect(screen.getByText(folded).closest("details")).not.toBeNull();
  });

  it("shows state, name, best value and reason of a row before all columns, which do not cover each other", async () => {
    phone(true);
    const rows = [trialRow(3, { state: "stopped", reason: "stopped by the searcher at rung 1" }), trialRow(4, { best_metric: null })];
    serve({ "experiments/5": { body: experiment() }, "trials": { body: { rows, total: 2 } } });
    const { container } = show(<App />, "/plugin/dtrain/experiments/5?tab=trials");
    const first = (await screen.findByRole("link", { name: "Trial 3" })).closest("td") as HTMLElement;
    expect(first.dataset.column).toBe("glance");
    expect(first.textContent).toBe("stoppedTrial 3loss 0.25, stopped by the searcher at rung 1");
    expect(within(screen.getByRole("table")).getAllByRole("columnheader").map(({ textContent }) => textContent).filter((text) => /State|Reason|Trial$/.test(text))).toEqual(["State, trial, best"]);
    expect(container.querySelector("[data-pinned]")).toBeNull();
    expect([...container.querySelectorAll("td[data-column=glance]")].at(1)?.textContent).toBe("runningTrial 4–");
  });
});
