import { createContext, useContext, useEffect } from "react";

/** Sets the title of the browser's tab. Outside of a page of our own, such as in a tab of a DAG run, nothing sets it. */
export const TitleContext = createContext<(title: string) => void>(() => undefined);

/** Name the object of a page in the browser's tab, once it is known. */
export const useTitle = (title: string | null | undefined): void => {
  const set = useContext(TitleContext);
  useEffect(() => {
    if (title !== null && title !== undefined) set(title);
  }, [set, title]);
};
