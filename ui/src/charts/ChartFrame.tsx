import { Box, Button, ButtonGroup, Flex, Heading, HStack, IconButton } from "@chakra-ui/react";
import { type ReactNode, useId, useRef, useState } from "react";

import { Icon } from "../components/icons";
import { type Named, saveImage } from "./image";
import { chartColors } from "./theme";

interface Props {
  title: string;
  /** Controls beside the title. */
  controls?: ReactNode;
  /** The same data as a table, for screen readers and for exact values. */
  table?: (() => ReactNode) | undefined;
  onDownload?: (() => void) | undefined;
  /** Series in the legend of the chart as a PNG file. Without it the chart has none: it is not painted on canvases. */
  image?: readonly Named[] | undefined;
  /** Facts about the data that the chart cannot show. */
  notes?: readonly (string | null | false)[];
  children: ReactNode;
}

/** Title, controls and table of a chart. */
export const ChartFrame = ({ title, controls, table, onDownload, image, notes = [], children }: Props) => {
  const [asTable, setAsTable] = useState(false);
  const id = useId();
  const root = useRef<HTMLElement>(null);
  const shown = notes.filter((note): note is string => typeof note === "string" && note !== "");
  const canGrow = typeof document !== "undefined" && document.fullscreenEnabled;
  return (
    <Box
      as="section"
      aria-labelledby={id}
      bg="bg"
      borderColor="border"
      borderRadius="md"
      borderWidth={1}
      css={{ "&:fullscreen": { display: "flex", flexDirection: "column", padding: "24px" }, "&:fullscreen [data-chart-body]": { height: "calc(100vh - 130px)" } }}
      data-testid="chart"
      minW={0}
      p={3}
      ref={root}
    >
      <Flex align="center" columnGap={3} mb={2} rowGap={1} wrap="wrap">
        <Heading flex="1" id={id} minW="8rem" overflowWrap="anywhere" size="sm">
          {title}
        </Heading>
        {asTable ? null : controls}
        <HStack gap={1}>
          {table === undefined ? null : (
            <ButtonGroup aria-label={`View of ${title}`} attached role="group" size="xs" variant="outline">
              <Button aria-pressed={!asTable} bg={asTable ? undefined : "bg.emphasized"} onClick={() => setAsTable(false)}>
                Chart
              </Button>
              <Button aria-pressed={asTable} bg={asTable ? "bg.emphasized" : undefined} onClick={() => setAsTable(true)}>
                Table
              </Button>
            </ButtonGroup>
          )}
          {onDownload === undefined ? null : (
            <IconButton aria-label={`Download ${title} as CSV`} onClick={onDownload} size="xs" title="Download as CSV" variant="ghost">
              <Icon name="download" />
            </IconButton>
          )}
          {image === undefined || asTable ? null : (
            <IconButton
              aria-label={`Download ${title} as PNG`}
              onClick={() => {
                const body = root.current?.querySelector("[data-chart-body], [data-picture]");
                if (body) saveImage(body, title, image, chartColors());
              }}
              size="xs"
              title="Download as PNG"
              variant="ghost"
            >
              <Icon name="image" />
            </IconButton>
          )}
          {canGrow ? (
            <IconButton
              aria-label={`Show ${title} on the whole screen`}
              onClick={() => void (document.fullscreenElement === null ? root.current?.requestFullscreen() : document.exitFullscreen())}
              size="xs"
              title="Whole screen"
              variant="ghost"
            >
              <Icon name="external" />
            </IconButton>
          ) : null}
        </HStack>
      </Flex>
      {asTable && table !== undefined ? table() : children}
      {shown.length === 0 ? null : (
        <Box color="fg.muted" fontSize="xs" mt={1}>
          {shown.map((note) => (
            <Box key={note}>{note}</Box>
          ))}
        </Box>
      )}
    </Box>
  );
};
