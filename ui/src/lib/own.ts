/** Return the value of a name from an answer, where a name may also be one of JavaScript's: "constructor". */
export const own = <T>(record: Readonly<Record<string, T>>, name: string): T | undefined => (Object.hasOwn(record, name) ? record[name] : undefined);
