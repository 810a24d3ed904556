/** Answers behind the page of one experiment and the editor. */
import { type components } from "./schema";

type Schemas = components["schemas"];

export type Experiment = Schemas["ForkableExperiment"];
export type ShownConfig = Schemas["ShownConfig"];
export type PlacedProblem = Schemas["PlacedProblem"];
export type Validation = Schemas["Validation"];
export type Templates = Schemas["TemplateList"];
export type ForkSource = Schemas["ForkSource"];
export type Started = Schemas["Started"];
