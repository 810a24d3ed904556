import { type Run, type RunGroup, type RunGroupPage } from "../../api/runs";
import { paths } from "../../app/paths";
import { textOf } from "../../charts/dimensions";
import { PageLink } from "../../components/Links";
import { StateBadge } from "../../components/StateBadge";
import { type Column } from "../../components/table/DataTable";
import { Tags } from "../../components/Tags";
import { Time } from "../../components/Time";
import { count, NONE, number } from "../../format/numbers";
import { duration } from "../../format/times";
import { shownState } from "../../lib/states";

const TIMES = new Set(["created", "ended", "started"]);
const IDS = new Set(["experiment_id", "number", "seed", "trial"]);
/** Columns that no order knows. */
const UNORDERED = new Set(["tag"]);

const widthOf = (name: string): number => Math.max(100, Math.min(220, 8 * name.length + 36));

/** Show a value of a column. */
export const Value = ({ name, value }: { name: string; value: unknown }) => {
  if (value === null || value === undefined) return <>{NONE}</>;
  if (name === "state") return <StateBadge state={String(value)} />;
  if (name === "tag") return <Tags tags={value as string[]} />;
  if (TIMES.has(name)) return <Time at={String(value)} />;
  if (name === "duration") return <>{duration(value as number)}</>;
  if (IDS.has(name)) return <>{String(value)}</>;
  if (typeof value === "number") return <>{Number.isInteger(value) && Math.abs(value) < 1e9 ? String(value) : number(value)}</>;
  return <>{typeof value === "string" && !name.startsWith("params.") ? value : textOf(value)}</>;
};

const alignOf = (name: string): { align?: "end" } => (name.startsWith("metrics.") || name.startsWith("params.") || ["best", "best_step", "duration", "restarts", "rung", "seed", "slots"].includes(name) ? { align: "end" } : {});

/** Columns of the table of trials. */
export const runColumns = (names: readonly string[], smallerIsBetter: readonly (boolean | null)[]): Column<Run>[] => [
  {
    id: "trial",
    header: "Trial",
    sort: "trial",
    width: 120,
    cell: ({ trial_id, name, experiment, number: place }) => (
      <PageLink title={`Trial ${trial_id}, number ${place} of ${experiment}`} to={paths.trial(trial_id)}>
        {name ?? `Trial ${trial_id}`}
      </PageLink>
    ),
  },
  ...names.map((name, index): Column<Run> => ({
    id: name,
    header: name,
    ...(UNORDERED.has(name) ? {} : { sort: name }),
    descends: smallerIsBetter[index] === false,
    width: TIMES.has(name) ? 175 : widthOf(name),
    ...alignOf(name),
    cell: (row) =>
      name === "experiment" ? <PageLink to={paths.experiment(row.experiment_id)}>{row.experiment}</PageLink> : <Value name={name} value={name === "state" ? shownState(row) : row.values[index]} />,
  })),
];

/** Return a mean with its spread: 0.512 ± 0.03. */
export const spreadText = ({ mean, std }: { mean: number | null; std: number | null }): string =>
  mean === null ? NONE : std === null ? number(mean) : `${number(mean)} ± ${number(std, 2)}`;

/** Return the hyperparameters of a group in one line: lr 0.1, opt adam. */
export const paramsText = (value: unknown): string =>
  typeof value === "object" && value !== null
    ? Object.entries(value)
        .map(([name, one]) => `${name} ${typeof one === "number" ? number(one) : textOf(one)}`)
        .join(", ")
    : NONE;

/** Columns of the table of groups: the values in common, the number of trials, and figures of each column. */
export const groupColumns = ({ by, columns, smaller_is_better }: Pick<RunGroupPage, "by" | "columns" | "smaller_is_better">): Column<RunGroup>[] => [
  ...by.map((name, index): Column<RunGroup> => ({
    id: `by ${name}`,
    header: name === "params" ? "All hyperparameters" : name,
    sort: name,
    width: name === "params" ? 320 : widthOf(name),
    cell: ({ keys }) => (name === "params" ? paramsText(keys[index]) : <Value name={name} value={keys[index]} />),
  })),
  { id: "trials", header: "Trials", sort: "trials", width: 80, align: "end", cell: ({ trials }) => count(trials) },
  ...columns.flatMap((name, index): Column<RunGroup>[] => {
    const descends = smaller_is_better[index] === false;
    return [
      {
        id: `mean ${name}`,
        header: `${name}: mean ± std`,
        sort: `mean:${name}`,
        descends,
        width: widthOf(name) + 90,
        align: "end",
        cell: ({ figures }) => {
          const own = figures[index];
          return own === undefined ? NONE : <span title={`of ${count(own.count)} numbers`}>{spreadText(own)}</span>;
        },
      },
      { id: `min ${name}`, header: "min", sort: `min:${name}`, descends, width: 90, align: "end", cell: ({ figures }) => number(figures[index]?.min) },
      { id: `max ${name}`, header: "max", sort: `max:${name}`, descends, width: 90, align: "end", cell: ({ figures }) => number(figures[index]?.max) },
    ];
  }),
];
