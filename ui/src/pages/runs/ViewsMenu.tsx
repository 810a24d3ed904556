import { Button, Checkbox, Field, Input, Menu, Portal } from "@chakra-ui/react";
import { useRef, useState } from "react";

import { send } from "../../api/client";
import { type RunChart, type RunView, type RunViews } from "../../api/runs";
import { ConfirmDialog } from "../../components/ConfirmDialog";
import { FormDialog } from "../../components/FormDialog";
import { Icon } from "../../components/icons";
import { toastSuccess } from "../../components/toaster";

/** What a view keeps. */
export interface Definition {
  where: string;
  columns: readonly string[];
  by: readonly string[];
  sort: string;
  charts: readonly RunChart[];
}

interface SaveProps {
  /** The own view that is replaced, or null for a new one. */
  view: RunView | null;
  definition: Definition;
  onSaved: (view: RunView) => void;
  onClose: () => void;
}

const LONGEST_NAME = 100;

const SaveDialog = ({ view, definition, onSaved, onClose }: SaveProps) => {
  const [name, setName] = useState(view?.name ?? "");
  const [isShared, setShared] = useState(view?.is_shared ?? false);
  const first = useRef<HTMLInputElement>(null);
  const save = async () => {
    const body = { name: name.trim(), is_shared: isShared, ...definition };
    const saved = view === null ? await send<RunView>("POST", "runs/views", body) : await send<RunView>("PUT", `runs/views/${view.view_id}`, body);
    toastSuccess(`Saved: view ${saved.name}.`);
    onSaved(saved);
  };
  return (
    <FormDialog first={first} isValid={name.trim() !== ""} onClose={onClose} onSubmit={save} title={view === null ? "Save the view" : `Save view ${view.name}`} verb="Save">
      <Field.Root required>
        <Field.Label>Name</Field.Label>
        <Input maxLength={LONGEST_NAME} onChange={({ target }) => setName(target.value)} ref={first} value={name} />
        <Field.HelperText>A view keeps filter, columns, groups, order and charts.</Field.HelperText>
      </Field.Root>
      <Checkbox.Root checked={isShared} onCheckedChange={({ checked }) => setShared(checked === true)}>
        <Checkbox.HiddenInput />
        <Checkbox.Control />
        <Checkbox.Label>Share it with all users. Each sees only trials that they may read.</Checkbox.Label>
      </Checkbox.Root>
    </FormDialog>
  );
};

interface Props {
  views: RunViews | undefined;
  /** Id of the view that is shown. */
  shown: string;
  definition: Definition;
  onShow: (view: RunView | null) => void;
  /** The views have changed. */
  onDone: () => void;
}

/** Saved views: own ones, and those that other users share. */
export const ViewsMenu = ({ views, shown, definition, onShow, onDone }: Props) => {
  const [dialog, setDialog] = useState<"new" | "remove" | "replace" | null>(null);
  const all = views?.rows ?? [];
  const current = all.find(({ view_id }) => String(view_id) === shown) ?? null;
  const own = current?.is_own === true ? current : null;
  const close = () => setDialog(null);
  const remove = async () => {
    if (own === null) return;
    await send("DELETE", `runs/views/${own.view_id}`);
    onShow(null);
    onDone();
  };
  return (
    <>
      <Menu.Root lazyMount unmountOnExit>
        <Menu.Trigger asChild>
          <Button maxW="260px" size="sm" variant="outline">
            <Icon name="flag" /> {current === null ? "Views" : current.name} <Icon name="chevronDown" />
          </Button>
        </Menu.Trigger>
        <Portal>
          <Menu.Positioner>
            <Menu.Content maxH="60vh" maxW="90vw" overflowY="auto">
              {all.map((view) => (
                <Menu.Item key={view.view_id} onClick={() => onShow(view)} overflowWrap="anywhere" value={String(view.view_id)}>
                  {view.name}
                  {view.is_own ? (view.is_shared ? " (shared)" : "") : ` (by ${view.owner})`}
                </Menu.Item>
              ))}
              {all.length === 0 ? null : <Menu.Separator />}
              {own === null ? null : (
                <Menu.Item onClick={() => setDialog("replace")} value="replace">
                  Save changes
                </Menu.Item>
              )}
              <Menu.Item onClick={() => setDialog("new")} value="new">
                Save as a new view
              </Menu.Item>
              {own === null ? null : (
                <Menu.Item onClick={() => setDialog("remove")} value="remove">
                  Remove the view
                </Menu.Item>
              )}
            </Menu.Content>
          </Menu.Positioner>
        </Portal>
      </Menu.Root>
      {dialog === "new" || dialog === "replace" ? (
        <SaveDialog
          definition={definition}
          onClose={close}
          onSaved={(view) => {
            onShow(view);
            onDone();
          }}
          view={dialog === "replace" ? own : null}
        />
      ) : null}
      {dialog === "remove" && own !== null ? (
        <ConfirmDialog dangerous onClose={close} onConfirm={remove} text={own.is_shared ? "Other users lose it as well. No trial is removed." : "No trial is removed."} title={`Remove view ${own.name}?`} verb="Remove" />
      ) : null}
    </>
  );
};
