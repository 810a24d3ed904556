import { useEffect } from "react";

import { forget } from "../api/cache";
import { ConfirmDialog } from "../components/ConfirmDialog";
import { toastSuccess } from "../components/toaster";
import { dismiss, useAsked } from "./ask";
import { entryOf } from "./focusHome";

/** The dialog of the action that waits for a confirmation. */
export const ActionDialog = () => {
  const asked = useAsked();
  // The dialog of a page that the user leaves is closed.
  useEffect(() => dismiss, []);
  if (asked === null) return null;
  const { action, onDone, from, home } = asked;
  return (
    <ConfirmDialog
      dangerous={action.dangerous}
      key={`${action.id} ${action.title}`}
      last={() => (from instanceof HTMLElement && from.isConnected ? from : entryOf(home))}
      onClose={dismiss}
      onConfirm={async (value) => {
        const { message } = await action.run(value);
        toastSuccess(message);
        // Other pages show the change at their next visit, without an old answer first.
        forget();
        onDone();
      }}
      question={action.question}
      text={action.text}
      title={action.title}
      verb={action.verb}
    />
  );
};
