import { describe, expect, it } from "vitest";

import { type RunNames } from "../../api/runs";
import { allNames, completions, conditionOf, isOfExpression, kindOf, operatorsOf, withCondition } from "./expressions";

const NAMES: RunNames = {
  facts: [
    { name: "state", kind: "text", meaning: "", choices: ["running"] },
    { name: "created", kind: "time", meaning: "", choices: [] },
    { name: "tag", kind: "texts", meaning: "", choices: [] },
  ],
  metrics: ["metrics.loss", 'metrics."top 5"'],
  params: ["params.lr", "params.optimizer.lr"],
};
const ALL = allNames(NAMES);

describe("a completion", () => {
  const offered = (text: string) => completions(text, text.length, ALL, 6).found;

  it("offers names that begin with the typed part before those that contain it", () => {
    expect(offered("lr")).toEqual(["params.lr", "params.optimizer.lr"]);
    expect(offered("state = \"x\" and par")).toEqual(["params.lr", "params.optimizer.lr"]);
    expect(offered("t")).toEqual(["tag", "state", "created", "metrics.loss", 'metrics."top 5"', "params.optimizer.lr"]);
  });

  it("replaces the part before the caret, also within quotes of a name", () => {
    expect(completions("best > 1 and metrics.lo", 23, ALL, 6)).toEqual({ start: 13, found: ["metrics.loss"] });
    expect(completions('metrics."top', 12, ALL, 6)).toEqual({ start: 0, found: ['metrics."top 5"'] });
  });

  it("offers nothing for a whole name, a number, a text and an empty field", () => {
    for (const text of ["params.lr", "best > 0.9", "", 'state = "run', "state = "]) expect(offered(text)).toEqual([]);
  });
});

describe("a condition", () => {
  it("has a value of the name's type", () => {
    expect(conditionOf("metrics.loss", "number", "<", " 0.5 ")).toBe("metrics.loss < 0.5");
    expect(conditionOf("params.lr", "any", "=", "0.1")).toBe("params.lr = 0.1");
    expect(conditionOf("params.opt", "any", "=", 'a"b\\')).toBe('params.opt = "a\\"b\\\\"');
    expect(conditionOf("params.opt", "any", "contains", "1")).toBe('params.opt ~ "1"');
    expect(conditionOf("created", "time", ">", "2026-11-27")).toBe('created > "2026-11-27"');
    expect(conditionOf("state", "text", "is missing", "")).toBe("state = null");
    expect(conditionOf("state", "text", "=", "  ")).toBeNull();
  });

  it("is joined by and, and keeps the meaning of an or", () => {
    expect(withCondition(" ", "a = 1")).toBe("a = 1");
    expect(withCondition("a = 1", "b = 2")).toBe("a = 1 and b = 2");
    expect(withCondition("a = 1 or c = 3", "b = 2")).toBe("(a = 1 or c = 3) and b = 2");
  });
});

describe("a name", () => {
  it("has a kind, which decides on its operators", () => {
    expect([kindOf(NAMES, "created"), kindOf(NAMES, "metrics.x"), kindOf(NAMES, "params.x"), kindOf(NAMES, "gone")]).toEqual(["time", "number", "any", "any"]);
    expect(operatorsOf("time")).not.toContain("contains");
    expect(operatorsOf("texts")).not.toContain("<");
  });
});

describe("a message", () => {
  it("about an expression differs from other failures", () => {
    expect(isOfExpression("The expression is wrong at character 3: no\n  a\n  ^")).toBe(true);
    expect(isOfExpression("The store does not answer.")).toBe(false);
  });
});
