import { cleanup, configure } from "@testing-library/react";
import { afterEach } from "vitest";

import { dismiss } from "../actions/ask";
import { forget } from "../api/cache";

// A machine that runs other tests at the same time takes longer than the usual second.
configure({ asyncUtilTimeout: 20_000 });

/** A chart may paint once more after its test has ended. */
class NoPath {
  rect() {}
  moveTo() {}
  lineTo() {}
  arc() {}
}
Object.assign(globalThis, { Path2D: NoPath });

afterEach(() => {
  cleanup();
  dismiss();
  forget();
  // Tests of pure functions run without a browser's objects.
  if (typeof localStorage !== "undefined") localStorage.clear();
});
