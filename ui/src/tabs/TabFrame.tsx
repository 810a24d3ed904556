import { type PropsWithChildren } from "react";

import { Shell } from "../app/Shell";

/** Values of the address that the Airflow UI passes to a tab. */
export interface TabProps {
  dagId?: string;
  runId?: string;
  taskId?: string;
  /** Absent for a task that is not mapped. */
  mapIndex?: string;
}

/** Frame of a tab in a page of the Airflow UI. */
export const TabFrame = ({ children }: PropsWithChildren) => <Shell>{children}</Shell>;
