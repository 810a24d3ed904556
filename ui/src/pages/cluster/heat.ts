/** Heat map of the slots: the colour of a square is a measured value. */
import { createContext, useContext, useMemo } from "react";

import { type components } from "../../api/schema";
import { withQuery } from "../../api/client";
import { useData } from "../../hooks/useData";

export type Heat = components["schemas"]["Heat"];

export const HEATS = [
  { value: "", text: "Holders" },
  { value: "load", text: "Load" },
  { value: "memory", text: "Memory" },
  { value: "temperature", text: "Temperature" },
  { value: "power", text: "Power" },
] as const;

export type HeatName = (typeof HEATS)[number]["value"];

/** Return the metric of an address, or "" for squares that show who holds a slot. */
export const heatName = (text: string): HeatName => HEATS.find(({ value }) => value === text)?.value ?? "";

/** The values are of minutes, and change slowly. */
const EVERY_MS = 10_000;

export interface HeatState {
  readonly name: HeatName;
  readonly heat: Heat | undefined;
}

const NONE: HeatState = { name: "", heat: undefined };

export const HeatContext = createContext<HeatState>(NONE);

/** Return the values of the visible hosts, as long as a metric is chosen. */
export const useHeat = (name: HeatName, hosts: readonly string[]): HeatState => {
  const path = name === "" || hosts.length === 0 ? null : withQuery("cluster/heat", { metric: name, host: [...hosts].sort() });
  const { data } = useData<Heat>(path, { everyMs: EVERY_MS, keepPrevious: true });
  const heat = data?.metric === name ? data : undefined;
  return useMemo(() => ({ name, heat }), [name, heat]);
};

export interface HostValues {
  readonly isShown: boolean;
  readonly unit: string;
  /** Place of a value on the scale of colours, from 0 to 1. */
  readonly place: (value: number) => number;
  readonly slots: readonly (number | null)[];
}

/** Return the values of the slots of a host. A slot without one is a gap. */
export const useHostValues = (host: string): HostValues => {
  const { name, heat } = useContext(HeatContext);
  const { minimum = 0, maximum = 1, unit = "" } = heat ?? {};
  return {
    isShown: name !== "",
    unit,
    place: (value) => (maximum > minimum ? (value - minimum) / (maximum - minimum) : 0),
    slots: heat?.hosts.find((one) => one.name === host)?.slots ?? [],
  };
};

/** Return a value with its unit: "312 W". */
export const heatText = (value: number | null | undefined, unit: string): string => (value === null || value === undefined ? "not measured" : `${Math.round(value)} ${unit}`);
