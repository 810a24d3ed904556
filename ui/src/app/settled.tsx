import { type ComponentType, useLayoutEffect, useState } from "react";
import { useLocation, useNavigate } from "react-router-dom";

/**
 * Return a component that Airflow can show without losing the focus and the typed text of a user.
 *
 * Airflow shows an app whose bundle it has just loaded within Suspense, and without Suspense from its next render on. So the
 * first change of the address mounts the app again. This component changes the address to the same one at its first mount.
 */
export const settled = <P extends object>(App: ComponentType<P>): ComponentType<P> => {
  let wasMounted = false;
  const Settled = (props: P) => {
    const navigate = useNavigate();
    const location = useLocation();
    const [isShown, show] = useState(wasMounted);
    useLayoutEffect(() => {
      if (wasMounted) return;
      wasMounted = true;
      void navigate(location, { replace: true, state: location.state as unknown });
      show(true);
      // eslint-disable-next-line react-hooks/exhaustive-deps -- only at the first mount.
    }, []);
    return isShown ? <App {...props} /> : null;
  };
  return Settled;
};
