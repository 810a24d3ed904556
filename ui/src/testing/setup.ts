import { cleanup } from "@testing-library/react";
import { afterEach } from "vitest";

import { dismiss } from "../actions/ask";
import { forget } from "../api/cache";

afterEach(() => {
  cleanup();
  dismiss();
  forget();
  // Tests of pure functions run without a browser's objects.
  if (typeof localStorage !== "undefined") localStorage.clear();
});
