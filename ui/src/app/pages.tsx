/** Table of pages: which component shows which address below the app's root. */
import { type ComponentType } from "react";

import { ClusterPage } from "../pages/cluster/ClusterPage";
import { ComparePage } from "../pages/compare/ComparePage";
import { EditorPage } from "../pages/editor/EditorPage";
import { ExperimentPage } from "../pages/experiment/ExperimentPage";
import { ExperimentsPage } from "../pages/experiments/ExperimentsPage";
import { QueuePage } from "../pages/queue/QueuePage";
import { RunsPage } from "../pages/runs/RunsPage";
import { TrialPage } from "../pages/trial/TrialPage";

/** One page. A segment of its path that begins with a colon is passed as a property. */
export interface Page {
  /** Path below the root, without a leading slash. */
  path: string;
  /** Title in the browser's tab. */
  title: string;
  component: ComponentType<Record<string, string>>;
  /** Entry in the navigation, or null for a page that other pages lead to. */
  nav: string | null;
  /** Entry of the navigation to which the page belongs. */
  within?: string;
}

export const PAGES: readonly Page[] = [
  { path: "cluster", title: "Cluster", component: ClusterPage, nav: "Cluster" },
  { path: "queue", title: "Queue", component: QueuePage, nav: "Queue" },
  { path: "experiments", title: "Experiments", component: ExperimentsPage, nav: "Experiments" },
  { path: "experiments/new", title: "New experiment", component: EditorPage, nav: null, within: "Experiments" },
  { path: "experiments/:id", title: "Experiment", component: ExperimentPage, nav: null, within: "Experiments" },
  { path: "trials/:id", title: "Trial", component: TrialPage, nav: null, within: "Experiments" },
  { path: "runs", title: "Runs", component: RunsPage, nav: "Runs" },
  { path: "compare", title: "Compare", component: ComparePage, nav: "Compare" },
];

/** Return the page of a path with the values of its segments, or null. */
export const pageOf = (path: string, pages: readonly Page[] = PAGES): { page: Page; values: Record<string, string> } | null => {
  const parts = path.split("/").filter((item) => item !== "");
  for (const page of pages) {
    const names = page.path.split("/");
    if (names.length !== parts.length) continue;
    if (!names.every((name, index) => name.startsWith(":") || name === parts[index])) continue;
    const pairs = names.map((name, index): [string, string] => [name, parts[index] ?? ""]);
    return { page, values: Object.fromEntries(pairs.filter(([name]) => name.startsWith(":")).map(([name, value]) => [name.slice(1), value])) };
  }
  return null;
};
