import { Button, Flex, Heading, HStack, Spacer, Text } from "@chakra-ui/react";
import { useCallback, useMemo, useState } from "react";
import { Link, useNavigate } from "react-router-dom";

import { apiUrl, withQuery } from "../../api/client";
import { type ExperimentRow, type Experiments } from "../../api/types";
import { paths } from "../../app/paths";
import { EmptyState } from "../../components/EmptyState";
import { FilterSelect } from "../../components/FilterSelect";
import { Fold } from "../../components/Fold";
import { Icon } from "../../components/icons";
import { LabelsDialog } from "../../components/LabelsDialog";
import { SearchBar } from "../../components/SearchBar";
import { StateBadge } from "../../components/StateBadge";
import { chosenColumns, ColumnsMenu, usualColumns } from "../../components/table/ColumnsMenu";
import { DataTable } from "../../components/table/DataTable";
import { plural } from "../../format/numbers";
import { useIsNarrow } from "../../hooks/useIsNarrow";
import { useMe } from "../../hooks/useMe";
import { useRows } from "../../hooks/useRows";
import { useUrlState } from "../../hooks/useUrlState";
import { CREATE_FIRST } from "../../lib/commands";
import { NEVER_FITS } from "../../lib/states";
import { type Offer } from "./bulk";
import { BulkBar } from "./BulkBar";
import { BulkDialog } from "./BulkDialog";
import { EXPERIMENTS_GLANCE, experimentColumns } from "./columns";
import { useOwner } from "./owner";
import { OwnerChoice, PlaceFilters } from "./PlaceFilters";

/** Limit of the API for one request. */
const MOST_SELECTED = 200;

const STATES = ["queued", NEVER_FITS, "running", "completed", "errored", "killed"];

const USUAL = {
  q: "",
  state: "",
  tag: [] as readonly string[],
  dag_id: "",
  owner: "",
  project: "",
  archived: "",
  selected: [] as readonly string[],
  sort: "-created_at",
  columns: usualColumns(
    experimentColumns({ onTag: () => undefined, onPlace: () => undefined, onEdit: () => undefined, onFork: null, onBulk: () => undefined, onDone: () => undefined, mayChangePriority: false }),
  ) as readonly string[],
};

const keyOf = ({ experiment_id }: ExperimentRow) => experiment_id;

/** Table of all experiments that the user may read. */
export const ExperimentsPage = () => {
  const [view, setView] = useUrlState(USUAL);
  const navigate = useNavigate();
  const isNarrow = useIsNarrow();
  const choose = useCallback((owner: string) => setView({ owner }), [setView]);
  const { owner, user } = useOwner(view.owner, choose);
  const filters = { q: view.q, ...(view.state === NEVER_FITS ? { never_fits: "true" } : { state: view.state }), tag: view.tag, dag_id: view.dag_id, owner: owner ?? "", project: view.project, archived: view.archived };
  const sorting = { sort: view.sort.replace(/^-/, ""), order: view.sort.startsWith("-") ? "desc" : "asc" };
  const rows = useRows<ExperimentRow, Experiments>(owner === null ? null : "experiments", { ...filters, ...sorting });
  const [edited, setEdited] = useState<ExperimentRow | null>(null);
  const [bulk, setBulk] = useState<{ offer: Offer; ids: readonly number[] } | null>(null);
  const selected = useMemo(() => new Set(view.selected.filter((id) => /^\d{1,15}$/.test(id)).map(Number)), [view.selected]);
  const me = useMe();
  const mayChangePriority = me?.may_change_hosts ?? false;
  const mayStart = me?.starting.may_trigger ?? false;
  const { refresh } = rows;
  const mayAct = rows.answer?.rows.some(({ may_edit }) => may_edit) ?? false;
  const columns = useMemo(
    () =>
      experimentColumns({
        onTag: (tag) => setView({ tag: [tag], selected: [] }, "add"),
        onPlace: (place) => setView({ ...place, selected: [] }, "add"),
        onEdit: setEdited,
        onBulk: (offer, { experiment_id }) => setBulk({ offer, ids: [experiment_id] }),
        onFork: mayStart ? ({ experiment_id }) => void navigate(paths.start(experiment_id)) : null,
        onDone: refresh,
        mayChangePriority,
      }),
    [setView, setEdited, setBulk, refresh, mayStart, mayChangePriority, navigate],
  );
  const shown = useMemo(() => chosenColumns(columns, view.columns), [columns, view.columns]);
  const isOfOther = owner !== null && owner !== "" && owner !== user;
  const isFiltered = view.q !== "" || view.state !== "" || view.tag.length > 0 || view.dag_id !== "" || view.project !== "" || view.archived !== "" || isOfOther;
  const clear = () => setView({ q: "", state: "", tag: [], dag_id: "", owner: "", project: "", archived: "", selected: [] }, "add");
  const empty = isFiltered ? (
    <EmptyState title="No experiment matches the filters.">
      <Button onClick={clear} size="sm" variant="outline">
        Clear the filters
      </Button>
    </EmptyState>
  ) : (
    <EmptyState command={CREATE_FIRST} text="Create the first one on a machine with Airflow:" title="There is no experiment yet." />
  );
  return (
    <>
      <Flex align="center" gap={2} mb={2} wrap="wrap">
        <Heading size="md">{rows.answer === undefined ? "Experiments" : plural(rows.total, "experiment")}</Heading>
        <Spacer />
        <Button asChild size="sm" variant="outline">
          <a download href={apiUrl(withQuery("experiments.csv", { ...filters, ...sorting }))}>
            <Icon name="download" /> CSV
          </a>
        </Button>
        <Button asChild colorPalette="brand" size="sm">
          <Link to={paths.start()}>
            <Icon name="plus" /> New experiment
          </Link>
        </Button>
      </Flex>
      <HStack gap={2} mb={2} wrap="wrap">
        <SearchBar onChange={(q) => setView({ q, selected: [] })} placeholder="Search names" value={view.q} />
        <OwnerChoice onChange={(place) => setView({ ...place, selected: [] }, "add")} owner={view.owner} user={user} />
        <Fold title="Filters and columns">
          <HStack display={isNarrow ? "flex" : "contents"} gap={2} wrap="wrap">
            <FilterSelect all="All states" label="Filter by state" multiple={false} onChange={([state = ""]) => setView({ state, selected: [] }, "add")} options={STATES} render={(state) => <StateBadge state={state} />} value={view.state === "" ? [] : [view.state]} />
            <FilterSelect all="All tags" label="Filter by tag" onChange={(tag) => setView({ tag, selected: [] }, "add")} options={rows.answer?.tags ?? []} value={view.tag} />
            <SearchBar onChange={(dag_id) => setView({ dag_id, selected: [] })} placeholder="DAG id" value={view.dag_id} width="180px" />
            <PlaceFilters
              archived={view.archived}
              onChange={(place) => setView({ ...place, selected: [] }, "add")}
              owner={view.owner}
              owners={rows.answer?.owners ?? []}
              project={view.project}
              projects={rows.answer?.projects ?? []}
              user={user}
            />
            <ColumnsMenu chosen={view.columns} columns={columns} onChange={(next) => setView({ columns: next })} />
          </HStack>
        </Fold>
        {isFiltered ? (
          <Button onClick={clear} size="sm" variant="ghost">
            Clear
          </Button>
        ) : null}
      </HStack>
      {selected.size === 0 || !mayAct ? null : (
        <BulkBar archived={view.archived} count={selected.size} onClear={() => setView({ selected: [] })} onOffer={(offer) => setBulk({ offer, ids: [...selected] })} />
      )}
      <DataTable
        columns={shown}
        empty={empty}
        glance={EXPERIMENTS_GLANCE}
        label="Experiments"
        onOpen={({ experiment_id }) => void navigate(paths.experiment(experiment_id))}
        onSelect={({ experiment_id }, isSelected) =>
          setView({ selected: isSelected ? [...view.selected, String(experiment_id)].slice(-MOST_SELECTED) : view.selected.filter((id) => id !== String(experiment_id)) })
        }
        onSort={(sort) => setView({ sort })}
        rowKey={keyOf}
        rows={owner === null ? { ...rows, loading: true } : rows}
        selected={mayAct ? selected : undefined}
        sort={view.sort}
        what="Experiments"
      />
      {edited === null ? null : (
        <LabelsDialog labels={edited} onClose={() => setEdited(null)} onDone={refresh} path={`experiments/${edited.experiment_id}`} words={`experiment ${edited.experiment_id}`} />
      )}
      {bulk === null ? null : (
        <BulkDialog
          ids={bulk.ids}
          offer={bulk.offer}
          onClose={() => setBulk(null)}
          onDone={() => {
            setView({ selected: [] });
            refresh();
          }}
          projects={rows.answer?.projects ?? []}
        />
      )}
      <Text srOnly>Arrow keys move between rows, Enter opens a row.</Text>
    </>
  );
};
