import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { describe, expect, it } from "vitest";

import { App } from "../../app/App";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";

const row = (id: number, values: object = {}) => ({
  experiment_id: id, name: `experiment-${id}`, display_name: null, may_edit: true, dag_id: "train", run_id: "run", state: "completed", never_fits: false, reason: null, control_request: null, method: "asha", metric: "loss",
  smaller_is_better: true, best: 0.25, best_trial: 3, trials: { completed: 5 }, max_trials: 5, progress: 1, expected_end: null,
  created_at: "2026-01-31T12:00:00Z", ended_at: "2026-01-31T13:00:00Z", description: "", tags: [], owner: "ann", project: "vision", archived: false, is_deleting: false, ...values,
});
const page = (...rows: object[]) => ({ body: { rows, total: rows.length, tags: [], owners: ["ann", "bob"], projects: ["text", "vision"] } });
const me = (owns_experiments: boolean) => ({ body: { user: "ann", owns_experiments, may_change_hosts: false, version: "", starting: { dag_id: "d", exists: true, may_trigger: true, hint: "" } } });
const result = (values: object = {}) => ({ body: { outcomes: [], done_count: 2, refused_count: 0, freed: null, message: "2 experiments: archived.", ...values } });
const ROOT = "/plugin/dtrain/experiments";

describe("the list of experiments", () => {
  it("shows those of the user first, and the address holds this choice", async () => {
    const arrived = serve({ me: me(true), experiments: page(row(1)) });
    const { router } = show(<App />, ROOT);
    await screen.findByRole("link", { name: "experiment-1" });
    const lists = arrived.map(({ path }) => path).filter((path) => path.startsWith("experiments?"));
    expect(lists.every((path) => path.includes("owner=ann"))).toBe(true);
    await waitFor(() => expect(router.state.location.search).toBe("?owner=ann"));
    await userEvent.click(within(screen.getByRole("group", { name: "Owner" })).getByRole("button", { name: "All" }));
    await waitFor(() => expect(router.state.location.search).toBe("?owner=*"));
    await waitFor(() => expect(arrived.at(-1)?.path).not.toContain("owner="));
  });

  it("shows all experiments to a user who owns none, and where the user is not known", async () => {
    const arrived = serve({ me: me(false), experiments: page(row(1)) });
    const { router, unmount } = show(<App />, ROOT);
    await screen.findByRole("link", { name: "experiment-1" });
    expect(router.state.location.search).toBe("");
    expect(screen.queryByRole("group", { name: "Owner" })).toBeNull();
    unmount();
    serve({ experiments: page(row(1)) });
    show(<App />, ROOT);
    expect(await screen.findByRole("link", { name: "experiment-1" })).toBeTruthy();
    expect(arrived.some(({ path }) => path.includes("owner="))).toBe(false);
  });

  it("keeps the owner of a link", async () => {
    const arrived = serve({ me: me(true), experiments: page(row(1, { owner: "bob" })) });
    const { router } = show(<App />, `${ROOT}?owner=bob&archived=only&project=vision`);
    await screen.findByRole("link", { name: "experiment-1" });
    expect(router.state.location.search).toBe("?owner=bob&archived=only&project=vision");
    expect(arrived.map(({ path }) => path)).toContain("experiments?archived=only&order=desc&owner=bob&project=vision&sort=created_at&limit=100&offset=0");
  });

  it("asks once for all selected rows, with counts and refusals, and then acts", async () => {
    const refused = { experiment_id: 2, name: "experiment-2", is_refused: true, message: "Experiment 2 has not ended." };
    const arrived = serve({
      experiments: page(row(1), row(2)),
      "POST experiments/actions": (_url, init) => result({ done_count: 1, refused_count: 1, outcomes: [refused], message: String(init.body).includes('"dry_run":true') ? "1 experiment: deleted for good. Removed with them: 3 trials." : "done" }),
    });
    const { router } = show(<App />, ROOT);
    await screen.findByRole("link", { name: "experiment-1" });
    for (const box of screen.getAllByRole("checkbox")) await userEvent.click(box);
    expect(await screen.findByText("2 experiments selected")).toBeTruthy();
    expect(router.state.location.search).toBe("?selected=1&selected=2");
    await userEvent.click(within(screen.getByRole("toolbar")).getByRole("button", { name: "Delete" }));
    const dialog = await screen.findByRole("alertdialog");
    expect(await within(dialog).findByText(/Removed with them: 3 trials/)).toBeTruthy();
    expect(within(dialog).getByText("Experiment 2 has not ended.")).toBeTruthy();
    await userEvent.click(within(dialog).getByRole("button", { name: "Delete" }));
    await waitFor(() => expect(arrived.filter(({ method }) => method === "POST").map(({ body }) => body)).toEqual([
      { action: "delete", experiment_ids: [1, 2], dry_run: true },
      { action: "delete", experiment_ids: [1, 2], dry_run: false },
    ]));
    await waitFor(() => expect(router.state.location.search).toBe(""));
  });

  it("does not act where all are refused", async () => {
    serve({ experiments: page(row(1)), "POST experiments/actions": result({ done_count: 0, refused_count: 1, message: "No experiment." }) });
    show(<App />, `${ROOT}?selected=1`);
    await userEvent.click(within(await screen.findByRole("toolbar")).getByRole("button", { name: "Kill" }));
    const dialog = await screen.findByRole("alertdialog");
    await within(dialog).findByText("No experiment.");
    expect(within(dialog).getByRole("button", { name: "Kill" })).toHaveProperty("disabled", true);
  });

  it("moves to a project that the user names", async () => {
    const arrived = serve({ experiments: page(row(1)), "POST experiments/actions": result() });
    show(<App />, ROOT);
    await userEvent.click(await screen.findByRole("button", { name: "Actions of experiment 1" }));
    await userEvent.click(await screen.findByRole("menuitem", { name: "Move" }));
    await userEvent.type(await screen.findByRole("combobox", { name: /Project/ }), " text ");
    await userEvent.click(screen.getByRole("button", { name: "Move" }));
    await waitFor(() => expect(arrived.find(({ method }) => method === "POST")?.body).toEqual({ action: "move", experiment_ids: [1], dry_run: false, project: "text" }));
  });

  it("shows hostile owners, projects and refusals as text", async () => {
    const hostile = '<img src=x onerror="alert(1)">';
    const refused = { experiment_id: 1, name: hostile, is_refused: true, message: hostile };
    serve({ experiments: page(row(1, { owner: hostile, project: hostile })), "POST experiments/actions": result({ done_count: 0, refused_count: 1, outcomes: [refused], message: hostile }) });
    const { container } = show(<App />, `${ROOT}?selected=1&columns=name&columns=owner&columns=project`);
    expect((await screen.findAllByText(hostile)).length).toBeGreaterThan(1);
    await userEvent.click(within(screen.getByRole("toolbar")).getByRole("button", { name: "Delete" }));
    await within(await screen.findByRole("alertdialog")).findAllByText(hostile);
    expect(container.ownerDocument.querySelector("img")).toBeNull();
  });
});
