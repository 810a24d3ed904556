import { cleanup } from "@testing-library/react";
import { afterEach } from "vitest";

import { forget } from "../api/cache";

afterEach(() => {
  cleanup();
  forget();
  // Tests of pure functions run without a browser's objects.
  if (typeof localStorage !== "undefined") localStorage.clear();
});
