/** Actions on experiments. */
import { send } from "../api/client";
import { shownState } from "../lib/states";
import { type Action } from "./ask";

/** The values of an experiment that decide about its actions. */
export interface ExperimentTarget {
  experiment_id: number;
  name: string;
  state: string;
  control_request: string | null;
  may_edit: boolean;
}

/** Return whether an experiment has not ended: it is queued while all of its trials are. */
export const isOpen = ({ state }: { state: string }): boolean => state === "queued" || state === "running";

const post = (path: string) => send<{ message: string }>("POST", path);

/** Return the actions that the state of an experiment and the rights of the user allow. */
export const experimentActions = ({ experiment_id, name, state, control_request, may_edit }: ExperimentTarget, mayChangePriority: boolean): Action[] => {
  if (!isOpen({ state })) return [];
  const path = `experiments/${experiment_id}`;
  const words = `experiment ${name}`;
  const actions: Action[] = [];
  if (mayChangePriority) {
    actions.push({
      id: "priority", label: "Change the priority", icon: "flag", verb: "Change", title: `Priority of ${words}`,
      text: "It applies to all trials of the experiment. 1 is first, 99 is last.",
      question: { label: "Priority", kind: "number", required: true, least: 1, most: 99 },
      run: (value) => send("PATCH", path, { priority: Number(value) }),
    });
  }
  if (!may_edit) return actions;
  if (control_request === "pause") {
    actions.push({
      id: "activate", label: "Activate", icon: "play", verb: "Activate", title: `Activate ${words}`,
      text: "Its trials wait for slots again and resume at their latest checkpoints.",
      run: () => post(`${path}/activate`),
    });
  } else if (control_request === null) {
    actions.push({
      id: "pause", label: "Pause", icon: "pause", verb: "Pause", title: `Pause ${words}`,
      text: "Its trials save a checkpoint and release their slots until the experiment is activated.",
      run: () => post(`${path}/pause`),
    });
  }
  if (control_request !== "stop" && control_request !== "kill") {
    actions.push({
      id: "stop", label: "Stop", icon: "stop", verb: "Stop", dangerous: true, title: `Stop ${words}`,
      text: "Running trials save a checkpoint and end, and no further trial starts. The best result so far counts.",
      run: () => post(`${path}/stop`),
    });
  }
  if (control_request !== "kill") {
    actions.push({
      id: "kill", label: "Kill", icon: "close", verb: "Kill", dangerous: true, title: `Kill ${words}`,
      text: "All its trials end without a result. What they trained since their latest checkpoints is lost.",
      run: () => post(`${path}/kill`),
    });
  }
  return actions;
};

/** Return the state of an experiment with the control request that is in force, or the state of one that cannot run. */
export const experimentState = ({ state, control_request, never_fits }: { state: string; control_request: string | null; never_fits: boolean }): string =>
  !isOpen({ state }) || control_request === null ? shownState({ state, never_fits }) : control_request === "pause" ? "paused" : "stopping";
