/** Characters that change how the text around them is shown: the same ones as in `core/control_characters.py`. */
// eslint-disable-next-line no-control-regex -- control characters are what it finds
const CONTROLS = /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u070f\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{13430}-\u{1343f}\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e00ff}]/gu;

const escape = (character: string): string => {
  const code = character.codePointAt(0) ?? 0;
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  return code < 0x10000 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
};

/** Return a text whose control characters and marks of direction are visible escapes. Newlines and tabs stay. */
export const visible = (text: string): string => text.replace(CONTROLS, escape);

/** Return the text of a file as lines that a browser shows: the usual ends of lines of Windows are no escapes. */
export const visibleFile = (text: string): string => visible(text.replaceAll("\r\n", "\n"));
