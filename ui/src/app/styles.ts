import log from "../pages/trial/log/log.css?inline";
import { FILLS, type Mode } from "../charts/palette";
import css from "../styles.css?inline";

const ID = "dtrain-styles";

const variables = (mode: Mode): string => Object.entries(FILLS[mode]).map(([name, color]) => `--dtrain-fill-${name}:${color};`).join("");

/** Add the rules of `styles.css` to the document. The bundle runs once per app, and adds them once. */
export const addStyles = (): void => {
  if (document.getElementById(ID) !== null) return;
  const element = document.createElement("style");
  element.id = ID;
  element.textContent = `:root{${variables("light")}}.dark{${variables("dark")}}${css}${log}`;
  document.head.append(element);
};
