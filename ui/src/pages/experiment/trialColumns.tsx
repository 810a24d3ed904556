import { type TrialRow } from "../../api/charts";
import { type Experiment } from "../../api/experiment";
import { paths } from "../../app/paths";
import { textOf } from "../../charts/dimensions";
import { PageLink } from "../../components/Links";
import { StateBadge } from "../../components/StateBadge";
import { type Column, type Glance } from "../../components/table/DataTable";
import { Tags } from "../../components/Tags";
import { Time } from "../../components/Time";
import { count, NONE, number, percent } from "../../format/numbers";
import { duration } from "../../format/times";
import { own } from "../../lib/own";
import { shownState } from "../../lib/states";
import { idAndNumber } from "../../lib/trials";

/** Return a value of a hyperparameter as the table shows it. */
export const hparamText = (value: unknown): string => (typeof value === "number" ? (Number.isInteger(value) ? String(value) : number(value)) : textOf(value));

/** Hyperparameters with columns of their own, until the user chooses others. */
const SHOWN = 5;

/** Return the width of a column whose header is a name, in pixels. */
const widthOf = (name: string): number => Math.max(80, Math.min(160, 7 * name.length + 36));

/** Return how long a trial has trained, in the unit of the search if it reported it. */
export const trainedText = ({ units: done, epochs, rung }: Pick<TrialRow, "epochs" | "rung" | "units">, units: string | undefined): string => {
  if (rung !== null || done === null || units === undefined || units === "batches") return count(done);
  return units === "epochs" && epochs !== null ? number(epochs) : `step ${count(done)}`;
};

/** Return the share of the planned length that a running trial has trained: " (24 %)". */
const shareText = ({ progress }: Pick<TrialRow, "progress">): string =>
  progress?.share === null || progress?.share === undefined ? "" : ` (${percent(progress.share)})`;

/** Return how many shards of a batch inference are done, in words. */
const shardsText = ({ shards }: TrialRow): string => (shards === null ? NONE : `${count(shards.done)} of ${count(shards.total)}${shards.skipped === 0 ? "" : `, ${count(shards.skipped)} set aside`}`);

/** Columns of batch inferences, in place of those of a training. */
const INFERENCE_COLUMNS: readonly Column<TrialRow>[] = [
  { id: "shards", header: "Shards", width: 150, align: "end", cell: shardsText },
  { id: "rows", header: "Rows", width: 120, align: "end", cell: ({ shards }) => (shards === null ? NONE : count(shards.rows_done)) },
  { id: "rows_bad", header: "Bad rows", width: 90, align: "end", cell: ({ shards }) => (shards === null ? NONE : count(shards.rows_bad)) },
  { id: "rows_per_s", header: "Rows per second", width: 140, align: "end", cell: ({ shards }) => number(shards?.rows_per_s ?? null) },
];

/** A trial on a phone: state and name, then its best value, or the shards of a batch inference, and the reason. */
export const trialGlance = ({ best_trial, is_inference, metric }: Pick<Experiment, "best_trial" | "is_inference" | "metric">): Glance<TrialRow> => ({
  header: is_inference ? "State, trial, shards" : "State, trial, best",
  covers: ["state", "trial", is_inference ? "shards" : "best_metric", "reason"],
  top: (row) => (
    <>
      <StateBadge state={shownState(row)} />
      <PageLink to={paths.trial(row.trial_id)}>
        {row.display_name ?? `Trial ${row.trial_id}`}
        {row.trial_id === best_trial ? " (best)" : ""}
      </PageLink>
    </>
  ),
  below: (row) => [is_inference ? `${shardsText(row)} shards` : row.best_metric === null ? "" : `${metric ?? "best"} ${number(row.best_metric)}`, row.reason ?? ""].filter(Boolean).join(", ") || NONE,
  wraps: ({ reason }) => reason !== null,
});

/** Columns of the table of trials: one per hyperparameter of the experiment. */
export const trialColumns = (experiment: Pick<Experiment, "best_trial" | "hyperparameters" | "is_inference" | "metric" | "search" | "smaller_is_better">): Column<TrialRow>[] => {
  const varied = experiment.hyperparameters.filter(({ kind }) => kind !== "const");
  const constant = experiment.hyperparameters.filter(({ kind }) => kind === "const");
  const units = experiment.search?.units;
  const hasBrackets = Object.keys(experiment.search?.rungs ?? {}).length > 1;
  return [
    {
      id: "trial",
      header: "Trial",
      width: 110,
      cell: ({ trial_id, number: place, name, display_name }) => (
        <PageLink title={`${idAndNumber({ trial_id, number: place })}: ${name}`} to={paths.trial(trial_id)}>
          {display_name ?? `Trial ${trial_id}`}
          {trial_id === experiment.best_trial ? " (best)" : ""}
        </PageLink>
      ),
    },
    { id: "number", header: "Number", sort: "number", width: 74, align: "end", optional: true, cell: ({ number: place }) => String(place) },
    { id: "state", header: "State", sort: "state", width: 124, cell: (row) => <StateBadge state={shownState(row)} /> },
    ...(experiment.is_inference ? INFERENCE_COLUMNS : []),
    {
      id: "best_metric",
      optional: experiment.is_inference,
      header: experiment.metric === null ? "Best" : `Best ${experiment.metric}`,
      sort: "best_metric",
      descends: !experiment.smaller_is_better,
      width: 120,
      align: "end",
      cell: ({ best_metric }) => number(best_metric),
    },
    ...varied.map(({ name }, index): Column<TrialRow> => ({
      id: `hparams.${name}`, header: name, sort: `hparams.${name}`, width: widthOf(name), align: "end", optional: index >= SHOWN, cell: ({ hparams }) => hparamText(own(hparams, name)),
    })),
    { id: "units", header: units === undefined ? "Trained" : `Trained (${units})`, sort: "units", width: 130, align: "end", optional: experiment.is_inference, cell: (row) => `${trainedText(row, units)}${shareText(row)}` },
    { id: "bracket", header: "Bracket", width: 78, align: "end", optional: !hasBrackets, cell: ({ bracket }) => String(bracket) },
    { id: "rung", header: "Rung", sort: "rung", width: 66, align: "end", optional: experiment.search === null, cell: ({ rung }) => (rung === null ? NONE : String(rung)) },
    { id: "best_step", header: "Best at step", width: 120, align: "end", optional: true, cell: ({ best_step }) => count(best_step) },
    { id: "duration_s", header: "Duration", sort: "duration_s", width: 98, align: "end", cell: ({ duration_s }) => duration(duration_s) },
    { id: "restarts", header: "Restarts", width: 90, align: "end", optional: true, cell: ({ restarts }) => String(restarts) },
    { id: "reason", header: "Reason", width: 170, pinned: true, full: true, cell: ({ reason }) => reason ?? "" },
    { id: "tags", header: "Tags", width: 140, optional: true, cell: ({ tags }) => <Tags tags={tags} /> },
    { id: "description", header: "Description", width: 220, optional: true, cell: ({ description }) => description },
    {
      id: "task",
      header: "Task",
      width: 180,
      optional: true,
      cell: ({ task }) => (
        <PageLink to={paths.task(task)}>
          {task.task_id}
          {task.map_index >= 0 ? ` [${task.map_index}]` : ""}
        </PageLink>
      ),
    },
    { id: "created_at", header: "Created", sort: "created_at", width: 175, optional: true, cell: ({ created_at }) => <Time at={created_at} /> },
    ...constant.map(({ name }): Column<TrialRow> => ({
      id: `hparams.${name}`, header: name, width: 120, align: "end", optional: true, cell: ({ hparams }) => hparamText(own(hparams, name)),
    })),
  ];
};
