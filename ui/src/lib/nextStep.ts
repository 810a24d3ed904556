/** Next steps that the API names. */
import { paths } from "../app/paths";

/** A page that shows what a command would print. */
export interface NextPage {
  to: string;
  text: string;
}

/** A next step: a sentence that says what its page shows or its command does, and the page or the command. */
export interface NextStep {
  text: string;
  command: string | null;
  page: NextPage | null;
}

/** Commands whose output is on a page: in a browser the next step is a link. */
const PAGES: readonly (readonly [command: string, page: NextPage])[] = [
  ["airflow dtrain trials list", { to: paths.experiments, text: "All experiments, with their trials" }],
  ["airflow dtrain experiments list", { to: paths.experiments, text: "All experiments, with their trials" }],
  ["airflow dtrain queue list", { to: paths.queue, text: "The gangs that wait or hold slots" }],
  ["airflow dtrain pools list", { to: paths.cluster, text: "The pools with their hosts" }],
  ["airflow dtrain hosts list", { to: paths.cluster, text: "The hosts with their slots" }],
];

/** What the commands do that are next steps on their own. */
const PURPOSES: readonly (readonly [command: string, purpose: string])[] = [
  ["airflow dtrain trials outputs", "List the outputs of the trial with:"],
  ["airflow dtrain hosts add", "Register a host with:"],
  ["airflow dtrain hosts enable", "Let the host get gangs again with:"],
  ["airflow dtrain db migrate", "Create or upgrade the tables of the store with:"],
  ["airflow dtrain db check", "Check the database of the store with:"],
  ["airflow dtrain doctor", "Check the installation with:"],
];

/** A command that the text ends with: the whole text, or after a colon. */
const AT_END = /^(?:(.*:)\s+)?(airflow dtrain [^`]+)$/s;

const of = <T>(known: readonly (readonly [string, T])[], command: string): T | undefined =>
  known.find(([one]) => command === one || command.startsWith(`${one} `))?.[1];

/** Return a next step with its page or command apart. A bare command gets a sentence that says what it does. */
export const nextStep = (hint: string): NextStep => {
  const [, before, command] = AT_END.exec(hint) ?? [];
  if (command === undefined) return { text: hint, command: null, page: null };
  const page = of(PAGES, command) ?? null;
  if (page !== null) return { text: before ?? "See:", command: null, page };
  return { text: before ?? of(PURPOSES, command) ?? "On the machine of Airflow:", command, page };
};

/** Return a next step as one text, which ends with the command. */
export const nextStepText = (hint: string): string => {
  const { text, command, page } = nextStep(hint);
  const found = page === null ? command : (AT_END.exec(hint)?.[2] ?? null);
  return found === null ? text : `${text} ${found}`;
};

/** Return a reason without the command that it ends with after a semicolon: in a browser the row has the action. */
export const withoutCommand = (reason: string): string => reason.replace(/; [^;]*: airflow dtrain [^`;]+$/s, "");
