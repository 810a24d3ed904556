/** Text files of a chart's data. */

/** Texts that begin so are formulas for a spreadsheet. */
const FORMULA = /^[=+\-@\t\r]/;

const cell = (value: number | string | null | undefined): string => {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const safe = FORMULA.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};

/** Return rows as CSV. A text that a spreadsheet would run as a formula begins with an apostrophe. */
export const csv = (rows: readonly (readonly (number | string | null | undefined)[])[]): string =>
  `${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;

/** Offer a text as a download. */
export const download = (name: string, text: string, type = "text/csv"): void => save(name, new Blob([text], { type: `${type};charset=utf-8` }));

/** Offer data as a download. */
export const save = (name: string, data: Blob): void => {
  const url = URL.createObjectURL(data);
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
};
