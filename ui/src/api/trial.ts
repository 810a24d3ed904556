/** Answers behind the page of one trial. */
import { type components } from "./schema";

type Schemas = components["schemas"];

export type Trial = Schemas["TrialDetail"];
export type Attempt = Schemas["Attempt"];
export type Checkpoint = Schemas["DownloadableCheckpoint"];
export type Checkpoints = Schemas["DownloadableCheckpoints"];
/** Location of a checkpoint: of its copy, else of the original. */
export const locationOf = ({ copy_url, path }: Schemas["StoredCheckpoint"]): string => copy_url ?? path;
export type Download = Schemas["Download"];
export type Output = Schemas["Output"];
export type Outputs = Schemas["Outputs"];
export type TrialCurves = Schemas["TrialCurves"];
export type MetricSeries = Schemas["MetricSeries"];
export type Telemetry = Schemas["Telemetry"];
export type TelemetrySeries = Schemas["TelemetrySeries"];
export type Timings = Schemas["Timings"];
export type Straggler = Schemas["NamedStraggler"];
export type StepTimes = Schemas["StepTimes"];
export type Timeline = Schemas["TrialTimeline"];
export type TimelineEntry = Schemas["TimelineEntry"];
export type Ranks = Schemas["AttemptRanks"];
export type Reproduction = Schemas["Reproduction"];
export type Reproductions = Schemas["TrialReproductions"];
export type RankRow = Schemas["RankRow"];
export type Profile = Schemas["Profile"];
export type ResultPreview = Schemas["ResultPreview"];
export type Shards = Schemas["Shards"];
export type ShardTrouble = Schemas["ShardTrouble"];
export type Provenance = Schemas["TrialProvenance"];
export type HostProvenance = Schemas["HostProvenance"];
export type FlameGraph = Schemas["FlameGraph"];
export type FlameTrack = Schemas["FlameTrack"];
export type FlameNode = Schemas["FlameNode"];
