import { Button, Flex, Heading, HStack, Spacer, Text } from "@chakra-ui/react";
import { useMemo } from "react";

import { type Cluster, type Host } from "../../api/types";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { FilterSelect } from "../../components/FilterSelect";
import { Loading } from "../../components/Loading";
import { SearchBar } from "../../components/SearchBar";
import { Segments } from "../../components/Segments";
import { Stale } from "../../components/Stale";
import { StateBadge } from "../../components/StateBadge";
import { plural } from "../../format/numbers";
import { useData } from "../../hooks/useData";
import { useMe } from "../../hooks/useMe";
import { useUrlState } from "../../hooks/useUrlState";
import { HEATS, heatName } from "./heat";
import { HostDayPanel } from "./HostDayPanel";
import { HostList } from "./HostList";
import { JobList } from "./JobList";
import { Legend } from "./Legend";
import { OWN, PoolCards } from "./PoolCards";
import { UsagePanel } from "./UsagePanel";

const STATES = ["ready", "draining", "drained", "disabled", "unreachable", "lost"];

/** Above this number of hosts the dense view is the usual one. */
const MANY = 60;

const USUAL = { q: "", pool: [] as readonly string[], state: [] as readonly string[], view: "", heat: "" };

const EVERY_MS = 2_000;

const VIEWS = [
  { value: "rows", text: "Hosts" },
  { value: "tiles", text: "Slots only" },
  { value: "day", text: "Day by host" },
  { value: "use", text: "Use by day" },
] as const;

const passes = ({ name, pool, state = "ready", state_reason = "" }: Host, view: typeof USUAL): boolean =>
  (view.pool.length === 0 || view.pool.includes(pool)) &&
  (view.state.length === 0 || view.state.includes(state)) &&
  [name, state_reason].some((text) => text.toLowerCase().includes(view.q.toLowerCase()));

/** All pools and hosts: a square per slot, with the gang that holds it. */
export const ClusterPage = () => {
  const [view, setView] = useUrlState(USUAL);
  const mayChange = useMe()?.may_change_hosts ?? false;
  const { data, error, loading, stale, refresh } = useData<Cluster>("cluster", { everyMs: EVERY_MS });
  const hosts = useMemo(() => (data?.hosts ?? []).filter((host) => passes(host, view)), [data, view]);
  if (loading) return <Loading lines={8} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Cluster" />;
  const isPanel = view.view === "use" || view.view === "day";
  const shape = view.view === "rows" || view.view === "tiles" ? view.view : data.hosts.length > MANY ? "tiles" : "rows";
  const heatMetric = heatName(view.heat);
  const isOfJobs = data.pools.some(({ backend }) => backend !== OWN);
  const jobs = data.jobs.filter(({ pool }) => view.pool.length === 0 || view.pool.includes(pool));
  if (data.hosts.length === 0 && !isOfJobs) {
    return <EmptyState command="airflow dtrain hosts add NAME --conn CONNECTION" text="Register the first one on a machine with Airflow. CONNECTION is an SSH connection of Airflow:" title="There is no host yet." />;
  }
  return (
    <>
      {error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Cluster" />}
      <Stale stale={stale}>
        <PoolCards chosen={view.pool} jobs={data.jobs} onChoose={(pool) => setView({ pool }, "add")} pools={data.pools} schedulers={data.schedulers} />
        <JobList jobs={jobs} />
        <Flex align="center" gap={2} mb={2} wrap="wrap">
          <Heading size="md">{hosts.length === data.hosts.length ? plural(hosts.length, "host") : `${hosts.length} of ${plural(data.hosts.length, "host")}`}</Heading>
          <SearchBar onChange={(q) => setView({ q })} placeholder="Search hosts and reasons" value={view.q} />
          <FilterSelect all="All states" label="Filter by state" onChange={(state) => setView({ state }, "add")} options={STATES} render={(state) => <StateBadge state={state} />} value={view.state} />
          <Spacer />
          <HStack gap={0} role="group" wrap="wrap">
            {VIEWS.map(({ value, text }) => {
              const isChosen = value === (isPanel ? view.view : shape);
              return (
                <Button aria-pressed={isChosen} key={value} onClick={() => setView({ view: value })} size="sm" variant={isChosen ? "subtle" : "ghost"}>
                  {text}
                </Button>
              );
            })}
          </HStack>
        </Flex>
        {view.view === "use" ? (
          <UsagePanel pools={view.pool} />
        ) : view.view === "day" ? (
          <HostDayPanel hosts={hosts} />
        ) : (
          <>
            <Flex align="center" columnGap={4} mb={2} rowGap={1} wrap="wrap">
              <HStack gap={2}>
                <Text fontSize="sm">Colour</Text>
                <Segments label="Colour of the squares" onChange={(heat) => setView({ heat })} options={HEATS} value={heatMetric} />
              </HStack>
              {heatMetric === "" ? <Legend /> : null}
            </Flex>
            {data.hosts.length === 0 ? (
              <EmptyState text="The nodes of running jobs appear here." title="No job runs now." />
            ) : hosts.length === 0 ? (
              <EmptyState title="No host matches the filters.">
                <Button onClick={() => setView({ q: "", pool: [], state: [] }, "add")} size="sm" variant="outline">
                  Clear the filters
                </Button>
              </EmptyState>
            ) : (
              <HostList cluster={data} heatMetric={heatMetric} hosts={hosts} mayChange={mayChange} onDone={refresh} view={shape} />
            )}
          </>
        )}
      </Stale>
    </>
  );
};
