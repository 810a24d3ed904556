import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { describe, expect, it } from "vitest";

import { App } from "../../app/App";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";

const NAMES = {
  facts: [
    { name: "state", kind: "text", meaning: "state of the trial", choices: ["running"] },
    { name: "best", kind: "number", meaning: "best value", choices: [] },
  ],
  metrics: ["metrics.loss"],
  params: ["params.lr"],
};
const run = (trial_id: number, values: unknown[], more: object = {}) => ({ trial_id, name: null, number: 0, experiment_id: 1, experiment: "e", state: "running", never_fits: false, values, ...more });
const page = (rows: object[], columns: string[], more: object = {}) => ({ body: { rows, total: rows.length, columns, smaller_is_better: columns.map(() => null), hint: null, ...more } });
const view = (more: object = {}) => ({
  view_id: 3, name: "Paper", owner: "ann", is_own: true, is_shared: false, where: 'tag = "paper"', columns: ["best"], by: [], sort: "-best", charts: [], changed_at: "2026-01-31T12:00:00Z", ...more,
});
const ALWAYS = { "runs/names": { body: NAMES }, "runs/views": { body: { rows: [] } } };
const ADDRESS = "/plugin/dtrain/runs";
const wrong = { status: 422, body: { detail: { code: "invalid", message: "The expression is wrong at character 1: there is no 'bset'. Did you mean best?\n  bset > 1\n  ^", hint: "", problems: [] } } };

const requested = (arrived: { path: string }[]) => arrived.map(({ path }) => path).filter((path) => path.startsWith("runs?") || path.startsWith("runs/groups"));

describe("the page of runs", () => {
  it("shows the columns of its address and requests filter and order", async () => {
    const arrived = serve({ ...ALWAYS, runs: page([run(7, [0.25, "adam", null])], ["metrics.loss", "params.opt", "best"]) });
    show(<App />, `${ADDRESS}?where=best+%3E+1&columns=metrics.loss&columns=params.opt&columns=best&sort=-metrics.loss`);
    expect((await screen.findByRole("link", { name: "Trial 7" })).getAttribute("href")).toBe("/plugin/dtrain/trials/7");
    expect(screen.getAllByRole("columnheader").map((header) => header.textContent)).toEqual(["", "Trial", "metrics.loss", "params.opt", "best"]);
    expect(screen.getAllByRole("row")[1]?.textContent).toBe("Trial 70.25adam–");
    expect(requested(arrived)[0]).toBe("runs?column=metrics.loss&column=params.opt&column=best&order=desc&sort=metrics.loss&where=best+%3E+1&limit=100&offset=0");
  });

  it("applies a typed filter with Enter, and completes names with the arrow key", async () => {
    const arrived = serve({ ...ALWAYS, runs: page([run(7, [])], []) });
    const { router } = show(<App />, ADDRESS);
    await screen.findByRole("link", { name: "Trial 7" });
    const field = screen.getByRole("textbox", { name: "Filter" });
    await userEvent.type(field, "lo");
    await userEvent.keyboard("{ArrowDown}");
    await waitFor(() => expect((field as HTMLInputElement).value).toBe("metrics.loss"));
    await userEvent.type(field, " < 0.5{Enter}");
    expect(new URLSearchParams(router.state.location.search).get("where")).toBe("metrics.loss < 0.5");
    await waitFor(() => expect(requested(arrived).some((path) => path.includes("where=metrics.loss+%3C+0.5"))).toBe(true));
  });

  it("shows where a filter is wrong, once, and keeps the rows", async () => {
    serve({ ...ALWAYS, runs: (url) => (url.searchParams.has("where") ? wrong : page([run(7, [])], [])) });
    show(<App />, ADDRESS);
    await screen.findByRole("link", { name: "Trial 7" });
    await userEvent.type(screen.getByRole("textbox", { name: "Filter" }), "bset > 1{Enter}");
    expect((await screen.findByRole("alert")).textContent).toBe(wrong.body.detail.message);
    expect(screen.getAllByRole("alert")).toHaveLength(1);
    expect(screen.getByRole("link", { name: "Trial 7" })).toBeTruthy();
  });

  it("groups trials with mean and spread, and orders by a figure", async () => {
    const figures = { count: 3, mean: 0.5, std: 0.0123, min: 0.4, max: 0.6 };
    const arrived = serve({ ...ALWAYS, "runs/groups": { body: { rows: [{ keys: [0.1], trials: 3, figures: [figures] }], total: 1, by: ["params.lr"], columns: ["metrics.loss"], smaller_is_better: [true] } } });
    const { router } = show(<App />, `${ADDRESS}?columns=metrics.loss&by=params.lr`);
    expect(await screen.findByText("0.5 ± 0.012")).toBeTruthy();
    expect(screen.getAllByRole("row")[1]?.textContent).toBe("0.130.5 ± 0.0120.40.6");
    expect(requested(arrived)[0]).toBe("runs/groups?by=params.lr&column=metrics.loss&order=desc&limit=100&offset=0");
    await userEvent.click(screen.getByRole("button", { name: "metrics.loss: mean ± std" }));
    expect(new URLSearchParams(router.state.location.search).get("sort")).toBe("mean:metrics.loss");
  });

  it("orders by the best values first where it is known which these are, of groups and of trials", async () => {
    const figures = { count: 3, mean: 0.5, std: 0.0123, min: 0.4, max: 0.6 };
    serve({
      ...ALWAYS,
      "runs/groups": { body: { rows: [{ keys: [0.1], trials: 3, figures: [figures] }], total: 1, by: ["params.lr"], columns: ["best"], smaller_is_better: [false] } },
      runs: page([run(7, [0.25, "queued"], { state: "queued", never_fits: true })], ["best", "state"], { smaller_is_better: [false, null] }),
    });
    const { router, unmount } = show(<App />, `${ADDRESS}?columns=best&by=params.lr`);
    const order = (of: typeof router) => new URLSearchParams(of.state.location.search).get("sort");
    await userEvent.click(await screen.findByRole("button", { name: "best: mean ± std" }));
    expect(order(router)).toBe("-mean:best");
    unmount();
    const { router: other } = show(<App />, `${ADDRESS}?columns=best&columns=state`);
    expect((await screen.findByTestId("state-badge")).textContent).toBe("cannot run");
    await userEvent.click(screen.getByRole("button", { name: "best" }));
    expect(order(other)).toBe("-best");
  });

  it("opens a saved view, saves it, and removes it", async () => {
    const saved = serve({
      ...ALWAYS,
      "runs/views": { body: { rows: [view(), view({ view_id: 4, name: "Theirs", owner: "bob", is_own: false })] } },
      runs: page([run(7, [1])], ["best"]),
      "PUT runs/views/3": { body: view() },
      "DELETE runs/views/3": { status: 204, body: "" },
    });
    const { router } = show(<App />, ADDRESS);
    await userEvent.click(await screen.findByRole("button", { name: "Views" }));
    await userEvent.click(await screen.findByRole("menuitem", { name: "Paper" }));
    expect(Object.fromEntries(new URLSearchParams(router.state.location.search))).toEqual({ view: "3", where: 'tag = "paper"', columns: "best", sort: "-best" });
    await userEvent.click(await screen.findByRole("button", { name: "Paper" }));
    await userEvent.click(await screen.findByRole("menuitem", { name: "Save changes" }));
    await userEvent.click(await screen.findByRole("button", { name: "Save" }));
    await waitFor(() => expect(saved.find(({ method }) => method === "PUT")?.body).toEqual({ name: "Paper", is_shared: false, where: 'tag = "paper"', columns: ["best"], by: [], sort: "-best", charts: [] }));
    await userEvent.click(await screen.findByRole("button", { name: "Paper" }));
    await userEvent.click(await screen.findByRole("menuitem", { name: "Remove the view" }));
    await userEvent.click(within(await screen.findByRole("alertdialog")).getByRole("button", { name: "Remove" }));
    await waitFor(() => expect(saved.some(({ method }) => method === "DELETE")).toBe(true));
  });

  it("does not offer to change a view of another user", async () => {
    serve({ ...ALWAYS, "runs/views": { body: { rows: [view({ is_own: false, owner: "bob" })] } }, runs: page([run(7, [1])], ["best"]) });
    show(<App />, `${ADDRESS}?view=3`);
    await userEvent.click(await screen.findByRole("button", { name: "Paper" }));
    expect((await screen.findAllByRole("menuitem")).map((item) => item.textContent)).toEqual(["Paper (by bob)", "Save as a new view"]);
  });

  it("shows text from the store as text", async () => {
    const hostile = "<img src=x onerror=alert(1)>\u202e";
    serve({ ...ALWAYS, "runs/views": { body: { rows: [view({ name: hostile, owner: hostile, is_own: false })] } }, runs: page([run(7, [hostile, hostile], { name: hostile, experiment: hostile })], ["experiment", "params.x"]) });
    const { container } = show(<App />, `${ADDRESS}?columns=experiment&columns=params.x&view=3`);
    expect(await screen.findAllByText(hostile, { exact: false })).not.toHaveLength(0);
    expect(container.querySelector("img")).toBeNull();
  });

  it("tells what a filter without a match may have meant", async () => {
    serve({ ...ALWAYS, runs: page([], [], { hint: "No trial has metrics.lss. Did you mean metrics.loss?" }) });
    show(<App />, `${ADDRESS}?where=metrics.lss+%3E+1`);
    expect(await screen.findByText("No trial has metrics.lss. Did you mean metrics.loss?")).toBeTruthy();
  });
});
