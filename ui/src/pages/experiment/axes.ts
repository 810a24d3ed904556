/** X axes of curves. */
export const X_AXES = [
  { value: "batches", text: "Batches" },
  { value: "epochs", text: "Epochs" },
  { value: "time", text: "Time" },
] as const;

/** Return the axes that a user may choose: epochs only where reports name theirs, or where the address asks for them. */
export const axesOf = (hasEpochs: boolean, chosen: string) => X_AXES.filter(({ value }) => value !== "epochs" || hasEpochs || chosen === "epochs");
