import { Box, Button, HStack, Text } from "@chakra-ui/react";
import { type ReactNode, useEffect, useState } from "react";
import { Link, useLocation } from "react-router-dom";

import { withQuery } from "../../../api/client";
import { useChartGroup } from "../../../charts/ChartContext";
import { time } from "../../../format/times";
import { useTimezone } from "../../../hooks/useTimezone";
import { useUrlState } from "../../../hooks/useUrlState";
import { asTime } from "./query";

const USUAL = { at: "" };
/** Name of this part among the charts that share the place of the pointer. */
const CHART = "log";

/**
 * Charts of a trial over time, from which a click leads to the lines of the log at that time. A time in the address is
 * marked in all charts.
 */
export const LogAtTime = ({ children }: { children: ReactNode }) => {
  const { hover } = useChartGroup();
  const zone = useTimezone();
  const { pathname, search } = useLocation();
  const [view, setView] = useUrlState(USUAL);
  const at = asTime(view.at);
  const [place, setPlace] = useState<number | null>(null);
  useEffect(() => {
    if (at === null) return undefined;
    const x = Date.parse(at) / 1000;
    const mark = () => {
      if (hover.value === null) hover.set({ axis: "clock", x, chart: CHART, series: null });
    };
    mark();
    // The pointer in a chart reads values there. When it has left, the time of the address is marked again.
    const end = hover.subscribe((value) => {
      if (value === null) queueMicrotask(mark);
    });
    return () => {
      end();
      hover.leave(CHART);
    };
  }, [at, hover]);
  const shown = place === null ? at : new Date(place * 1000).toISOString();
  const pick = () => {
    const { value } = hover;
    if (value !== null && value.axis === "clock" && value.chart !== CHART) setPlace(value.x);
  };
  return (
    <Box
      onClick={pick}
      onKeyDown={(event) => {
        if (event.key === "Enter") pick();
      }}
    >
      {shown === null ? (
        <Text color="fg.muted" fontSize="xs" mb={2}>
          A click on a chart over time, or Enter, offers the log at that time.
        </Text>
      ) : (
        <HStack bg="bg.panel" borderWidth="1px" gap={3} mb={2} onClick={(event) => event.stopPropagation()} p={2} position="sticky" rounded="sm" top={0} width="fit-content" zIndex={2}>
          <Text fontSize="sm">{time(shown, zone)}</Text>
          <Button asChild size="xs" variant="solid">
            <Link to={withQuery(pathname, { trial: new URLSearchParams(search).get("trial"), tab: "log", at: shown })}>Log at this time</Link>
          </Button>
          <Button
            onClick={() => {
              setPlace(null);
              setView({ at: "" });
            }}
            size="xs"
            variant="outline"
          >
            Close
          </Button>
        </HStack>
      )}
      {children}
    </Box>
  );
};
