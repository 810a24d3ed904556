/** Answers of the API, under the names that the pages use. `npm run api` generates the schema from openapi.json. */
import { type components } from "./schema";

type Schemas = components["schemas"];

/** Rows of a table, and their number on the server. */
export interface Page<T> {
  rows: T[];
  total: number;
}

/** Fields at their defaults are left out of the answer. */
type Compact<T, Always extends keyof T> = Partial<Omit<T, Always>> & Pick<T, Always>;

export type TaskRef = Schemas["TaskRef"];
export type Me = Schemas["Me"];
export type Lookup = Schemas["Lookup"];

export type PoolCounts = Schemas["PoolCounts"];
export type Holder = Schemas["Holder"];
export type Slot = Compact<Schemas["Slot"], never>;
export type Host = Compact<Omit<Schemas["ClusterHost"], "slots">, "name" | "pool"> & { slots: Slot[] };
export type Cluster = Omit<Schemas["Cluster"], "hosts"> & { hosts: Host[] };
export type SchedulerFacts = Schemas["SchedulerFacts"];
export type Partition = Schemas["PartitionFacts"];
export type SchedulerJob = Schemas["SchedulerJob"];
export type Utilization = Schemas["Utilization"];

export type Gang = Schemas["GangSummary"];
export type Queue = Schemas["GangPage"];

export type ExperimentRow = Schemas["ExperimentSummary"];
export type Experiments = Schemas["ExperimentPage"];
export type BulkResult = Schemas["BulkResult"];
