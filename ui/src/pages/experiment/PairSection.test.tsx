import { screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { beforeEach, describe, expect, it } from "vitest";

import { App } from "../../app/App";
import { serveCanvas } from "../../testing/canvas";
import { experiment } from "../../testing/rows";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { pairOf } from "./PairSection";

const ADDRESS = "/plugin/dtrain/experiments/5?tab=hyperparameters";

const answer = (columns: Record<string, unknown[]>) => ({
  names: Object.keys(columns).map((name) => ({ name, kind: name === "opt" ? "categorical" : "float", log: name === "lr", values: name === "opt" ? ["adam", "sgd"] : null })),
  trial_id: [1, 2, 3], number: [0, 1, 2], state: ["completed", "completed", "errored"], metric: [0.5, 0.25, null], columns,
  importance: [{ name: "lr", value: 0.75 }, { name: "dropout", value: 0.25 }], importance_note: "By PED-ANOVA.", is_importance_pending: false,
});

beforeEach(serveCanvas);

describe("the chart of two hyperparameters", () => {
  it("shows a contour of the two most important ones, then ranks, and the same as a table", async () => {
    serve({ "experiments/5": { body: experiment() }, "experiments/5/hyperparameters": { body: answer({ dropout: [0.1, 0.3, 0.2], lr: [0.1, 0.01, 0.001], opt: ["adam", "sgd", "sgd"] }) } });
    show(<App />, ADDRESS);
    const chart = (await screen.findByRole("heading", { name: "loss over lr and dropout" })).closest("section") as HTMLElement;
    expect(within(chart).getByText("Interpolated from 2 trials. Far from a point, the colour is a guess.")).toBeTruthy();
    expect(within(chart).getByText("1 trial without a metric or one of the values.")).toBeTruthy();
    await userEvent.click(within(chart).getByRole("button", { name: "Rank" }));
    expect(await screen.findByRole("heading", { name: "Rank by loss over lr and dropout" })).toBeTruthy();
    await userEvent.click(within(chart).getByRole("button", { name: "Table" }));
    const rows = within(chart).getAllByRole("row").map((row) => within(row).queryAllByRole("cell").map(({ textContent }) => textContent));
    expect(rows).toEqual([[], ["Trial 2", "0.01", "0.3", "0.25", "1"], ["Trial 1", "0.1", "0.1", "0.5", "0"], ["Trial 3", "0.001", "0.2", "–", "–"]]);
  });

  it("says why there is no contour, and is absent with one hyperparameter", async () => {
    serve({ "experiments/5": { body: experiment() }, "experiments/5/hyperparameters": { body: answer({ dropout: [0.1, 0.1, 0.1], lr: [0.1, 0.01, 0.001] }) } });
    const { unmount } = show(<App />, ADDRESS);
    expect(await screen.findByText("A contour needs trials that differ in both hyperparameters.")).toBeTruthy();
    unmount();
    serve({ "experiments/5": { body: experiment({ experiment_id: 6 }) }, "experiments/6": { body: experiment({ experiment_id: 6 }) }, "experiments/6/hyperparameters": { body: answer({ lr: [0.1, 0.01, 0.001] }) } });
    show(<App />, ADDRESS.replace("/5", "/6"));
    expect(await screen.findByRole("heading", { name: "loss over lr" })).toBeTruthy();
    expect(screen.queryByRole("group", { name: "Drawn as" })).toBeNull();
  });

  it("takes names of the address, and other ones for those that do not exist", () => {
    expect(pairOf(["a", "b", "c"], ["c", "a"])).toEqual(["c", "a"]);
    expect(pairOf(["a", "b", "c"], ["b", "b"])).toEqual(["b", "a"]);
    expect(pairOf(["a", "b"], ["__proto__", "x"])).toEqual(["a", "b"]);
    expect(pairOf(["a"], [])).toBeNull();
  });
});
