/** Answers behind charts of several trials. */
import { type components } from "./schema";

type Schemas = components["schemas"];

export type MetricName = Schemas["MetricName"];
export type Group = MetricName["group"];
export type Curves = Schemas["Curves"];
export type CurveSeries = Schemas["Curve"];
export type Hyperparameters = Schemas["Hyperparameters"];
export type SlotTimeline = Schemas["SlotTimeline"];
export type SlotSpan = SlotTimeline["spans"][number];
export type Rungs = Schemas["Rungs"];
export type TrialRow = Schemas["TrialSummary"];
export type ComparedTrial = Schemas["ComparedTrial"];
export type Comparison = Schemas["Comparison"];
export type Differences = Schemas["Differences"];
