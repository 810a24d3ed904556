import { fireEvent, screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { describe, expect, it } from "vitest";

import { ActionDialog } from "./ActionDialog";
import { ActionsMenu } from "./ActionsMenu";
import { type Action } from "./ask";
import { type Column, DataTable } from "../components/table/DataTable";
import { useRows } from "../hooks/useRows";
import { serve } from "../testing/server";
import { show } from "../testing/show";

interface Row {
  id: number;
  loss: number;
}

const kill = (id: number): Action => ({
  id: "kill", label: "Kill", icon: "stop", title: `Kill trial ${id}?`, text: "It ends.", verb: "Kill", run: async () => Promise.resolve({ message: "killed" }),
});

const columns: Column<Row>[] = [
  { id: "loss", header: "Loss", width: 100, cell: ({ loss }) => `loss ${loss}` },
  // New actions with each answer, as a table of the pages has them.
  { id: "actions", header: "Actions", width: 100, cell: ({ id }) => <ActionsMenu actions={[kill(id)]} label={`Actions of trial ${id}`} /> },
];

const Probe = () => {
  const rows = useRows<Row>("rows", {}, { everyMs: null });
  return (
    <>
      <DataTable columns={columns} empty="nothing" label="Rows" rowKey={({ id }) => id} rows={rows} what="Rows" />
      <button hidden onClick={rows.refresh} type="button">poll</button>
    </>
  );
};

/** What the clock does on a page: it moves no focus. */
const poll = () => fireEvent.click(screen.getByText("poll"));

/** A table whose first trial leaves with the second answer. */
const leavingTable = async () => {
  let polls = 0;
  serve({
    rows: () => {
      polls += 1;
      const rows = [{ id: 7, loss: polls }, { id: 8, loss: polls }].slice(polls - 1);
      return { body: { total: rows.length, rows } };
    },
  });
  show(<><Probe /><ActionDialog /></>);
  await screen.findAllByText("loss 1");
  button().focus();
  await userEvent.keyboard("{Enter}");
  await screen.findByRole("menuitem", { name: "Kill" });
};

/** A table whose rows change with each poll, and whose first trial moves down. */
const table = async () => {
  let polls = 0;
  serve({
    rows: () => {
      polls += 1;
      const rows = [{ id: 7, loss: polls }, { id: 8, loss: polls }];
      return { body: { total: 2, rows: polls % 2 === 0 ? rows.reverse() : rows } };
    },
  });
  show(<><Probe /><ActionDialog /></>);
  await screen.findAllByText("loss 1");
};

const button = () => screen.getByRole("button", { name: "Actions of trial 7" });
const isFocused = () => expect(document.activeElement).toBe(button());
const isClosed = () => expect(screen.queryByRole("menuitem")).toBeNull();

describe("the menu of a row", () => {
  it("returns the focus to its button, although the rows change while it is open", async () => {
    await table();
    button().focus();
    await userEvent.keyboard("{Enter}");
    await screen.findByRole("menuitem", { name: "Kill" });
    poll();
    await screen.findAllByText("loss 2");
    expect(screen.getByRole("menuitem", { name: "Kill" })).toBeTruthy();
    await userEvent.keyboard("{ArrowDown}{Escape}");
    await waitFor(isClosed);
    await waitFor(isFocused);
    poll();
    await screen.findAllByText("loss 3");
    isFocused();
  });

  it("returns the focus to its button after keys that come faster than the pictures of the screen", async () => {
    await table();
    button().focus();
    await userEvent.keyboard("{Enter}");
    await screen.findByRole("menuitem", { name: "Kill" });
    const menu = screen.getByRole("menu");
    await waitFor(() => expect(document.activeElement).toBe(menu));
    fireEvent.keyDown(menu, { key: "ArrowDown" });
    fireEvent.keyDown(menu, { key: "Escape" });
    await waitFor(isClosed);
    await waitFor(isFocused);
  });

  it("returns the focus to its button after the dialog of an action", async () => {
    await table();
    button().focus();
    await userEvent.keyboard("{Enter}");
    await screen.findByRole("menuitem", { name: "Kill" });
    await userEvent.keyboard("{ArrowDown}{Enter}");
    await screen.findByRole("dialog");
    poll();
    await screen.findAllByText("loss 2");
    await userEvent.keyboard("{Escape}");
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    await waitFor(isFocused);
  });

  it("gives the focus to the row that the keyboard reaches when its own row leaves the table", async () => {
    await leavingTable();
    await waitFor(() => expect(document.activeElement).toBe(screen.getByRole("menu")));
    poll();
    await screen.findAllByText("loss 2");
    await waitFor(isClosed);
    await waitFor(() => expect(document.activeElement).toBe(screen.getByText("loss 2").closest("tr")));
  });

  it("gives the focus to that row after the dialog of an action whose row has left the table", async () => {
    await leavingTable();
    await userEvent.keyboard("{ArrowDown}{Enter}");
    await screen.findByRole("dialog");
    poll();
    await screen.findAllByText("loss 2");
    await userEvent.keyboard("{Escape}");
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    await waitFor(() => expect(document.activeElement).toBe(screen.getByText("loss 2").closest("tr")));
  });

  it("leaves the focus where the user has put it meanwhile", async () => {
    await table();
    const other = screen.getByRole("button", { name: "Actions of trial 8" });
    await userEvent.click(button());
    await screen.findByRole("menuitem", { name: "Kill" });
    await userEvent.keyboard("{Escape}");
    await waitFor(isClosed);
    await waitFor(isFocused);
    other.focus();
    poll();
    await screen.findAllByText("loss 2");
    expect(document.activeElement).toBe(screen.getByRole("button", { name: "Actions of trial 8" }));
  });
});
