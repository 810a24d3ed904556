import { Box, Flex, HStack, SimpleGrid, Text } from "@chakra-ui/react";

import { type PoolCounts, type SchedulerFacts, type SchedulerJob } from "../../api/types";
import { paths } from "../../app/paths";
import { PageLink } from "../../components/Links";
import { count, plural } from "../../format/numbers";
import { partitionText } from "./jobs";

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

/** Backend of a pool whose slots the queue gives out. */
export const OWN = "hosts";

/** Use of the slots of registered hosts. */
const OwnUse = ({ pool }: { pool: PoolCounts }) => (
  <>
    <Text>
      <Text as="span" color="fg" fontWeight="bold">
        {count(pool.held)}
      </Text>{" "}
      of {plural(pool.slots, slotName(pool))} in use
    </Text>
    <Text>{count(pool.free)} free</Text>
    {pool.unavailable > 0 ? <Text>{count(pool.unavailable)} unavailable</Text> : null}
  </>
);

/** Slots of the jobs that run: how many others the scheduler has is not known. */
const JobUse = ({ pool, jobs }: { pool: PoolCounts; jobs: readonly SchedulerJob[] }) => (
  <Text>
    <Text as="span" color="fg" fontWeight="bold">
      {count(pool.held)}
    </Text>{" "}
    {pool.held === 1 ? slotName(pool) : `${slotName(pool)}s`} in use on {plural(new Set(jobs.filter((job) => job.pool === pool.name).flatMap(({ nodes }) => nodes)).size, "node")}
  </Text>
);

const slotName = ({ slot_type }: PoolCounts): string => (slot_type === "cpu" ? "CPU slot" : "GPU");

interface Props {
  jobs: readonly SchedulerJob[];
  schedulers: Readonly<Record<string, SchedulerFacts>>;
  pools: readonly PoolCounts[];
  chosen: readonly string[];
  onChoose: (pools: string[]) => void;
}

/** One card per pool with the use of its slots. A card limits the page to its pool. */
export const PoolCards = ({ pools, chosen, jobs, onChoose, schedulers }: Props) => (
  <SimpleGrid gap={2} mb={3} minChildWidth="260px">
    {pools.map((pool) => {
      const facts = schedulers[pool.name];
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
              {pool.backend === OWN ? plural(pool.hosts, "host") : pool.backend}
            </Text>
          </Flex>
          {pool.backend === OWN ? <Bar pool={pool} /> : null}
          <HStack color="fg.muted" fontSize="sm" gap={3} mt={1.5} wrap="wrap">
            {pool.backend === OWN ? <OwnUse pool={pool} /> : <JobUse jobs={jobs} pool={pool} />}
            {pool.waiting > 0 ? <PageLink to={`${paths.queue}?pool=${encodeURIComponent(pool.name)}`}>{plural(pool.waiting, "gang waits", "gangs wait")}</PageLink> : null}
          </HStack>
          {facts === undefined ? null : (
            <Text color="fg.muted" fontSize="xs" mt={1}>
              {partitionText(facts)}
            </Text>
          )}
        </Box>
      );
    })}
  </SimpleGrid>
);
