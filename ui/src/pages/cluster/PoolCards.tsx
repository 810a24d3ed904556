import { Box, Flex, HStack, SimpleGrid, Text } from "@chakra-ui/react";

import { type PoolCounts } from "../../api/types";
import { paths } from "../../app/paths";
import { PageLink } from "../../components/Links";
import { count, plural } from "../../format/numbers";

const Bar = ({ pool }: { pool: PoolCounts }) => {
  const parts = [
    { key: "held", value: pool.held, color: "running.solid" },
    { key: "unavailable", value: pool.unavailable, color: "border.emphasized" },
  ];
  return (
    <Flex aria-hidden bg="success.muted" borderRadius="full" height="8px" overflow="hidden" width="100%">
      {parts.map(({ key, value, color }) => (
        <Box bg={color} key={key} style={{ width: `${(100 * value) / Math.max(1, pool.slots)}%` }} />
      ))}
    </Flex>
  );
};

interface Props {
  pools: readonly PoolCounts[];
  chosen: readonly string[];
  onChoose: (pools: string[]) => void;
}

/** One card per pool with the use of its slots. A card limits the page to its pool. */
export const PoolCards = ({ pools, chosen, onChoose }: Props) => (
  <SimpleGrid gap={2} mb={3} minChildWidth="260px">
    {pools.map((pool) => {
      const isChosen = chosen.includes(pool.name);
      return (
        <Box borderColor={isChosen ? "brand.solid" : "border"} borderRadius={5} borderWidth={1} key={pool.name} maxW="480px" overflow="hidden" p={3}>
          <Flex gap={2} justify="space-between" mb={1}>
            <Text asChild fontWeight="bold" truncate>
              <button
                aria-label={isChosen ? `Show all pools, not only ${pool.name}` : `Show only pool ${pool.name}`}
                aria-pressed={isChosen}
                onClick={() => onChoose(isChosen ? [] : [pool.name])}
                style={{ cursor: "pointer" }}
                title={pool.name}
                type="button"
              >
                {pool.name}
              </button>
            </Text>
            <Text color="fg.muted" flexShrink={0} fontSize="sm">
              {plural(pool.hosts, "host")}
            </Text>
          </Flex>
          <Bar pool={pool} />
          <HStack color="fg.muted" fontSize="sm" gap={3} mt={1.5} wrap="wrap">
            <Text>
              <Text as="span" color="fg" fontWeight="bold">
                {count(pool.held)}
              </Text>{" "}
              of {plural(pool.slots, pool.slot_type === "cpu" ? "CPU slot" : "GPU")} in use
            </Text>
            <Text>{count(pool.free)} free</Text>
            {pool.unavailable > 0 ? <Text>{count(pool.unavailable)} unavailable</Text> : null}
            {pool.waiting > 0 ? <PageLink to={`${paths.queue}?pool=${encodeURIComponent(pool.name)}`}>{plural(pool.waiting, "gang waits", "gangs wait")}</PageLink> : null}
          </HStack>
        </Box>
      );
    })}
  </SimpleGrid>
);
