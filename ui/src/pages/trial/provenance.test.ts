// @vitest-environment node
import { expect, test } from "vitest";

import { type HostProvenance } from "../../api/trial";
import { deviceWords, gitWords, shortDigest } from "./provenance";

test("the state of git is told, and why it is not known", () => {
  expect(gitWords({ commit: "abc", is_clean: true, problem: "" })).toBe("abc, clean");
  expect(gitWords({ commit: "abc", is_clean: false, problem: "" })).toBe("abc, dirty: the code has changes that are not committed");
  expect(gitWords({ commit: "abc", is_clean: null, problem: "submodules" })).toBe("abc, unknown whether clean: submodules");
  expect(gitWords({ commit: null, is_clean: null, problem: "git is not installed" })).toBe("unknown: git is not installed");
});

test("devices are named with their slots", () => {
  const host = (devices: Record<string, string | null>) => ({ devices }) as HostProvenance;
  expect(deviceWords(host({ 0: "H100", 1: "H100", 2: "H200" }))).toBe("H100 (slots 0, 1); H200 (slot 2)");
  expect(deviceWords(host({ 0: null, 1: null }))).toBe("2 CPU slots");
});

test("digests are cut behind the name of their algorithm", () => {
  expect(shortDigest(`sha256:${"a".repeat(64)}`)).toBe("a".repeat(12));
});
