import { Flex, HStack, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import { type ShownConfig } from "../../api/experiment";
import { ConfigLines } from "../../components/ConfigLines";
import { CopyButton } from "../../components/CopyButton";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Loading } from "../../components/Loading";
import { Segments } from "../../components/Segments";
import { useData } from "../../hooks/useData";

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
      <ConfigLines lines={lines} />
    </>
  );
};
