import { act, screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { beforeEach, describe, expect, it } from "vitest";

import { App } from "../../app/App";
import { serveCanvas } from "../../testing/canvas";
import { experiment, refusal, trial } from "../../testing/rows";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";

const ADDRESS = "/plugin/dtrain/trials/7";
const HOSTILE = "<img src=x onerror=alert(1)>";

const series = (values: object = {}) => ({
  group: "validation", name: "loss", batches: [1, 2, 3], epochs: [0, 1, 2], at_s: [1, 2, 3], y: [1, 0.5, 0.25], attempt: [1, 1, 1], sampled: false, ...values,
});

const routes = (values: object = {}, curves: object[] = [series()]) => ({
  "trials/7": { body: trial(7, values) },
  "trials/7/curves": { body: { series: curves } },
  "trials/7/telemetry": { body: { series: [] } },
  "trials/7/timings": { body: { attempt: 1, at_s: [], bucket_s: 10, names: [], share: {}, parts: [], totals: [] } },
  "trials/7/step-times": { body: { attempt: 1, at_s: [], bucket_s: 10, ranks: [], mean_s: [], median_s: null, slow_ranks: [] } },
  "trials/7/timeline": { body: { entries: [] } },
  "trials/7/reproductions": { body: { of: null, by: [] } },
  "experiments/5": { body: experiment() },
});

beforeEach(serveCanvas);

describe("the page of a trial", () => {
  it("names its experiment, its place and its best metric, also in the browser's tab", async () => {
    serve(routes());
    show(<App />, ADDRESS);
    expect(await screen.findByRole("heading", { name: "resnet, trial 7" })).toBeTruthy();
    expect(screen.getByText("2 slots on gpu-1 (0-1)")).toBeTruthy();
    expect(await screen.findByText("loss 0.25 at step 40")).toBeTruthy();
    expect(await screen.findByRole("heading", { name: "loss" })).toBeTruthy();
    await waitFor(() => expect(document.title).toBe("resnet, trial 7 - DTrain - Airflow"));
  });

  it("names the last values in the legend of a chart, those at the pointer while there is one, and covers no curve with them", async () => {
    serve(routes({}, [series(), series({ group: "training", y: [2, 1.5, 1.125] })]));
    show(<App />, `${ADDRESS}?x=batches`);
    const legend = await screen.findByTestId("chart-legend");
    const words = () => [legend.firstElementChild, ...legend.querySelectorAll("[data-curve]")].map((element) => element?.textContent);
    expect(words()).toEqual(["last", "validation0.250", "training1.125"]);
    act(() => screen.getByRole("group", { name: /^Chart of loss/ }).focus());
    await userEvent.keyboard("{Home}");
    await waitFor(() => expect(words()).toEqual(["1", "validation1", "training2"]));
    expect(screen.queryByTestId("chart-tooltip")).toBeNull();
  });

  it("draws built-in metrics apart from reported ones of the same name", async () => {
    const names = [{ group: "training", name: "gradient_norm" }, { group: "builtin", name: "gradient_norm" }];
    const recorded = series({ group: "builtin", name: "gradient_norm", y: [9, 8, 7] });
    const reported = series({ group: "training", name: "gradient_norm", y: [2, 1.5, 1.125] });
    serve({ ...routes({ metrics: names }), "trials/7/curves": (url) => ({ body: { series: [url.searchParams.get("group") === "builtin" ? recorded : reported] } }) });
    show(<App />, ADDRESS);
    expect(await screen.findByRole("heading", { name: "Built-in metrics" })).toBeTruthy();
    expect((await screen.findAllByRole("heading", { name: "gradient_norm" })).length).toBe(2);
    await waitFor(() => expect(screen.getAllByTestId("chart-legend").map(({ textContent }) => textContent)).toEqual(["lasttraining1.125", "lastbuiltin7"]));
  });

  it("does not call a value the last one that was followed by NaN", async () => {
    serve(routes({}, [series({ y: [1, 0.5, null] })]));
    show(<App />, ADDRESS);
    expect((await screen.findByTestId("chart-legend")).textContent).toBe("lastvalidationNaN/∞");
  });

  it("shows how far it is, and its id and its number", async () => {
    serve(routes({ progress: { done: 1200, total: 4800, unit: "batches", share: 0.25, expected_end: "2026-01-31T13:00:00Z" } }));
    show(<App />, ADDRESS);
    expect(await screen.findByText("1,200 of 4,800 batches")).toBeTruthy();
    expect(screen.getByRole("progressbar").getAttribute("aria-valuenow")).toBe("25");
    expect(screen.getByText(/id 7, number 6 of/)).toBeTruthy();
  });

  it("names the trial that it runs again, and those that run it again, with the comparison of the weights", async () => {
    const found = { original_id: 3, trial_id: 7, state: "completed", verdict: "differs", checkpoints: 1, steps: 2, step: 2, tensor: "0.bias", text: `The weights of trial 7 differ, in tensor ${HOSTILE}.` };
    const by = [{ ...found, original_id: 7, trial_id: 9, verdict: "equal", text: "The weights of trial 9 equal those of trial 7." }];
    serve({ ...routes(), "trials/7/reproductions": { body: { of: found, by } } });
    show(<App />, ADDRESS);
    expect(await screen.findByText(found.text)).toBeTruthy();
    expect(screen.getByRole("link", { name: "trial 3" }).getAttribute("href")).toBe("/plugin/dtrain/trials/3");
    expect(screen.getByRole("link", { name: "trial 9" }).getAttribute("href")).toBe("/plugin/dtrain/trials/9");
    expect(screen.getByText("The weights of trial 9 equal those of trial 7.")).toBeTruthy();
  });

  it("shows nothing of reproductions where there are none", async () => {
    serve({ ...routes(), "trials/7/reproductions": { body: { of: null, by: [] } } });
    show(<App />, ADDRESS);
    expect(await screen.findByText("loss 0.25 at step 40")).toBeTruthy();
    expect(screen.queryByText(/again/i)).toBeNull();
  });

  it("shows node hours, waiting time and the job of a trial in a pool of a scheduler", async () => {
    const jobs = [{ number: "4710", started_at: "2026-01-31T12:00:00Z", end: "It ended." }, { number: "4711", scheduler: "slurm", phase: "waiting", started_at: null, end: null }];
    serve(routes({ state: "queued", position: null, jobs, job_use: { jobs: 2, node_hours: 3.25, waited_s: 600, cpu_share: 0.834 } }));
    show(<App />, ADDRESS);
    expect(await screen.findByText("2 jobs, 3.25 node hours, CPU efficiency 83 %")).toBeTruthy();
    expect(screen.getByText("10 min from submission to start. Job 4711 of slurm: waiting.")).toBeTruthy();
  });

  it("names slow ranks with cause and advice, the latest first", async () => {
    const slow = (rank: number, until: string | null) => ({
      attempt: 1, rank, host: HOSTILE, since: "2026-01-31T14:02:00Z", until, ratio: 1.6, cost: 0.38, cause: "cpu_quota", text: `Rank ${rank} on ${HOSTILE} is slow.`, advice: "Raise the quota.",
    });
    serve(routes({ stragglers: [slow(1, "2026-01-31T14:10:00Z"), slow(2, "2026-01-31T14:10:00Z"), slow(3, "2026-01-31T14:10:00Z"), slow(4, null)] }));
    show(<App />, ADDRESS);
    expect(await screen.findByText(`Rank 4 on ${HOSTILE} is slow.`)).toBeTruthy();
    expect(screen.getAllByText("Raise the quota.")).toHaveLength(3);
    expect(screen.getByText(/until now/).textContent).toContain("14:02");
    expect(screen.queryByText(`Rank 1 on ${HOSTILE} is slow.`)).toBeNull();
    await userEvent.click(screen.getByRole("button", { name: "Show 1 earlier slow rank" }));
    expect(screen.getByText(`Rank 1 on ${HOSTILE} is slow.`)).toBeTruthy();
    expect(screen.queryByRole("img", { name: "x" })).toBeNull();
  });

  it("tells why it waits, with its place in the queue", async () => {
    serve(routes({ state: "queued", reason: "8 of 16 slots missing", position: 2, metrics: [], attempts_list: [], placement: {} }));
    show(<App />, ADDRESS);
    expect(await screen.findByText("8 of 16 slots missing")).toBeTruthy();
    expect(screen.getByText(/Place 2 in pool gpus/)).toBeTruthy();
    expect(screen.getByText("The trial has not started yet.")).toBeTruthy();
  });

  it("tells a trial that can never run from one that waits, and has no row for results before its first start", async () => {
    const reason = "24 slots can never be granted: the pool has 2 hosts of 8 slots.";
    serve(routes({ state: "queued", never_fits: true, reason, position: 1, duration_s: null, best_metric: null, best_step: null, metrics: [], attempts_list: [], placement: {} }));
    show(<App />, ADDRESS);
    expect((await screen.findByText(reason)).closest("dl")?.querySelector("dt")?.textContent).toBe("Cannot run");
    expect(screen.getByTestId("state-badge").textContent).toBe("cannot run");
    expect(screen.queryByText(/Place 1/)).toBeNull();
    expect(screen.queryByText("Best metric")).toBeNull();
    expect(screen.queryByText("Best checkpoint")).toBeNull();
  });

  it("tells what it does before its ranks start", async () => {
    const reason = "Host gpu-1 builds the environment: downloads torch: 3 of 42 packages";
    const { attempts_list } = trial(7);
    serve(routes({ reason, attempts_list: attempts_list.map((attempt) => ({ ...attempt, state: "starting", started_at: null })) }));
    show(<App />, ADDRESS);
    expect(await screen.findByText(reason)).toBeTruthy();
  });

  it("stays with its last data and an explanation when it is deleted meanwhile", async () => {
    let asked = 0;
    const gone = refusal(404, "not_found", "There is no trial 7.", "airflow dtrain trials list");
    let drawn = 0;
    serve({
      ...routes(),
      "trials/7": () => ((asked += 1) === 1 ? { body: trial(7) } : gone),
      "trials/7/curves": () => ((drawn += 1) === 1 ? { body: { series: [series()] } } : gone),
    });
    show(<App />, ADDRESS);
    expect(await screen.findByRole("heading", { name: "resnet, trial 7" })).toBeTruthy();
    expect(screen.getByRole("group", { name: "Actions of trial 7" })).toBeTruthy();
    expect(await screen.findByText("Trial 7: There is no trial 7.", {}, { timeout: 5_000 })).toBeTruthy();
    expect(screen.getByRole("heading", { name: "resnet, trial 7" })).toBeTruthy();
    expect(screen.getAllByRole("link", { name: "All experiments, with their trials" })[0]?.getAttribute("href")).toBe("/plugin/dtrain/experiments");
    expect(screen.queryByText(/airflow dtrain/)).toBeNull();
    expect(screen.queryByRole("group", { name: "Actions of trial 7" })).toBeNull();
    expect(screen.queryByRole("button", { name: /^Edit name/ })).toBeNull();
    for (const words of [/restored from an older backup or replaced/, /Curves: There is no trial 7/]) {
      expect((await screen.findByText(words, {}, { timeout: 5_000 })).closest("[data-stale]")).toBeNull();
    }
  });

  it("counts values that are no numbers beside the gaps of the curve", async () => {
    serve(routes({}, [series({ y: [1, null, null] })]));
    show(<App />, ADDRESS);
    expect(await screen.findByText("2 values NaN or infinite: the curve has gaps there.")).toBeTruthy();
  });

  it("shows the files of its code, and packages with a search", async () => {
    const packages = { abc: { numpy: "2.1", torch: "2.13.0", mine: null } };
    const host = { host: "gpu-1", devices: { 0: "NVIDIA H100" }, driver: "570.1", image: null, python: "3.12.4", executable: "/usr/bin/python3", cuda: "12.8", packages: "abc", other_interpreter: null };
    const git = { commit: null, is_clean: null, problem: HOSTILE };
    const provenance = {
      trial_id: 7, attempt: 1, config_id: 1, seed: 3, code: "f".repeat(64), files: { "train.py": "a" }, git, bundle: null, is_launched: true, lock: null,
      hosts: [host], packages, runtimes: [], data: null,
    };
    const files = [{ path: "train.py", kind: "text", size_bytes: 20, target: null, is_program: true }, { path: "a\u202eb.bin", kind: "binary", size_bytes: 2, target: null, is_program: false }];
    const code = { experiment_id: 5, trial_id: 7, digest: "f".repeat(64), packed_bytes: 300, files, more: 0, is_readable: true, reason: "", git, bundle: null, parent: null };
    const text = { trial_id: 7, path: "train.py", text: `print("${HOSTILE}\u202e")\n`, size_bytes: 20, is_whole: true };
    serve({ ...routes(), "trials/7/code": { body: code }, "trials/7/code/text": { body: text }, experiments: { body: { rows: [], total: 0, tags: [] } }, "trials/7/provenance": { body: provenance } });
    const { container } = show(<App />, `${ADDRESS}?tab=code`);
    expect((await screen.findByRole("region", { name: "Text of train.py" })).textContent).toContain(`print("${HOSTILE}\\u202e")`);
    expect(screen.getByText(`${"f".repeat(12)}, 300 B packed`)).toBeTruthy();
    expect(screen.getByText("a\\u202eb.bin").closest("button")?.disabled).toBe(true);
    expect(await screen.findByText("NVIDIA H100 (slot 0)")).toBeTruthy();
    expect(screen.getByText(`unknown: ${HOSTILE}`)).toBeTruthy();
    expect(container.querySelector("img")).toBeNull();
    expect(screen.getByText("3 of 3 packages")).toBeTruthy();
    await userEvent.type(screen.getByPlaceholderText("Search for a package"), "TORCH{Enter}");
    expect(await screen.findByText("1 of 3 packages")).toBeTruthy();
    expect(screen.queryByText("numpy")).toBeNull();
  });

  it("shows in what it differs from the experiment of which it is a fork", async () => {
    const git = { commit: "a".repeat(40), is_clean: true, problem: "" };
    const code = (trial_id: number, experiment_id: number, parent: object | null) => ({ experiment_id, trial_id, digest: String(trial_id).repeat(64), packed_bytes: 300, files: [], more: 0, is_readable: true, reason: "", git, bundle: null, parent });
    const lines = ["@@ -1,2 +1,2 @@", " same", "-lr = 1", `+${HOSTILE}`];
    const changes = { trials: [3, 7], files: [{ path: "train.py", change: "changed", added: 1, removed: 1, lines, note: "" }], more: 0, same: 2, reason: "" };
    const differences = { trials: [3, 7], rows: [{ subject: "configuration", name: "hyperparameters.lr", values: ["1", "2"], is_unknown: false }], same: ["packages"] };
    const arrived = serve({
      ...routes(), "trials/7/code": { body: code(7, 5, { experiment_id: 2, name: "first", trial_id: null }) }, "experiments/2/code": { body: code(3, 2, null) },
      "differences/trials": { body: differences }, "differences/code": { body: changes }, experiments: { body: { rows: [], total: 0, tags: [] } },
    });
    const { container } = show(<App />, `${ADDRESS}?tab=code`);
    await userEvent.click(await screen.findByRole("button", { name: "its source: first (2)" }));
    expect((await screen.findByRole("region", { name: "Changes of train.py" })).textContent).toBe(lines.join(""));
    expect(screen.getByText("1 difference")).toBeTruthy();
    expect(screen.getByText("1 file differs, 2 are equal.")).toBeTruthy();
    expect(arrived.some(({ path }) => path === "differences/code?trial=3&trial=7")).toBe(true);
    expect(container.querySelector("img")).toBeNull();
    await userEvent.click(screen.getByRole("button", { name: "Show the files" }));
    expect(await screen.findByText("The code has no files.")).toBeTruthy();
  });

  it("shows texts of the store as text, and the cause of a failure first", async () => {
    const failure = { error: "RankFailedError", kind: "user", message: `ValueError: ${HOSTILE}`, host: "gpu-1", rank: 0 };
    serve(routes({ state: "errored", failure, experiment: HOSTILE, name: HOSTILE, hparams: { [HOSTILE]: HOSTILE }, metrics: [{ group: "validation", name: HOSTILE }] }, [series({ name: HOSTILE })]));
    const { container } = show(<App />, ADDRESS);
    expect((await screen.findByRole("alert")).textContent).toContain(`ValueError: ${HOSTILE}`);
    expect(container.querySelector("img")).toBeNull();
  });
});
