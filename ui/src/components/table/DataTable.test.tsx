import { screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { useState } from "react";
import { describe, expect, it, vi } from "vitest";

import { useRows } from "../../hooks/useRows";
import { phone } from "../../testing/phone";
import { serve } from "../../testing/server";
import { show } from "../../testing/show";
import { type Column, DataTable, type Glance } from "./DataTable";
import { LINE_PX, moved, ROW_PX, rowAt, visibleRange } from "./visible";

interface Row {
  id: number;
}

const columns: Column<Row>[] = [
  { id: "id", header: "Id", sort: "id", width: 100, cell: ({ id }) => `row ${id}` },
  { id: "twice", header: "Twice", width: 100, sort: "twice", descends: true, cell: ({ id }) => String(2 * id) },
];

/** Rows 0 to total on the server. */
const many = (total: number) => (url: URL) => {
  const offset = Number(url.searchParams.get("offset"));
  const limit = Number(url.searchParams.get("limit"));
  return { body: { total, rows: Array.from({ length: Math.max(0, Math.min(limit, total - offset)) }, (_, index) => ({ id: offset + index })) } };
};

const GLANCE: Glance<Row> = { header: "Row", covers: ["id"], top: ({ id }) => `row ${id}`, below: () => "a long reason", wraps: ({ id }) => id < 2, lines: 4 };

const Probe = ({ onOpen, onSort, sort = "", glance }: { onOpen?: (row: Row) => void; onSort?: (sort: string) => void; sort?: string; glance?: Glance<Row> }) => {
  const rows = useRows<Row>("rows", {}, { everyMs: null });
  const [selected, setSelected] = useState<ReadonlySet<string | number>>(new Set());
  const select = ({ id }: Row, on: boolean) => setSelected((old) => new Set(on ? [...old, id] : [...old].filter((item) => item !== id)));
  return (
    <DataTable columns={columns} empty="nothing" label="Rows" onSelect={select} rowKey={({ id }) => id} rows={rows} selected={selected} what="Rows" {...(onOpen === undefined ? {} : { onOpen })} {...(onSort === undefined ? {} : { onSort, sort })} {...(glance === undefined ? {} : { glance })} />
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
  it("sorts in ascending order at the first click, and in descending order where large values are better", async () => {
    serve({ rows: many(3) });
    const onSort = vi.fn();
    const { unmount } = show(<Probe onSort={onSort} />);
    await userEvent.click(await screen.findByRole("button", { name: "Id" }));
    await userEvent.click(screen.getByRole("button", { name: "Twice" }));
    expect(onSort.mock.calls).toEqual([["id"], ["-twice"]]);
    unmount();
    show(<Probe onSort={onSort} sort="-twice" />);
    await userEvent.click(await screen.findByRole("button", { name: "Twice" }));
    expect(onSort).toHaveBeenLastCalledWith("twice");
  });

  it("has all of few rows on a phone, with reasons of any length", async () => {
    phone(true);
    serve({ rows: many(60) });
    const { container } = show(<Probe glance={GLANCE} />);
    expect((await screen.findAllByText("a long reason")).map(({ classList }) => classList.contains("dtrain-whole"))).toEqual([true, true, ...Array<boolean>(58).fill(false)]);
    expect(container.querySelectorAll("tr[data-index]")).toHaveLength(60);
    expect(container.querySelector("tr[data-space]")).toBeNull();
    vi.unstubAllGlobals();
  });

  it("has many rows on a phone that are as high as the lines of their reasons, and the space of the rows that are not there", async () => {
    phone(true);
    serve({ rows: many(1_000) });
    const { container } = show(<Probe glance={GLANCE} />);
    expect((await screen.findAllByText("a long reason"))[0]?.classList).toContain("dtrain-lines");
    const space = container.querySelector<HTMLElement>("tr[data-space]");
    const rows = container.querySelectorAll("tr[data-index]").length;
    expect(space?.style.height).toBe(`${(1_000 - rows) * (ROW_PX + 3 * LINE_PX)}px`);
    vi.unstubAllGlobals();
  });

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
    expect(visibleRange(0, 400, 10_000, ROW_PX)).toEqual({ first: 0, last: 18 });
    expect(visibleRange(rowAt(4_130, ROW_PX), 400, 10_000, ROW_PX)).toEqual({ first: 96, last: 118 });
    expect(visibleRange(rowAt(400_000, ROW_PX), 400, 50, ROW_PX)).toEqual({ first: 49, last: 49 });
    expect(visibleRange(0, 400, 0, ROW_PX)).toEqual({ first: 0, last: -1 });
  });

  it("has fewer rows where they are higher", () => {
    expect(visibleRange(rowAt(4_130, 2 * ROW_PX), 400, 10_000, 2 * ROW_PX)).toEqual({ first: 44, last: 61 });
  });

  it("follows the keys", () => {
    expect(["ArrowDown", "ArrowUp", "Home", "End", "PageDown", "x"].map((key) => moved(key, 5, 10, 3))).toEqual([6, 4, 0, 9, 8, null]);
    expect([moved("ArrowUp", 0, 10, 3), moved("PageDown", 9, 10, 3), moved("End", 0, 0, 3)]).toEqual([0, 9, null]);
  });
});
