import { Box, Button, chakra, Flex, HStack, Stack, Table, Text } from "@chakra-ui/react";
import { type KeyboardEvent, useMemo, useRef, useState } from "react";

import { apiUrl, withQuery } from "../../api/client";
import { type FlameGraph, type FlameTrack, type Output } from "../../api/trial";
import { ErrorNotice } from "../../components/ErrorNotice";
import { FilterSelect } from "../../components/FilterSelect";
import { Icon } from "../../components/icons";
import { Loading } from "../../components/Loading";
import { bytes, count, percent, plural } from "../../format/numbers";
import { useData } from "../../hooks/useData";
import { visible } from "../../lib/visible";
import { bySelfTime, callersOf, flameBoxes } from "./flames";

const ROW_PX = 22;

/** Levels that are drawn without scrolling. */
const MOST_ROWS = 20;

/** Names in the table. */
const MOST_NAMES = 20;

/** Boxes wider than this share have room for a name. */
const NAMED = 0.03;

const HUES = ["orange", "yellow", "red", "pink"] as const;

/** The same name has the same colour everywhere. */
const hueOf = (name: string): string => HUES[[...name].reduce((sum, letter) => (sum * 31 + (letter.codePointAt(0) ?? 0)) % 9973, 7) % HUES.length] ?? "orange";

const timeText = (us: number): string => (us >= 1e6 ? `${(us / 1e6).toPrecision(3)} s` : us >= 1e3 ? `${(us / 1e3).toPrecision(3)} ms` : `${us.toPrecision(3)} µs`);

const Chart = ({ track }: { track: FlameTrack }) => {
  const [zoom, setZoom] = useState<number | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const frame = useRef<HTMLDivElement>(null);
  const { nodes } = track;
  const boxes = useMemo(() => flameBoxes(nodes, zoom), [nodes, zoom]);
  const rows = boxes.reduce((most, { depth }) => Math.max(most, depth + 1), 0);
  const shown = at ?? zoom ?? boxes[0]?.index ?? null;
  const node = shown === null ? undefined : nodes[shown];
  const focus = boxes.some(({ index }) => index === shown) ? shown : (boxes[0]?.index ?? null);
  const move = (event: KeyboardEvent) => {
    const own = boxes.find(({ index }) => index === shown);
    if (own === undefined) return;
    const middle = own.left + own.width / 2;
    const near = (depth: number) => boxes.filter((box) => box.depth === depth).sort((a, b) => Math.abs(a.left + a.width / 2 - middle) - Math.abs(b.left + b.width / 2 - middle))[0];
    const row = boxes.filter(({ depth }) => depth === own.depth).sort((a, b) => a.left - b.left);
    const place = row.indexOf(own);
    const found = { ArrowUp: near(own.depth - 1), ArrowDown: near(own.depth + 1), ArrowLeft: row[place - 1], ArrowRight: row[place + 1] }[event.key];
    if (found === undefined) return;
    event.preventDefault();
    setAt(found.index);
    frame.current?.querySelector<HTMLElement>(`[data-node="${found.index}"]`)?.focus();
  };
  return (
    <Box>
      <Flex align="center" gap={2} minH="32px" wrap="wrap">
        <Text fontSize="sm" overflowWrap="anywhere">
          {node === undefined ? "" : `${visible(node.name)}: ${timeText(node.total_us)}, ${percent(track.total_us > 0 ? node.total_us / track.total_us : null, 1)}, own ${timeText(node.self_us)}, ${plural(node.calls, "call")}`}
        </Text>
        {zoom === null ? null : (
          <Button onClick={() => (setZoom(null), setAt(null))} size="xs" variant="outline">
            Show everything
          </Button>
        )}
      </Flex>
      <Box aria-label={`Flame graph of ${visible(track.name)}`} bg="bg.subtle" borderColor="border" borderRadius="md" borderWidth={1} maxH={`${MOST_ROWS * ROW_PX}px`} onKeyDown={move} overflowY="auto" ref={frame} role="group">
        <Box height={`${rows * ROW_PX}px`} onMouseLeave={() => setAt(null)} position="relative">
          {boxes.map(({ index, depth, left, width }) => {
            const name = nodes[index]?.name ?? "";
            return (
              <chakra.button
                _focusVisible={{ outline: "2px solid", outlineColor: "brand.focusRing", zIndex: 1 }}
                aria-label={`${visible(name)}, ${timeText(nodes[index]?.total_us ?? 0)}`}
                bg={`${hueOf(name)}.subtle`}
                borderColor="bg"
                borderWidth={1}
                color={`${hueOf(name)}.fg`}
                cursor="zoom-in"
                data-node={index}
                fontSize="xs"
                height={`${ROW_PX}px`}
                key={index}
                onClick={() => setZoom(index === zoom ? (nodes[index]?.parent ?? null) : index)}
                onFocus={() => setAt(index)}
                onMouseEnter={() => setAt(index)}
                overflow="hidden"
                position="absolute"
                px={1}
                style={{ left: `${100 * left}%`, top: `${depth * ROW_PX}px`, width: `${100 * width}%` }}
                tabIndex={index === focus ? 0 : -1}
                textAlign="start"
                textOverflow="ellipsis"
                type="button"
                whiteSpace="nowrap"
              >
                {width > NAMED ? visible(name) : ""}
              </chakra.button>
            );
          })}
        </Box>
      </Box>
      {zoom === null ? null : (
        <Text color="fg.muted" fontSize="xs" mt={1} overflowWrap="anywhere">
          {callersOf(nodes, zoom).map((index) => visible(nodes[index]?.name ?? "")).join(" › ")}
        </Text>
      )}
      <Text color="fg.muted" fontSize="xs" mt={1}>
        Width is time, with all calls of a name by the same callers added up. A click or Enter zooms, the arrow keys move.
        {track.left_out > 0 ? ` ${plural(track.left_out, "short call")} ${track.left_out === 1 ? "is" : "are"} left out.` : ""}
      </Text>
    </Box>
  );
};

const Names = ({ track }: { track: FlameTrack }) => {
  const rows = useMemo(() => bySelfTime(track.nodes, MOST_NAMES), [track]);
  return (
    <Box aria-label="Names by their own time" borderColor="border" borderRadius="md" borderWidth={1} maxH="24rem" overflow="auto" role="region" tabIndex={0}>
      <Table.Root size="sm" stickyHeader>
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader>Name</Table.ColumnHeader>
            <Table.ColumnHeader textAlign="end">Own time</Table.ColumnHeader>
            <Table.ColumnHeader textAlign="end">Share</Table.ColumnHeader>
            <Table.ColumnHeader textAlign="end">Calls</Table.ColumnHeader>
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {rows.map(({ name, self_us, calls }) => (
            <Table.Row key={name}>
              <Table.Cell overflowWrap="anywhere">{visible(name)}</Table.Cell>
              <Table.Cell textAlign="end" whiteSpace="nowrap">
                {timeText(self_us)}
              </Table.Cell>
              <Table.Cell textAlign="end">{percent(track.total_us > 0 ? self_us / track.total_us : null, 1)}</Table.Cell>
              <Table.Cell textAlign="end">{count(calls)}</Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Box>
  );
};

/** A trace of the profiler as a flame graph, and as a download for viewers such as Perfetto. */
export const FlamePanel = ({ trialId, output: { path, size_bytes } }: { trialId: number; output: Output }) => {
  const [chosen, setChosen] = useState("");
  const { data, error, loading, refresh } = useData<FlameGraph>(withQuery(`trials/${trialId}/flames`, { file: path }), { everyMs: null });
  const track = data?.tracks.find(({ name }) => name === chosen) ?? data?.tracks[0];
  return (
    <Stack gap={2}>
      <HStack gap={3} wrap="wrap">
        {data === undefined || data.tracks.length < 2 || track === undefined ? null : (
          <FilterSelect all="" label="Thread or stream" multiple={false} onChange={([name = ""]) => setChosen(name)} options={data.tracks.map(({ name }) => name)} render={(name) => `${visible(name)}: ${timeText(data.tracks.find((one) => one.name === name)?.total_us ?? 0)}`} value={[track.name]} />
        )}
        <Button asChild size="xs" variant="outline">
          <a download href={apiUrl(withQuery(`trials/${trialId}/outputs/download`, { path }))}>
            <Icon name="download" /> Download for Perfetto or TensorBoard
          </a>
        </Button>
        {data === undefined ? null : (
          <Text color="fg.muted" fontSize="sm">
            {timeText(data.span_us)}, {plural(data.events, "event")}
            {data.more > 0 ? `, ${plural(data.more, "further thread")} in the download` : ""}
          </Text>
        )}
      </HStack>
      {loading ? <Loading lines={6} /> : null}
      {error === null ? null : <ErrorNotice error={error} onRetry={refresh} what={`The trace of ${bytes(size_bytes)}`} />}
      {data !== undefined && track === undefined ? <Text>The trace has no events with a duration.</Text> : null}
      {track === undefined ? null : (
        <>
          <Chart key={`${path} ${track.name}`} track={track} />
          <Names track={track} />
        </>
      )}
    </Stack>
  );
};
