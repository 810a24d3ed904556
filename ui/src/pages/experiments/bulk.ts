/** Actions on several experiments. */
import { send } from "../../api/client";
import { type BulkResult } from "../../api/types";
import { type IconName } from "../../components/icons";

/** Name of an action, as the API has it. */
export type BulkAction = "archive" | "unarchive" | "move" | "tag" | "stop" | "kill" | "delete";

/** How an action is offered. */
export interface Offer {
  action: BulkAction;
  /** Verb on its button. */
  verb: string;
  icon: IconName;
  /** What it means for the experiments. */
  text: string;
  dangerous?: boolean;
}

export const OFFERS: Record<BulkAction, Offer> = {
  archive: { action: "archive", verb: "Archive", icon: "box", text: "Lists leave archived experiments out. All their data stays." },
  unarchive: { action: "unarchive", verb: "Unarchive", icon: "box", text: "Lists show the experiments again." },
  move: { action: "move", verb: "Move", icon: "folder", text: "The experiments and their trials go to another project." },
  tag: { action: "tag", verb: "Tag", icon: "tag", text: "The tags are added to those that the experiments have." },
  stop: { action: "stop", verb: "Stop", icon: "stop", text: "Running trials save a checkpoint and end, and no further trial starts. The best results so far count.", dangerous: true },
  kill: { action: "kill", verb: "Kill", icon: "close", text: "All their trials end without a result. What they trained since their latest checkpoints is lost.", dangerous: true },
  delete: { action: "delete", verb: "Delete", icon: "trash", text: "This cannot be undone. Task logs of Airflow and the configurations stay.", dangerous: true },
};

/** Return the actions that the list of an archive filter offers. */
export const offersOf = (archived: string): Offer[] => {
  const { archive, unarchive, ...others } = OFFERS;
  return [...(archived === "only" ? [] : [archive]), ...(archived === "" ? [] : [unarchive]), ...Object.values(others)];
};

/** Values that an action needs. */
export interface Values {
  project?: string;
  tags?: readonly string[];
}

/** Carry out an action, or ask what it would do. */
export const act = (action: BulkAction, ids: readonly number[], values: Values, dryRun: boolean): Promise<BulkResult> =>
  send<BulkResult>("POST", "experiments/actions", { action, experiment_ids: ids, dry_run: dryRun, ...values });
