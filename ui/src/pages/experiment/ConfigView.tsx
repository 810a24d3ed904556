import { Box, chakra, Flex, HStack, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import { type ShownConfig } from "../../api/experiment";
import { CopyButton } from "../../components/CopyButton";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Loading } from "../../components/Loading";
import { Segments } from "../../components/Segments";
import { useData } from "../../hooks/useData";

const ORIGINS = new Map([
  ["config", { text: "configuration", color: "blue" }],
  ["dag_run", { text: "DAG run", color: "purple" }],
  ["default", { text: "default", color: "gray" }],
  ["pool", { text: "pool", color: "teal" }],
  ["template", { text: "template", color: "orange" }],
]);

const originOf = (origin: string) => ORIGINS.get(origin) ?? { text: origin, color: "gray" };

const SHOWN = [
  { value: "all", text: "All values" },
  { value: "set", text: "Without defaults" },
] as const;

/** Effective configuration, with the origin of each line. */
export const ConfigView = ({ path }: { path: string }) => {
  const { data, error, loading, refresh } = useData<ShownConfig>(path, { everyMs: null });
  const [shown, setShown] = useState<"all" | "set">("all");
  const lines = useMemo(() => (data?.lines ?? []).filter(({ origin }) => shown === "all" || origin !== "default"), [data, shown]);
  if (loading) return <Loading lines={8} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Configuration" />;
  return (
    <>
      <Flex align="center" gap={3} mb={2} wrap="wrap">
        <Segments label="Values" onChange={setShown} options={SHOWN} value={shown} />
        <Text color="fg.muted" fontSize="sm">
          {data.template === null ? "Without a template." : `Template ${data.template}, version ${data.template_version ?? "unknown"}.`}
        </Text>
        <HStack gap={1}>
          <CopyButton label="Copy the YAML" text={data.yaml} />
          <Text fontSize="sm">Copy</Text>
        </HStack>
      </Flex>
      <Box aria-label="Configuration" borderColor="border" borderRadius="md" borderWidth={1} maxH="70vh" overflow="auto" role="region" tabIndex={0}>
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
    </>
  );
};
