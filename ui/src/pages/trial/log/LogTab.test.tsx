import { fireEvent, screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { beforeEach, describe, expect, it, vi } from "vitest";

import { App } from "../../../app/App";
import { type LogLine } from "../../../api/logs";
import { serveCanvas } from "../../../testing/canvas";
import { experiment, refusal, trial } from "../../../testing/rows";
import { type Reply, serve } from "../../../testing/server";
import { show } from "../../../testing/show";
import { lineAt } from "./scroll";

const ADDRESS = "/plugin/dtrain/trials/7?tab=log";
const HOSTILE = "<img src=x onerror=alert(1)>";
const TOTAL = 1_000_000;

const line = (number: number | null, values: Partial<LogLine> = {}): LogLine => ({
  number, offset: null, at: null, level: null, text: `line ${number ?? "of the end"}`, chars: 10, ...values,
});

/** A log of which each request gets the lines that it names. */
const lines = (values: object = {}) => ({ searchParams }: URL): Reply => {
  const total = "total" in values ? Number(values.total) : TOTAL;
  const asked = Number(searchParams.get("first"));
  const first = Math.max(0, asked < 0 ? total + asked : asked);
  const count = Math.max(0, Math.min(Number(searchParams.get("count")), total - first));
  const body = {
    attempt: 1, rank: Number(searchParams.get("rank")), ranks: 2, is_started: true, is_over: true, state: "completed", latest: 1, reason: null,
    total, copied_bytes: 10 * total, is_complete: true, first, rows: Array.from({ length: count }, (_, index) => line(first + index)), tail: [], ...values,
  };
  return { body };
};

const site = (routes: Record<string, Reply | ((url: URL, init: RequestInit) => Reply | Promise<Reply>)>) =>
  serve({
    "trials/7": { body: trial(7, { state: "completed" }) }, "experiments/5": { body: experiment() }, "trials/7/timeline": { body: { entries: [] } },
    "trials/7/ranks": { body: { attempt: 1, rows: [0, 1].map((rank) => ({ rank, host: `gpu-${rank}` })) } }, ...routes,
  });

beforeEach(() => {
  serveCanvas();
  vi.spyOn(HTMLElement.prototype, "clientHeight", "get").mockReturnValue(360);
});

describe("the log of a rank", () => {
  it("has few of a million lines in the document, and loads those that become visible", async () => {
    const arrived = site({ "trials/7/log/lines": lines() });
    const { container } = show(<App />, ADDRESS);
    expect(await screen.findByText(`line ${TOTAL - 1}`)).toBeTruthy();
    expect(container.querySelectorAll(".dtrain-log-line").length).toBeLessThan(60);
    const frame = screen.getByRole("region", { name: "Log of rank 0" });
    frame.scrollTop = 7_500_000;
    fireEvent.scroll(frame);
    await waitFor(() => expect(container.querySelector(".dtrain-log-line[data-index='500000']")?.textContent).toContain("line 500000"));
    expect(container.querySelectorAll(".dtrain-log-line").length).toBeLessThan(60);
    expect(arrived.filter(({ path }) => path.startsWith("trials/7/log/lines")).length).toBeLessThan(5);
  });

  it("begins at the line of the address, and marks it", async () => {
    site({ "trials/7/log/lines": lines() });
    const { container } = show(<App />, `${ADDRESS}&line=1235`);
    await waitFor(() => expect(container.querySelector("[data-chosen]")?.textContent).toContain("line 1234"));
  });

  it("begins at the time of the address, and leads back to the charts", async () => {
    const at = "2026-01-31T12:00:00.000Z";
    const rows = [line(0, { at }), line(1, { at })];
    const arrived = site({ "trials/7/log/lines": lines({ total: 2, rows, first: 0 }) });
    show(<App />, `${ADDRESS}&at=2026-01-31T12:00:00Z`);
    expect(await screen.findByText(/The log begins at 2026-01-31/)).toBeTruthy();
    // The sentence is that of the address: the request may come after it.
    await waitFor(() => expect(arrived.some(({ path }) => path.includes(`at=${encodeURIComponent(at)}`))).toBe(true));
    const link = await screen.findAllByTitle(/Charts at/);
    expect(link[0]?.getAttribute("href")).toContain(`at=${encodeURIComponent(at)}&tab=training`);
  });

  it("shows text as text, and errors as such", async () => {
    site({ "trials/7/log/lines": lines({ total: 1, rows: [line(0, { text: HOSTILE, level: "error" })] }) });
    const { container } = show(<App />, ADDRESS);
    const shown = await screen.findByText(HOSTILE);
    expect(shown.parentElement?.getAttribute("data-level")).toBe("error");
    expect(container.querySelector("img")).toBeNull();
  });

  it("shows the stored end and a sentence when the host is gone", async () => {
    const posted: unknown[] = [];
    site({
      "trials/7/log/lines": lines({ total: 0, copied_bytes: 0, is_complete: false, rows: [], tail: [line(null)] }),
      "POST operations/log": (_, init) => {
        posted.push(JSON.parse(String(init.body)));
        return refusal(409, "conflict", "Job 12 was given back, and n1 with it.");
      },
    });
    show(<App />, ADDRESS);
    expect(await screen.findByText("Only the stored end of the log of rank 0 is shown: the rest cannot be fetched from its host.")).toBeTruthy();
    expect(screen.getByText("Job 12 was given back, and n1 with it.")).toBeTruthy();
    expect(screen.getByText("line of the end")).toBeTruthy();
    expect(posted).toEqual([{ trial_id: 7, rank: 0, attempt: null, keep: true, through: null }]);
  });

  it("is fetched from its host, and shown once it is there", async () => {
    const state = { isDone: false };
    site({
      "trials/7/log/lines": (url) => lines(state.isDone ? { total: 3 } : { total: 0, is_complete: false, rows: [], tail: [line(null)] })(url),
      "POST operations/log": { status: 201, body: { operation_id: 9, through: "dag", state: "waiting" } },
      "operations/9": () => {
        state.isDone = true;
        return { body: { operation_id: 9, through: "dag", state: "done" } };
      },
    });
    show(<App />, ADDRESS);
    expect(await screen.findByText(/A run of the DAG dtrain_operations fetches the whole log/)).toBeTruthy();
    expect(await screen.findByText("line 2", {}, { timeout: 5_000 })).toBeTruthy();
    expect(screen.queryByText(/dtrain_operations/)).toBeNull();
  });

  it("shows only the lines that a search finds, and continues a search that paused", async () => {
    const found = (number: number) => line(number, { text: `hit ${number}` });
    const arrived = site({
      "trials/7/log/lines": lines(),
      "trials/7/log/search": ({ searchParams }) => {
        const isFirst = searchParams.get("first") === "0";
        return { body: { attempt: 1, rank: 0, ranks: 2, is_over: true, total: TOTAL, is_complete: true, rows: isFirst ? [found(3)] : [found(900_000)], next: isFirst ? 400_000 : null, problem: null } };
      },
    });
    show(<App />, ADDRESS);
    await userEvent.type(await screen.findByRole("textbox", { name: "Search the log" }), "hit{Enter}");
    expect(await screen.findByText("hit 900000")).toBeTruthy();
    expect(screen.getByText("2 lines found")).toBeTruthy();
    expect(screen.getByRole("link", { name: "Link to line 4" }).getAttribute("href")).toContain("line=4&ranks=0&tab=log");
    expect(arrived.filter(({ path }) => path.includes("log/search")).map(({ path }) => /first=(\d+)/.exec(path)?.[1])).toEqual(["0", "400000"]);
  });

  it("shows a line that is opened from a search, and not the end of the log", async () => {
    const number = 500_000;
    const hit = line(number, { text: "hit" });
    site({
      "trials/7/log/lines": lines(),
      "trials/7/log/search": { body: { attempt: 1, rank: 0, ranks: 2, is_over: true, total: TOTAL, is_complete: true, rows: [hit], next: null, problem: null } },
    });
    const { container } = show(<App />, ADDRESS);
    await userEvent.type(await screen.findByRole("textbox", { name: "Search the log" }), "hit{Enter}");
    await userEvent.click(await screen.findByRole("link", { name: `Link to line ${number + 1}` }));
    await waitFor(() => expect(container.querySelector("[data-chosen]")?.textContent).toContain(`line ${number}`));
    const frame = screen.getByRole("region", { name: "Log of rank 0" });
    expect(Math.round(lineAt(frame.scrollTop, TOTAL, frame.clientHeight))).toBe(number - 5);
  });

  it("says why an expression was not searched", async () => {
    site({ "trials/7/log/lines": lines(), "trials/7/log/search": refusal(422, "invalid", "The expression is not valid: missing ).") });
    show(<App />, `${ADDRESS}&grep=(&regex=1`);
    expect(await screen.findByText(/The expression is not valid/)).toBeTruthy();
  });

  it("is beside those of other ranks", async () => {
    site({ "trials/7/log/lines": lines() });
    show(<App />, `${ADDRESS}&ranks=0&ranks=1`);
    expect(await screen.findByText(/Rank 0 on gpu-0/)).toBeTruthy();
    expect(await screen.findByText(/Rank 1 on gpu-1/)).toBeTruthy();
  });
});
