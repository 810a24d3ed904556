/** Time that one frame may spend on drawing, in milliseconds. The browser calls 50 ms a long task. */
const BUDGET_MS = 12;

/** Parts of the browser that tests replace. */
export interface Frames {
  request: (call: () => void) => number;
  cancel: (handle: number) => void;
  now: () => number;
}

const browser: Frames = {
  request: (call) => requestAnimationFrame(call),
  cancel: (handle) => cancelAnimationFrame(handle),
  now: () => performance.now(),
};

/**
 * Call a function for each index, spread over frames so that no frame is long. The first part runs at once.
 *
 * @param done called after the last index
 * @param stride indices between two looks at the clock
 * @returns a function that ends the work
 */
export const inFrames = (
  total: number, work: (index: number) => void, done: () => void = () => undefined, stride = 64, frames: Frames = browser,
): (() => void) => {
  let next = 0;
  let handle: number | null = null;
  const run = () => {
    handle = null;
    const end = frames.now() + BUDGET_MS;
    while (next < total) {
      const until = Math.min(total, next + stride);
      for (; next < until; next += 1) work(next);
      if (next < total && frames.now() >= end) {
        handle = frames.request(run);
        return;
      }
    }
    done();
  };
  run();
  return () => {
    if (handle !== null) frames.cancel(handle);
    handle = null;
    next = total;
  };
};
