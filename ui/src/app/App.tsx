import { Navigate, useParams } from "react-router-dom";

import { paths } from "./paths";
import { Frame } from "./Frame";
import { pageOf } from "./pages";
import { EmptyState } from "../components/EmptyState";
import { PageLink } from "../components/Links";

const decoded = (text: string): string => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

/** The app in the navigation of the Airflow UI: chooses the page by the rest of the address. */
export const App = () => {
  const rest = useParams()["*"] ?? "";
  if (rest.replaceAll("/", "") === "") return <Navigate replace to={paths.cluster} />;
  const found = pageOf(rest);
  if (found === null) {
    return (
      <Frame current={null} title="Page not found">
        <EmptyState text={<PageLink to={paths.experiments}>Experiments</PageLink>} title={`There is no page "${decoded(rest)}".`} />
      </Frame>
    );
  }
  const { component: Page, nav, path, title, within } = found.page;
  return (
    <Frame current={nav ?? within ?? path} title={title}>
      <Page {...found.values} />
    </Frame>
  );
};
