// @vitest-environment node
import { expect, test } from "vitest";

import { profileRows } from "./profile";

const total = (rank: number, name: string, mean_s: number, total_s: number | null = mean_s * 10) => ({ rank, name, count: 10, total_s, mean_s, max_s: 2 * mean_s });

test("ranks are summarized by name, and the slowest is named", () => {
  expect(profileRows([total(0, "train_batch", 1), total(1, "train_batch", 3), total(0, "to_device", 0.5)])).toEqual([
    { name: "train_batch", count: 20, total_s: 20, mean_s: 2, max_s: 6, slowest: 1 },
    { name: "to_device", count: 10, total_s: 5, mean_s: 0.5, max_s: 1, slowest: null },
  ]);
});

test("a sampled timing has no total, and equal ranks have no slowest", () => {
  expect(profileRows([total(0, "gradient_exchange", 1, null), total(1, "gradient_exchange", 1, null)])[0]).toMatchObject({ total_s: null, slowest: null });
  expect(profileRows([])).toEqual([]);
});
