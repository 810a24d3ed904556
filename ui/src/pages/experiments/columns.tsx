import { ActionsMenu } from "../../actions/ActionsMenu";
import { type Shortcut } from "../../actions/ask";
import { experimentActions, experimentState, isOpen } from "../../actions/experiments";
import { type ExperimentRow } from "../../api/types";
import { paths } from "../../app/paths";
import { PageLink } from "../../components/Links";
import { ProgressBar } from "../../components/ProgressBar";
import { StateBadge } from "../../components/StateBadge";
import { type Column, type Glance } from "../../components/table/DataTable";
import { Tags } from "../../components/Tags";
import { Elapsed, Since, Time } from "../../components/Time";
import { count, NONE, number } from "../../format/numbers";
import { withoutCommand } from "../../lib/nextStep";
import { type Offer, OFFERS } from "./bulk";

/** Order in which states of trials are counted. */
const ORDER = ["running", "queued", "paused", "completed", "stopped", "errored", "killed"];

/** Return the numbers of trials by state in words: 3 running, 12 completed. */
export const trialsInWords = (trials: Record<string, number>): string => {
  const states = [...ORDER, ...Object.keys(trials).filter((state) => !ORDER.includes(state)).sort()];
  const parts = states.filter((state) => (trials[state] ?? 0) > 0).map((state) => `${count(trials[state])} ${state}`);
  return parts.length === 0 ? NONE : parts.join(", ");
};

/** Return the numbers of trials by state, and why none of them can run. */
const trialsText = ({ trials, reason }: ExperimentRow): string => (reason === null ? trialsInWords(trials) : `${trialsInWords(trials)}: ${withoutCommand(reason)}`);

const Best = ({ row: { best, best_trial, metric, smaller_is_better } }: { row: ExperimentRow }) => {
  if (best === null || best_trial === null) return <>{NONE}</>;
  return (
    <span className="dtrain-row">
      <PageLink title={`Trial ${best_trial}`} to={paths.trial(best_trial)}>
        {number(best)}
      </PageLink>
      <span className="dtrain-muted dtrain-small dtrain-cut" title={`${metric ?? ""}, ${smaller_is_better ? "smaller" : "larger"} is better`}>
        {metric}
      </span>
    </span>
  );
};

/** A text that filters by itself. */
const Pick = ({ text, onPick }: { text: string; onPick: () => void }) => (
  <button className="dtrain-tag" onClick={onPick} title={text} type="button">
    {text}
  </button>
);

/** What the rows of the table lead to. */
export interface RowUses {
  onTag: (tag: string) => void;
  /** Show the experiments of an owner or of a project. */
  onPlace: (place: { owner: string } | { project: string }) => void;
  /** Ask for an action on the row. */
  onBulk: (offer: Offer, row: ExperimentRow) => void;
  /** Edit name, description and tags. */
  onEdit: (row: ExperimentRow) => void;
  /** Open the editor with the configuration; null: the user may not start experiments. */
  onFork: ((row: ExperimentRow) => void) | null;
  onDone: () => void;
  mayChangePriority: boolean;
}

const placing = (row: ExperimentRow, onBulk: RowUses["onBulk"]): Shortcut[] =>
  [...(isOpen(row) ? [] : [row.archived ? OFFERS.unarchive : OFFERS.archive]), OFFERS.move, ...(isOpen(row) ? [] : [OFFERS.delete])].map((offer) => ({
    id: offer.action, label: offer.verb, icon: offer.icon, open: () => onBulk(offer, row),
  }));

const shortcuts = (row: ExperimentRow, { onEdit, onFork, onBulk }: RowUses): Shortcut[] => [
  ...(row.may_edit ? [{ id: "labels", label: "Edit name and tags", icon: "pencil", open: () => onEdit(row) } as const] : []),
  ...(onFork === null ? [] : [{ id: "fork", label: "Fork", icon: "copy", open: () => onFork(row) } as const]),
  ...(row.may_edit ? placing(row, onBulk) : []),
];

/** An experiment on a phone: state and name, then its best value and its trials. */
export const EXPERIMENTS_GLANCE: Glance<ExperimentRow> = {
  header: "State, name, best",
  covers: ["state", "name", "best"],
  top: (row) => (
    <>
      <StateBadge state={experimentState(row)} />
      <PageLink to={paths.experiment(row.experiment_id)}>{row.display_name ?? row.name}</PageLink>
    </>
  ),
  below: (row) => (row.best === null ? trialsText(row) : `${row.metric ?? "best"} ${number(row.best)}, ${trialsText(row)}`),
  wraps: ({ reason }) => reason !== null,
};

/** Columns of the table of experiments. */
export const experimentColumns = (uses: RowUses): Column<ExperimentRow>[] => [
  { id: "experiment_id", header: "Id", width: 70, align: "end", cell: ({ experiment_id }) => String(experiment_id), optional: true },
  {
    id: "name",
    header: "Name",
    sort: "name",
    width: 190,
    cell: ({ experiment_id, name, display_name, description }) => (
      <PageLink title={[display_name, name, description].filter(Boolean).join(", ")} to={paths.experiment(experiment_id)}>
        {display_name ?? name}
      </PageLink>
    ),
  },
  { id: "state", header: "State", sort: "state", width: 124, cell: (row) => <StateBadge state={experimentState(row)} /> },
  { id: "progress", header: "Progress", sort: "progress", width: 120, cell: ({ progress }) => <ProgressBar share={progress} /> },
  { id: "trials", header: "Trials", width: 165, full: true, cell: trialsText },
  { id: "best", header: "Best", sort: "best", width: 150, cell: (row) => <Best row={row} /> },
  { id: "method", header: "Searcher", sort: "method", width: 120, cell: ({ method }) => method ?? NONE, optional: true },
  { id: "owner", header: "Owner", sort: "owner", width: 100, cell: ({ owner }) => (owner === "" ? NONE : <Pick onPick={() => uses.onPlace({ owner })} text={owner} />) },
  { id: "project", header: "Project", sort: "project", width: 115, cell: ({ project }) => <Pick onPick={() => uses.onPlace({ project })} text={project} />, optional: true },
  { id: "tags", header: "Tags", width: 115, cell: ({ tags }) => <Tags onPick={uses.onTag} tags={tags} /> },
  { id: "expected_end", header: "Expected end", width: 105, cell: ({ expected_end, ended_at }) => (ended_at === null ? <Since at={expected_end} /> : NONE), optional: true },
  {
    id: "dag_id",
    header: "DAG run",
    sort: "dag_id",
    width: 125,
    cell: ({ dag_id, run_id }) => <PageLink title={run_id} to={paths.run(dag_id, run_id)}>{dag_id}</PageLink>,
  },
  { id: "created_at", header: "Created", sort: "created_at", width: 160, cell: ({ created_at }) => <Time at={created_at} /> },
  { id: "duration", header: "Duration", width: 110, cell: ({ created_at, ended_at }) => <Elapsed from={created_at} until={ended_at} />, optional: true },
  { id: "ended_at", header: "Ended", sort: "ended_at", width: 175, cell: ({ ended_at }) => <Time at={ended_at} />, optional: true },
  { id: "description", header: "Description", width: 240, cell: ({ description }) => description, optional: true },
  {
    id: "actions",
    header: "Actions",
    width: 68,
    pinned: true,
    cell: (row) => (
      <ActionsMenu actions={[...shortcuts(row, uses), ...experimentActions(row, uses.mayChangePriority)]} label={`Actions of experiment ${row.experiment_id}`} onDone={uses.onDone} />
    ),
  },
];
