/** Icons as outlines on a grid of 24 units, in the weight of the Airflow UI's icons. */
import { type SVGProps } from "react";

const SHAPES = {
  activity: "M3 12h4l3-8 4 16 3-8h4",
  ban: "M5.6 5.6l12.8 12.8M12 3a9 9 0 1 0 0 18a9 9 0 1 0 0-18",
  box: "M3 5h18v4H3zM5 9v10h14V9M10 13h4",
  check: "M5 12.5l4.5 4.5L19 7.5",
  chevronDown: "M6 9l6 6 6-6",
  clock: "M12 7v5l3 2M12 3a9 9 0 1 0 0 18a9 9 0 1 0 0-18",
  close: "M6 6l12 12M18 6L6 18",
  columns: "M4 4h16v16H4zM9.3 4v16M14.7 4v16",
  copy: "M9 9h11v11H9zM15 9V4H4v11h5",
  dash: "M5 12h14",
  download: "M12 4v11M7 10.5l5 5 5-5M4 20h16",
  external: "M14 4h6v6M20 4l-9 9M18 14v6H4V6h6",
  flag: "M5 21V4h11l-2 4 2 4H5",
  folder: "M3 6h6l2 2h10v11H3z",
  gauge: "M4 18a9 9 0 1 1 16 0M12 15l4-5",
  image: "M3 5h18v14H3zM3 16l5-5 4 4 3-3 6 6M15.5 9h.01",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  pause: "M8 5v14M16 5v14",
  pencil: "M4 20l1-5L16 4l4 4L9 19z",
  play: "M7 4.5v15l12-7.5z",
  plus: "M12 5v14M5 12h14",
  repeat: "M4 11V9a3 3 0 0 1 3-3h13M17 3l3 3-3 3M20 13v2a3 3 0 0 1-3 3H4M7 21l-3-3 3-3",
  search: "M11 4a7 7 0 1 0 0 14a7 7 0 1 0 0-14M16 16l4.5 4.5",
  sortable: "M8 10l4-4 4 4M8 14l4 4 4-4",
  sortAscending: "M12 18V6M7 11l5-5 5 5",
  sortDescending: "M12 6v12M7 13l5 5 5-5",
  stop: "M6 6h12v12H6z",
  tag: "M4 4h8l8 8-8 8-8-8zM8.5 8.5h.01",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v5M14 11v5",
  warning: "M12 4L2.5 20h19zM12 10v4M12 17h.01",
} as const;

export type IconName = keyof typeof SHAPES;

/** An icon in the size of its text. It is hidden from screen readers: the text or label beside it names the meaning. */
export const Icon = ({ name, ...rest }: { name: IconName } & SVGProps<SVGSVGElement>) => (
  <svg aria-hidden="true" className="dtrain-icon" viewBox="0 0 24 24" {...rest}>
    <path d={SHAPES[name]} />
  </svg>
);
