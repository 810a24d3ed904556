import { Box } from "@chakra-ui/react";
import { type FocusEvent, type KeyboardEvent, type PointerEvent, useEffect, useMemo, useRef, useState } from "react";

import { FOCUS_HOME } from "../../actions/focusHome";
import { type Cluster, type Host } from "../../api/types";
import { useRoom } from "../../components/table/useRoom";
import { useVirtual } from "../../hooks/useVirtual";
import { useWidth } from "../../hooks/useWidth";
import { HeatContext, type HeatName, useHeat } from "./heat";
import { HeatLegend } from "./HeatLegend";
import { HostRow, HostTile, ROW_COLUMNS, rowHeight, tileHeight, tileWidth } from "./HostRow";
import { type At, neighbour } from "./neighbour";
import { SlotCard, SlotTooltip } from "./SlotCard";
import { placeOf } from "./slots";
import { useUtilization } from "./useUtilization";

interface Props {
  cluster: Cluster;
  /** Hosts that pass the filters. */
  hosts: readonly Host[];
  /** "tiles" shows squares only, in as many columns as fit. */
  view: "rows" | "tiles";
  /** Value that the colour of a square shows; "" = its holder. */
  heatMetric: HeatName;
  mayChange: boolean;
  onDone: () => void;
}

/** New squares of one frame while the list scrolls. The browser needs about 0.1 ms to lay out and paint each one. */
const SQUARES_MOST = 160;

/** Return the square that an event concerns. */
const squareOf = (target: EventTarget): { at: At; element: HTMLElement } | null => {
  if (!(target instanceof HTMLElement) || target.dataset.slot === undefined) return null;
  return { at: { host: target.dataset.host ?? "", index: Number(target.dataset.slot) }, element: target };
};

/** Mark all visible squares of a gang, or none. */
const light = (frame: HTMLElement | null, gang: string | undefined) => {
  frame?.querySelectorAll(".dtrain-slot-lit").forEach((square) => square.classList.remove("dtrain-slot-lit"));
  if (gang === undefined) return;
  frame?.querySelectorAll<HTMLElement>(`[data-gang="${Number(gang)}"]`).forEach((square) => square.classList.add("dtrain-slot-lit"));
};

/** Hosts with their squares. Only visible hosts are in the document. */
export const HostList = ({ cluster, hosts, view, heatMetric, mayChange, onDone }: Props) => {
  const frame = useRef<HTMLDivElement>(null);
  const room = useRoom(frame);
  const width = useWidth(frame);
  const [active, setActive] = useState<At | null>(null);
  const [pointed, setPointed] = useState<{ at: At; rect: DOMRect } | null>(null);
  const [pinned, setPinned] = useState<{ at: At; element: HTMLElement } | null>(null);
  const perRow = view === "rows" ? 1 : Math.max(1, Math.floor(width / tileWidth(hosts)));
  const rows = useMemo(() => Array.from({ length: Math.ceil(hosts.length / perRow) }, (_, row) => hosts.slice(row * perRow, (row + 1) * perRow)), [hosts, perRow]);
  const heights = useMemo(() => rows.map((row) => Math.max(...row.map(view === "rows" ? rowHeight : tileHeight))), [rows, view]);
  const widest = useMemo(() => hosts.reduce((most, { slots }) => Math.max(most, slots.length), 0), [hosts]);
  const { first, last, before, after, onScroll, reveal } = useVirtual(frame, heights, room, Math.max(1, Math.floor(SQUARES_MOST / Math.max(1, perRow * widest))));
  const shown = rows.slice(first, last + 1);
  const heat = useHeat(heatMetric, shown.flat().map(({ name }) => name));
  const utilization = useUtilization(view === "rows" ? shown.flat().map(({ name }) => name) : []);
  // The Tab key reaches one square: the one of the last visit if it still exists, else the first visible one.
  const target = active !== null && hosts.some(({ name, slots }) => name === active.host && active.index < slots.length) ? active : null;
  const entry = target ?? { host: shown[0]?.[0]?.name ?? "", index: 0 };
  const wanted = useRef<At | null>(null);
  useEffect(() => {
    const next = wanted.current;
    if (next === null) return;
    wanted.current = null;
    const squares = frame.current?.querySelectorAll<HTMLElement>(`[data-slot="${next.index}"]`) ?? [];
    [...squares].find((square) => square.dataset.host === next.host)?.focus({ preventScroll: true });
  }, [active]);
  const onKeyDown = (event: KeyboardEvent) => {
    const square = squareOf(event.target);
    const next = square === null ? null : neighbour(hosts, square.at, event.key, perRow);
    if (next === null) return;
    event.preventDefault();
    wanted.current = next;
    reveal(Math.floor(hosts.findIndex(({ name }) => name === next.host) / perRow));
    setActive(next);
  };
  const point = (event: FocusEvent | PointerEvent) => {
    const square = squareOf(event.target);
    light(frame.current, square?.element.dataset.gang);
    setPointed(square === null ? null : { at: square.at, rect: square.element.getBoundingClientRect() });
  };
  const leave = () => {
    light(frame.current, undefined);
    setPointed(null);
  };
  const pointedPlace = pointed === null || pinned !== null ? null : placeOf(cluster, pointed.at.host, pointed.at.index);
  const pinnedPlace = pinned === null ? null : placeOf(cluster, pinned.at.host, pinned.at.index);
  return (
    <HeatContext value={heat}>
      <HeatLegend />
      <Box
        aria-label="Hosts"
        aria-rowcount={view === "rows" ? hosts.length + 1 : undefined}
        {...FOCUS_HOME}
        data-testid="hosts"
        maxH={`${room}px`}
        onBlur={leave}
        onClick={(event) => {
          const square = squareOf(event.target);
          if (square === null) return;
          setActive(square.at);
          setPinned(square);
        }}
        onFocus={point}
        onKeyDown={onKeyDown}
        onPointerLeave={leave}
        onPointerOver={point}
        onScroll={(event) => {
          leave();
          onScroll(event);
        }}
        overflow="auto"
        ref={frame}
        role={view === "rows" ? "table" : "group"}
        tabIndex={-1}
      >
        {view === "rows" ? (
          <Box bg="bg" borderBottomWidth={1} display="grid" fontSize="sm" fontWeight="medium" gap={3} position="sticky" px={2} py={2} role="row" style={{ gridTemplateColumns: ROW_COLUMNS }} top={0} zIndex={1}>
            {["Host", "State", "Slots", "Utilization, last hour", ""].map((title) => (
              <span key={title} role="columnheader">
                {title === "" ? <Box as="span" srOnly>Actions</Box> : title}
              </span>
            ))}
          </Box>
        ) : null}
        <div style={{ paddingBottom: after, paddingTop: before }}>
          {shown.map((row, index) =>
            view === "rows" ? (
              row.map((host) => (
                <HostRow
                  focusable={entry.host === host.name ? entry.index : null}
                  holders={cluster.holders}
                  host={host}
                  isOdd={(first + index) % 2 === 0}
                  key={host.name}
                  mayChange={mayChange}
                  onDone={onDone}
                  place={first + index}
                  utilization={utilization.get(host.name)}
                />
              ))
            ) : (
              <div key={row[0]?.name} style={{ display: "grid", gridTemplateColumns: `repeat(${perRow}, ${tileWidth(hosts)}px)`, height: heights[first + index] }}>
                {row.map((host) => (
                  <HostTile focusable={entry.host === host.name ? entry.index : null} holders={cluster.holders} host={host} key={host.name} />
                ))}
              </div>
            ),
          )}
        </div>
      </Box>
      {pointed === null || pointedPlace === null ? null : <SlotTooltip place={pointedPlace} rect={pointed.rect} />}
      {pinned === null || pinnedPlace === null ? null : (
        <SlotCard
          anchor={pinned.element}
          mayChange={mayChange}
          onClose={() => {
            setPinned(null);
            pinned.element.focus({ preventScroll: true });
          }}
          onDone={onDone}
          place={pinnedPlace}
        />
      )}
    </HeatContext>
  );
};
