import { describe, expect, it } from "vitest";

import { visible, visibleFile } from "./visible";

describe("visible", () => {
  it("shows marks of direction, escapes of terminals and invisible characters", () => {
    expect(visible("a\u202eb\u2066c\x1b[31m\x00\u200b\u{e0041}")).toBe("a\\u202eb\\u2066c\\x1b[31m\\x00\\u200b\\U000e0041");
  });
  it("leaves newlines, tabs, joiners of emoji and other scripts", () => {
    const text = "é\n\t日本 👩‍💻";
    expect(visible(text)).toBe(text);
  });
  it("shows a carriage return only where it ends no line", () => {
    expect(visibleFile("a\r\nb\rc")).toBe("a\nb\\x0dc");
  });
});
