import { describe, expect, it } from "vitest";

import { stackGroups } from "./stacks";

const stack = (rank: number, text: string, problem = "") => ({ rank, host: `gpu-${rank % 2}`, pid: 100 + rank, text, problem });

describe("stacks", () => {
  it("of ranks at the same place are one group, and the rank that differs comes first", () => {
    const wait = (address: string) => `Thread ${address} (most recent call first):\n  File "a.py", line 1 in wait`;
    const groups = stackGroups([stack(0, wait("0x7f01")), stack(1, wait("0x7f02")), stack(2, 'File "b.py", line 9 in load'), stack(3, wait("0x7f03"))]);
    expect(groups.map(({ ranks, count, hosts }) => [ranks, count, hosts])).toEqual([["2", 1, ["gpu-0"]], ["0-1, 3", 3, ["gpu-0", "gpu-1"]]]);
  });
  it("that are missing are grouped by the reason", () => {
    expect(stackGroups([stack(0, "", "it is stopped"), stack(1, "", "it waits")]).map(({ problem }) => problem)).toEqual(["it is stopped", "it waits"]);
  });
});
