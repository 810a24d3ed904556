/** Table of differences between trials. */
import { type Differences } from "../../api/charts";
import { textOf } from "../../charts/dimensions";
import { count, number, plural } from "../../format/numbers";
import { shortDigest } from "../trial/provenance";

export interface DifferenceRow {
  readonly name: string;
  readonly values: readonly string[];
  /** Whether it is a hyperparameter. */
  readonly isHparam: boolean;
  /** A value is not known, so whether the trials differ is not known either. */
  readonly isUnknown: boolean;
}

/** Rows of one subject, such as the packages. */
export interface DifferenceGroup {
  readonly subject: string;
  readonly rows: readonly DifferenceRow[];
}

type Row = Differences["rows"][number];

const HPARAM = "hyperparameters.";
const CONFIGURATION = "configuration";
/** Subjects whose values are digests. */
const OF_DIGESTS: ReadonlySet<string> = new Set(["code", "files"]);

const configText = (text: string): string => {
  const value: unknown = JSON.parse(text);
  return typeof value === "number" ? number(value, 6) : textOf(value);
};

const valueText = ({ subject, is_unknown }: Row, value: string | null): string => {
  if (value === null) return is_unknown ? "unknown" : textOf(null);
  if (subject === CONFIGURATION) return configText(value);
  return OF_DIGESTS.has(subject) && /^[0-9a-f]{64}/.test(value) ? shortDigest(value) : value;
};

const isHparam = ({ subject, name }: Row): boolean => subject === CONFIGURATION && name.startsWith(HPARAM);

const nameOf = ({ subject, name }: Row): string => {
  if (subject === CONFIGURATION) return name.startsWith(HPARAM) ? name.slice(HPARAM.length) : name;
  return name === "" ? subject : `${subject} ${name}`;
};

/** Return how many differences there are, and how many values cannot be compared. */
export const countText = ({ rows }: Differences): string => {
  const unknown = rows.filter(({ is_unknown }) => is_unknown).length;
  return `${plural(rows.length - unknown, "difference")}${unknown === 0 ? "" : `, ${count(unknown)} unknown`}`;
};

/** Return a difference as a row of a table. */
export const shownRow = (row: Row): DifferenceRow => ({ name: nameOf(row), values: row.values.map((value) => valueText(row, value)), isHparam: isHparam(row), isUnknown: row.is_unknown });

/** Return the differences by subject: hyperparameters first, then the rest of the configuration. */
export const differenceGroups = ({ rows }: Differences): DifferenceGroup[] => {
  const groups = new Map<string, DifferenceRow[]>();
  for (const row of [...rows.filter(isHparam), ...rows.filter((one) => !isHparam(one))]) {
    groups.set(row.subject, [...(groups.get(row.subject) ?? []), shownRow(row)]);
  }
  return [...groups].map(([subject, own]) => ({ subject, rows: own }));
};
