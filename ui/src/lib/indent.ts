/** Keys of an editor of YAML: what they insert, and where the cursor stands afterwards. */

export interface Edit {
  readonly text: string;
  readonly start: number;
  readonly end: number;
}

const STEP = "  ";

const lineStart = (text: string, at: number): number => text.lastIndexOf("\n", at - 1) + 1;

/** Return the text after Enter: the new line has the indent of the old one, and one step more after a colon. */
export const newLine = (text: string, start: number, end: number): Edit => {
  const line = text.slice(lineStart(text, start), start);
  const indent = /^ */.exec(line)?.[0] ?? "";
  const inserted = `\n${indent}${/:\s*$/.test(line) ? STEP : ""}`;
  return { text: text.slice(0, start) + inserted + text.slice(end), start: start + inserted.length, end: start + inserted.length };
};

/** Return the text with the selected lines one step further in, or out. */
export const indented = (text: string, start: number, end: number, isOut: boolean): Edit => {
  const from = lineStart(text, start);
  if (start === end && !isOut) return { text: text.slice(0, start) + STEP + text.slice(end), start: start + STEP.length, end: start + STEP.length };
  const lines = text.slice(from, end).split("\n");
  const changed = lines.map((line) => (isOut ? line.replace(/^ {1,2}/, "") : STEP + line));
  const first = (changed[0]?.length ?? 0) - (lines[0]?.length ?? 0);
  const all = changed.reduce((sum, line, index) => sum + line.length - (lines[index]?.length ?? 0), 0);
  return { text: text.slice(0, from) + changed.join("\n") + text.slice(end), start: Math.max(from, start + first), end: end + all };
};
