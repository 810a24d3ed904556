/** Actions on trials and held gangs. */
import { send } from "../api/client";
import { type Action } from "./ask";

/** The values of a trial that decide about its actions. */
export interface TrialTarget {
  trial_id: number;
  /** Words for the dialog: "trial 7". */
  name: string;
  state: string;
  paused: boolean;
  priority: number;
  may_edit: boolean;
  may_change_priority: boolean;
}

const post = (path: string) => send<{ message: string }>("POST", path);

/** Highest and lowest priority: 1 is first. */
const FIRST = 1;
const LAST = 99;

const ENDED = new Set(["completed", "stopped", "errored", "killed"]);

const priorityAction = (path: string, name: string, priority: number): Action => ({
  id: "priority", label: "Change the priority", icon: "flag", verb: "Change", title: `Priority of ${name}`,
  text: `A gang of a higher priority is granted first, and may preempt running ones. ${FIRST} is first, ${LAST} is last.`,
  question: { label: "Priority", kind: "number", initial: String(priority), required: true, least: FIRST, most: LAST },
  run: (value) => send("PATCH", path, { priority: Number(value) }),
});

/** Return the actions that the state of a trial and the rights of the user allow. */
export const trialActions = (trial: TrialTarget): Action[] => {
  if (ENDED.has(trial.state)) return [];
  const path = `trials/${trial.trial_id}`;
  const { name } = trial;
  const actions: Action[] = [];
  if (trial.may_change_priority) actions.push(priorityAction(path, name, trial.priority));
  if (!trial.may_edit) return actions;
  if (trial.paused) {
    actions.push({
      id: "activate", label: "Activate", icon: "play", verb: "Activate", title: `Activate ${name}`,
      text: "The trial waits for slots again, in its old place in the queue, and resumes at its latest checkpoint.",
      run: () => post(`${path}/activate`),
    });
  } else {
    actions.push({
      id: "pause", label: "Pause", icon: "pause", verb: "Pause", title: `Pause ${name}`,
      text: "The trial saves a checkpoint and releases its slots until it is activated.",
      run: () => post(`${path}/pause`),
    });
  }
  actions.push(
    {
      id: "stop", label: "Stop", icon: "stop", verb: "Stop", dangerous: true, title: `Stop ${name}`,
      text: "The trial saves a checkpoint and ends. Its best result so far counts.",
      run: () => post(`${path}/stop`),
    },
    {
      id: "kill", label: "Kill", icon: "close", verb: "Kill", dangerous: true, title: `Kill ${name}`,
      text: "The trial ends without a result. What it trained since its latest checkpoint is lost.",
      run: () => post(`${path}/kill`),
    },
  );
  return actions;
};

/** Return the actions on a held gang. */
export const gangActions = (allocationId: number, name: string, mayEdit: boolean): Action[] =>
  mayEdit
    ? [
        {
          id: "kill", label: "Kill", icon: "close", verb: "Kill", dangerous: true, title: `Kill ${name}`,
          text: "The gang releases its slots. The trial that uses it ends, and the tasks that wait for it fail.",
          run: () => post(`gangs/${allocationId}/kill`),
        },
      ]
    : [];
