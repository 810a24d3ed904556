/** Return the names that contain all words of a text, in their order, and how many did not fit. */
export const matching = (names: readonly string[], text: string, most: number): { shown: string[]; more: number } => {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const shown: string[] = [];
  let more = 0;
  for (const name of names) {
    const lower = name.toLowerCase();
    if (!words.every((word) => lower.includes(word))) continue;
    if (shown.length < most) shown.push(name);
    else more += 1;
  }
  return { shown, more };
};
