import { cleanup, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { beforeEach, describe, expect, it } from "vitest";

import { forget } from "../../api/cache";
import { App } from "../../app/App";
import { serveCanvas } from "../../testing/canvas";
import { curve, refusal, trialRow } from "../../testing/rows";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";

const ADDRESS = "/plugin/dtrain/compare?trial=1&trial=2";
const HOSTILE = "<img src=x onerror=alert(1)>";

const compared = (id: number, values: object = {}) => ({ ...trialRow(id), experiment_id: 5, experiment: "resnet", metric: "loss", ...values });

const comparison = (values: object = {}) => ({
  body: { trials: [compared(1), compared(2, { state: "completed" })], metrics: [{ group: "validation", name: "loss" }], has_epochs: false, ...values },
});

const lr = { subject: "configuration", name: "hyperparameters.lr", values: ["0.1", "0.01"], is_unknown: false };
const differences = (rows: object[] = [lr], trials: number[] = [1, 2]) => ({ body: { trials, rows, same: ["code", "seed"] } });
const SAME = "The same, and not shown: code, seed. All other values of the configurations are the same as well.";

const curves = { body: { metric: "loss", group: "validation", x: "batches", total_trials: 2, series: [curve(1)] } };

beforeEach(serveCanvas);

describe("the page that compares trials", () => {
  it("shows only the differences, and which trial has not reported a metric", async () => {
    serve({ compare: comparison(), "differences/trials": differences(), curves, experiments: { body: { rows: [], total: 0, tags: [] } } });
    show(<App />, ADDRESS);
    expect(await screen.findByRole("heading", { name: "Compare 2 trials" })).toBeTruthy();
    expect(await screen.findByText(SAME)).toBeTruthy();
    expect(screen.getByText("0.1")).toBeTruthy();
    expect(screen.getByText("1 difference")).toBeTruthy();
    expect(screen.getAllByText("loss 0.25 at step 40")).toHaveLength(2);
    expect(await screen.findByText("1 trial has not reported it.")).toBeTruthy();
  });

  it("offers epochs as an axis only if reports name theirs, or its address asks for them", async () => {
    const axes = async () => within(await screen.findByRole("group", { name: "X axis" })).getAllByRole("button").map(({ textContent }) => textContent);
    serve({ compare: comparison(), "differences/trials": differences(), curves });
    show(<App />, ADDRESS);
    expect(await axes()).toEqual(["Batches", "Time"]);
    cleanup();
    show(<App />, `${ADDRESS}&x=epochs`);
    expect(await axes()).toEqual(["Batches", "Epochs", "Time"]);
    cleanup();
    forget();
    serve({ compare: comparison({ has_epochs: true }), "differences/trials": differences(), curves });
    show(<App />, ADDRESS);
    expect(await axes()).toEqual(["Batches", "Epochs", "Time"]);
  });

  it("folds many packages that differ, and tells what is not known", async () => {
    const packages = Array.from({ length: 9 }, (_, index) => ({ subject: "packages", name: `p${index}`, values: ["1", null], is_unknown: false }));
    serve({ compare: comparison(), "differences/trials": differences([lr, { subject: "data", name: "", values: [null, null], is_unknown: true }, ...packages]), curves });
    show(<App />, ADDRESS);
    expect(await screen.findByText("10 differences, 1 unknown")).toBeTruthy();
    expect(screen.getAllByText("unknown")).toHaveLength(2);
    expect(screen.queryByText("packages p3")).toBeNull();
    await userEvent.click(screen.getByRole("button", { name: "Show 9 differences of packages" }));
    expect(screen.getByText("packages p3")).toBeTruthy();
  });

  it("asks for trials when its address names none", async () => {
    serve({ experiments: { body: { rows: [], total: 0, tags: [] } } });
    const { container } = show(<App />, "/plugin/dtrain/compare");
    expect((await screen.findAllByText(/2 to 8 trials/)).length).toBeGreaterThan(0);
    expect(container.querySelector("canvas")).toBeNull();
  });

  it("explains that one of its trials is gone meanwhile, above what was known", async () => {
    let asked = 0;
    const gone = refusal(404, "not_found", "There is no trial 2. See: airflow dtrain trials list");
    serve({ compare: () => ((asked += 1) === 1 ? comparison() : gone), "differences/trials": differences(), curves, experiments: { body: { rows: [], total: 0, tags: [] } } });
    show(<App />, ADDRESS);
    expect(await screen.findByText(/restored from an older backup/, {}, { timeout: 8_000 })).toBeTruthy();
    expect(screen.getByText(SAME)).toBeTruthy();
  });

  it("explains that one of its trials is gone", async () => {
    serve({ compare: refusal(404, "not_found", "There is no trial 2. See: airflow dtrain trials list"), experiments: { body: { rows: [], total: 0, tags: [] } } });
    show(<App />, ADDRESS);
    expect(await screen.findByText(/There is no trial 2\. See:/)).toBeTruthy();
    expect(screen.queryByText(/restored from an older backup/)).toBeNull();
  });

  it("shows texts of the store as text", async () => {
    serve({ compare: comparison({ trials: [compared(1, { display_name: HOSTILE }), compared(2)] }), "differences/trials": differences([{ ...lr, subject: HOSTILE, name: HOSTILE, values: [HOSTILE, null] }]), curves });
    const { container } = show(<App />, ADDRESS);
    expect(await screen.findByRole("link", { name: HOSTILE })).toBeTruthy();
    expect(await screen.findByText(`${HOSTILE} ${HOSTILE}`)).toBeTruthy();
    expect(container.querySelector("img")).toBeNull();
  });
});
