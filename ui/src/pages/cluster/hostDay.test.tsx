import { act, fireEvent, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { beforeEach, describe, expect, it } from "vitest";

import { App } from "../../app/App";
import { serveCanvas } from "../../testing/canvas";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { DAY_LOOKS, dayRows, type HostDay, type HostDays, hostPage, itemsOf, sharesOf } from "./hostDay";

const at = (hour: number) => `2026-03-10T${String(hour).padStart(2, "0")}:00:00Z`;

const work = (values: Partial<HostDay["work"][number]>): HostDay["work"][number] => ({
  kind: "trial", slots: [0], since: at(1), started_at: at(2), until: at(3), trial_id: 7, trial_number: 0, trial_state: "completed", experiment_id: 1, name: "resnet", ...values,
});

const day = (name: string, values: Partial<HostDay> = {}): HostDay => ({
  name, pool: "gpus", slots: 4, work: [], states: [{ state: "ready", reason: "", since: at(0), until: null }], notes: [], held_slot_s: 0, idle_slot_s: 345_600, away_slot_s: 0, ...values,
});

const days = (...hosts: HostDay[]): HostDays => ({ since: at(0), until: "2026-03-11T00:00:00Z", is_cut: false, hosts });

const S = Date.parse(at(0)) / 1000;

describe("the rows of the day of hosts", () => {
  it("has a row for states and checks and one per slot, and a label per host", () => {
    const { labels, sizes, bars } = dayRows(days(day("gpu-10"), day("gpu-2", { work: [work({ slots: [3, 1, 2] })] })), false);
    expect([labels, sizes]).toEqual([["gpu-2", "gpu-10"], [6, 6]]);
    expect(bars.map(({ row, rows, fromS, startS, toS }) => [row, rows, fromS - S, startS - S, toS - S])).toEqual([[2.5, 3, 3600, 7200, 10_800]]);
  });

  it("lets the slots of a large host share rows, and has a label per slot of a single host", () => {
    const large = day("big", { slots: 64, work: [work({ slots: [32, 33] })] });
    expect(dayRows(days(large), false).bars.map(({ row, rows }) => [row, rows])).toEqual([[9.5, 0.5]]);
    const whole = dayRows(days(day("a", { work: [work({ slots: [3] })] })), true);
    expect(whole.labels).toEqual(["host", "slot 0", "slot 1", "slot 2", "slot 3"]);
    expect(whole.bars.map(({ row, rows }) => [row, rows])).toEqual([[4, 1]]);
  });

  it("cuts what began before and what lasts, and leaves out malformed times and slots that are gone", () => {
    const { bars } = dayRows(
      days(day("a", { work: [work({ since: "2026-03-01T00:00:00Z", started_at: null, until: null }), work({ since: "soon" }), work({ slots: [9] }), work({ since: "2026-03-12T00:00:00Z", until: null })] })),
      true,
    );
    expect(bars.map(({ fromS, startS, toS }) => [fromS - S, startS - S, toS - S])).toEqual([[0, 86_400, 86_400]]);
  });

  it("shows states other than ready, checks, and slow ranks, each with its colour", () => {
    const items = itemsOf(
      day("a", {
        states: [{ state: "unreachable", reason: "<b>\u202e", since: at(4), until: at(5) }, { state: "drained", reason: "", since: at(5), until: null }, { state: "ready", reason: "", since: at(0), until: at(4) }],
        notes: [{ kind: "check", at: at(6), until: at(6), text: "memory slow", is_slow: true, trial_id: null }, { kind: "slow_rank", at: at(7), until: null, text: "rank 3", is_slow: true, trial_id: 9 }],
      }),
    );
    expect(items.map(({ text, fill, isMoment, trialId }) => [text, fill, isMoment, trialId])).toEqual([
      ["Host unreachable: <b>\\u202e", "failed", false, null],
      ["Host drained", "foreign", false, null],
      ["Host check: memory slow", "failed", true, null],
      ["Slow rank: rank 3", "failed", false, 9],
    ]);
  });

  it("colours work by its state, without a name for work of other DAGs", () => {
    const kinds = itemsOf(
      day("a", {
        work: [work({ until: null, trial_state: "running" }), work({ trial_state: "errored" }), work({ trial_state: "running" }), work({ kind: "other", name: "", trial_id: null }), work({ kind: "gang", name: "gang of d/t", trial_id: null }), work({ kind: "check", name: "", trial_id: null })],
      }),
    );
    expect(kinds.map(({ text, fill }) => [text, fill])).toEqual([
      ["Trial 7 of resnet: running", "running"], ["Trial 7 of resnet: errored", "failed"], ["Trial 7 of resnet: running", "done"], ["Other work", "waiting"], ["gang of d/t", "starting"], ["Host check", "starting"],
    ]);
    expect(kinds.map(DAY_LOOKS.textOf)).toEqual(["7", "7", "7", "", "", ""]);
  });

  it("tells the parts of the time of a host's slots", () => {
    expect(sharesOf(day("a", { held_slot_s: 1, idle_slot_s: 2, away_slot_s: 1 }))).toEqual({ held: 0.25, idle: 0.5, away: 0.25 });
    expect(sharesOf(day("a", { slots: 0, idle_slot_s: 0 }))).toBeNull();
  });

  it("divides hosts into pages, whatever an address says", () => {
    const hosts = Array.from({ length: 25 }, (_, index) => index);
    expect(hostPage(hosts, 3, 12)).toEqual({ shown: [24], page: 3, pages: 3 });
    expect([hostPage(hosts, -1, 12).page, hostPage(hosts, 9e99, 12).page, hostPage(hosts, Number.NaN, 12).page, hostPage([], 1, 12).pages]).toEqual([1, 3, 1, 1]);
  });
});

const pool = { name: "gpus", slot_type: "cuda", backend: "hosts", hosts: 2, slots: 8, free: 8, held: 0, unavailable: 0, waiting: 0 };
const cluster = (...names: string[]) => ({ body: { at: at(0), pools: [pool], holders: {}, hosts: names.map((name) => ({ name, pool: "gpus", slots: [{}, {}] })), schedulers: {}, jobs: [] } });
const me = { body: { user: "ann", may_change_hosts: false, starting: { dag_id: "d", exists: true, may_trigger: true, hint: "" }, version: __VERSION__ } };

describe("the day by host on the Cluster page", () => {
  beforeEach(serveCanvas);

  it("has a chart that keys walk through, a table with links, and the parts of the time", async () => {
    const hostile = '<img src=x onerror="alert(1)">';
    const shown = day("a", { work: [work({ name: hostile }), work({ kind: "other", name: "", trial_id: null, slots: [1], since: at(4), until: null })], held_slot_s: 86_400, idle_slot_s: 259_200 });
    const arrived = serve({ cluster: cluster("a", "b"), me, "cluster/day": { body: days(shown, day("b")) } });
    const { router } = show(<App />, "/plugin/dtrain/cluster?view=day");
    const chart = await screen.findByRole("group", { name: /^Day of 2 hosts with 2 entries\./ });
    expect(arrived.some(({ path }) => path === "cluster/day?host=a&host=b")).toBe(true);
    expect(within(screen.getByRole("region", { name: "Time of the slots by host" })).getByText("25 %")).toBeTruthy();
    expect(chart.dataset.bars).toBe("2");
    await waitFor(() => expect(chart.querySelector("canvas")).not.toBeNull());
    act(() => chart.focus());
    fireEvent.keyDown(chart, { key: "ArrowRight" });
    expect((await screen.findByTestId("chart-tooltip")).textContent).toContain(`Trial 7 of ${hostile}: completed`);
    fireEvent.keyDown(chart, { key: "ArrowRight" });
    expect(screen.getByTestId("chart-tooltip").textContent).toContain("Other work");
    await userEvent.click(screen.getByRole("button", { name: "Table" }));
    const table = screen.getByRole("region", { name: "What the hosts did" });
    expect(within(table).getByRole("link", { name: `Trial 7 of ${hostile}: completed` }).getAttribute("href")).toBe("/plugin/dtrain/trials/7");
    expect(within(table).getByText("slot 1")).toBeTruthy();
    expect(document.querySelector("img")).toBeNull();
    await userEvent.click(screen.getByRole("button", { name: "a" }));
    expect(router.state.location.search).toBe("?view=day&host=a");
    expect(arrived.some(({ path }) => path === "cluster/day?host=a")).toBe(true);
  });

  it("requests a chosen day, and takes an address of another form for the last 24 hours", async () => {
    const arrived = serve({ cluster: cluster("a"), me, "cluster/day": { body: days(day("a")) } });
    show(<App />, "/plugin/dtrain/cluster?view=day&day=<b>&page=7");
    fireEvent.change(await screen.findByLabelText("Day in UTC"), { target: { value: "2026-03-09" } });
    await screen.findByRole("group", { name: /^Day of 1 host / });
    const requests = arrived.map(({ path }) => path).filter((path) => path.startsWith("cluster/day"));
    expect([...new Set(requests)]).toEqual(["cluster/day?host=a", "cluster/day?day=2026-03-09&host=a"]);
  });

  it("is linked from the name of a host", async () => {
    serve({ cluster: cluster("a b"), me });
    show(<App />, "/plugin/dtrain/cluster?view=rows");
    expect((await screen.findByRole("link", { name: "a b" })).getAttribute("href")).toBe("/plugin/dtrain/cluster?view=day&host=a%20b");
  });
});
