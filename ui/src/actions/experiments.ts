/** Actions on experiments. */
import { send } from "../api/client";
import { type Action } from "./ask";

/** The values of an experiment that decide about its actions. */
export interface ExperimentTarget {
  experiment_id: number;
  name: string;
  state: string;
  wish: string | null;
  may_edit: boolean;
}

/** Return whether an experiment has not ended: it is queued while all of its trials are. */
export const isOpen = ({ state }: { state: string }): boolean => state === "queued" || state === "running";

const post = (path: string, body?: unknown) => send<{ message: string }>("POST", path, body);

/** Return the actions that the state of an experiment and the rights of the user allow. */
export const experimentActions = ({ experiment_id, name, state, wish, may_edit }: ExperimentTarget, mayChangePriority: boolean): Action[] => {
  if (!isOpen({ state })) return [];
  const path = `experiments/${experiment_id}`;
  const words = `experiment ${name}`;
  const actions: Action[] = [];
  if (mayChangePriority) {
    actions.push({
      id: "priority", label: "Change the priority", icon: "flag", verb: "Change", title: `Priority of ${words}`,
      text: "It applies to all trials of the experiment. 1 is first, 99 is last.",
      question: { label: "Priority", kind: "number", required: true, least: 1, most: 99 },
      run: (value) => post(`${path}/priority`, { priority: Number(value) }),
    });
  }
  if (!may_edit) return actions;
  if (wish === "pause") {
    actions.push({
      id: "activate", label: "Activate", icon: "play", verb: "Activate", title: `Activate ${words}`,
      text: "Its trials wait for slots again and resume at their latest checkpoints.",
      run: () => post(`${path}/activate`),
    });
  } else if (wish === null) {
    actions.push({
      id: "pause", label: "Pause", icon: "pause", verb: "Pause", title: `Pause ${words}`,
      text: "Its trials save a checkpoint and release their slots until the experiment is activated.",
      run: () => post(`${path}/pause`),
    });
  }
  if (wish !== "stop" && wish !== "kill") {
    actions.push({
      id: "finish", label: "Finish", icon: "flag", verb: "Finish", dangerous: true, title: `Finish ${words}`,
      text: "Running trials save a checkpoint and end, and no further trial starts. The best result so far counts.",
      run: () => post(`${path}/finish`),
    });
  }
  if (wish !== "kill") {
    actions.push({
      id: "cancel", label: "Cancel", icon: "close", verb: "Cancel the experiment", dangerous: true, title: `Cancel ${words}`,
      text: "All its trials end without a result. What they trained since their latest checkpoints is lost.",
      run: () => post(`${path}/cancel`),
    });
  }
  return actions;
};

/** Return the state of an experiment with the control request that is in force. */
export const shownState = ({ state, wish }: { state: string; wish: string | null }): string =>
  !isOpen({ state }) || wish === null ? state : wish === "pause" ? "paused" : "stopping";
