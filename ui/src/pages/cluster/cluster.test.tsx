import { act, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { describe, expect, it } from "vitest";

import { deadline } from "../../actions/hosts";
import { type Holder, type Host } from "../../api/types";
import { App } from "../../app/App";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { neighbour } from "./neighbour";
import { kindOf, slotSentence } from "./slots";

const holder: Holder = {
  allocation_id: 4, trial_id: 7, experiment_id: 2, experiment: "resnet", trial_name: "5 | lr=0.1", since: "2026-01-31T12:00:00Z", slots: 2,
  task: { dag_id: "train", run_id: "r", task_id: "trial", map_index: 5 }, state: "running", is_hidden: false,
};

const host = (name: string, values: Partial<Host> = {}): Host => ({ name, pool: "gpus", slots: [{ allocation_id: 4 }, {}, { is_enabled: false }], ...values });

const pool = { name: "gpus", slot_type: "cuda", backend: "hosts", hosts: 1, slots: 3, free: 1, held: 1, unavailable: 1, waiting: 2 };

const cluster = (hosts: Host[], holders: Record<string, Holder> = { "4": holder }) => ({ body: { at: "2026-01-31T12:00:00Z", pools: [pool], holders, hosts, schedulers: {}, jobs: [] } });

const me = (mayChange: boolean) => ({ body: { user: "ann", may_change_hosts: mayChange, starting: { dag_id: "d", exists: true, may_trigger: true, hint: "" }, version: __VERSION__ } });

const square = (name: RegExp) => screen.findByRole("button", { name });

const facts = {
  at: "2026-01-31T12:00:00Z", program: "Slurm 23.11.4", cluster: "big", time_limit_s: 86400, max_jobs: null, excluding: [], problem: "",
  partitions: [
    { name: "gpu", is_used: true, state: "UP", nodes: 4, usable_nodes: 3, sizes: [{ slots: 8, nodes: 4 }], usable_sizes: [{ slots: 8, nodes: 3 }], default_time_s: null, max_time_s: 86400 },
    { name: "cpu", is_used: false, state: "UP", nodes: 9, usable_nodes: 9, sizes: [], usable_sizes: [], default_time_s: null, max_time_s: null },
  ],
};

const job = {
  number: "4711", scheduler: "slurm", pool: "hpc", allocation_id: 4, phase: "waiting", reason: "The nodes are in use. (Resources)", nodes: [],
  submitted_at: "2026-01-31T12:00:00Z", expected_at: "2026-01-31T13:30:00Z", started_at: null, ends_at: null, waited_s: null, end_kind: null, end: null, asked_back: null,
};

const ofJobs = (hosts: Host[], jobs: object[]) => ({
  body: { ...cluster(hosts).body, pools: [{ ...pool, name: "hpc", backend: "slurm", hosts: 1, slots: 3, held: 3, free: 0, unavailable: 0 }], schedulers: { hpc: facts }, jobs },
});

describe("a host that a check found slow", () => {
  it("has a mark with the sentences", async () => {
    const findings = "memory of slot 1: 1 TB/s, 50% below the 2 TB/s that its peers have\nnetwork a to b: 1 MB/s, 90% below";
    serve({ cluster: cluster([host("n1", { findings }), host("n2")]), me: me(true) });
    show(<App />, "/plugin/dtrain/cluster");
    const marks = await screen.findAllByText(/^Slow: /);
    expect(marks.map((mark) => mark.textContent)).toEqual([`Slow: ${findings.replace("\n", "; ")}`]);
  });
});

describe("the page of a cluster with a scheduler", () => {
  it("shows the partition of a pool and its waiting jobs while no node is in use", async () => {
    serve({ cluster: ofJobs([], [job]), me: me(true) });
    show(<App />, "/plugin/dtrain/cluster");
    expect(await screen.findByText("Slurm 23.11.4, partition gpu (UP): 3 of 4 nodes usable, 4 nodes with 8 slots. A job lasts at most 1 d.")).toBeTruthy();
    const list = screen.getByRole("region", { name: "Jobs of schedulers" });
    expect(within(list).getByText("4711")).toBeTruthy();
    expect(within(list).getByText("The nodes are in use. (Resources)")).toBeTruthy();
    expect(within(list).getByText(/about/).textContent).toContain("13:30");
    expect(screen.getByText("No job runs now.")).toBeTruthy();
  });

  it("counts the slow ranks of a host, and says nothing of a host without one", async () => {
    serve({ cluster: cluster([host("n1", { slow_ranks: 3, device_name: "H100" }), host("n2", { slow_ranks: 0 })]), me: me(true) });
    show(<App />, "/plugin/dtrain/cluster");
    expect(await screen.findByText("gpus · H100 · 3 slow ranks in 7 days")).toBeTruthy();
    expect(screen.getAllByText(/slow rank/)).toHaveLength(1);
  });

  it("names the job of a node, which has no actions", async () => {
    const running = { ...job, phase: "running", reason: "", nodes: ["n1"], started_at: "2026-01-31T12:10:00Z", ends_at: "2026-02-01T12:10:00Z" };
    serve({ cluster: ofJobs([host("n1.4", { pool: "hpc", job: "4711" })], [running]), me: me(true) });
    show(<App />, "/plugin/dtrain/cluster");
    expect(await screen.findByText("hpc · job 4711")).toBeTruthy();
    expect(screen.queryByRole("button", { name: "Actions of host n1.4" })).toBeNull();
    expect(screen.getByText(/in use on 1 node$/)).toBeTruthy();
    expect(screen.getByText(/at the latest/)).toBeTruthy();
  });
});

describe("the heat map", () => {
  it("shows the measured value of each slot with its unit, and a gap where nothing measures", async () => {
    const heat = { metric: "power", unit: "W", minimum: 0, maximum: 400, hosts: [{ name: "n1", slots: [312.5, null, 0] }] };
    const arrived = serve({ cluster: cluster([host("n1"), host("n2")]), me: me(true), "cluster/heat": { body: heat } });
    const { router } = show(<App />, "/plugin/dtrain/cluster");
    await userEvent.click(await screen.findByRole("button", { name: "Power" }));
    expect(router.state.location.search).toBe("?heat=power");
    const first = await square(/^n1 slot 0: running.*, 313 W$/);
    expect(first.style.background).not.toBe("");
    expect((await square(/^n1 slot 1: free, not measured$/)).className).toContain("dtrain-slot-gap");
    expect((await square(/^n1 slot 2: .*, 0 W$/)).className).not.toContain("gap");
    expect((await square(/^n2 slot 0: .*not measured$/)).style.background).toBe("");
    const legend = screen.getByRole("group", { name: "Legend of the heat map" });
    expect(legend.textContent).toContain("0 W400 W");
    expect(arrived.some(({ path }) => path === "cluster/heat?host=n1&host=n2&metric=power")).toBe(true);
    await userEvent.click(screen.getByRole("button", { name: "Holders" }));
    expect(await square(/^n1 slot 1: free$/)).toBeTruthy();
  });

  it("takes an address of an unknown metric for the usual squares", async () => {
    serve({ cluster: cluster([host("n1")]), me: me(true) });
    show(<App />, "/plugin/dtrain/cluster?heat=<img>");
    expect(await square(/^n1 slot 1: free$/)).toBeTruthy();
  });
});

describe("the page of the cluster", () => {
  it("shows a square per slot, whose tooltip names the holder", async () => {
    serve({ cluster: cluster([host("a")]), me: me(false) });
    show(<App />, "/plugin/dtrain/cluster");
    const held = await square(/a slot 0: running, held by resnet, trial 7: 5/);
    expect(await square(/a slot 1: free/)).toBeTruthy();
    act(() => held.focus());
    const tip = screen.getByRole("tooltip");
    expect(tip.textContent).toContain("5 | lr=0.1");
    expect(tip.textContent).toContain("2 slots");
    expect(screen.getByRole("link", { name: "2 gangs wait" }).getAttribute("href")).toBe("/plugin/dtrain/queue?pool=gpus");
  });

  it("moves between squares by arrow keys, and has one stop for the Tab key", async () => {
    serve({ cluster: cluster([host("a"), host("b")]), me: me(false) });
    show(<App />, "/plugin/dtrain/cluster");
    const first = await square(/a slot 0/);
    act(() => first.focus());
    await userEvent.keyboard("{ArrowDown}{ArrowRight}{ArrowRight}");
    expect(document.activeElement).toBe(await square(/b slot 2/));
    expect([...document.querySelectorAll("[data-slot][tabindex='0']")]).toHaveLength(1);
  });

  it("asks for a reason and drains a host", async () => {
    const arrived = serve({ cluster: cluster([host("a/b")]), me: me(true), "POST hosts/a%2Fb/drain": { body: { message: "Host a/b drains." } } });
    show(<App />, "/plugin/dtrain/cluster");
    await userEvent.click(await screen.findByRole("button", { name: "Actions of host a/b" }));
    await userEvent.click(await screen.findByRole("menuitem", { name: "Drain" }));
    const dialog = await screen.findByRole("dialog", { name: "Drain host a/b" });
    await userEvent.type(within(dialog).getByRole("textbox"), "new fan");
    await userEvent.click(within(dialog).getByRole("button", { name: "Drain" }));
    expect((await screen.findAllByText("Host a/b drains.")).length).toBeGreaterThan(0);
    expect(arrived.find(({ method }) => method === "POST")).toMatchObject({ path: "hosts/a%2Fb/drain", body: { reason: "new fan" } });
  });

  it("evacuates a host by a time, and says what a deadline is", async () => {
    const arrived = serve({ cluster: cluster([host("a")]), me: me(true), "POST hosts/a/drain": { body: { message: "Host a is to be empty." } } });
    show(<App />, "/plugin/dtrain/cluster");
    await userEvent.click(await screen.findByRole("button", { name: "Actions of host a" }));
    await userEvent.click(await screen.findByRole("menuitem", { name: "Evacuate" }));
    const dialog = await screen.findByRole("dialog", { name: "Evacuate host a" });
    await userEvent.type(within(dialog).getByRole("textbox"), "tonight");
    await userEvent.click(within(dialog).getByRole("button", { name: "Evacuate" }));
    expect(await within(dialog).findByText(/A deadline is a time/)).toBeTruthy();
    await userEvent.clear(within(dialog).getByRole("textbox"));
    await userEvent.click(within(dialog).getByRole("button", { name: "Evacuate" }));
    expect((await screen.findAllByText("Host a is to be empty.")).length).toBeGreaterThan(0);
    expect(arrived.filter(({ method }) => method === "POST")).toMatchObject([{ path: "hosts/a/drain", body: { now: true } }]);
  });

  it("reads a deadline as a time or a length", () => {
    const now = new Date(2026, 0, 31, 21, 30);
    expect(deadline("", now)).toBeNull();
    expect(deadline("22:00", now)).toEqual(new Date(2026, 0, 31, 22, 0));
    expect(deadline("7:05", now)).toEqual(new Date(2026, 1, 1, 7, 5));
    expect(deadline("90m", now)).toEqual(new Date(2026, 0, 31, 23, 0));
    expect(() => deadline("25:00", now)).toThrow("A deadline is a time");
  });

  it("shows the deadline of a host and the gangs that are left", async () => {
    const draining = host("a", { state: "draining", drain_by: "2026-01-31T22:00:00Z", state_reason: "fan" });
    serve({ cluster: cluster([draining]), me: me(false) });
    show(<App />, "/plugin/dtrain/cluster");
    expect(await screen.findByText(/gangs? left, empty by/)).toBeTruthy();
  });

  it("keeps the dialog open with the reason when an action is refused", async () => {
    const refused = { status: 409, body: { detail: { code: "conflict", message: "Host a is disabled already.", hint: "Reload." } } };
    serve({ cluster: cluster([host("a")]), me: me(true), "POST hosts/a/slots/1/disable": refused });
    show(<App />, "/plugin/dtrain/cluster");
    await userEvent.click(await square(/a slot 1/));
    await userEvent.click(await screen.findByRole("button", { name: "Disable the slot" }));
    const dialog = await screen.findByRole("alertdialog", { name: "Disable slot 1 of host a" });
    await userEvent.click(within(dialog).getByRole("button", { name: "Disable" }));
    expect(await within(dialog).findByText("Host a is disabled already.")).toBeTruthy();
  });

  it("offers no action to a user who may only read", async () => {
    serve({ cluster: cluster([host("a")]), me: me(false) });
    show(<App />, "/plugin/dtrain/cluster");
    await userEvent.click(await square(/a slot 1/));
    expect(await screen.findByTestId("slot-card")).toBeTruthy();
    expect(screen.queryByRole("button", { name: /Actions of host|Disable the slot/ })).toBeNull();
  });

  it("names the latest minute of a host that is measured, and no old minute as if it were now", async () => {
    const old = [...Array<number>(5).fill(90), null, null, null];
    const hosts = [["a", [...Array<number>(6).fill(90), 71.6, null]], ["b", old]].map(([name, mean]) => ({ name, metric: "gpu_util", mean, devices: [] }));
    serve({ cluster: cluster([host("a"), host("b")]), "cluster/utilization": { body: { at_s: [], hosts } }, me: me(false) });
    show(<App />, "/plugin/dtrain/cluster?view=rows");
    expect(await screen.findByRole("img", { name: "GPU utilization of a in the last hour, latest minute 72 percent" })).toBeTruthy();
    expect(screen.getByText("72 %")).toBeTruthy();
    expect(screen.getByRole("img", { name: "GPU utilization of b in the last hour, not measured now" })).toBeTruthy();
    expect(screen.queryByText("90 %")).toBeNull();
  });

  it("names the command that adds a host when there is none", async () => {
    serve({ cluster: cluster([]), me: me(false) });
    show(<App />, "/plugin/dtrain/cluster");
    expect(await screen.findByText(/airflow dtrain hosts add/)).toBeTruthy();
  });

  it("explains an answer of another version instead of a blank page", async () => {
    serve({ cluster: { body: { pools: null, machines: [] } }, me: me(false) });
    show(<App />, "/plugin/dtrain/cluster");
    expect((await screen.findByRole("alert")).textContent).toContain("This page cannot be shown");
    expect(screen.getByRole("alert").textContent).toContain(__VERSION__);
    expect(screen.getByRole("link", { name: "Queue" })).toBeTruthy();
  });

  it("asks for a reload when the server is of another version", async () => {
    serve({ cluster: cluster([host("a")]), me: { body: { user: "ann", may_change_hosts: false, version: "99.0" } } });
    show(<App />, "/plugin/dtrain/cluster");
    expect(await screen.findByText(/the API server has version 99.0/)).toBeTruthy();
  });
});

describe("a slot in words", () => {
  const place = (values: Partial<Host>, index: number, of: Holder | null = null) => {
    const one = host("a", values);
    return { host: one, index, slot: one.slots[index] ?? {}, holder: of };
  };

  it("does not name a gang that the user may not read", () => {
    const words = slotSentence(place({}, 0, { ...holder, is_hidden: true, experiment: "secret" }));
    expect(words).toContain("a gang of a DAG that you may not read");
    expect(words).not.toContain("secret");
  });

  it("tells that a free slot of a drained host gets no gang", () => {
    const drained = place({ state: "drained" }, 1);
    expect([slotSentence(drained), kindOf(drained.host, drained.slot, null)]).toEqual(["a slot 1: free, but the host is drained", "unavailable"]);
  });
});

describe("the square beside", () => {
  const hosts = [host("a"), host("b", { slots: Array.from({ length: 20 }, () => ({})) }), host("c", { slots: [] })];

  it("is in the next host at the end of a host, and in the next line of a large host", () => {
    expect(neighbour(hosts, { host: "a", index: 2 }, "ArrowRight", 1)).toEqual({ host: "b", index: 0 });
    expect(neighbour(hosts, { host: "b", index: 0 }, "ArrowLeft", 1)).toEqual({ host: "a", index: 2 });
    expect(neighbour(hosts, { host: "b", index: 3 }, "ArrowDown", 1)).toEqual({ host: "b", index: 19 });
    expect(neighbour(hosts, { host: "b", index: 19 }, "ArrowUp", 1)).toEqual({ host: "b", index: 3 });
  });

  it("does not exist beyond the edges, in a host without slots, and for a host that is gone", () => {
    expect(neighbour(hosts, { host: "a", index: 0 }, "ArrowLeft", 1)).toBeNull();
    expect(neighbour(hosts, { host: "b", index: 19 }, "ArrowDown", 1)).toBeNull();
    expect(neighbour(hosts, { host: "gone", index: 0 }, "ArrowDown", 1)).toBeNull();
  });
});
