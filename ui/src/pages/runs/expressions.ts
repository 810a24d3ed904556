/** Filter expressions: completion of names, and conditions that are built from parts. */
import { type RunNames } from "../../api/runs";

/** Type of a name: that of a fact; metrics are numbers; hyperparameters have any value. */
export type Kind = RunNames["facts"][number]["kind"];

/** Return all names, facts first. */
export const allNames = (names: RunNames): string[] => [...names.facts.map(({ name }) => name), ...names.metrics, ...names.params];

/** Return the type of a name. */
export const kindOf = (names: RunNames, name: string): Kind =>
  name.startsWith("metrics.") ? "number" : name.startsWith("params.") ? "any" : (names.facts.find((fact) => fact.name === name)?.kind ?? "any");

/** The part of a name before the caret, with whole parts in quotes. */
const BEFORE = /(?:[\p{L}\p{N}_/.-]|"[^"]*")*$/u;

/** Return the part of a name before the caret, "" within a text. */
const typedName = (before: string): string => {
  const quotes = before.split('"').length - 1;
  if (quotes % 2 === 0) return BEFORE.exec(before)?.[0] ?? "";
  const open = before.lastIndexOf('"');
  const name = BEFORE.exec(before.slice(0, open))?.[0] ?? "";
  return name.endsWith(".") ? name + before.slice(open) : "";
};

/** Return the start of the name before the caret, and the names that contain it. Within a text there is none. */
export const completions = (text: string, caret: number, names: readonly string[], most: number): { start: number; found: string[] } => {
  const typed = typedName(text.slice(0, caret));
  const start = caret - typed.length;
  if (typed === "" || /^["\d.-]/.test(typed) || names.includes(typed)) return { start, found: [] };
  const lower = typed.toLowerCase();
  const fits = names.filter((name) => name.toLowerCase().includes(lower));
  const begins = fits.filter((name) => name.toLowerCase().startsWith(lower));
  return { start, found: [...new Set([...begins, ...fits])].slice(0, most) };
};

/** Operators of the builder, in words where a sign would not be understood. */
export const operatorsOf = (kind: Kind): readonly string[] => {
  const ordered = ["=", "!=", "<", "<=", ">", ">="];
  if (kind === "number" || kind === "time") return [...ordered, "is missing", "is there"];
  if (kind === "flag") return ["="];
  if (kind === "any") return [...ordered, "contains", "is missing", "is there"];
  return ["=", "!=", "contains", "does not contain", "is missing", "is there"];
};

const SIGNS: Record<string, string> = { contains: "~", "does not contain": "!~" };

const isNumber = (value: string): boolean => value !== "" && Number.isFinite(Number(value));

/** Return a text with quotes. */
export const quoted = (text: string): string => `"${text.replaceAll(/["\\]/g, "\\$&")}"`;

/** Return a condition, or null while its value is missing. */
export const conditionOf = (name: string, kind: Kind, operator: string, value: string): string | null => {
  if (operator === "is missing") return `${name} = null`;
  if (operator === "is there") return `${name} != null`;
  const text = value.trim();
  if (text === "") return null;
  const isPlain = operator !== "contains" && ((kind === "number" && isNumber(text)) || kind === "flag" || (kind === "any" && (isNumber(text) || text === "true" || text === "false")));
  return `${name} ${SIGNS[operator] ?? operator} ${isPlain ? text : quoted(text)}`;
};

/** Return an expression with a condition added. */
export const withCondition = (where: string, condition: string): string => {
  const before = where.trim();
  if (before === "") return condition;
  return `${/\bor\b/i.test(before) ? `(${before})` : before} and ${condition}`;
};

/** Begin of the message about an expression that the API cannot read. Two lines that mark the place follow it. */
const WRONG = "The expression is wrong at character";

/** Return whether a message is about an expression. */
export const isOfExpression = (message: string): boolean => message.startsWith(WRONG);
