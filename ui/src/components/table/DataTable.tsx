import { Box, chakra } from "@chakra-ui/react";
import { type KeyboardEvent, memo, type ReactNode, startTransition, useCallback, useEffect, useMemo, useRef, useState } from "react";

import { FOCUS_HOME } from "../../actions/focusHome";
import { useIsNarrow } from "../../hooks/useIsNarrow";
import { type Rows } from "../../hooks/useRows";
import { ErrorNotice } from "../ErrorNotice";
import { Stale } from "../Stale";
import { HeaderCell } from "./HeaderCell";
import { TABLE_CSS } from "./style";
import { useRoom } from "./useRoom";
import { LINE_PX, moved, ROW_PX, rowAt, visibleRange } from "./visible";

/** One column. */
export interface Column<R> {
  id: string;
  header: string;
  /** Name by which the API sorts, for a column that can be sorted. */
  sort?: string;
  /** The first click sorts in descending order: the largest values are the best ones. */
  descends?: boolean;
  /** Least width in pixels. Columns share the rest of the room in proportion. */
  width: number;
  align?: "end";
  /** Not shown until the user chooses it. */
  optional?: boolean;
  /** Stays visible at the right edge while the table scrolls to the side. */
  pinned?: boolean | undefined;
  /** Its text is shown in full while the pointer is over it or the row has the focus. */
  full?: boolean;
  /** Content for a row. A text is cut to the column's width and has itself as tooltip. */
  cell: (row: R) => ReactNode;
}

/** The facts of a row that a phone shows: two lines of its first column. */
export interface Glance<R> {
  header: string;
  /** Ids of the columns whose facts it has. */
  covers: readonly string[];
  /** State and name. */
  top: (row: R) => ReactNode;
  /** Reason or best value. */
  below: (row: R) => ReactNode;
  /** Return whether a row is as high as its text, in a table of few rows. */
  wraps: (row: R) => boolean;
  /** Most lines of it in a table of many rows. */
  lines?: number;
}

/** Most rows of a table on a phone of which all exist, so that they may differ in height. */
const WHOLE_MOST = 100;

/** Width of the first column of a phone in pixels: the action of a row fits beside it. */
const GLANCE_PX = 226;

/** Return the columns of a phone: the glance, the actions, and the rest, none of which covers another. */
export const phoneColumns = <R,>(columns: readonly Column<R>[], { header, covers, top, below, wraps, lines = 1 }: Glance<R>, isWhole: boolean): Column<R>[] => {
  const cell = (row: R) => (
    <span className="dtrain-glance">
      <span className="dtrain-row">{top(row)}</span>
      <span className={isWhole && wraps(row) ? "dtrain-muted dtrain-whole" : "dtrain-muted dtrain-lines"} style={{ WebkitLineClamp: lines }}>
        {below(row)}
      </span>
    </span>
  );
  const rest = columns.filter(({ id }) => !covers.includes(id)).map((column): Column<R> => ({ ...column, pinned: undefined }));
  return [{ id: "glance", header, width: GLANCE_PX, cell }, ...rest.filter(({ id }) => id === "actions"), ...rest.filter(({ id }) => id !== "actions")];
};

interface Props<R> {
  /** Name of the table for screen readers. */
  label: string;
  columns: readonly Column<R>[];
  rows: Rows<R>;
  rowKey: (row: R) => string | number;
  /** Name by which the table is sorted, with a minus for the descending order. */
  sort?: string;
  onSort?: (sort: string) => void;
  /** Called for Enter on a row. */
  onOpen?: (row: R) => void;
  /** Keys of selected rows, for a table with a selection. */
  selected?: ReadonlySet<string | number>;
  onSelect?: (row: R, selected: boolean) => void;
  /** Whether a row is set in bold, such as the best one. */
  isMarked?: (row: R) => boolean;
  /** Shown instead of a table without rows. */
  empty: ReactNode;
  /** What the table shows, for messages: "Experiments". */
  what: string;
  /** What a phone shows of a row before all columns, in place of those with the ids that it covers. */
  glance?: Glance<R>;
  /** Least height in pixels, where the rest of the window may be too small for a table. */
  leastPx?: number;
}

interface RowProps<R> {
  index: number;
  row: R | undefined;
  columns: readonly Column<R>[];
  active: boolean;
  marked: boolean;
  selected: boolean | null;
  onSelect: ((row: R, selected: boolean) => void) | undefined;
}

const RowView = <R,>({ index, row, columns, active, marked, selected, onSelect }: RowProps<R>) => (
  <tr aria-rowindex={index + 2} aria-selected={selected ?? undefined} data-index={index} data-marked={marked || undefined} data-odd={index % 2 === 0 || undefined} tabIndex={active ? 0 : -1}>
    {selected === null ? null : (
      <td>
        {row === undefined || onSelect === undefined ? null : (
          <input aria-label={`Select row ${index + 1}`} checked={selected} onChange={({ target }) => onSelect(row, target.checked)} type="checkbox" />
        )}
      </td>
    )}
    {columns.map((column) => {
      const content = row === undefined ? <span className="dtrain-skeleton" /> : column.cell(row);
      const isFull = column.full === true && content !== "" && content !== null;
      return (
        <td
          data-align={column.align}
          data-column={column.id}
          data-pinned={column.pinned}
          data-whole={isFull || undefined}
          key={column.id}
          title={typeof content === "string" && !isFull ? content : undefined}
        >
          {isFull ? <span data-full>{content}</span> : content}
        </td>
      );
    })}
  </tr>
);

// A row is rendered again only if its own values change: scrolling moves rows without rendering them.
const Row = memo(RowView) as typeof RowView;

/** Keys for React: a row that two pages contain at the same time gets its place as well. */
const keysOf = <R,>(rows: readonly (R | undefined)[], first: number, rowKey: (row: R) => string | number): string[] => {
  const seen = new Set<string>();
  return rows.map((row, index) => {
    const key = row === undefined ? `#${first + index}` : String(rowKey(row));
    const unique = seen.has(key) ? `${key}#${first + index}` : key;
    seen.add(unique);
    return unique;
  });
};

const Table = chakra("table", { base: TABLE_CSS });

/** A table of any length. The server sorts, filters and sends the visible rows; the document contains only these. */
export const DataTable = <R,>(props: Props<R>) => {
  const { label, glance, rows, rowKey, sort, onSort, onOpen, selected, onSelect, isMarked, empty, what, leastPx } = props;
  const isNarrow = useIsNarrow();
  const { total, show } = rows;
  const isWhole = isNarrow && glance !== undefined && total <= WHOLE_MOST;
  const columns = useMemo(() => (isNarrow && glance !== undefined ? phoneColumns(props.columns, glance, isWhole) : props.columns), [isNarrow, glance, isWhole, props.columns]);
  const rowPx = ROW_PX + (isNarrow ? ((glance?.lines ?? 1) - 1) * LINE_PX : 0);
  const frame = useRef<HTMLDivElement>(null);
  const room = useRoom(frame, leastPx);
  const [top, setTop] = useState(0);
  const [active, setActive] = useState(0);
  const { first, last } = isWhole ? { first: 0, last: total - 1 } : visibleRange(top, room, total, rowPx);
  useEffect(() => {
    show(first, Math.max(first, last));
  }, [first, last, show]);
  const focusRow = useCallback((index: number) => {
    frame.current?.querySelector<HTMLElement>(`tr[data-index="${index}"]`)?.focus({ preventScroll: true });
  }, []);
  const onKeyDown = (event: KeyboardEvent<HTMLElement>) => {
    if (!(event.target instanceof HTMLTableRowElement) && event.target !== frame.current) return;
    const row = rows.at(active);
    if (event.key === "Enter" && row !== undefined) onOpen?.(row);
    if (event.key === " " && row !== undefined && onSelect !== undefined) {
      event.preventDefault();
      onSelect(row, !(selected?.has(rowKey(row)) ?? false));
    }
    const next = moved(event.key, active, total, Math.max(1, Math.floor(room / rowPx) - 2));
    const element = frame.current;
    if (next === null || element === null) return;
    event.preventDefault();
    if (isWhole) {
      element.querySelector(`tr[data-index="${next}"]`)?.scrollIntoView({ block: "nearest" });
    } else {
      // Keep the row between the header and the lower edge.
      const low = ROW_PX + (next + 1) * rowPx - element.clientHeight;
      element.scrollTop = Math.max(low, Math.min(element.scrollTop, next * rowPx));
      setTop(rowAt(element.scrollTop, rowPx));
    }
    setActive(next);
    requestAnimationFrame(() => focusRow(next));
  };
  if (rows.error !== null && rows.answer === undefined) return <ErrorNotice error={rows.error} onRetry={rows.refresh} what={what} />;
  if (!rows.loading && total === 0) return <>{rows.error === null ? null : <ErrorNotice error={rows.error} onRetry={rows.refresh} what={what} />}{empty}</>;
  const shown = rows.loading ? Array.from({ length: 8 }, () => undefined) : Array.from({ length: last - first + 1 }, (_, index) => rows.at(first + index));
  const keys = keysOf(shown, first, rowKey);
  const below = rows.loading ? 0 : Math.max(0, total - 1 - last);
  const wide = columns.length + (selected === undefined ? 0 : 1);
  return (
    <>
      {rows.error === null ? null : <ErrorNotice error={rows.error} onRetry={rows.refresh} what={what} />}
      <Stale stale={rows.stale}>
        <Box
          aria-busy={rows.loading}
          {...FOCUS_HOME}
          data-testid="data-table"
          maxH={`${room}px`}
          onKeyDown={onKeyDown}
          onScroll={({ currentTarget }) => {
            // A transition renders in slices, so that the scroll bar never waits for new rows.
            startTransition(() => setTop(rowAt(currentTarget.scrollTop, rowPx)));
          }}
          overflow="auto"
          ref={frame}
          tabIndex={-1}
        >
          <Table aria-label={label} aria-rowcount={total + 1} css={rowPx === ROW_PX || isWhole ? undefined : { "& td": { height: `${rowPx}px` } }} minW={`${columns.reduce((sum, column) => sum + column.width, selected === undefined ? 0 : 40)}px`}>
            <colgroup>
              {selected === undefined ? null : <col style={{ width: 40 }} />}
              {columns.map((column) => (
                <col key={column.id} style={{ width: column.width }} />
              ))}
            </colgroup>
            <thead>
              <tr aria-rowindex={1}>
                {selected === undefined ? null : <th aria-label="Selection" scope="col" />}
                {columns.map((column) => (
                  <HeaderCell column={column} key={column.id} onSort={onSort} sort={sort} />
                ))}
              </tr>
            </thead>
            <tbody>
              {first > 0 ? <tr aria-hidden data-space style={{ height: first * rowPx }}><td colSpan={wide} /></tr> : null}
              {shown.map((row, index) => (
                <Row
                  active={first + index === active}
                  columns={columns}
                  index={first + index}
                  key={keys[index]}
                  marked={row !== undefined && isMarked?.(row) === true}
                  onSelect={onSelect}
                  row={row}
                  selected={selected === undefined ? null : row !== undefined && selected.has(rowKey(row))}
                />
              ))}
              {below > 0 ? <tr aria-hidden data-space style={{ height: below * rowPx }}><td colSpan={wide} /></tr> : null}
            </tbody>
          </Table>
        </Box>
      </Stale>
    </>
  );
};
