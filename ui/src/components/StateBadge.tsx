import { type ReactNode } from "react";

import { Icon, type IconName } from "./icons";

/** Colours of task states in the Airflow UI. */
export type Palette =
  | "deferred" | "failed" | "none" | "queued" | "removed" | "restarting" | "running" | "scheduled" | "skipped" | "success"
  | "up_for_reschedule" | "up_for_retry" | "upstream_failed";

interface Look {
  palette: Palette;
  icon: IconName;
  text?: string;
  /** An outline instead of a filled badge, for the usual end of many trials. */
  isQuiet?: boolean;
}

/** Look of each state of trials, attempts, experiments, hosts, allocations and slots, by the nearest state of Airflow. */
const LOOKS: Record<string, Look> = {
  active: { palette: "running", icon: "activity" },
  busy_elsewhere: { palette: "up_for_retry", icon: "warning", text: "busy elsewhere" },
  cancelled: { palette: "removed", icon: "ban" },
  completed: { palette: "success", icon: "check" },
  disabled: { palette: "removed", icon: "ban" },
  drained: { palette: "skipped", icon: "pause" },
  draining: { palette: "up_for_reschedule", icon: "clock" },
  ended: { palette: "removed", icon: "check" },
  ending: { palette: "up_for_reschedule", icon: "stop" },
  errored: { palette: "failed", icon: "close" },
  expired: { palette: "up_for_retry", icon: "clock" },
  failed: { palette: "failed", icon: "close" },
  finished: { palette: "success", icon: "check" },
  free: { palette: "success", icon: "check" },
  granted: { palette: "scheduled", icon: "flag" },
  held: { palette: "running", icon: "activity" },
  killed: { palette: "removed", icon: "ban" },
  lost: { palette: "upstream_failed", icon: "warning" },
  never_fits: { palette: "upstream_failed", icon: "ban", text: "cannot run" },
  paused: { palette: "deferred", icon: "pause" },
  preempted: { palette: "up_for_reschedule", icon: "repeat" },
  queued: { palette: "queued", icon: "clock" },
  ready: { palette: "success", icon: "check" },
  released: { palette: "removed", icon: "check" },
  running: { palette: "running", icon: "activity" },
  starting: { palette: "restarting", icon: "repeat" },
  stopped: { palette: "none", icon: "flag", isQuiet: true },
  stopping: { palette: "up_for_reschedule", icon: "stop" },
  stuck: { palette: "failed", icon: "warning" },
  submitting: { palette: "scheduled", icon: "flag" },
  unreachable: { palette: "failed", icon: "warning" },
  waiting: { palette: "queued", icon: "clock", text: "queued" },
};

/** Colours on which white text is hard to read. They are a little darker here than in the Airflow UI. */
const PALE = new Set<Palette>(["running", "up_for_reschedule", "up_for_retry", "upstream_failed"]);

const background = (palette: Palette): string => {
  const solid = `var(--chakra-colors-${palette}-solid)`;
  return PALE.has(palette) ? `color-mix(in oklab, ${solid} 80%, black)` : solid;
};

/** Return the colour and icon of a state. A state that this version does not know is grey. */
export const lookOf = (state: string): Look => (Object.hasOwn(LOOKS, state) ? LOOKS[state] : undefined) ?? { palette: "none", icon: "dash" };

interface Props {
  state: string;
  /** Shown instead of the state. */
  children?: ReactNode;
  title?: string | undefined;
  /** A badge in a line with other text. */
  small?: boolean;
}

/** A state in the colour that the Airflow UI has for it. */
export const StateBadge = ({ state, children, title, small = false }: Props) => {
  const look = lookOf(state);
  return (
    <span className="dtrain-badge" data-quiet={look.isQuiet} data-small={small || undefined} data-state={state} data-testid="state-badge" style={look.isQuiet === true ? undefined : { background: background(look.palette) }} title={title}>
      <Icon name={look.icon} />
      {children ?? look.text ?? state}
    </span>
  );
};
