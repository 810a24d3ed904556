// @vitest-environment node
import { expect, test } from "vitest";

import { type Attempt } from "../../api/trial";
import { currentAttempt, exitWords, failureWords, placementWords, plainLog, ranges } from "./words";

test("slots are written as ranges", () => {
  expect(ranges([3, 0, 1, 2, 5, 5])).toBe("0-3, 5");
  expect(ranges([])).toBe("");
});

test("a placement names its hosts in natural order, and counts many", () => {
  expect(placementWords({ "gpu-10": [0], "gpu-9": [0, 1] })).toBe("3 slots on gpu-9 (0-1), gpu-10 (0)");
  expect(placementWords({ a: [0], b: [0], c: [0], d: [0], e: [0] })).toBe("5 slots on a (0), b (0), c (0), d (0) and 1 further host");
  expect(placementWords({})).toBeNull();
});

test("the attempt of the page is the latest one", () => {
  const attempt = (number: number) => ({ number }) as Attempt;
  expect(currentAttempt({ attempts_list: [attempt(2), attempt(3), attempt(1)] })?.number).toBe(3);
  expect(currentAttempt({ attempts_list: [] })).toBeNull();
});

test("a failure is its first line, with rank and host", () => {
  expect(failureWords({ message: "CUDA out of memory\nat train.py", rank: 3, host: "gpu-1" })).toEqual({ title: "CUDA out of memory", more: "It happened in rank 3 on gpu-1." });
  expect(failureWords({ message: "Rank 3 on host 'gpu-1' failed", rank: 3, host: "gpu-1" })?.more).toBeNull();
  expect(failureWords({ reason: "host lost" })).toEqual({ title: "host lost", more: null });
  expect(failureWords({ message: 5 })).toBeNull();
  expect(failureWords(null)).toBeNull();
});

test("exit codes name signals and who sent them", () => {
  expect(exitWords(0, false)).toBe("0, success");
  expect(exitWords(-9, false)).toBe("SIGKILL, perhaps out of memory");
  expect(exitWords(-15, true)).toBe("SIGTERM, sent by the supervisor");
  expect(exitWords(-63, false)).toBe("signal 63");
  expect(exitWords(null, false)).toBe("running, or unknown");
});

test("a log has no escape sequences, and the last version of a progress bar", () => {
  expect(plainLog("\u001b[31mred\u001b[0m\r\n10 %\r50 %\r100 %\n\u001b]0;title\u0007end")).toBe("red\n100 %\nend");
});
