/** Answers about failed trials and experiments. */
import { type components } from "./schema";

type Schemas = components["schemas"];

export type TrialFailure = Schemas["TrialFailure"];
export type ExperimentFailures = Schemas["ExperimentFailures"];
export type FailureGroup = Schemas["FailureGroup"];
export type RaisedError = Schemas["RaisedError"];
export type NextStep = Schemas["NextStep"];
export type Baseline = Schemas["Baseline"];
