import { Box, Table } from "@chakra-ui/react";

import { useTimezone } from "../hooks/useTimezone";
import { type AxisKind } from "./axisText";
import { type Curve } from "./curves";
import { lastPoint } from "./lines";
import { valueText } from "./readingText";
import { extent } from "./scales";
import { Swatch } from "./Swatch";

interface Props {
  label: string;
  curves: readonly Curve[];
  xKind: AxisKind;
  yKind: AxisKind;
}

/** The curves of a chart in words: one row per curve. */
export const CurveTable = ({ label, curves, xKind, yKind }: Props) => {
  const zone = useTimezone();
  const text = (value: number | undefined) => (value === undefined ? "–" : valueText(value, yKind, zone));
  return (
    <Box maxH="24rem" overflow="auto" tabIndex={0} role="region" aria-label={label}>
      <Table.Root size="sm" stickyHeader>
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader>Series</Table.ColumnHeader>
            {["Points", "Smallest", "Largest", "Latest", "At"].map((name) => (
              <Table.ColumnHeader key={name} textAlign="end">
                {name}
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {curves.map((curve) => {
            const range = extent([(curve.raw ?? curve.points).ys]);
            const last = lastPoint(curve.raw ?? curve.points);
            return (
              <Table.Row key={curve.id}>
                <Table.Cell overflowWrap="anywhere">
                  <Box alignItems="center" display="flex" gap={2}>
                    <Swatch look={curve.look} /> {curve.name}
                  </Box>
                </Table.Cell>
                <Table.Cell textAlign="end">{curve.points.xs.length}</Table.Cell>
                <Table.Cell textAlign="end">{text(range?.[0])}</Table.Cell>
                <Table.Cell textAlign="end">{text(range?.[1])}</Table.Cell>
                <Table.Cell textAlign="end">{text(last?.y)}</Table.Cell>
                <Table.Cell textAlign="end">{last === null ? "–" : valueText(last.x, xKind, zone)}</Table.Cell>
              </Table.Row>
            );
          })}
        </Table.Body>
      </Table.Root>
    </Box>
  );
};
