import { describe, expect, it } from "vitest";

import { inlineOf, linkOf, markdownOf } from "./markdown";

const link = (href: string, text: string) => ({ kind: "link", href, parts: [{ kind: "text", text }] });

describe("Markdown", () => {
  it("has headings, paragraphs, lists, quotes, code and rules", () => {
    const text = "# A\nfirst\nsecond\n\n- one\n* two\n\n1. three\n> said\n> so\n---\n```py\nx = `1`\n# no heading\n```\nend";
    expect(markdownOf(text).map(({ kind }) => kind)).toEqual(["heading", "paragraph", "list", "list", "quote", "rule", "code", "paragraph"]);
    expect(markdownOf("a\nb")).toEqual([{ kind: "paragraph", parts: [{ kind: "text", text: "a\nb" }] }]);
    expect(markdownOf("```\n<b>\n")).toEqual([{ kind: "code", text: "<b>\n" }]);
    expect(markdownOf("- a\n- b")).toEqual([{ kind: "list", ordered: false, items: [[{ kind: "text", text: "a" }], [{ kind: "text", text: "b" }]] }]);
  });

  it("has emphasis, code and links within a line", () => {
    expect(inlineOf("**a _b_** `*c*` x")).toEqual([
      { kind: "strong", parts: [{ kind: "text", text: "a " }, { kind: "em", parts: [{ kind: "text", text: "b" }] }] },
      { kind: "text", text: " " },
      { kind: "code", text: "*c*" },
      { kind: "text", text: " x" },
    ]);
    expect(inlineOf("[run](https://x.org/a?b=1)")).toEqual([link("https://x.org/a?b=1", "run")]);
    expect(inlineOf("see https://x.org/a.")).toEqual([{ kind: "text", text: "see " }, link("https://x.org/a", "https://x.org/a"), { kind: "text", text: "." }]);
  });

  it.each(["2 * 3 * 4", "snake_case_name and __init__", "a*", "`", "[x]", "[x](y z)", "<script>alert(1)</script>", "&lt;b&gt;"])("leaves %s as it is", (text) => {
    expect(inlineOf(text)).toEqual([{ kind: "text", text }]);
  });

  it.each([
    "javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\tscript:alert(1)", "data:text/html,<script>", "vbscript:x", "file:///etc/passwd", "//evil.org", "/logout",
    "https://airflow.example.com@evil.org/", "blob:https://x.org/1", "about:blank", "",
  ])("has no link to %s", (href) => {
    expect(linkOf(href)).toBeNull();
    const found = JSON.stringify(markdownOf(`[x](${href})`));
    expect(found).not.toContain('"link"');
  });

  it("shows an image as a link, which loads nothing", () => {
    expect(inlineOf("![a graph](https://evil.org/p.png)")).toEqual([link("https://evil.org/p.png", "a graph")]);
  });

  it.each(["[", "`", "**", "*a", "_a", "> ", "![](", "- ", "https://", "[a](", "#"])("reads 10,000 characters of %s in time", (mark) => {
    const began = performance.now();
    markdownOf(mark.repeat(10_000 / mark.length));
    markdownOf(`${mark}\n`.repeat(3_000));
    expect(performance.now() - began).toBeLessThan(2_000);
  });

  it("nests to a limited depth", () => {
    expect(JSON.stringify(markdownOf("> ".repeat(1_000) + "x"))).toContain("> > > x");
  });
});
