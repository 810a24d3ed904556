import { screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { useState } from "react";
import { describe, expect, it, vi } from "vitest";

import { useRows } from "../../hooks/useRows";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { type Column, DataTable } from "./DataTable";
import { moved, rowAt, visibleRange } from "./visible";

interface Row {
  id: number;
}

const columns: Column<Row>[] = [
  { id: "id", header: "Id", sort: "id", width: 100, cell: ({ id }) => `row ${id}` },
  { id: "twice", header: "Twice", width: 100, cell: ({ id }) => String(2 * id) },
];

/** Rows 0 to total on the server. */
const many = (total: number) => (url: URL) => {
  const offset = Number(url.searchParams.get("offset"));
  const limit = Number(url.searchParams.get("limit"));
  return { body: { total, rows: Array.from({ length: Math.max(0, Math.min(limit, total - offset)) }, (_, index) => ({ id: offset + index })) } };
};

const Probe = ({ onOpen }: { onOpen?: (row: Row) => void }) => {
  const rows = useRows<Row>("rows", {}, { everyMs: null });
  const [selected, setSelected] = useState<ReadonlySet<string | number>>(new Set());
  const select = ({ id }: Row, on: boolean) => setSelected((old) => new Set(on ? [...old, id] : [...old].filter((item) => item !== id)));
  return (
    <DataTable columns={columns} empty="nothing" label="Rows" onSelect={select} rowKey={({ id }) => id} rows={rows} selected={selected} what="Rows" {...(onOpen === undefined ? {} : { onOpen })} />
  );
};

const lines = () => screen.getAllByRole("row").length;

describe("a table of 10,000 rows", () => {
  it("has only the visible rows in the document, and tells their number", async () => {
    serve({ rows: many(10_000) });
    show(<Probe />);
    await screen.findByText("row 0");
    expect(lines()).toBeLessThan(40);
    expect(screen.getByRole("table", { name: "Rows" }).getAttribute("aria-rowcount")).toBe("10001");
  });

  it("loads the end when a key leads there, and opens and selects rows by keys", async () => {
    const arrived = serve({ rows: many(10_000) });
    const onOpen = vi.fn();
    show(<Probe onOpen={onOpen} />);
    const first = (await screen.findByText("row 0")).closest("tr");
    first?.focus();
    await userEvent.keyboard("{ArrowDown}");
    await waitFor(() => expect(document.activeElement?.getAttribute("data-index")).toBe("1"));
    await userEvent.keyboard("{Enter} ");
    expect(onOpen).toHaveBeenCalledWith({ id: 1 });
    expect(document.activeElement?.getAttribute("aria-selected")).toBe("true");
    await userEvent.keyboard("{End}");
    expect(await screen.findByText("row 9999")).toBeTruthy();
    expect(arrived.map(({ path }) => path)).toContain("rows?limit=100&offset=9900");
    expect(lines()).toBeLessThan(40);
  });
});

describe("a table", () => {
  it("survives a row that two pages contain", async () => {
    serve({ rows: { body: { total: 3, rows: [{ id: 1 }, { id: 1 }, { id: 2 }] } } });
    const errors = vi.spyOn(console, "error").mockImplementation(() => undefined);
    show(<Probe />);
    expect(await screen.findAllByText("row 1")).toHaveLength(2);
    expect(errors).not.toHaveBeenCalled();
  });

  it("explains an error, and offers another try", async () => {
    let status = 503;
    serve({ rows: () => (status === 200 ? { body: { total: 0, rows: [] } } : { status, body: { detail: { code: "store_unavailable", message: "The store is away.", hint: "Start `postgres`." } } }) });
    show(<Probe />);
    expect(await screen.findByText("Rows: The store is away.")).toBeTruthy();
    status = 200;
    await userEvent.click(screen.getByRole("button", { name: "Ask again" }));
    expect(await screen.findByText("nothing")).toBeTruthy();
  });
});

describe("the visible range", () => {
  it("covers the window with a margin, within the rows", () => {
    expect(visibleRange(0, 400, 10_000)).toEqual({ first: 0, last: 18 });
    expect(visibleRange(rowAt(4_130), 400, 10_000)).toEqual({ first: 96, last: 118 });
    expect(visibleRange(rowAt(400_000), 400, 50)).toEqual({ first: 49, last: 49 });
    expect(visibleRange(0, 400, 0)).toEqual({ first: 0, last: -1 });
  });

  it("follows the keys", () => {
    expect(["ArrowDown", "ArrowUp", "Home", "End", "PageDown", "x"].map((key) => moved(key, 5, 10, 3))).toEqual([6, 4, 0, 9, 8, null]);
    expect([moved("ArrowUp", 0, 10, 3), moved("PageDown", 9, 10, 3), moved("End", 0, 0, 3)]).toEqual([0, 9, null]);
  });
});
