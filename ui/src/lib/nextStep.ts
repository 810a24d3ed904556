/** Next steps that the API names. */

/** A next step: a sentence that says what its command does, and the command. */
export interface NextStep {
  text: string;
  command: string | null;
}

/** What the commands do that are next steps on their own. */
const PURPOSES: readonly (readonly [command: string, purpose: string])[] = [
  ["airflow dtrain trials list", "List the trials that the store has with:"],
  ["airflow dtrain trials outputs", "List the outputs of the trial with:"],
  ["airflow dtrain experiments list", "List the experiments that the store has with:"],
  ["airflow dtrain queue list", "List the gangs that wait or hold slots with:"],
  ["airflow dtrain pools list", "List the pools with:"],
  ["airflow dtrain hosts list", "List the hosts with:"],
  ["airflow dtrain hosts add", "Register a host with:"],
  ["airflow dtrain hosts enable", "Let the host get gangs again with:"],
  ["airflow dtrain db migrate", "Create or upgrade the tables of the store with:"],
  ["airflow dtrain db check", "Check the database of the store with:"],
  ["airflow dtrain doctor", "Check the installation with:"],
];

/** A command that the text ends with: the whole text, or after a colon. */
const AT_END = /^(?:(.*:)\s+)?(airflow dtrain [^`]+)$/s;

/** Return a next step with its command apart. A bare command gets a sentence that says what it does. */
export const nextStep = (hint: string): NextStep => {
  const [, before, command] = AT_END.exec(hint) ?? [];
  if (command === undefined) return { text: hint, command: null };
  const purpose = PURPOSES.find(([known]) => command === known || command.startsWith(`${known} `))?.[1];
  return { text: before ?? purpose ?? "On the machine of Airflow:", command };
};

/** Return a next step as one text, which ends with the command. */
export const nextStepText = (hint: string): string => {
  const { text, command } = nextStep(hint);
  return command === null ? text : `${text} ${command}`;
};
