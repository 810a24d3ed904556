import { useCallback, useMemo, useRef, useEffect } from "react";
import { useSearchParams } from "react-router-dom";

/** Values that the address of a page may hold. A list holds texts. */
type Value = string | number | boolean | readonly string[];
type Wide<T> = { [K in keyof T]: T[K] extends string ? T[K] | string : T[K] extends readonly string[] ? readonly string[] : T[K] extends number ? number : T[K] extends boolean ? boolean : T[K] };

const read = (search: URLSearchParams, name: string, usual: Value): Value => {
  if (Array.isArray(usual)) return search.has(name) ? search.getAll(name).filter((item) => item !== "") : usual;
  const text = search.get(name);
  if (text === null) return usual;
  if (typeof usual === "boolean") return text === "1";
  if (typeof usual !== "number") return text;
  const number = Number(text);
  return text.trim() !== "" && Number.isFinite(number) ? number : usual;
};

const same = (a: Value, b: Value): boolean => JSON.stringify(a) === JSON.stringify(b);

const write = (search: URLSearchParams, name: string, value: Value, usual: Value): void => {
  search.delete(name);
  if (same(value, usual)) return;
  // An empty list differs from an absent one, where the usual list is not empty.
  if (Array.isArray(value)) (value.length > 0 ? value : [""]).forEach((item: string) => search.append(name, item));
  else search.set(name, typeof value === "boolean" ? (value ? "1" : "0") : String(value));
};

/**
 * Keep filters, sort, columns and selection in the address of the page, so that a link shows the same.
 *
 * Values equal to the usual ones are left out, and several changes within one event are all kept. A change replaces the
 * entry of the browser's history, or adds one if the back button is to undo it.
 *
 * @param usual names and default values; a constant of the module
 */
export const useUrlState = <T extends Record<string, Value>>(usual: T): [Wide<T>, (change: Partial<Wide<T>>, history?: "add" | "replace") => void] => {
  const [search, setSearch] = useSearchParams();
  const text = search.toString();
  const pending = useRef(text);
  const set = useRef(setSearch);
  useEffect(() => {
    pending.current = text;
    set.current = setSearch;
  }, [text, setSearch]);
  const state = useMemo(() => {
    const params = new URLSearchParams(text);
    return Object.fromEntries(Object.entries(usual).map(([name, value]) => [name, read(params, name, value)])) as Wide<T>;
  }, [text, usual]);
  const change = useCallback(
    (values: Partial<Wide<T>>, history: "add" | "replace" = "replace") => {
      const params = new URLSearchParams(pending.current);
      for (const [name, value] of Object.entries(values)) write(params, name, value as Value, usual[name] as Value);
      pending.current = params.toString();
      set.current(params, { replace: history === "replace" });
    },
    [usual],
  );
  return [state, change];
};
