import { describe, expect, it } from "vitest";

import { shardCells, shardWords } from "./shardCells";

describe("the cells of the grid of shards", () => {
  it("are one per shard while they fit", () => {
    expect(shardCells("dfsrw", 10).map(({ state }) => state)).toEqual(["done", "failed", "skipped", "running", "waiting"]);
    expect(shardCells("ds", 10).map(({ title }) => title)).toEqual(["Shard 0: done", "Shard 1: set aside"]);
  });

  it("share shards when there are too many, and show the state that needs attention first", () => {
    const cells = shardCells("dddfddrddw", 4);
    expect(cells.map(({ from, to, state }) => [from, to, state])).toEqual([[0, 2, "done"], [3, 5, "failed"], [6, 8, "running"], [9, 9, "waiting"]]);
    expect(cells[1]?.title).toBe("Shards 3 to 5: 1 failed, 2 done");
  });

  it("are bounded for any number of shards", () => {
    expect(shardCells("d".repeat(100_000), 2000)).toHaveLength(2000);
    expect(shardCells("d".repeat(2001), 2000).length).toBeLessThanOrEqual(2000);
    expect(shardCells("", 2000)).toEqual([]);
  });

  it("have a text with all numbers", () => {
    expect(shardWords({ total: 5, done: 2, running: 1, waiting: 1, failed: 0, skipped: 1 })).toBe("5 shards: 2 done, 1 running, 1 waiting, 0 failed, 1 set aside");
  });
});
