/** A part of Markdown as a tree: headings, lists, quotes, code, emphasis and links. There is no HTML and no image. */

export type Inline =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "strong" | "em"; parts: readonly Inline[] }
  | { kind: "link"; href: string; parts: readonly Inline[] };

export type Block =
  | { kind: "paragraph"; parts: readonly Inline[] }
  | { kind: "heading"; level: number; parts: readonly Inline[] }
  | { kind: "list"; ordered: boolean; items: readonly (readonly Inline[])[] }
  | { kind: "quote"; blocks: readonly Block[] }
  | { kind: "code"; text: string }
  | { kind: "rule" };

/** Emphasis within emphasis, and quotes within quotes, up to this depth. */
const DEEPEST = 4;

/** Bounded repetitions: an opening mark without an end is read over this many characters only. */
const MARKS = /`([^`\n]{1,500})`|\*\*([^*\n]{1,500})\*\*|\*([^*\s][^*\n]{0,500})\*|(?<![\w_])_([^_\s][^_\n]{0,500})_(?![\w_])|!?\[([^[\]\n]{0,500})\]\(([^()\s]{1,2000})\)|https?:\/\/[^\s<>()[\]"'`*]{1,2000}/g;

/** Return the address of a link that a browser may follow, or null. Scripts, data and files are none. */
export const linkOf = (text: string): string | null => {
  try {
    const { protocol, href, username } = new URL(text);
    // A user name before the host looks like the host.
    return (protocol === "https:" || protocol === "http:") && username === "" ? href : null;
  } catch {
    return null;
  }
};

const textPart = (text: string): Inline[] => (text === "" ? [] : [{ kind: "text", text }]);

/** Return the parts of a line. What is no mark stays as it is. */
export const inlineOf = (text: string, depth = 0): Inline[] => {
  if (depth >= DEEPEST) return textPart(text);
  const parts: Inline[] = [];
  let end = 0;
  for (const match of text.matchAll(MARKS)) {
    const [whole, code, strong, star, line, label, target] = match;
    let part: Inline | null = null;
    if (code !== undefined) part = { kind: "code", text: code };
    else if (strong !== undefined) part = { kind: "strong", parts: inlineOf(strong, depth + 1) };
    else if (star !== undefined || line !== undefined) part = { kind: "em", parts: inlineOf(star ?? line ?? "", depth + 1) };
    else {
      const bare = target === undefined ? whole.replace(/[.,;:!?]+$/, "") : "";
      const href = linkOf(target ?? bare);
      const shown = target === undefined ? bare : label === "" || label === undefined ? target : label;
      if (href !== null) part = { kind: "link", href, parts: target === undefined ? textPart(shown) : inlineOf(shown, DEEPEST - 1) };
      if (part !== null && target === undefined) {
        parts.push(...textPart(text.slice(end, match.index)), part);
        end = match.index + bare.length;
        continue;
      }
    }
    if (part === null) continue;
    parts.push(...textPart(text.slice(end, match.index)), part);
    end = match.index + whole.length;
  }
  return [...parts, ...textPart(text.slice(end))];
};

const FENCE = /^ {0,3}```/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const ITEM = /^ {0,6}(?:([-*+])|\d{1,9}[.)]) +(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const RULE = /^ {0,3}(?:-{3,}|\*{3,}|_{3,}) *$/;

/** Return the blocks of a text. Line breaks within a paragraph stay. */
export const markdownOf = (text: string, depth = 0): Block[] => {
  const lines = text.split("\n");
  const blocks: Block[] = [];
  let at = 0;
  /** Take the lines that a pattern matches, and return its groups. */
  const run = (pattern: RegExp): RegExpExecArray[] => {
    const found: RegExpExecArray[] = [];
    for (let match = pattern.exec(lines[at] ?? ""); at < lines.length && match !== null; match = pattern.exec(lines[at] ?? "")) {
      found.push(match);
      at += 1;
    }
    return found;
  };
  const starts = (line: string) => line.trim() === "" || [FENCE, HEADING, ITEM, QUOTE, RULE].some((pattern) => pattern.test(line));
  while (at < lines.length) {
    const line = lines[at] ?? "";
    const heading = HEADING.exec(line);
    const item = ITEM.exec(line);
    if (line.trim() === "") at += 1;
    else if (FENCE.test(line)) {
      const close = lines.findIndex((other, index) => index > at && FENCE.test(other));
      const end = close === -1 ? lines.length : close;
      blocks.push({ kind: "code", text: lines.slice(at + 1, end).join("\n") });
      at = end + 1;
    } else if (heading !== null) {
      blocks.push({ kind: "heading", level: heading[1]?.length ?? 1, parts: inlineOf(heading[2] ?? "") });
      at += 1;
    } else if (RULE.test(line)) {
      blocks.push({ kind: "rule" });
      at += 1;
    } else if (item !== null) {
      const ordered = item[1] === undefined;
      blocks.push({ kind: "list", ordered, items: run(ITEM).map((match) => inlineOf(match[2] ?? "")) });
    } else if (QUOTE.test(line)) {
      const inner = run(QUOTE).map((match) => match[1] ?? "").join("\n");
      blocks.push({ kind: "quote", blocks: depth < DEEPEST ? markdownOf(inner, depth + 1) : [{ kind: "paragraph", parts: textPart(inner) }] });
    } else {
      const first = at;
      at += 1;
      while (at < lines.length && !starts(lines[at] ?? "")) at += 1;
      blocks.push({ kind: "paragraph", parts: inlineOf(lines.slice(first, at).join("\n")) });
    }
  }
  return blocks;
};
