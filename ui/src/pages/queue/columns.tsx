import { ActionsMenu } from "../../actions/ActionsMenu";
import { type Action } from "../../actions/ask";
import { gangActions, trialActions } from "../../actions/trials";
import { type Gang } from "../../api/types";
import { paths } from "../../app/paths";
import { Icon } from "../../components/icons";
import { PageLink, TaskLinks } from "../../components/Links";
import { StateBadge } from "../../components/StateBadge";
import { type Column, type Glance } from "../../components/table/DataTable";
import { Since, Time } from "../../components/Time";
import { count, NONE } from "../../format/numbers";
import { withoutCommand } from "../../lib/nextStep";
import { shownState } from "../../lib/states";
import { withoutNumber } from "../../lib/shortNames";
import { ranges } from "../trial/words";

/** Meaning of the classes, in which the queue orders requests of one priority. A test compares them with docs/scheduling.md. */
export const CLASSES: Record<NonNullable<Gang["queue_class"]>, string> = {
  protected: "It has waited max_wait (28 h) in all, a gang that needs several hosts 9/10 of it, and is among those that waited longest and together take at most protected_share (0.49) of the pool's slots.",
  fresh: "Its gangs have used less than fresh (5 slot-hours).",
  young: "Its gangs have used less than young (17 slot-hours).",
  overdue: "It is at most one step of waiting behind the protected ones: 1/16 of the wait until protection, or, while those fill their share, one step behind the last of them.",
  old: "It is none of these.",
};

/** Return a placement in words: gpu-01 (0-3), gpu-02 (0, 2). */
export const placementWords = (placement: Record<string, number[]>): string =>
  Object.entries(placement)
    .map(([host, indices]) => `${host} (${ranges(indices)})`)
    .join(", ");

/** Name of a row's gang for dialogs. */
const nameOf = ({ trial_id, task }: Gang): string => (trial_id === null ? `the held gang of ${task.dag_id}.${task.task_id}` : `trial ${trial_id}`);

/** Return what the user may do with a gang. */
export const rowActions = (row: Gang, mayChangePriority: boolean): Action[] => {
  if (row.kind === "held_gang") return gangActions(row.allocation_id, nameOf(row), row.may_edit);
  if (row.trial_id === null) return [];
  return trialActions({ ...row, trial_id: row.trial_id, name: nameOf(row), paused: row.is_paused, may_change_priority: mayChangePriority && row.queue_class !== null });
};

/** Return a reason as a sentence: some are written as the second half of one. */
export const sentence = (reason: string): string => reason.charAt(0).toUpperCase() + reason.slice(1);

/** Return the number that an external scheduler gave to the job of a gang, empty without one. */
export const jobText = (job: Gang["job"]): string => (job === null || job.number === null ? "" : `Job ${job.number}`);

const whereAndWhy = (job: Gang["job"], placement: Gang["placement"], reason: string | null): string =>
  [jobText(job), placementWords(placement), reason === null ? "" : sentence(withoutCommand(reason))].filter((part) => part !== "").join(". ");

/** Words of reasons and expected starts that have a meaning of their own in the queue. */
const TERMS: readonly (readonly [pattern: RegExp, meaning: string])[] = [
  [/\bclosest\b/i, "closest: the host or hosts on which the fewest slots are missing."],
  [/\breserved\b/i, "reserved: kept free for one request, so that narrow gangs do not starve it."],
  [/\bprotected\b/i, "protected: it waited max_wait and is among those that waited longest; no request that waited less by a step passes or preempts it."],
];

/** Return the meanings of the terms that a text has. */
export const termsOf = (text: string): string[] => TERMS.filter(([pattern]) => pattern.test(text)).map(([, meaning]) => meaning);

/** A text of up to two lines. In a column that shows it in full, the meanings of its terms are below it. */
const TwoLines = ({ text }: { text: string }) => (
  <>
    <span className="dtrain-two-lines">{text}</span>
    {termsOf(text).map((term) => (
      <span className="dtrain-term" key={term}>
        {term}
      </span>
    ))}
  </>
);

const stateOf = (row: Gang) => (row.is_paused ? "paused" : shownState(row));

/** A gang on a phone: state and trial, then why it waits or where it runs. */
export const QUEUE_GLANCE: Glance<Gang> = {
  header: "State, trial, reason",
  covers: ["state", "trial", "reason"],
  top: (row) => (
    <>
      <StateBadge state={stateOf(row)} />
      {row.trial_id === null ? <span className="dtrain-cut">Held gang</span> : <PageLink to={paths.trial(row.trial_id)}>Trial {row.trial_id}</PageLink>}
      <span className="dtrain-cut">{row.experiment}</span>
    </>
  ),
  below: ({ job, reason, placement }) => whereAndWhy(job, placement, reason),
  wraps: () => true,
  lines: 3,
};

/** Columns of the queue. */
export const queueColumns = (mayChangePriority: boolean, onDone: () => void): Column<Gang>[] => [
  { id: "position", header: "#", sort: "position", width: 56, align: "end", cell: ({ position }) => (position === null ? NONE : count(position)) },
  {
    id: "trial",
    header: "Trial",
    width: 160,
    cell: (row) =>
      row.trial_id === null ? (
        "Held gang, no trial now"
      ) : (
        <PageLink title={row.trial_name ?? undefined} to={paths.trial(row.trial_id)}>
          Trial {row.trial_id}{row.trial_name === null ? "" : `: ${withoutNumber(row.trial_name)}`}
        </PageLink>
      ),
  },
  {
    id: "experiment",
    header: "Experiment",
    sort: "experiment",
    width: 130,
    cell: ({ experiment_id, experiment }) =>
      experiment_id === null ? experiment : <PageLink title={experiment} to={paths.experiment(experiment_id)}>{experiment}</PageLink>,
  },
  {
    id: "state",
    header: "State",
    sort: "state",
    width: 124,
    cell: (row) => (
      <span className="dtrain-row">
        <StateBadge state={stateOf(row)} />
        {row.unfollowed_since === null ? null : (
          <span className="dtrain-warning" title="Its follower is gone. Recovery takes it over.">
            <Icon name="warning" />
            <span className="dtrain-hidden">Its follower is gone.</span>
          </span>
        )}
      </span>
    ),
  },
  {
    id: "reason",
    header: "Hosts (slots), reason",
    width: 260,
    full: true,
    cell: ({ job, reason, placement }) => <TwoLines text={whereAndWhy(job, placement, reason)} />,
  },
  {
    id: "expected",
    header: "Expected start",
    width: 150,
    full: true,
    cell: ({ expected, expected_at, job }) => (expected_at === null ? expected === null ? null : <TwoLines text={expected} /> : <span className="dtrain-two-lines" title={expected ?? undefined}>{job === null ? "by" : "about"} <Time at={expected_at} /></span>),
  },
  { id: "since", header: "Since", sort: "since", width: 114, cell: ({ since }) => <Since at={since} /> },
  { id: "slots", header: "Slots", sort: "slots", width: 66, align: "end", cell: ({ slots }) => count(slots) },
  { id: "priority", header: "Priority", sort: "priority", width: 80, align: "end", cell: ({ priority }) => String(priority) },
  { id: "queue_class", header: "Class", width: 66, cell: ({ queue_class }) => queue_class === null ? NONE : <span title={`${CLASSES[queue_class]} Values in brackets are the defaults of a pool.`}>{queue_class}</span> },
  { id: "placement", header: "Hosts (slots)", width: 170, optional: true, cell: ({ placement }) => placementWords(placement) || NONE },
  { id: "job", header: "Job", width: 80, optional: true, cell: ({ job }) => job?.number ?? NONE },
  { id: "pool", header: "Pool", sort: "pool", width: 70, cell: ({ pool }) => pool },
  { id: "task", header: "Task, DAG", width: 190, optional: true, cell: ({ task }) => <TaskLinks task={task} /> },
  { id: "attempt", header: "Attempt", width: 80, align: "end", optional: true, cell: ({ attempt }) => count(attempt) },
  { id: "allocation_id", header: "Gang id", width: 80, align: "end", optional: true, cell: ({ allocation_id }) => String(allocation_id) },
  {
    id: "actions",
    header: "Actions",
    width: 70,
    pinned: true,
    cell: (row) => <ActionsMenu actions={rowActions(row, mayChangePriority)} label={`Actions of ${nameOf(row)}`} onDone={onDone} />,
  },
];
