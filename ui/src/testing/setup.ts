import { cleanup } from "@testing-library/react";
import { afterEach } from "vitest";

import { forget } from "../api/cache";

afterEach(() => {
  cleanup();
  forget();
  localStorage.clear();
});
