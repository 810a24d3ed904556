import { describe, expect, it } from "vitest";

import { nextStep, nextStepText } from "./nextStep";

describe("a next step", () => {
  it("says what a bare command does", () => {
    expect(nextStep("airflow dtrain trials list")).toEqual({ text: "List the trials that the store has with:", command: "airflow dtrain trials list" });
    expect(nextStepText("airflow dtrain hosts enable gpu-01")).toBe("Let the host get gangs again with: airflow dtrain hosts enable gpu-01");
    expect(nextStep("airflow dtrain frobnicate")).toEqual({ text: "On the machine of Airflow:", command: "airflow dtrain frobnicate" });
  });

  it("keeps the sentence that a command ends", () => {
    const hint = "The cause is in the log. Check the store with: airflow dtrain doctor";
    expect(nextStep(hint)).toEqual({ text: "The cause is in the log. Check the store with:", command: "airflow dtrain doctor" });
    expect(nextStepText(nextStepText(hint))).toBe(hint);
  });

  it("leaves a text without a command at its end as it is", () => {
    for (const hint of ["Reload the page.", "Start `airflow scheduler`.", "`airflow dtrain trials list` lists all of them.", ""]) expect(nextStep(hint)).toEqual({ text: hint, command: null });
  });
});
