import { describe, expect, it } from "vitest";

import { shortNames, withoutNumber } from "./shortNames";

describe("short names", () => {
  it("have only the values that differ, those that tell most trials apart first", () => {
    const names = ["0 | depth=2 dropout=0.1 lr=3e-4", "1 | depth=2 dropout=0.1 lr=1e-3", "2 | depth=2 dropout=0.2 lr=5e-4"];
    expect(shortNames(names)).toEqual({ heading: "# · lr · dropout", names: ["0 · 3e-4 · 0.1", "1 · 1e-3 · 0.1", "2 · 5e-4 · 0.2"] });
  });

  it("are the whole ones where nothing differs, or where there is one", () => {
    for (const names of [["3 | lr=0.1"], ["train", "train[1]"], ["3 | lr=0.1", "4 | lr=0.1"], []]) expect(shortNames(names)).toEqual({ heading: "", names });
  });

  it("keep the name that a user gave, and show an absent value as a dash", () => {
    expect(shortNames(["baseline | of ours", "1 | lr=0.1 m=0.9", "2 | lr=0.2"]).names).toEqual(["baseline | of ours", "1 · 0.1 · 0.9", "2 · 0.2 · –"]);
  });

  it("accept hostile values", () => {
    expect(shortNames(["0 | a=<b>x</b> y z= q=1", "1 | a=__proto__ q=1", "2 | =", "3 | "]).names).toEqual(["0 · <b>x</b> y · ", "1 · __proto__ · –", "2 | =", "3 | "]);
  });

  it("are told from the number of the trial, which tells nothing beside its id", () => {
    expect(["17 | lr=0.1", "train[3]", "17 | "].map(withoutNumber)).toEqual(["lr=0.1", "train[3]", ""]);
  });
});
