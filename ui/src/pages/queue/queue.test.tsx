import { screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, describe, expect, it, vi } from "vitest";

import { type Gang } from "../../api/types";
import { App } from "../../app/App";
import { phone } from "../../testing/phone";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { placementWords, rowActions, sentence, termsOf } from "./columns";

const row = (values: Partial<Gang> = {}): Gang => ({
  allocation_id: 1, kind: "trial", trial_id: 7, trial_name: "5 | lr=0.1", attempt: 1, experiment_id: 2, experiment: "resnet",
  task: { dag_id: "train", run_id: "r", task_id: "trial", map_index: 5 }, pool: "gpus", queue_class: "fresh", position: 1, priority: 50, slots: 8,
  placement: {}, state: "waiting", state_text: "waiting (1.)", reason: "needs 8 free slots on one host", since: "2026-01-31T12:00:00Z", expected: null, expected_at: null,
  is_paused: false, never_fits: false, unfollowed_since: null, job: null, may_edit: true, ...values,
});

const page = (rows: Gang[]) => ({ body: { rows, total: rows.length, pools: [{ name: "gpus", slot_type: "cuda", backend: "hosts", hosts: 2, lost_hosts: 0, slots: 16, free: 2, held: 14, unavailable: 0, waiting: 1, running: 1 }] } });

const me = { body: { user: "ann", may_change_hosts: true, starting: { dag_id: "d", exists: true, may_trigger: true, hint: "" }, version: __VERSION__ } };

const names = (values: Partial<Gang>, mayChangePriority: boolean) => rowActions(row(values), mayChangePriority).map(({ id }) => id);

afterEach(() => vi.unstubAllGlobals());

describe("the page of the queue", () => {
  it("shows place, reason and hosts of the gangs", async () => {
    serve({ queue: page([row(), row({ allocation_id: 2, trial_id: null, kind: "held_gang", reason: null, state: "running", position: null, placement: { a: [0, 1, 2, 5] } })]), me });
    show(<App />, "/plugin/dtrain/queue");
    expect(await screen.findByText("Needs 8 free slots on one host")).toBeTruthy();
    expect(screen.getByText("a (0-2, 5)")).toBeTruthy();
    expect(screen.getAllByTestId("state-badge").map(({ textContent }) => textContent)).toEqual(["queued", "running"]);
    expect(screen.getByText("Held gang, no trial now")).toBeTruthy();
    expect(screen.getByText(/1 queued, 1 running, 2 of 16 slots free/)).toBeTruthy();
  });

  it("tells a request that can never run from one that waits", async () => {
    const reason = "64 slots can never be granted: the pool has 3 hosts of 2 slots. Use 6.";
    serve({ queue: page([row({ never_fits: true, reason }), row({ allocation_id: 2, trial_id: 8 }), row({ allocation_id: 3, trial_id: 9, never_fits: true, is_paused: true })]), me });
    show(<App />, "/plugin/dtrain/queue");
    expect((await screen.findAllByTestId("state-badge")).map(({ textContent }) => textContent)).toEqual(["cannot run", "queued", "paused"]);
    expect(screen.getByText(reason)).toBeTruthy();
  });

  it("tells it on a phone as well, with the reason below the state", async () => {
    phone(true);
    serve({ queue: page([row({ never_fits: true, reason: "64 slots can never be granted." })]), me });
    const { container } = show(<App />, "/plugin/dtrain/queue");
    const state = await screen.findByText("cannot run");
    expect(state.closest("td")?.dataset.column).toBe("glance");
    expect(container.querySelector("td[data-column=glance]")?.textContent).toBe("cannot runTrial 7resnet64 slots can never be granted.");
  });

  it("leaves out the command that its menu has an action for", async () => {
    serve({ queue: page([row({ is_paused: true, reason: "it is paused by bob; resume with: airflow dtrain trials activate 7" })]), me });
    show(<App />, "/plugin/dtrain/queue");
    expect(await screen.findByText("It is paused by bob")).toBeTruthy();
  });

  it("keeps the hosts of a gang beside the reason for its state", async () => {
    serve({ queue: page([row({ state: "running", position: null, placement: { a: [0, 1] }, reason: "its task passes from a worker to the triggerer." })]), me });
    show(<App />, "/plugin/dtrain/queue");
    expect(await screen.findByText("a (0-1). Its task passes from a worker to the triggerer.")).toBeTruthy();
  });

  it("shows the job of a gang with its number, and when its scheduler expects to start it", async () => {
    const job = { number: "4711" } as NonNullable<Gang["job"]>;
    const waits = row({ pool: "hpc", queue_class: null, position: null, job, reason: "The nodes are in use. (Resources)", expected: "about 13:30Z", expected_at: "2026-01-31T13:30:00Z" });
    serve({ queue: page([waits]), me });
    show(<App />, "/plugin/dtrain/queue");
    expect(await screen.findByText("Job 4711. The nodes are in use. (Resources)")).toBeTruthy();
    expect(screen.getByTitle("about 13:30Z").textContent).toMatch(/^about .*13:30/);
    expect(rowActions(waits, true).map(({ id }) => id)).not.toContain("priority");
  });

  it("explains the class of a gang", async () => {
    serve({ queue: page([row({ queue_class: "young" })]), me });
    show(<App />, "/plugin/dtrain/queue");
    expect((await screen.findByText("young")).title).toBe("Its gangs have used less than young (17 slot-hours). Values in brackets are the defaults of a pool.");
  });

  it("changes the priority within its bounds only", async () => {
    const arrived = serve({ queue: page([row()]), me, "PATCH trials/7": { body: { message: "Priority of trial 7: 3." } } });
    show(<App />, "/plugin/dtrain/queue");
    await userEvent.click(await screen.findByRole("button", { name: "Actions of trial 7" }));
    await userEvent.click(await screen.findByRole("menuitem", { name: "Change the priority" }));
    const dialog = await screen.findByRole("dialog", { name: "Priority of trial 7" });
    const field = within(dialog).getByRole("textbox");
    await userEvent.clear(field);
    await userEvent.type(field, "100");
    expect(within(dialog).getByText("A whole number from 1 to 99 is expected.")).toBeTruthy();
    await userEvent.clear(field);
    await userEvent.type(field, "3{Enter}");
    expect((await screen.findAllByText("Priority of trial 7: 3.")).length).toBeGreaterThan(0);
    expect(arrived.filter(({ method }) => method === "PATCH").map(({ body }) => body)).toEqual([{ priority: 3 }]);
  });
});

describe("the actions on a gang", () => {
  it("depend on its state and on the rights of the user", () => {
    expect(names({}, true)).toEqual(["priority", "pause", "stop", "kill"]);
    expect(names({ is_paused: true }, false)).toEqual(["activate", "stop", "kill"]);
    expect(names({ may_edit: false }, false)).toEqual([]);
    expect(names({ kind: "held_gang" }, true)).toEqual(["kill"]);
    expect(names({ kind: "held_gang", may_edit: false }, true)).toEqual([]);
  });
});

describe("a reason", () => {
  it("begins with a capital letter", () => {
    expect(sentence("it is paused by bob; resume with: airflow dtrain trials activate 84")).toBe("It is paused by bob; resume with: airflow dtrain trials activate 84");
    expect(sentence("")).toBe("");
  });
});

describe("the terms of a reason", () => {
  it("are explained if it has them", () => {
    const found = termsOf("8 slots missing: closest is gpu-1; gpu-2 is free, but reserved for requests before it");
    expect(found.map((term) => term.split(":")[0])).toEqual(["closest", "reserved"]);
    expect(termsOf("It is paused by bob")).toEqual([]);
  });
});

describe("a placement in words", () => {
  it("joins neighbouring slots", () => {
    expect(placementWords({ a: [3, 2, 0], b: [1] })).toBe("a (0, 2-3), b (1)");
  });
});
