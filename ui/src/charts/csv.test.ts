// @vitest-environment node
import { expect, test } from "vitest";

import { csv } from "./csv";

test("commas, quotes and line ends stay within their cell", () => {
  expect(csv([['a"b', "c,d", "e\nf", 1.5, null]])).toBe('"a""b","c,d","e\nf",1.5,\r\n');
});

test("a spreadsheet runs no formula from a metric's name", () => {
  expect(csv([["=cmd()", "+1", "-x", "@a", -1]])).toBe("'=cmd(),'+1,'-x,'@a,-1\r\n");
});
