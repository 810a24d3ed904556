/** Answers behind the table of runs. */
import { type components } from "./schema";

type Schemas = components["schemas"];

export type Run = Schemas["Run"];
export type RunPage = Schemas["RunPage"];
export type RunGroup = Schemas["RunGroup"];
export type RunGroupPage = Schemas["RunGroupPage"];
export type RunFact = Schemas["RunFact"];
export type RunNames = Schemas["RunNames"];
export type RunChart = Schemas["RunChart"];
export type RunView = Schemas["RunView"];
export type RunViews = Schemas["RunViewPage"];
