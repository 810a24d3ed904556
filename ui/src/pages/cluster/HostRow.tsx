import { Box, HStack, Text } from "@chakra-ui/react";
import { memo } from "react";

import { ActionsMenu } from "../../actions/ActionsMenu";
import { hostActions } from "../../actions/hosts";
import { type Holder, type Host, type Utilization } from "../../api/types";
import { Sparkline } from "../../components/Sparkline";
import { StateBadge } from "../../components/StateBadge";
import { Since } from "../../components/Time";
import { NONE } from "../../format/numbers";
import { LINE, SQUARE_PX, SlotSquares } from "./SlotSquares";

/** Columns of a row: host, state, slots, utilization, actions. */
export const ROW_COLUMNS = `minmax(150px, 1fr) minmax(170px, 1fr) ${LINE * SQUARE_PX}px 190px 36px`;

/** Height of a row in pixels: the squares of a host with many slots take several lines. */
export const rowHeight = ({ slots }: Host): number => Math.max(52, Math.ceil(slots.length / LINE) * SQUARE_PX + 16);

/** Height and width of a tile in pixels. */
export const tileHeight = ({ slots }: Host): number => Math.ceil(slots.length / LINE) * SQUARE_PX + 34;
export const tileWidth = (hosts: readonly Host[]): number =>
  Math.max(150, hosts.reduce((most, { slots }) => Math.max(most, Math.min(LINE, slots.length)), 0) * SQUARE_PX + 20);

interface Props {
  host: Host;
  holders: Record<string, Holder>;
  focusable: number | null;
}

interface RowProps extends Props {
  isOdd: boolean;
  place: number;
  utilization: Utilization["hosts"][number] | undefined;
  mayChange: boolean;
  onDone: () => void;
}

const UtilizationCell = ({ host, utilization }: { host: string; utilization: RowProps["utilization"] }) => {
  const now = utilization?.mean.findLast((value) => value !== null);
  if (utilization === undefined || now === undefined || now === null) return <Text color="fg.muted">{NONE}</Text>;
  const kind = utilization.metric.startsWith("cpu") ? "CPU" : "GPU";
  const words = `${kind} utilization of ${host} in the last hour, now ${Math.round(now)} percent`;
  return (
    <HStack gap={2} title={words}>
      <Sparkline label={words} maximum={100} values={utilization.mean} />
      <Text fontVariantNumeric="tabular-nums">{Math.round(now)} %</Text>
    </HStack>
  );
};

/** One host: state, squares, utilization, actions. */
export const HostRow = memo(({ host, holders, focusable, isOdd, place, utilization, mayChange, onDone }: RowProps) => (
  <Box
    alignItems="center"
    aria-rowindex={place + 2}
    bg={isOdd ? "bg.muted" : "bg"}
    borderBottomWidth={1}
    display="grid"
    fontSize="sm"
    gap={3}
    px={2}
    role="row"
    style={{ gridTemplateColumns: ROW_COLUMNS, height: rowHeight(host) }}
  >
    <Box minW={0} role="rowheader">
      <Text fontWeight="bold" title={host.name} truncate>
        {host.name}
      </Text>
      <Text color="fg.muted" fontSize="xs" title={host.device_name ?? undefined} truncate>
        {[host.pool, host.device_name].filter(Boolean).join(" · ")}
      </Text>
    </Box>
    <Box minW={0} role="cell">
      <HStack gap={2}>
        <StateBadge py={0.5} state={host.state ?? "ready"} />
        {(host.state ?? "ready") === "ready" ? null : (
          <Text color="fg.muted" fontSize="xs" truncate>
            <Since at={host.state_since} />
          </Text>
        )}
      </HStack>
      {host.state_reason === undefined || host.state_reason === "" ? null : (
        <Text color="fg.muted" fontSize="xs" title={host.state_reason} truncate>
          {host.state_reason}
        </Text>
      )}
    </Box>
    <Box role="cell">
      <SlotSquares focusable={focusable} holders={holders} host={host} />
    </Box>
    <Box role="cell">
      <UtilizationCell host={host.name} utilization={utilization} />
    </Box>
    <Box role="cell">{mayChange ? <ActionsMenu actions={hostActions(host)} label={`Actions of host ${host.name}`} onDone={onDone} /> : null}</Box>
  </Box>
));
HostRow.displayName = "HostRow";

/** One host in the dense view. */
export const HostTile = memo(({ host, holders, focusable }: Props) => {
  const state = host.state ?? "ready";
  const words = `${host.name}: ${state}${host.state_reason ? `, ${host.state_reason}` : ""}`;
  return (
    <Box data-tile overflow="hidden" title={words}>
      <Text color={state === "ready" ? "fg.muted" : "fg.error"} fontSize="xs" truncate>
        {host.name}
        {state === "ready" ? null : ` (${state})`}
      </Text>
      <SlotSquares focusable={focusable} holders={holders} host={host} />
    </Box>
  );
});
HostTile.displayName = "HostTile";
