import { Button, Flex, Heading, Spacer, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";
import { useNavigate } from "react-router-dom";

import { apiUrl, withQuery } from "../../api/client";
import { type Run, type RunChart, type RunGroup, type RunGroupPage, type RunNames, type RunPage, type RunView, type RunViews } from "../../api/runs";
import { paths } from "../../app/paths";
import { EmptyState } from "../../components/EmptyState";
import { Icon } from "../../components/icons";
import { DataTable } from "../../components/table/DataTable";
import { plural } from "../../format/numbers";
import { useData } from "../../hooks/useData";
import { type Rows, useRows } from "../../hooks/useRows";
import { useUrlState } from "../../hooks/useUrlState";
import { CREATE_FIRST } from "../../lib/commands";
import { MOST_COMPARED, toggled } from "../experiment/TrialList";
import { ChosenNames } from "./ChosenNames";
import { allNames, isOfExpression } from "./expressions";
import { FilterBar } from "./FilterBar";
import { chartOf, chartText, RunCharts } from "./RunCharts";
import { groupColumns, runColumns } from "./runColumns";
import { ViewsMenu } from "./ViewsMenu";

const LATEST = "-trial";
const LARGEST = "-trials";

const USUAL = {
  where: "",
  columns: ["experiment", "state", "best", "tag", "created"] as readonly string[],
  by: [] as readonly string[],
  sort: "",
  chart: [] as readonly string[],
  pick: [] as readonly string[],
  view: "",
};

const NO_NAMES: RunNames = { facts: [], params: [], metrics: [] };
const NAMES_MS = 60_000;
const EVERY_MS = 5_000;

/** Least height of the table, in pixels: charts above it may fill the window. */
const LEAST_PX = 400;

/** Return rows without an error that the page shows elsewhere. */
const without = <R, P extends { rows: R[]; total: number }>(rows: Rows<R, P>, isShown: boolean): Rows<R, P> => (isShown ? { ...rows, error: null } : rows);

const keyOf = ({ trial_id }: Run) => trial_id;
const groupKey = ({ keys }: RunGroup) => JSON.stringify(keys);

/** Trials of all experiments that the user may read, with columns of any fact, hyperparameter and metric, or groups of them. */
export const RunsPage = () => {
  const [view, setView] = useUrlState(USUAL);
  const navigate = useNavigate();
  const [isAdding, setAdding] = useState(false);
  const names = useData<RunNames>("runs/names", { everyMs: NAMES_MS }).data ?? NO_NAMES;
  const views = useData<RunViews>("runs/views", { everyMs: NAMES_MS });
  const options = useMemo(() => allNames(names), [names]);
  const charts = useMemo(() => view.chart.map(chartOf).filter((chart): chart is RunChart => chart !== null), [view.chart]);
  const isGrouped = view.by.length > 0;
  const sort = view.sort === "" ? (isGrouped ? LARGEST : LATEST) : view.sort;
  const sorting = { sort: sort.replace(/^-/, "").replace(/^trials$/, ""), order: sort.startsWith("-") ? "desc" : "asc" };
  const query = { where: view.where, column: view.columns, ...sorting };
  const trials = useRows<Run, RunPage>(isGrouped ? null : "runs", query, { everyMs: EVERY_MS });
  const groups = useRows<RunGroup, RunGroupPage>(isGrouped ? "runs/groups" : null, { ...query, by: view.by }, { everyMs: EVERY_MS });
  const { error, answer } = isGrouped ? groups : trials;
  const wrong = error !== null && isOfExpression(error.message) ? error.message : null;
  const columns = useMemo(() => runColumns(view.columns, trials.answer?.smaller_is_better ?? []), [view.columns, trials.answer?.smaller_is_better]);
  const grouped = useMemo(() => groupColumns(groups.answer ?? { by: view.by.slice(), columns: [], smaller_is_better: [] }), [groups.answer, view.by]);
  const picked = useMemo(() => new Set<number | string>(view.pick.map(Number)), [view.pick]);
  const show = (chosen: RunView | null) => {
    if (chosen === null) setView({ view: "" }, "add");
    else setView({ view: String(chosen.view_id), where: chosen.where, columns: chosen.columns, by: chosen.by, sort: chosen.sort, chart: chosen.charts.map(chartText), pick: [] }, "add");
  };
  const apply = (where: string) => setView({ where, pick: [] }, "add");
  const onSort = (next: string) => setView({ sort: next });
  // An order by a column that the table does not have any longer is none.
  const onColumns = (next: readonly string[]) => setView({ columns: next, ...(isGrouped ? { sort: "" } : {}) });
  const hint = !isGrouped && trials.answer !== undefined ? trials.answer.hint : null;
  const empty =
    view.where === "" ? (
      <EmptyState command={CREATE_FIRST} text="Create the first one on a machine with Airflow:" title="There is no trial yet." />
    ) : (
      <EmptyState text={hint ?? undefined} title={wrong === null ? "No trial matches the filter." : "The filter cannot be read."}>
        <Button onClick={() => apply("")} size="sm" variant="outline">
          Clear the filter
        </Button>
      </EmptyState>
    );
  const title = answer === undefined ? "Runs" : plural(answer.total, isGrouped ? "group" : "trial");
  return (
    <>
      <Flex align="center" gap={2} mb={2} wrap="wrap">
        <Heading size="md">{title}</Heading>
        <Spacer />
        <ViewsMenu definition={{ where: view.where, columns: view.columns, by: view.by, sort: view.sort, charts }} onDone={views.refresh} onShow={show} shown={view.view} views={views.data} />
        <Button aria-expanded={isAdding} onClick={() => setAdding(!isAdding)} size="sm" variant="outline">
          <Icon name="activity" /> Pin a chart
        </Button>
        {isGrouped ? null : (
          <Button
            disabled={view.pick.length < 2 || view.pick.length > MOST_COMPARED}
            onClick={() => void navigate(paths.compare(view.pick))}
            size="sm"
            title={`Select 2 to ${MOST_COMPARED} trials to compare them`}
            variant="outline"
          >
            Compare{view.pick.length > 0 ? ` ${view.pick.length}` : ""}
          </Button>
        )}
        <Button asChild size="sm" variant="outline">
          <a download href={apiUrl(withQuery("runs.csv", { ...query, by: view.by }))}>
            <Icon name="download" /> CSV
          </a>
        </Button>
      </Flex>
      <FilterBar names={names} onApply={apply} where={view.where} wrong={wrong} />
      <Flex columnGap={4} mb={2} rowGap={2} wrap="wrap">
        <ChosenNames chosen={view.columns} label="Columns" onChange={onColumns} options={options} placeholder="Add a column" />
        <ChosenNames chosen={view.by} label="Groups" onChange={(by) => setView({ by, sort: "", pick: [] }, "add")} options={["params", ...options.filter((name) => name !== "tag")]} placeholder="Group by" />
      </Flex>
      <RunCharts
        charts={charts}
        isAdding={isAdding}
        metrics={names.metrics}
        names={options}
        onChange={(next) => {
          setView({ chart: next.map(chartText) });
          setAdding(false);
        }}
        query={{ where: view.where, ...(isGrouped ? { sort: "trial", order: "desc" } : sorting) }}
      />
      {isGrouped ? (
        <DataTable columns={grouped} empty={empty} label="Groups of trials" leastPx={LEAST_PX} onSort={onSort} rowKey={groupKey} rows={without(groups, wrong !== null)} sort={sort} what="Groups" />
      ) : (
        <DataTable
          columns={columns}
          empty={empty}
          label="Trials"
          leastPx={LEAST_PX}
          onOpen={({ trial_id }) => void navigate(paths.trial(trial_id))}
          onSelect={({ trial_id }) => setView({ pick: toggled(view.pick, String(trial_id)) })}
          onSort={onSort}
          rowKey={keyOf}
          rows={without(trials, wrong !== null)}
          selected={picked}
          sort={sort}
          what="Trials"
        />
      )}
      <Text srOnly>Arrow keys move between rows, Enter opens a trial.</Text>
    </>
  );
};
