import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { beforeEach, describe, expect, it } from "vitest";

import { App } from "../../app/App";
import { serveCanvas } from "../../testing/canvas";
import { curve, experiment, refusal, trialRow } from "../../testing/rows";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";

const ADDRESS = "/plugin/dtrain/experiments/5";
const HOSTILE = "<img src=x onerror=alert(1)>";

const curves = (...series: object[]) => ({ body: { metric: "loss", group: "validation", x: "batches", total_trials: 3, series } });

beforeEach(serveCanvas);

describe("the page of an experiment", () => {
  it("shows progress, best trial and the curves of its trials, each in the colour of its number", async () => {
    serve({ "experiments/5": { body: experiment() }, "experiments/5/curves": curves(curve(1), curve(2)) });
    const { container } = show(<App />, ADDRESS);
    expect(await screen.findByRole("link", { name: "loss 0.25" })).toBeTruthy();
    expect(await screen.findByText("2 of 3 trials are shown.")).toBeTruthy();
    const colors = [...container.querySelectorAll("[role=listbox] line, li line, label line")].map((line) => line.getAttribute("stroke"));
    expect(new Set(colors).size).toBe(2);
    await waitFor(() => expect(document.title).toBe("resnet (experiment 5) - DTrain - Airflow"));
  });

  it("names the best and the last value of each trial, and only the last one of a metric whose direction is not known", async () => {
    const body = experiment({ metrics: [{ group: "validation", name: "loss" }, { group: "training", name: "lr" }] });
    serve({ "experiments/5": { body }, "experiments/5/curves": curves(curve(1, { y: [1, 0.25, 0.5] }), curve(2, { y: [0.75, null, null] })) });
    const { unmount } = show(<App />, "/plugin/dtrain/experiments/5");
    const list = await screen.findByRole("list", { name: "Trials of the chart" });
    expect((await within(list).findAllByRole("button")).map(({ textContent }) => textContent?.replace(/^.*?(best 0|last 0)/, "$1"))).toEqual(["best 0.25last 0.50", "best 0.75last NaN/∞"]);
    unmount();
    serve({ "experiments/5": { body }, "experiments/5/curves": curves(curve(1, { y: [1, 0.25, 0.5] })) });
    show(<App />, "/plugin/dtrain/experiments/5?metric=training/lr");
    const other = await screen.findByRole("list", { name: "Trials of the chart" });
    expect((await within(other).findByRole("button")).textContent).toMatch(/last 0.5$/);
    expect(within(other).queryByText("best", { exact: false, selector: "span" })).toBeNull();
  });

  it("requests what the tab shows together with the experiment", async () => {
    let answer = (): void => undefined;
    const waits = new Promise<void>((resolve) => (answer = resolve));
    const arrived = serve({
      "experiments/5": async () => {
        await waits;
        return { body: experiment() };
      },
      "experiments/5/rungs": { body: { metric: "loss", smaller_is_better: true, divisor: 4, units: "batches", brackets: [] } },
    });
    show(<App />, `${ADDRESS}?tab=rungs`);
    await waitFor(() => expect(arrived.map(({ path }) => path)).toContain("experiments/5/rungs"));
    answer();
    expect(await screen.findByText("This experiment has no rungs.")).toBeTruthy();
    expect(arrived.filter(({ path }) => path === "experiments/5/rungs")).toHaveLength(1);
  });

  it("tells how to report a metric while there is none", async () => {
    serve({ "experiments/5": { body: experiment({ metrics: [], best: null, best_trial: null }) } });
    show(<App />, ADDRESS);
    expect(await screen.findByText("No trial has reported a metric yet.")).toBeTruthy();
  });

  it("shows why there is none, with the next step", async () => {
    serve({ "experiments/5": refusal(404, "not_found", "There is no experiment 5. See: airflow dtrain experiments list") });
    show(<App />, ADDRESS);
    expect(await screen.findByText("Experiment 5: There is no experiment 5. See: airflow dtrain experiments list")).toBeTruthy();
    expect(screen.getByRole("link", { name: "All experiments, with their trials" }).getAttribute("href")).toBe("/plugin/dtrain/experiments");
  });

  it("shows what a trial trained in the unit of the search, and steps where it reported none", async () => {
    const rows = [trialRow(1, { units: 16, rung: 2 }), trialRow(2, { state: "errored", units: 1170, epochs: 3, rung: null }), trialRow(3, { units: 7, rung: null })];
    serve({ "experiments/5": { body: experiment() }, "trials": { body: { rows, total: 3 } } });
    const { container } = show(<App />, `${ADDRESS}?tab=trials`);
    await waitFor(() => expect([...container.querySelectorAll("td[data-column=units]")].map((cell) => cell.textContent)).toEqual(["16", "3", "step 7"]));
  });

  it("has the best trials first, the bracket where there are several, and no badge for a stopped trial that is louder than a failure", async () => {
    const search = { ...experiment().search, rungs: { 0: [1, 4], 1: [4] } };
    const rows = [trialRow(1, { state: "stopped", bracket: 1 }), trialRow(2, { state: "errored" })];
    const arrived = serve({ "experiments/5": { body: experiment({ search, smaller_is_better: false }) }, "trials": { body: { rows, total: 2 } } });
    const { container } = show(<App />, `${ADDRESS}?tab=trials`);
    expect(await screen.findByRole("columnheader", { name: "Bracket" })).toBeTruthy();
    expect(arrived.map(({ path }) => path).filter((path) => path.includes("sort="))).toEqual([expect.stringContaining("order=desc&sort=best_metric")]);
    await waitFor(() => expect(container.querySelector("td[data-column=bracket]")?.textContent).toBe("1"));
    expect(container.querySelector<HTMLElement>("[data-state=stopped]")?.style.background).toBe("");
    expect(container.querySelector<HTMLElement>("[data-state=errored]")?.style.background).not.toBe("");
    expect(screen.queryByText(/ommands take/)).toBeNull();
  });

  it("asks for the importance again until it is computed", async () => {
    const columns = {
      names: [{ name: "lr", kind: "float", log: true, values: null }], trial_id: [1, 2], number: [0, 1], state: ["completed", "completed"], metric: [0.5, 0.25], columns: { lr: [0.1, 0.01] },
    };
    let asked = 0;
    serve({
      "experiments/5": { body: experiment({ state: "completed" }) },
      "experiments/5/hyperparameters": () => {
        asked += 1;
        const isPending = asked === 1;
        const known = isPending ? { importance: [], importance_note: "It is being computed." } : { importance: [{ name: "lr", value: 1 }], importance_note: "By fANOVA over 2 trials." };
        return { body: { ...columns, ...known, is_importance_pending: isPending } };
      },
    });
    show(<App />, `${ADDRESS}?tab=hyperparameters`);
    expect(await screen.findByText("It is being computed.")).toBeTruthy();
    expect(await screen.findByText("By fANOVA over 2 trials.", {}, { timeout: 5_000 })).toBeTruthy();
  });

  it("shows texts of the store as text", async () => {
    const names = { name: HOSTILE, description: HOSTILE, tags: [HOSTILE], metric: HOSTILE, metrics: [{ group: "validation", name: HOSTILE }] };
    serve({ "experiments/5": { body: experiment(names) }, "experiments/5/curves": curves(curve(1, { trial_name: HOSTILE, y: [1, null, 0.5] })) });
    const { container } = show(<App />, ADDRESS);
    expect(await screen.findByRole("heading", { name: HOSTILE })).toBeTruthy();
    expect(await screen.findByText(/NaN or infinite/)).toBeTruthy();
    expect(container.querySelector("img")).toBeNull();
  });

  it("says that it cannot run, and why, as its trials do", async () => {
    const reason = "24 slots can never be granted.";
    const arrived = serve({
      "experiments/5": { body: experiment({ state: "queued", never_fits: true, reason }) },
      trials: { body: { rows: [trialRow(1, { state: "queued", never_fits: true, reason })], total: 1 } },
    });
    show(<App />, "/plugin/dtrain/experiments/5?tab=trials&state=never_fits");
    expect((await screen.findByText("Cannot run")).nextSibling?.textContent).toBe(reason);
    await screen.findByRole("link", { name: "Trial 1 (best)" });
    expect(screen.getAllByTestId("state-badge").map(({ textContent }) => textContent)).toEqual(["cannot run", "cannot run", "cannot run"]);
    expect(arrived.map(({ path }) => path).find((path) => path.includes("where="))).toContain("where=never_fits+%3D+true");
  });

  it("offers the actions that its state allows to a user with the right, and none to another", async () => {
    serve({ "experiments/5": { body: experiment() }, "experiments/5/curves": curves(curve(1)) });
    const { unmount } = show(<App />, ADDRESS);
    const actions = await screen.findByRole("group", { name: "Actions of experiment resnet" });
    expect([...actions.querySelectorAll("button")].map((button) => button.textContent.trim())).toEqual(["Pause", "Stop", "Kill"]);
    unmount();
    serve({ "experiments/5": { body: experiment({ may_edit: false }) }, "experiments/5/curves": curves(curve(1)) });
    show(<App />, ADDRESS);
    await userEvent.click(await screen.findByRole("tab", { name: "Trials" }));
    await waitFor(() => expect(screen.queryByRole("group", { name: "Actions of experiment resnet" })).toBeNull());
  });
});
