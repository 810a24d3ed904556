import { createToaster, Portal, Toast, Toaster as ChakraToaster, Stack } from "@chakra-ui/react";

import { type ApiError } from "../api/client";
import { nextStep } from "../lib/nextStep";
import { Words } from "./Notice";

const toaster = createToaster({ placement: "bottom-end", pauseOnPageIdle: true, max: 4 });

/** Tell in a corner of the page that an action was carried out. */
export const toastSuccess = (title: string): void => {
  toaster.create({ title, type: "success" });
};

/** Tell in a corner of the page why an action failed. */
export const toastError = (title: string, error: ApiError): void => {
  const { text, command, page } = nextStep(error.hint ?? "");
  const description = [error.message, text, command === null ? (page?.text ?? "") : `\`${command}\``].filter(Boolean).join(" ");
  toaster.create({ title, description, type: "error", duration: 12_000 });
};

/** The corner of the page in which messages appear. */
export const Toaster = () => (
  <Portal>
    <ChakraToaster insetInline={{ mdDown: "4" }} toaster={toaster}>
      {(toast) => (
        <Toast.Root width={{ md: "sm" }}>
          <Toast.Indicator />
          <Stack flex="1" gap="1" maxWidth="100%" overflowWrap="anywhere">
            <Toast.Title>{toast.title}</Toast.Title>
            {typeof toast.description === "string" && toast.description !== "" ? (
              <Toast.Description>
                <Words text={toast.description} />
              </Toast.Description>
            ) : null}
          </Stack>
          <Toast.CloseTrigger />
        </Toast.Root>
      )}
    </ChakraToaster>
  </Portal>
);
