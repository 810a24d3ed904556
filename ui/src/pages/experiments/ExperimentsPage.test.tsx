import { screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { describe, expect, it } from "vitest";

import { App } from "../../app/App";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";

const row = (id: number, values: object = {}) => ({
  experiment_id: id, name: `experiment-${id}`, display_name: null, may_edit: true, dag_id: "train", run_id: "run", state: "running", never_fits: false, reason: null, control_request: null, method: "asha", metric: "loss",
  smaller_is_better: true, best: 0.25, best_trial: 3, trials: { running: 2, completed: 5 }, max_trials: 16, progress: 0.4, expected_end: null,
  created_at: "2026-01-31T12:00:00Z", ended_at: null, description: "", tags: ["vision"], owner: "ann", project: "Uncategorized", archived: false, is_deleting: false, ...values,
});

const page = (rows: object[], total = rows.length) => ({ body: { rows, total, tags: ["vision", "text"], owners: ["ann", "bob"], projects: ["Uncategorized"] } });

describe("the page of experiments", () => {
  it("shows the rows with states, progress and links", async () => {
    serve({ experiments: page([row(1), row(2, { best: "nan", control_request: "pause" })]) });
    show(<App />, "/plugin/dtrain/experiments");
    expect((await screen.findByRole("link", { name: "experiment-1" })).getAttribute("href")).toBe("/plugin/dtrain/experiments/1");
    expect(screen.getAllByText("2 running, 5 completed")).toHaveLength(2);
    expect(screen.getByText("NaN")).toBeTruthy();
    expect(screen.getAllByTestId("state-badge").map((badge) => badge.textContent)).toEqual(["running", "paused"]);
  });

  it("tells experiments that cannot run from those that wait, with the reason, and filters by it", async () => {
    const blocked = { state: "queued", never_fits: true, reason: "24 slots can never be granted.", trials: { queued: 1 } };
    const arrived = serve({ experiments: page([row(1, blocked), row(2, { ...blocked, control_request: "pause" })]) });
    show(<App />, "/plugin/dtrain/experiments?state=never_fits");
    await screen.findByRole("link", { name: "experiment-1" });
    expect(screen.getAllByTestId("state-badge").map((badge) => badge.textContent)).toEqual(["cannot run", "cannot run", "paused"]);
    expect(screen.getByRole("row", { name: /experiment-1/ }).textContent).toContain("1 queued: 24 slots can never be granted.");
    expect(arrived.map(({ path }) => path)).toContain("experiments?never_fits=true&order=desc&sort=created_at&limit=100&offset=0");
  });

  it("shows a dash instead of a progress that is unknown", async () => {
    serve({ experiments: page([row(1, { progress: null }), row(2, { progress: 0 })]) });
    show(<App />, "/plugin/dtrain/experiments?columns=name&columns=progress");
    await screen.findByRole("link", { name: "experiment-1" });
    expect(screen.getAllByRole("progressbar").map((bar) => bar.getAttribute("aria-valuenow"))).toEqual(["0"]);
    expect(screen.getAllByRole("row").slice(1).map((shown) => shown.textContent)).toEqual(["experiment-1–", "experiment-20 %"]);
  });

  it("requests filter and order of its address, and an unknown column does no harm", async () => {
    const arrived = serve({ experiments: page([row(1)]) });
    show(<App />, "/plugin/dtrain/experiments?q=res&state=errored&sort=name&columns=name&columns=gone");
    await screen.findByRole("link", { name: "experiment-1" });
    expect(arrived.map(({ path }) => path)).toContain("experiments?order=asc&q=res&sort=name&state=errored&limit=100&offset=0");
    expect(screen.getAllByRole("columnheader").map((header) => header.textContent)).toEqual(["", "Name"]);
  });

  it("writes the order into its address", async () => {
    serve({ experiments: page([row(1)]) });
    const { router } = show(<App />, "/plugin/dtrain/experiments");
    await userEvent.click(await screen.findByRole("button", { name: "Best" }));
    expect(router.state.location.search).toBe("?sort=best");
    await userEvent.click(screen.getByRole("button", { name: "Best" }));
    await waitFor(() => expect(router.state.location.search).toBe("?sort=-best"));
  });

  it("names the next command when there is no experiment, and offers to clear filters that match none", async () => {
    serve({ experiments: page([]) });
    const { unmount } = show(<App />, "/plugin/dtrain/experiments");
    expect(await screen.findByText(/airflow dtrain experiments create/)).toBeTruthy();
    unmount();
    const { router } = show(<App />, "/plugin/dtrain/experiments?q=none");
    await userEvent.click(await screen.findByRole("button", { name: "Clear the filters" }));
    expect(router.state.location.search).toBe("");
  });

  it("offers the actions of a row that the user may carry out, and forks in the editor", async () => {
    const me = { user: "ann", may_change_hosts: false, version: "", starting: { dag_id: "d", exists: true, may_trigger: true, hint: "" } };
    serve({ me: { body: me }, experiments: page([row(1), row(2, { may_edit: false, state: "completed" })]) });
    const { router } = show(<App />, "/plugin/dtrain/experiments");
    await userEvent.click(await screen.findByRole("button", { name: "Actions of experiment 1" }));
    await waitFor(() => expect(screen.getAllByRole("menuitem").map((item) => item.textContent.trim())).toEqual(["Edit name and tags", "Fork", "Move", "Pause", "Stop", "Kill"]));
    await userEvent.keyboard("{Escape}");
    await userEvent.click(screen.getByRole("button", { name: "Actions of experiment 2" }));
    await userEvent.click(await screen.findByRole("menuitem", { name: "Fork" }));
    expect(router.state.location).toMatchObject({ pathname: "/plugin/dtrain/experiments/new", search: "?fork=2" });
  });

  it("edits name and tags of a row", async () => {
    const arrived = serve({ experiments: page([row(1)]), "PATCH experiments/1": { body: {} } });
    show(<App />, "/plugin/dtrain/experiments");
    await userEvent.click(await screen.findByRole("button", { name: "Actions of experiment 1" }));
    await userEvent.click(await screen.findByRole("menuitem", { name: "Edit name and tags" }));
    await userEvent.type(await screen.findByRole("textbox", { name: "Name" }), "final");
    await userEvent.click(screen.getByRole("button", { name: "Save" }));
    await waitFor(() => expect(arrived.find(({ method }) => method === "PATCH")?.body).toEqual({ display_name: "final", description: "", tags: ["vision"] }));
  });

  it("shows text from the store as text", async () => {
    const hostile = "<img src=x onerror=alert(1)>".padEnd(500, "x");
    serve({ experiments: page([row(1, { name: hostile, tags: [hostile], metric: hostile })]) });
    const { container } = show(<App />, "/plugin/dtrain/experiments");
    expect(await screen.findByRole("link", { name: hostile })).toBeTruthy();
    expect(container.querySelector("img")).toBeNull();
  });
});

describe("an unknown address", () => {
  it("is explained", async () => {
    serve({});
    show(<App />, "/plugin/dtrain/nothing%20here");
    expect(await screen.findByText('There is no page "nothing here".')).toBeTruthy();
  });
});
