import { Box, chakra } from "@chakra-ui/react";

import { type ShownConfig } from "../api/experiment";

const ORIGINS = new Map([
  ["config", { text: "configuration", color: "blue" }],
  ["dag_run", { text: "DAG run", color: "purple" }],
  ["default", { text: "default", color: "gray" }],
  ["pool", { text: "pool", color: "teal" }],
  ["template", { text: "template", color: "orange" }],
]);

const originOf = (origin: string) => ORIGINS.get(origin) ?? { text: origin, color: "gray" };

/** Lines of an effective configuration, each with the origin of its value. */
export const ConfigLines = ({ lines, maxH = "70vh" }: { lines: ShownConfig["lines"]; maxH?: string }) => (
  <Box aria-label="Configuration" borderColor="border" borderRadius="md" borderWidth={1} maxH={maxH} overflow="auto" role="region" tabIndex={0}>
    <chakra.table fontFamily="mono" fontSize="sm" width="100%">
      <chakra.thead srOnly>
        <tr>
          <th scope="col">Origin</th>
          <th scope="col">Line</th>
        </tr>
      </chakra.thead>
      <tbody>
        {lines.map(({ text, path: at, origin }, index) => (
          <tr key={`${index} ${at}`}>
            <chakra.td color={`${originOf(origin).color}.fg`} fontFamily="body" fontSize="xs" px={2} textAlign="end" title={at} userSelect="none" verticalAlign="top" whiteSpace="nowrap" width="1%">
              {origin === "" ? "" : originOf(origin).text}
            </chakra.td>
            <chakra.td borderLeftColor={origin === "" ? "transparent" : `${originOf(origin).color}.solid`} borderLeftWidth={3} color={origin === "default" ? "fg.muted" : "fg"} px={2} whiteSpace="pre-wrap" wordBreak="break-word">
              {text}
            </chakra.td>
          </tr>
        ))}
      </tbody>
    </chakra.table>
  </Box>
);
