import { Box, Button, Flex, Heading, HStack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { useNavigate } from "react-router-dom";

import { type Queue, type Gang } from "../../api/types";
import { paths } from "../../app/paths";
import { EmptyState } from "../../components/EmptyState";
import { FilterSelect } from "../../components/FilterSelect";
import { SearchBar } from "../../components/SearchBar";
import { StateBadge } from "../../components/StateBadge";
import { chosenColumns, ColumnsMenu, usualColumns } from "../../components/table/ColumnsMenu";
import { DataTable } from "../../components/table/DataTable";
import { count, plural } from "../../format/numbers";
import { useMe } from "../../hooks/useMe";
import { useRows } from "../../hooks/useRows";
import { useUrlState } from "../../hooks/useUrlState";
import { CREATE_FIRST } from "../../lib/commands";
import { OWN } from "../cluster/PoolCards";
import { QUEUE_GLANCE, queueColumns } from "./columns";

const STATES = ["waiting", "granted", "starting", "running", "stopping", "expired"];

const USUAL = { q: "", pool: "", state: "", sort: "position", columns: usualColumns(queueColumns(false, () => undefined)) as readonly string[] };

const keyOf = ({ allocation_id }: Gang) => allocation_id;

/** Waiting and running gangs, in the order in which the queue serves them. */
export const QueuePage = () => {
  const [view, setView] = useUrlState(USUAL);
  const navigate = useNavigate();
  const mayChangePriority = useMe()?.may_change_hosts ?? false;
  const order = view.sort.startsWith("-") ? "desc" : "asc";
  const rows = useRows<Gang, Queue>("queue", { q: view.q, pool: view.pool, state: view.state, sort: view.sort.replace(/^-/, ""), order });
  const columns = useMemo(() => queueColumns(mayChangePriority, rows.refresh), [mayChangePriority, rows.refresh]);
  const shown = useMemo(() => chosenColumns(columns, view.columns), [columns, view.columns]);
  const isFiltered = view.q !== "" || view.pool !== "" || view.state !== "";
  const clear = () => setView({ q: "", pool: "", state: "" }, "add");
  const pools = rows.answer?.pools ?? [];
  const empty = isFiltered ? (
    <EmptyState title="No gang matches the filters.">
      <Button onClick={clear} size="sm" variant="outline">
        Clear the filters
      </Button>
    </EmptyState>
  ) : (
    <EmptyState command={CREATE_FIRST} text="Gangs appear here when a trial requests slots." title="No gang waits or holds slots." />
  );
  return (
    <>
      <Flex align="baseline" gap={4} mb={2} wrap="wrap">
        <Heading size="md">{rows.answer === undefined ? "Queue" : plural(rows.total, "gang")}</Heading>
        <HStack color="fg.muted" fontSize="sm" gap={4} wrap="wrap">
          {pools.map(({ name, backend, slots, free, held, waiting, running }) => (
            <Text key={name} maxW="400px" title={name} truncate>
              <Box as="span" color="fg" fontWeight="bold">
                {name}
              </Box>
              : {count(waiting)} queued, {count(running)} running,{" "}
              {backend === OWN ? `${count(free)} of ${plural(slots, "slot")} free` : `${plural(held, "slot")} in use`}
            </Text>
          ))}
        </HStack>
      </Flex>
      <HStack gap={2} mb={2} wrap="wrap">
        <SearchBar onChange={(q) => setView({ q })} placeholder="Search experiments and tasks" value={view.q} />
        <FilterSelect all="All pools" label="Filter by pool" multiple={false} onChange={([pool = ""]) => setView({ pool }, "add")} options={pools.map(({ name }) => name)} value={view.pool === "" ? [] : [view.pool]} />
        <FilterSelect all="All states" label="Filter by state" multiple={false} onChange={([state = ""]) => setView({ state }, "add")} options={STATES} render={(state) => <StateBadge state={state} />} value={view.state === "" ? [] : [view.state]} />
        <ColumnsMenu chosen={view.columns} columns={columns} onChange={(next) => setView({ columns: next })} />
        {isFiltered ? (
          <Button onClick={clear} size="sm" variant="ghost">
            Clear
          </Button>
        ) : null}
      </HStack>
      <DataTable
        columns={shown}
        empty={empty}
        glance={QUEUE_GLANCE}
        label="Queue"
        onOpen={({ trial_id }) => {
          if (trial_id !== null) void navigate(paths.trial(trial_id));
        }}
        onSort={(sort) => setView({ sort })}
        rowKey={keyOf}
        rows={rows}
        sort={view.sort}
        what="Queue"
      />
    </>
  );
};
