// @vitest-environment node
import { expect, test } from "vitest";

import { type Frames, inFrames } from "./frames";

const clock = (perLook: number) => {
  const queue: (() => void)[] = [];
  let now = 0;
  const frames: Frames = { request: (call) => queue.push(call), cancel: () => queue.splice(0), now: () => (now += perLook) };
  return { frames, queue };
};

test("work is spread over frames, in order, until all of it is done", () => {
  const { frames, queue } = clock(5);
  const seen: number[] = [];
  let done = 0;
  inFrames(1_000, (index) => seen.push(index), () => (done += 1), 64, frames);
  expect(seen.length).toBeLessThan(1_000);
  while (queue.length > 0) queue.shift()?.();
  expect(seen).toEqual(Array.from({ length: 1_000 }, (_, index) => index));
  expect(done).toBe(1);
});

test("work that was ended calls nothing further", () => {
  const { frames, queue } = clock(100);
  const seen: number[] = [];
  let done = 0;
  const end = inFrames(1_000, (index) => seen.push(index), () => (done += 1), 64, frames);
  const before = seen.length;
  end();
  queue.forEach((call) => call());
  expect(seen.length).toBe(before);
  expect(done).toBe(0);
});
