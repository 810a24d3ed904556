import { describe, expect, it } from "vitest";

import { nextStep, nextStepText } from "./nextStep";

describe("a next step", () => {
  it("says what a bare command does", () => {
    expect(nextStepText("airflow dtrain hosts enable gpu-01")).toBe("Let the host get gangs again with: airflow dtrain hosts enable gpu-01");
    expect(nextStep("airflow dtrain frobnicate")).toEqual({ text: "On the machine of Airflow:", command: "airflow dtrain frobnicate", page: null });
  });

  it("is a link where a page shows what the command prints", () => {
    const experiments = { to: "/plugin/dtrain/experiments", text: "All experiments, with their trials" };
    expect(nextStep("airflow dtrain trials list")).toEqual({ text: "See:", command: null, page: experiments });
    expect(nextStep("Trial 7 has ended. See: airflow dtrain experiments list")).toEqual({ text: "Trial 7 has ended. See:", command: null, page: experiments });
    expect(nextStep("airflow dtrain queue list --pool a").page?.to).toBe("/plugin/dtrain/queue");
    expect(["airflow dtrain pools list", "airflow dtrain hosts list"].map((hint) => nextStep(hint).page?.to)).toEqual(["/plugin/dtrain/cluster", "/plugin/dtrain/cluster"]);
    // A text that is composed of another one still leads to the page.
    expect(nextStep(nextStepText("airflow dtrain queue list")).page?.to).toBe("/plugin/dtrain/queue");
    expect(nextStep("airflow dtrain hosts listen").page).toBeNull();
  });

  it("keeps the sentence that a command ends", () => {
    const hint = "The cause is in the log. Check the store with: airflow dtrain doctor";
    expect(nextStep(hint)).toEqual({ text: "The cause is in the log. Check the store with:", command: "airflow dtrain doctor", page: null });
    expect(nextStepText(nextStepText(hint))).toBe(hint);
  });

  it("leaves a text without a command at its end as it is", () => {
    for (const hint of ["Reload the page.", "Start `airflow scheduler`.", "`airflow dtrain trials list` lists all of them.", ""]) expect(nextStep(hint)).toEqual({ text: hint, command: null, page: null });
  });
});
