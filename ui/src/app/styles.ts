import log from "../pages/trial/log/log.css?inline";
import css from "../styles.css?inline";

const ID = "dtrain-styles";

/** Add the rules of `styles.css` to the document. The bundle runs once per app, and adds them once. */
export const addStyles = (): void => {
  if (document.getElementById(ID) !== null) return;
  const element = document.createElement("style");
  element.id = ID;
  element.textContent = css + log;
  document.head.append(element);
};
