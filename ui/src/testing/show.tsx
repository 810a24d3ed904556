/** Shows a component of a test within the router and the theme that the Airflow UI provides. */
import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { render } from "@testing-library/react";
import { type ReactElement } from "react";
import { createMemoryRouter, RouterProvider } from "react-router-dom";

/** Render below the route that the Airflow UI has for the app. The result includes the router. */
export const show = (element: ReactElement, address = "/plugin/dtrain/cluster") => {
  const router = createMemoryRouter(
    [
      { path: "/plugin/:page/*", element },
      { path: "*", element: <p>Page of Airflow</p> },
    ],
    { initialEntries: [address] },
  );
  const result = render(
    <ChakraProvider value={defaultSystem}>
      <RouterProvider router={router} />
    </ChakraProvider>,
  );
  return { ...result, router };
};
