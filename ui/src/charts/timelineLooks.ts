/** Colours and shapes of the kinds of a timeline's entries. */
import { type KindColor } from "./theme";

export type MarkShape = "circle" | "diamond" | "square" | "triangle";

interface Look {
  readonly color: KindColor;
  readonly shape: MarkShape;
}

const LOOKS = new Map<string, Look>([
  ["submitted", { color: "neutral", shape: "circle" }],
  ["cleared", { color: "neutral", shape: "square" }],
  ["restarted", { color: "waiting", shape: "diamond" }],
  ["waited", { color: "waiting", shape: "circle" }],
  ["paused", { color: "waiting", shape: "square" }],
  ["activated", { color: "waiting", shape: "diamond" }],
  ["priority_set", { color: "neutral", shape: "diamond" }],
  ["job_submitted", { color: "waiting", shape: "square" }],
  ["job_started", { color: "holding", shape: "diamond" }],
  ["granted", { color: "holding", shape: "circle" }],
  ["returned", { color: "waiting", shape: "triangle" }],
  ["environment", { color: "holding", shape: "square" }],
  ["launched", { color: "running", shape: "circle" }],
  ["first_step", { color: "running", shape: "diamond" }],
  ["warned", { color: "bad", shape: "circle" }],
  ["slow_rank", { color: "bad", shape: "square" }],
  ["checkpoint", { color: "saved", shape: "diamond" }],
  ["rung", { color: "saved", shape: "square" }],
  ["give_way", { color: "bad", shape: "diamond" }],
  ["evacuated", { color: "waiting", shape: "triangle" }],
  ["stop_requested", { color: "bad", shape: "square" }],
  ["kill_requested", { color: "bad", shape: "square" }],
  ["rank_failed", { color: "bad", shape: "triangle" }],
  ["host_excluded", { color: "bad", shape: "triangle" }],
  ["job_ended", { color: "neutral", shape: "triangle" }],
  ["preempted", { color: "bad", shape: "diamond" }],
  ["released", { color: "waiting", shape: "triangle" }],
  ["ended", { color: "neutral", shape: "square" }],
]);

/** Return the look of a kind. Kinds that this version does not know are grey circles. */
export const kindLook = (kind: string): Look => LOOKS.get(kind) ?? { color: "neutral", shape: "circle" };

/** Meaning of the colours. */
export const KIND_LEGEND: readonly { color: KindColor; text: string }[] = [
  { color: "waiting", text: "waits" },
  { color: "holding", text: "holds slots" },
  { color: "running", text: "trains" },
  { color: "saved", text: "checkpoint or rung" },
  { color: "bad", text: "failure, preemption or request to end" },
  { color: "neutral", text: "other" },
];
