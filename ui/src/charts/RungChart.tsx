import { Box } from "@chakra-ui/react";
import { memo, useMemo, useState } from "react";

import { PlotBox } from "./PlotBox";
import { type PlotHost } from "./plotHost";
import { PointerNote } from "./PointerNote";
import { rivals } from "./rungLayout";
import { axisX, axisY, type By, type Dot, linesOf, type RungData } from "./rungLines";
import { RungNote } from "./RungNote";
import { dotAt, paintRungs } from "./rungPaint";
import { useChartColors } from "./theme";

interface Props {
  bracket: number;
  rungs: readonly RungData[];
  metric: string;
  unit: string;
  smallerIsBetter: boolean;
  by: By;
  onPick: (trialId: number) => void;
}

const ROW_PX = 74;
const AXES_PX = 52;

/** Reports of one bracket: a row per rung, the best report at the left, and the line that reports had to pass. */
export const RungChart = memo(function RungChart({ bracket, rungs, metric, unit, smallerIsBetter, by, onPick }: Props) {
  const colors = useChartColors();
  const [host, setHost] = useState<PlotHost | null>(null);
  const [dot, setDot] = useState<Dot | null>(null);
  const lines = useMemo(() => linesOf(rungs, smallerIsBetter, by), [rungs, smallerIsBetter, by]);
  const against = useMemo(() => (dot === null ? [] : rivals(rungs[dot.row]?.entries ?? [], dot.report)), [dot, rungs]);
  const rivalIds = useMemo(() => new Set(against.map(({ trial_id }) => trial_id)), [against]);
  const x = useMemo(() => axisX(rungs, smallerIsBetter, by, metric), [rungs, smallerIsBetter, by, metric]);
  const y = useMemo(() => axisY(rungs, unit), [rungs, unit]);
  const height = rungs.length * ROW_PX + AXES_PX;
  const find = (place: { left: number; top: number } | null) => (host === null || place === null ? null : dotAt(lines, host.area(), place.left, place.top));
  const area = host?.area();
  return (
    <>
      <Box
        aria-label={`Bracket ${bracket}: ${rungs.length} rungs. The table has the same reports.`}
        cursor={dot === null ? undefined : "pointer"}
        data-picture=""
        height={`${height}px`}
        position="relative"
        role="img"
      >
        <PlotBox
          colors={colors}
          crosshair={false}
          height={height}
          onClick={(place) => {
            const found = find(place);
            if (found !== null) onPick(found.report.trial_id);
          }}
          onHost={setHost}
          onPointer={(place) => setDot(find(place))}
          paint={(ctx, painted) => paintRungs(ctx, painted, lines, colors, dot, rivalIds)}
          when={[lines, dot]}
          x={x}
          y={y}
        />
        {dot === null || host === null || area === undefined ? null : (
          <PointerNote left={host.over.offsetLeft + area.toX(dot.x)} top={host.over.offsetTop + area.toY(dot.y) + 10} width={host.over.offsetLeft + host.over.clientWidth}>
            <RungNote against={against} metric={metric} report={dot.report} smallerIsBetter={smallerIsBetter} />
          </PointerNote>
        )}
      </Box>
    </>
  );
});
