import { memo } from "react";

import { ActionsMenu } from "../../actions/ActionsMenu";
import { hostActions } from "../../actions/hosts";
import { type Holder, type Host, type Utilization } from "../../api/types";
import { paths } from "../../app/paths";
import { PageLink } from "../../components/Links";
import { Sparkline } from "../../components/Sparkline";
import { StateBadge } from "../../components/StateBadge";
import { Since, Time } from "../../components/Time";
import { NONE, plural } from "../../format/numbers";
import { LINE, SQUARE_PX, SlotSquares } from "./SlotSquares";

/** Columns of a row: host, state, slots, utilization, actions. */
export const ROW_COLUMNS = `minmax(150px, 1fr) minmax(170px, 1fr) ${LINE * SQUARE_PX}px 190px 36px`;

/** Height of a row in pixels: the squares of a host with many slots take several lines, and a finding one. */
export const rowHeight = ({ slots, findings = "" }: Host): number => Math.max(findings === "" ? 52 : 68, Math.ceil(slots.length / LINE) * SQUARE_PX + 16);

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

/** Points at the end of a line of which one must be known: each is a minute, and the last minute is not over. */
const RECENT = 3;

const UtilizationCell = ({ host, utilization }: { host: string; utilization: RowProps["utilization"] }) => {
  if (utilization === undefined) return <span className="dtrain-muted">{NONE}</span>;
  const latest = utilization.mean.slice(-RECENT).findLast((value) => value !== null) ?? null;
  const kind = utilization.metric.startsWith("cpu") ? "CPU" : "GPU";
  const words = `${kind} utilization of ${host} in the last hour, ${latest === null ? "not measured now" : `latest minute ${Math.round(latest)} percent`}`;
  return (
    <span className="dtrain-row" title={words}>
      <Sparkline label={words} maximum={100} values={utilization.mean} />
      {latest === null ? <span className="dtrain-muted">{NONE}</span> : <span>{Math.round(latest)} %</span>}
    </span>
  );
};

/** Mark of a host that a check found slow, with the sentences of the check. */
const SlowMark = ({ findings = "" }: { findings: string | undefined }) =>
  findings === "" ? null : (
    <div className="dtrain-warning dtrain-small dtrain-cut" title={findings}>
      Slow: {findings.replaceAll("\n", "; ")}
    </div>
  );

const gangsOf = ({ slots }: Host): number => new Set(slots.flatMap(({ allocation_id = null }) => allocation_id ?? [])).size;

/** The deadline of a draining host, and what is left there. */
const Deadline = ({ host }: { host: Host }) =>
  host.state !== "draining" || (host.drain_by ?? null) === null ? null : (
    <>
      {plural(gangsOf(host), "gang")} left, empty by <Time at={host.drain_by} />
      {host.state_reason ? " · " : null}
    </>
  );

const HostState = ({ host }: { host: Host }) => {
  const { state = "ready", state_since, state_reason = "", findings } = host;
  return (
    <div className="dtrain-cut" role="cell">
      <span className="dtrain-row">
        <StateBadge small state={state} />
        {state === "ready" ? null : (
          <span className="dtrain-muted dtrain-small dtrain-cut">
            <Since at={state_since} />
          </span>
        )}
      </span>
      <div className="dtrain-muted dtrain-small dtrain-cut" title={state_reason}>
        <Deadline host={host} />
        {state_reason}
      </div>
      <SlowMark findings={findings} />
    </div>
  );
};

/** Return the number of slow ranks that were named on a host in the last week in words, null without one. */
const slowRanks = ({ slow_ranks = 0 }: Host): string | null => (slow_ranks === 0 ? null : `${plural(slow_ranks, "slow rank")} in 7 days`);

/** One host: state, squares, utilization, actions. */
export const HostRow = memo(({ host, holders, focusable, isOdd, place, utilization, mayChange, onDone }: RowProps) => (
  <div aria-rowindex={place + 2} className="dtrain-host" data-odd={isOdd || undefined} role="row" style={{ gridTemplateColumns: ROW_COLUMNS, height: rowHeight(host) }}>
    <div className="dtrain-cut" role="rowheader">
      <div className="dtrain-bold dtrain-cut">
        <PageLink title={`What ${host.name} did in the last 24 hours`} to={paths.hostDay(host.name)}>
          {host.name}
        </PageLink>
      </div>
      <div className="dtrain-muted dtrain-small dtrain-cut" title={host.device_name ?? undefined}>
        {[host.pool, host.job ? `job ${host.job}` : null, host.device_name, slowRanks(host)].filter(Boolean).join(" · ")}
      </div>
    </div>
    <HostState host={host} />
    <div role="cell">
      <SlotSquares focusable={focusable} holders={holders} host={host} />
    </div>
    <div role="cell">
      <UtilizationCell host={host.name} utilization={utilization} />
    </div>
    <div role="cell">{mayChange ? <ActionsMenu actions={hostActions(host)} label={`Actions of host ${host.name}`} onDone={onDone} /> : null}</div>
  </div>
));
HostRow.displayName = "HostRow";

/** One host in the dense view. */
export const HostTile = memo(({ host, holders, focusable }: Props) => {
  const state = host.state ?? "ready";
  const isSlow = (host.findings ?? "") !== "";
  const words = [`${host.name}: ${state}`, host.state_reason, isSlow ? `slow: ${host.findings}` : ""].filter(Boolean).join(", ");
  return (
    <div className="dtrain-tile" title={words}>
      <div className={`dtrain-small dtrain-cut ${state === "ready" && !isSlow ? "dtrain-muted" : "dtrain-warning"}`}>
        {host.name}
        {state === "ready" ? null : ` (${state})`}
        {isSlow ? " (slow)" : null}
      </div>
      <SlotSquares focusable={focusable} holders={holders} host={host} />
    </div>
  );
});
HostTile.displayName = "HostTile";
