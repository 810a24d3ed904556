import { Box } from "@chakra-ui/react";

import { number, plural } from "../format/numbers";
import { bestFirst, type Fate, fateOf, type Report } from "./rungLayout";

/** A fate in words. */
export const FATE_TEXTS: Record<Fate, string> = {
  continued: "continued",
  failed: "failed",
  left: "cleared, and no longer counted",
  finished: "finished at the last rung",
  stopped: "stopped",
};

/** Return by how much a report passed or missed the cut-off, in words. */
export const distanceText = (report: Report): string | null => {
  const { distance } = report;
  if (distance === null || distance === undefined) return null;
  const line = report.cut_off === null ? "the cut-off" : `the cut-off ${number(report.cut_off)}`;
  if (typeof distance === "string") return `${number(distance)} from ${line}`;
  if (distance === 0) return `exactly at ${line}`;
  return distance > 0 ? `passed ${line} by ${number(distance)}` : `missed ${line} by ${number(-distance)}`;
};

interface Props {
  report: Report;
  against: readonly Report[];
  metric: string;
  smallerIsBetter: boolean;
}

const NAMED = 4;

/** One report in words, with the reports that it was compared with. */
export const RungNote = ({ report, against, metric, smallerIsBetter }: Props) => {
  const best = bestFirst(against, smallerIsBetter).slice(0, NAMED);
  return (
    <>
      <Box fontWeight="bold">
        Trial {report.trial_id} (number {report.number}): {FATE_TEXTS[fateOf(report)]}
      </Box>
      <Box>
        {metric} {number(report.metric)}
        , place {report.rank} of {report.of} at that time
      </Box>
      <Box>{distanceText(report) ?? (fateOf(report) === "continued" ? "There was no cut-off yet." : "")}</Box>
      {best.length === 0 ? (
        <Box color="fg.muted">First report at this rung.</Box>
      ) : (
        <Box color="fg.muted">
          Compared with {plural(against.length, "report")}, the best: {best.map(({ trial_id, metric: value }) => `trial ${trial_id} ${number(value)}`).join(", ")}
        </Box>
      )}
    </>
  );
};
