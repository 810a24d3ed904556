import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { beforeEach, describe, expect, it } from "vitest";

import { App } from "../../app/App";
import { serveCanvas } from "../../testing/canvas";
import { experiment, trial } from "../../testing/rows";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";

const ADDRESS = "/plugin/dtrain/trials/7";
const HOSTILE = "<img src=x onerror=alert(1)>";
const CAUSE = "Rank 1 on host 'gpu-2' failed first (exit code 1 at 10:00:00 UTC): KeyError: 'label', at train.py:34 in take. Repair this line of the program.";

const failure = (values: object = {}) => ({
  trial_id: 7, attempt: 3, phase: "training", cause: CAUSE, error: "RankFailedError", kind: "user", cause_kind: "exception", rank: 1, host: "gpu-2", at: "2026-01-31T12:10:00Z", same_attempts: [1, 2],
  raised: [{ text: "KeyError: 'label'", frames: [{ file: "train.py", line: 34, function: "take", code: 'batch["label"]' }, { file: "train.py", line: 80, function: "", code: "main()" }], library_frames: 2 }],
  details: "Traceback (most recent call last):\n  ...", is_restricted: false,
  log: { rank: 1, host: "gpu-2", lines: ["epoch 1", "\u001b[31mloading\u001b[0m"], has_more: true },
  baseline: {
    trial_id: 3, experiment_id: 5, ended_at: "2026-01-31T11:00:00Z", is_of_experiment: true, more: 2, same: ["git"], unknown: ["driver"],
    changes: [{ subject: "packages", name: "torch", values: ["2.12.0", "2.13.0"], is_unknown: false }, { subject: "configuration", name: "hyperparameters.lr", values: ["0.1", "0.01"], is_unknown: false }],
  },
  steps: [
    { text: "Repair this line of the program.", command: null, page: null, host: null },
    { text: "Print its stacks.", command: "airflow dtrain trials stack 7", page: null, host: null },
    { text: "Probe host 'gpu-2'.", command: "airflow dtrain hosts probe gpu-2", page: "cluster", host: "gpu-2" },
    { text: "Compare it with trial 3, the last good run.", command: null, page: "compare", host: null },
    { text: "Read the logs of all ranks.", command: null, page: "log", host: null },
  ],
  ...values,
});

const routes = (values: object = {}, own: object = {}) => ({
  "trials/7": { body: trial(7, { state: "errored", ended_at: "2026-01-31T12:10:00Z", metrics: [], failure: { error: "RankFailedError", message: `${CAUSE}\nTraceback` }, ...own }) },
  "trials/7/failure": { body: failure(values) },
  "trials/7/ranks": { body: { attempt: 1, rows: [] } },
  "trials/7/reproductions": { body: { of: null, by: [] } },
  "experiments/5": { body: experiment() },
});

beforeEach(serveCanvas);

describe("the page of a failed trial", () => {
  it("opens on the cause: the sentence, the user's own frames, the last lines, what has changed and what to try", async () => {
    serve(routes());
    show(<App />, ADDRESS);
    expect((await screen.findByRole("alert")).textContent).toContain(CAUSE);
    expect((await screen.findByRole("tab", { name: "Failure" })).getAttribute("aria-selected")).toBe("true");
    const error = (await screen.findByText("KeyError: 'label'")).closest("section");
    expect(within(error as HTMLElement).getAllByRole("listitem").map(({ textContent }) => textContent)).toEqual(['train.py:34 in takebatch["label"]', "train.py:80main()"]);
    expect(screen.getByText("2 frames of libraries are left out.")).toBeTruthy();
    expect(screen.getByText("Attempts 1, 2 failed in the same way.")).toBeTruthy();
    expect(screen.getByRole("region", { name: "Last lines of the log of rank 1" }).textContent).toBe("epoch 1\nloading");
    expect(screen.getByRole("row", { name: "packages torch 2.12.0 2.13.0" })).toBeTruthy();
    expect(screen.getByText(/And 2 further changes\. The same: git\. Not comparable: driver\./)).toBeTruthy();
    expect(screen.getByRole("link", { name: "Compare it with trial 3, the last good run." }).getAttribute("href")).toContain("/compare?trial=3&trial=7");
    expect(screen.getByRole("link", { name: "Probe host 'gpu-2'." }).getAttribute("href")).toContain("/cluster?q=gpu-2");
    expect(screen.getByText("airflow dtrain trials stack 7")).toBeTruthy();
  });

  it("has no empty chart in the way, and its facts come after the cause", async () => {
    serve(routes());
    show(<App />, ADDRESS);
    const heading = await screen.findByRole("heading", { name: "What to try" });
    expect(screen.queryByText(/has not reported a metric/)).toBeNull();
    expect(screen.queryByText("X axis of the metrics")).toBeNull();
    const facts = screen.getByText("Best metric");
    expect(heading.compareDocumentPosition(facts) & Node.DOCUMENT_POSITION_FOLLOWING).toBeTruthy();
  });

  it("says what to try before the traceback", async () => {
    serve(routes());
    show(<App />, ADDRESS);
    const steps = await screen.findByRole("heading", { name: "What to try" });
    for (const later of ["Error", /Last lines of rank 1/, /Changed since/]) {
      expect(steps.compareDocumentPosition(screen.getByRole("heading", { name: later })) & Node.DOCUMENT_POSITION_FOLLOWING).toBeTruthy();
    }
  });

  it("leads to the logs of all ranks within the page", async () => {
    serve(routes());
    show(<App />, ADDRESS);
    await userEvent.click(await screen.findByRole("link", { name: "Read the logs of all ranks." }));
    await waitFor(() => expect(screen.getByRole("tab", { name: "Logs" }).getAttribute("aria-selected")).toBe("true"));
  });

  it("tells a trial that could not start from one that failed in training", async () => {
    serve(routes({ phase: "start", raised: [], details: "line of podman", log: null, baseline: null, rank: null, same_attempts: [] }));
    show(<App />, ADDRESS);
    expect(await screen.findByRole("heading", { name: "It could not start" })).toBeTruthy();
    expect(screen.getByRole("region", { name: "Record of the failure" }).textContent).toBe("line of podman");
    expect(screen.getByText(/there is nothing to compare it with/)).toBeTruthy();
  });

  it("says who may read errors and logs", async () => {
    serve(routes({ is_restricted: true, raised: [], details: "", log: null }));
    show(<App />, ADDRESS);
    expect(await screen.findByText(/users who may read the task logs/)).toBeTruthy();
  });

  it("shows hostile texts as text", async () => {
    serve(
      routes({
        details: HOSTILE, raised: [{ text: HOSTILE, frames: [{ file: HOSTILE, line: 1, function: HOSTILE, code: HOSTILE }], library_frames: 0 }], log: { rank: 1, host: HOSTILE, lines: [HOSTILE], has_more: false },
        steps: [{ text: HOSTILE, command: HOSTILE, page: null, host: null }],
      }),
    );
    show(<App />, ADDRESS);
    expect((await screen.findAllByText(HOSTILE)).length).toBeGreaterThan(3);
    expect(document.querySelector("img")).toBeNull();
  });
});
