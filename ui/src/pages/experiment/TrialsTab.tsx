import { Button, HStack, Spacer, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { useNavigate } from "react-router-dom";

import { isOpen } from "../../actions/experiments";
import { type TrialRow } from "../../api/charts";
import { apiUrl, withQuery } from "../../api/client";
import { type Experiment } from "../../api/experiment";
import { paths } from "../../app/paths";
import { EmptyState } from "../../components/EmptyState";
import { FilterSelect } from "../../components/FilterSelect";
import { Icon } from "../../components/icons";
import { SearchBar } from "../../components/SearchBar";
import { StateBadge } from "../../components/StateBadge";
import { chosenColumns, ColumnsMenu, usualColumns } from "../../components/table/ColumnsMenu";
import { DataTable } from "../../components/table/DataTable";
import { plural } from "../../format/numbers";
import { LIVE_MS } from "../../hooks/useData";
import { useRows } from "../../hooks/useRows";
import { useUrlState } from "../../hooks/useUrlState";
import { NEVER_FITS } from "../../lib/states";
import { trialColumns, trialGlance } from "./trialColumns";
import { MOST_COMPARED, toggled } from "./TrialList";

const STATES = ["queued", NEVER_FITS, "running", "paused", "completed", "stopped", "errored", "killed"];

const USUAL = { q: "", state: "", sort: "", columns: [] as readonly string[], pick: [] as readonly string[] };

/** Least height of the table, in pixels: below the facts of the experiment the rest of a small window shows few rows. */
const LEAST_PX = 480;

/** Return the order of the table until the user chooses another one: best first. */
export const usualSort = ({ is_inference, metric, smaller_is_better }: Pick<Experiment, "is_inference" | "metric" | "smaller_is_better">): string =>
  metric === null || is_inference ? "number" : smaller_is_better ? "best_metric" : "-best_metric";

const keyOf = ({ trial_id }: TrialRow) => trial_id;

/** Table of the experiment's trials, with a column per hyperparameter. */
export const TrialsTab = ({ experiment }: { experiment: Experiment }) => {
  const [view, setView] = useUrlState(USUAL);
  const navigate = useNavigate();
  const { best_trial, hyperparameters, is_inference, metric, search, smaller_is_better, experiment_id } = experiment;
  const columns = useMemo(
    () => trialColumns({ best_trial, hyperparameters, is_inference, metric, search, smaller_is_better }),
    [best_trial, hyperparameters, is_inference, metric, search, smaller_is_better],
  );
  const glance = useMemo(() => trialGlance({ best_trial, is_inference, metric }), [best_trial, is_inference, metric]);
  const chosen = view.columns.length > 0 ? view.columns : usualColumns(columns);
  const shown = useMemo(() => chosenColumns(columns, view.columns.length > 0 ? view.columns : usualColumns(columns)), [columns, view.columns]);
  const sort = view.sort === "" ? usualSort(experiment) : view.sort;
  const query = { q: view.q, ...(view.state === NEVER_FITS ? { where: "never_fits = true" } : { state: view.state }), sort: sort.replace(/^-/, ""), order: sort.startsWith("-") ? "desc" : "asc" };
  const rows = useRows<TrialRow>("trials", { experiment_id, ...query }, { everyMs: isOpen(experiment) ? LIVE_MS : null });
  const picked = useMemo(() => new Set<number | string>(view.pick.map(Number)), [view.pick]);
  const isFiltered = view.q !== "" || view.state !== "";
  const clear = () => setView({ q: "", state: "" }, "add");
  return (
    <>
      <HStack gap={2} mb={2} wrap="wrap">
        <SearchBar onChange={(q) => setView({ q })} placeholder="Search names, tags and values" value={view.q} />
        <FilterSelect all="All states" label="Filter by state" multiple={false} onChange={([next = ""]) => setView({ state: next }, "add")} options={STATES} render={(item) => <StateBadge state={item} />} value={view.state === "" ? [] : [view.state]} />
        <ColumnsMenu chosen={chosen} columns={columns} onChange={(next) => setView({ columns: next })} />
        <Text color="fg.muted" fontSize="sm">
          {rows.loading ? "" : plural(rows.total, "trial")}
        </Text>
        <Spacer />
        {view.pick.length > 0 ? (
          <Button onClick={() => setView({ pick: [] })} size="sm" variant="ghost">
            Clear the selection
          </Button>
        ) : null}
        <Button
          disabled={view.pick.length < 2 || view.pick.length > MOST_COMPARED}
          onClick={() => void navigate(paths.compare(view.pick))}
          size="sm"
          title={`Select 2 to ${MOST_COMPARED} trials to compare them`}
          variant="outline"
        >
          Compare{view.pick.length > 0 ? ` ${view.pick.length}` : ""}
        </Button>
        <Button asChild size="sm" variant="outline">
          <a download href={apiUrl(withQuery(`experiments/${experiment_id}/trials.csv`, query))}>
            <Icon name="download" /> CSV
          </a>
        </Button>
      </HStack>
      <DataTable
        columns={shown}
        empty={
          isFiltered ? (
            <EmptyState title="No trial matches the filters.">
              <Button onClick={clear} size="sm" variant="outline">
                Clear the filters
              </Button>
            </EmptyState>
          ) : (
            <EmptyState text="Trials appear when the tasks of the DAG run submit them." title="The experiment has no trial yet." />
          )
        }
        glance={glance}
        isMarked={({ trial_id }) => trial_id === best_trial}
        label="Trials"
        leastPx={LEAST_PX}
        onOpen={({ trial_id }) => void navigate(paths.trial(trial_id))}
        onSelect={({ trial_id }) => setView({ pick: toggled(view.pick, String(trial_id)) })}
        onSort={(next) => setView({ sort: next })}
        rowKey={keyOf}
        rows={rows}
        selected={picked}
        sort={sort}
        what="Trials"
      />
    </>
  );
};
