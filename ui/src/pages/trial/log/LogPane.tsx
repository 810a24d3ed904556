import { Box, Button, chakra, HStack, Link, Text } from "@chakra-ui/react";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Link as RouterLink, useHref } from "react-router-dom";

import { apiUrl, type Query, withQuery } from "../../../api/client";
import { type LogLine, type LogPlace } from "../../../api/logs";
import { type TimelineEntry } from "../../../api/trial";
import { CopyButton } from "../../../components/CopyButton";
import { EmptyState } from "../../../components/EmptyState";
import { ErrorNotice } from "../../../components/ErrorNotice";
import { Loading } from "../../../components/Loading";
import { Notice } from "../../../components/Notice";
import { bytes, plural } from "../../../format/numbers";
import { time } from "../../../format/times";
import { useTimezone } from "../../../hooks/useTimezone";
import { LogRows, type LogRowsHandle } from "./LogRows";
import { marksBetween, placeOf } from "./query";
import { useCopy, useLog, useSearch } from "./useLog";

/** Characters of a line in the list. All of them are shown below it when the line is chosen. */
const SHOWN_CHARS = 1_000;
/** Pause after a scroll before the other ranks follow. */
const SYNC_MS = 150;

/** Time at the top of one rank's lines, which the other ranks follow. */
export interface Clock {
  at: string;
  rank: number;
}

interface Props {
  place: LogPlace;
  host: string | null;
  /** Number of the chosen line from 1 on; 0: none. */
  line: number;
  /** Time at which the log begins; null: at its end. */
  at: string | null;
  query: Query | null;
  clock: Clock | null;
  onClock: ((clock: Clock) => void) | null;
  marks: readonly TimelineEntry[];
  isShort: boolean;
  /** Return the address of a line, and that of the charts at a time. */
  lineAddress: (rank: number, line: number) => string;
  timeAddress: (at: string) => string;
}

const clockTime = (at: string | null, zone: string): string => (at === null ? "" : (time(at, zone).split(", ")[1] ?? ""));

interface RowProps {
  row: LogLine | undefined;
  index: number;
  marks: readonly TimelineEntry[];
  zone: string;
  isChosen: boolean;
  to: string;
  timeTo: string;
  width: number;
  onChoose: (row: LogLine) => void;
}

const Row = ({ row, index, marks, zone, isChosen, to, timeTo, width, onChoose }: RowProps) => {
  if (row === undefined) return <div className="dtrain-log-line"><span className="dtrain-log-text">{"\u00a0".repeat(width + 2)}…</span></div>;
  return (
    // Enter on the number of the line does the same.
    <div className="dtrain-log-line" data-chosen={isChosen || undefined} data-index={index} data-level={row.level ?? undefined} onClick={() => onChoose(row)}>
      {row.number === null ? <span style={{ minWidth: `${width + 2}ch` }} /> : (
        <RouterLink aria-label={`Link to line ${row.number + 1}`} style={{ minWidth: `${width + 2}ch` }} to={to}>{row.number + 1}</RouterLink>
      )}
      {row.at === null ? null : <RouterLink tabIndex={-1} title={`Charts at ${time(row.at, zone)}`} to={timeTo}>{clockTime(row.at, zone)}</RouterLink>}
      {marks.map((mark) => (
        <span className="dtrain-log-mark" key={`${mark.kind} ${mark.at}`} title={`${mark.text} (${time(mark.at, zone)})`}>{mark.kind.replace("_", " ")}</span>
      ))}
      <span className="dtrain-log-text">{row.text.length > SHOWN_CHARS ? `${row.text.slice(0, SHOWN_CHARS)}…` : row.text}</span>
    </div>
  );
};

/** A line that was chosen, with all of its text that was sent. */
const Chosen = ({ row, zone, to, onClose }: { row: LogLine; zone: string; to: string | null; onClose: () => void }) => {
  // The router knows the path below which Airflow is served.
  const href = useHref(to ?? "");
  const address = to === null ? null : new URL(href, window.location.origin).href;
  return (
    <Box borderWidth="1px" mt={1} p={2}>
      <HStack flexWrap="wrap" gap={2}>
        <Text flex="1" fontSize="xs" color="fg.muted">
          {row.number === null ? "A line of the stored end" : `Line ${(row.number + 1).toLocaleString("en")}`}
          {row.at === null ? "" : `, written by ${time(row.at, zone)}`}
          {row.chars > row.text.length ? `, the first ${plural(row.text.length, "character")} of ${row.chars.toLocaleString("en")}` : ""}
        </Text>
        <CopyButton label="Copy the line" text={row.text} />
        {address === null ? null : <CopyButton label="Copy a link to the line" text={address} />}
        <Button onClick={onClose} size="xs" variant="outline">Close</Button>
      </HStack>
      <chakra.pre fontFamily="mono" fontSize="xs" maxH="12rem" overflow="auto" tabIndex={0} whiteSpace="pre-wrap" wordBreak="break-word">{row.text}</chakra.pre>
    </Box>
  );
};

/** The log of one rank: all of its lines, or those that a search finds. */
export const LogPane = ({ place, host, line, at, query, clock, onClock, marks, isShort, lineAddress, timeAddress }: Props) => {
  const zone = useTimezone();
  const { rank } = place;
  const log = useLog(place, { line, at });
  const { known, refresh, find, show, count, begun } = log;
  const isOver = known?.is_over === true;
  const hasWhole = known?.is_complete === true;
  const copy = useCopy(place, known !== undefined && known.is_started && !hasWhole, isOver, refresh);
  const search = useSearch(place, query, known?.copied_bytes ?? 0);
  const [pinned, setPinned] = useState(line === 0 && at === null);
  const [chosen, setChosen] = useState<LogLine | null>(null);
  const rows = useRef<LogRowsHandle>(null);
  const isActive = useRef(false);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);

  // The place of the address, once it is loaded. Another line of the address is shown at once.
  const target = line > 0 ? line - 1 : begun;
  const revealed = useRef<number | null>(null);
  const isSearched = query !== null;
  useEffect(() => {
    if (target === null || isSearched || target >= count || revealed.current === target) return;
    revealed.current = target;
    // The list is new after a search. It would go on with the end once it knows its height.
    setPinned(false);
    rows.current?.reveal(target);
  }, [target, count, isSearched]);

  // Another rank was scrolled to a time.
  useEffect(() => {
    if (clock === null || clock.rank === rank || isSearched) return undefined;
    const controller = new AbortController();
    find(clock.at, controller.signal)
      .then((found) => {
        if (found !== null) rows.current?.reveal(found, 0);
      })
      .catch(() => undefined);
    return () => controller.abort();
  }, [clock, rank, find, isSearched]);

  const { at: lineAt } = log;
  const onShow = useCallback((first: number, last: number) => {
    if (isSearched) {
      search.show(last);
      return;
    }
    show(first, last);
    if (onClock === null || !isActive.current) return;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      const top = lineAt(Math.min(last - 1, first + 8));
      if (top?.at !== null && top?.at !== undefined) onClock({ at: top.at, rank });
    }, SYNC_MS);
    // eslint-disable-next-line react-hooks/exhaustive-deps -- the function of the search is stable.
  }, [isSearched, search.show, show, onClock, lineAt, rank]);

  const width = useMemo(() => String(count).length, [count]);
  if (known === undefined) return log.error === null ? <Loading lines={8} /> : <ErrorNotice error={log.error} onRetry={refresh} what={`The log of rank ${rank}`} />;
  if (!known.is_started) {
    return <EmptyState text={known.reason ?? "A log appears when its ranks are started."} title={isOver ? "The attempt ended before its ranks were started." : "The attempt waits for its slots."} />;
  }
  const shown = isSearched ? search.rows.length : count;
  const rowAt = (index: number) => (isSearched ? search.rows[index] : lineAt(index));
  const of = `rank ${rank}${host === null ? "" : ` on ${host}`}`;
  const status = isSearched && search.error !== null ? "not searched" : isSearched
    ? `${plural(search.rows.length, "line")}${search.isDone ? " found" : " so far"}${search.isDone ? "" : `, searched up to line ${search.searched.toLocaleString("en")} of ${search.total.toLocaleString("en")}`}`
    : `${known.total > 0 ? plural(known.total, "line") : known.tail.length > 0 ? `the last ${plural(known.tail.length, "line")}` : "no line yet"}${hasWhole ? "" : isOver ? " so far" : ", growing"}`;
  const problem = hasWhole ? null : copy.problem;
  return (
    <Box minW={0}>
      <HStack flexWrap="wrap" gap={2} mb={1}>
        <Text flex="1" fontSize="sm">
          <b>{of[0]?.toUpperCase() + of.slice(1)}</b>: <span aria-live={isSearched ? "polite" : undefined}>{status}</span>
          {copy.isRunning && isOver ? (
            <Text as="span" color="fg.muted">
              {copy.throughDag ? ". A run of the DAG dtrain_operations fetches the whole log from its host" : ". The whole log is being fetched from its host"}
              {known.copied_bytes > 0 ? ` (${bytes(known.copied_bytes)})` : ""}
            </Text>
          ) : null}
        </Text>
        <Link download fontSize="sm" href={apiUrl(withQuery(`trials/${place.trialId}/log/text`, placeOf(place)))}>Download</Link>
      </HStack>
      {problem === null ? null : (
        <Notice hint={problem} status="warning" title={known.total > 0 ? `The rest of the log of rank ${rank} cannot be fetched from its host.` : `Only the stored end of the log of rank ${rank} is shown: the rest cannot be fetched from its host.`} />
      )}
      {log.error === null ? null : <ErrorNotice error={log.error} onRetry={refresh} wasKnown what={`The log of rank ${rank}`} />}
      {search.error === null ? null : <ErrorNotice error={search.error} what="The search" />}
      {search.problem === null ? null : <Notice status="warning" title={search.problem} />}
      {log.apart && !isSearched ? <Text color="fg.muted" fontSize="xs">Lines without a number are the end of the log. Lines between them and line {known.total.toLocaleString("en")} are on the host.</Text> : null}
      {shown === 0 && (search.error ?? search.problem) !== null ? null : shown === 0 ? (
        <EmptyState title={isSearched ? (search.isDone ? "No line matches." : "Searching...") : copy.isRunning ? "The log is being fetched from its host." : "The rank has written nothing yet."} />
      ) : (
        <div onPointerEnter={() => { isActive.current = true; }} onPointerLeave={() => { isActive.current = false; }}>
          <LogRows
            count={shown}
            handle={rows}
            isShort={isShort}
            key={isSearched ? "search" : "log"}
            label={`Log of rank ${rank}`}
            onPinned={setPinned}
            onShow={onShow}
            pinned={pinned && !isSearched}
            render={(index) => {
              const row = rowAt(index);
              const number = row?.number ?? null;
              return (
                <Row
                  index={index}
                  isChosen={number !== null && number === line - 1}
                  key={index}
                  marks={row === undefined || marks.length === 0 ? [] : marksBetween(marks, rowAt(index - 1), row)}
                  onChoose={setChosen}
                  row={row}
                  timeTo={row?.at === null || row?.at === undefined ? "" : timeAddress(row.at)}
                  to={number === null ? "" : lineAddress(rank, number + 1)}
                  width={isSearched ? String(known.total).length : width}
                  zone={zone}
                />
              );
            }}
          />
        </div>
      )}
      {isSearched || pinned || isOver ? null : <Button mt={1} onClick={() => setPinned(true)} size="xs" variant="outline">Follow the end</Button>}
      {chosen === null ? null : (
        <Chosen onClose={() => setChosen(null)} row={chosen} to={chosen.number === null ? null : lineAddress(rank, chosen.number + 1)} zone={zone} />
      )}
    </Box>
  );
};
