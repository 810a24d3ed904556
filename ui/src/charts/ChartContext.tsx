import { createContext, type ReactNode, useContext, useState } from "react";

import { HoverBus, ZoomBus } from "./hover";

interface Buses {
  hover: HoverBus;
  zoom: ZoomBus;
}

const Context = createContext<Buses | null>(null);

/** Connects the charts of a page: the pointer over one of them shows the same place in all that have its x axis. */
export const ChartGroup = ({ children }: { children: ReactNode }) => {
  const [buses] = useState<Buses>(() => ({ hover: new HoverBus(), zoom: new ZoomBus() }));
  return <Context value={buses}>{children}</Context>;
};

/** Return the state that the charts of the page share. A chart without a group has its own. */
export const useChartGroup = (): Buses => {
  const group = useContext(Context);
  const [own] = useState<Buses>(() => ({ hover: new HoverBus(), zoom: new ZoomBus() }));
  return group ?? own;
};
