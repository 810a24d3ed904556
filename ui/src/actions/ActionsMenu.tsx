import { Menu, Portal } from "@chakra-ui/react";
import { useLayoutEffect, useRef, useState } from "react";

import { Icon } from "../components/icons";
import { type Action, ask, type Shortcut } from "./ask";
import { entryOf, homeOf } from "./focusHome";

interface Props {
  /** Name for screen readers: "Actions of host gpu-01". */
  label: string;
  actions: readonly (Action | Shortcut)[];
  onDone?: () => void;
}

/** A button with a menu of actions. The menu is created when it opens first, because a table has many of them. */
export const ActionsMenu = ({ label, actions, onDone }: Props) => {
  const [used, setUsed] = useState(false);
  const trigger = useRef<HTMLButtonElement>(null);
  const menu = useRef<HTMLDivElement>(null);
  const hasFocus = () => {
    const focused = document.activeElement;
    return focused === trigger.current || menu.current?.contains(focused) === true;
  };
  useLayoutEffect(() => {
    const home = homeOf(trigger.current);
    return () => {
      if (!hasFocus()) return;
      // The row leaves the table, and its menu with it.
      requestAnimationFrame(() => {
        if (document.activeElement === document.body) entryOf(home)?.focus({ preventScroll: true });
      });
    };
  }, [used]);
  if (actions.length === 0) return null;
  const more = <Icon name="more" />;
  const act = (chosen: string) => {
    for (const action of actions.filter(({ id }) => id === chosen)) {
      if ("open" in action) action.open();
      else ask(action, onDone, trigger.current);
    }
  };
  if (!used) {
    return (
      <button aria-haspopup="menu" aria-label={label} className="dtrain-button" onClick={() => setUsed(true)} title={label} type="button">
        {more}
      </button>
    );
  }
  // Each key focuses the menu in the next frame. After a quick Escape it takes the focus from the button in this way, and
  // then leaves the document with it.
  const giveBack = () => {
    if (document.activeElement === document.body || hasFocus()) trigger.current?.focus({ preventScroll: true });
  };
  return (
    <Menu.Root defaultOpen lazyMount onExitComplete={giveBack} onSelect={({ value }) => act(value)} unmountOnExit>
      <Menu.Trigger asChild>
        <button aria-label={label} className="dtrain-button" ref={trigger} title={label} type="button">
          {more}
        </button>
      </Menu.Trigger>
      <Portal>
        <Menu.Positioner>
          <Menu.Content ref={menu}>
            {actions.map(({ id, label: text, icon, dangerous }) => (
              <Menu.Item color={dangerous === true ? "red.fg" : undefined} key={id} value={id}>
                <Icon name={icon} /> {text}
              </Menu.Item>
            ))}
          </Menu.Content>
        </Menu.Positioner>
      </Portal>
    </Menu.Root>
  );
};
