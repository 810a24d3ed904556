/** Answers behind the tab of the code. */
import { type components } from "./schema";

type Schemas = components["schemas"];

export type CodeListing = Schemas["CodeListing"];
export type CodeFile = Schemas["CodeFile"];
export type CodeText = Schemas["CodeText"];
export type CodeChanges = Schemas["CodeChanges"];
export type ChangedFile = Schemas["ChangedFile"];
