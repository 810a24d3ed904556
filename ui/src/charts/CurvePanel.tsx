import { Button, HStack } from "@chakra-ui/react";
import { type ReactNode } from "react";

import { ChartFrame } from "./ChartFrame";
import { csv, download } from "./csv";
import { notPositive } from "./curves";
import { CurveTable } from "./CurveTable";
import { LineChart, type LineChartProps } from "./LineChart";
import { useZoom } from "./useZoom";

interface Props extends Omit<LineChartProps, "label"> {
  title: string;
  /** Label of the x axis, as in a file. */
  xName: string;
  controls?: ReactNode;
  /** List of the names below the chart, where they are too many for the legend above it. */
  names?: ReactNode;
  notes?: readonly (string | null | false)[];
}

const ResetZoom = ({ axis }: { axis: string }) => {
  const [range, setRange] = useZoom(axis);
  if (range === null) return null;
  return (
    <Button onClick={() => setRange(null)} size="xs" variant="outline">
      Reset zoom
    </Button>
  );
};

/** Series that are named above the chart. More are named at the pointer and in the table. */
const MOST_NAMED = 8;

/** Curves with title, controls, table and download. */
export const CurvePanel = ({ title, xName, controls, legend = false, names = null, notes = [], ...chart }: Props) => {
  const { curves, yLog = false, xKind = "number", yKind = "number", axis } = chart;
  const hidden = yLog ? notPositive(curves) : 0;
  const save = () => {
    const rows = curves.flatMap(({ name, points, raw }) => (raw ?? points).xs.map((x, at) => [name, x, (raw ?? points).ys[at]] as const));
    download(`${title}.csv`, csv([["series", xName, title], ...rows]));
  };
  return (
    <ChartFrame
      controls={
        <HStack gap={2}>
          <ResetZoom axis={axis} />
          {controls}
        </HStack>
      }
      notes={[...notes, hidden > 0 && `${hidden} values are not above 0, so the log axis does not show them.`]}
      image={curves}
      onDownload={save}
      table={() => <CurveTable curves={curves} label={`${title} as a table`} xKind={xKind} yKind={yKind} />}
      title={title}
    >
      <LineChart {...chart} legend={legend && curves.length <= MOST_NAMED} xName={xKind === "clock" ? "" : xName} label={`Chart of ${title}, ${curves.length} series over ${xName}`} />
      {names}
    </ChartFrame>
  );
};
