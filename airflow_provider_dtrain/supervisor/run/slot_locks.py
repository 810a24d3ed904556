"""Locks of the slots of a run, with the tokens under which they were granted."""

from __future__ import annotations

import os
import time

from ..fields import number
from ..file_access import read_json
from ..files.layout import Layout, RunFolder
from ..limits import PROBE_S, SLOT_WAIT_S
from ..machine.locks import lock_taker, take_lock, take_machine_lock, write_label
from ..machine.processes import identity
from ..names import RUN_NAME, Json
from ..refusal import Refused
from .leftovers import has_left
from .lost_folder import removed_slot_locks
from .plan import plan_slots, slot_devices


class SlotLocks:
    """Locks of the slots of one run. They are held until :meth:`release`, or until the process ends."""

    def __init__(self, layout: Layout, folder: RunFolder, plan: Json) -> None:
        self.layout = layout
        self.folder = folder
        self.plan = plan
        #: Slot -> descriptors of its lock files: this account's, then the one of all accounts.
        self.held: dict[int, list[int]] = {}

    def take(self) -> None:
        """Take every slot's locks, in order. Wait for a slot whose last run has just ended."""
        label = {"run": self.folder.name, "store": self.plan["store"], "token": self.plan["token"], **identity()}
        devices = slot_devices(self.plan)
        for index in devices:
            self.held[index] = [self._take_account_lock(index)]
        # Take all locks of this account first, so that a refusal names the run of this account that holds the slot.
        self._refuse_hidden_holder()
        for index, device in devices.items():
            if (path := self.layout.machine_lock(index, device)) is not None:
                self.held[index].append(self._take_machine_lock(index, path))
        for index, locks in self.held.items():
            write_label(locks[0], {**label, "device": devices[index]})

    def _take_account_lock(self, index: int) -> int:
        path = self.layout.slot_lock(index)
        begun = time.monotonic()
        while (lock := take_lock(path)) is None:
            holder = str((read_json(path) or {}).get("run"))
            ending = RUN_NAME.fullmatch(holder) is not None and self.layout.run(holder).has("ended")
            if time.monotonic() - begun > (SLOT_WAIT_S if ending else PROBE_S):
                message = f"Slot {index} is held by run {holder}. Wait for its end, or fence it."
                raise Refused("slot_busy", message, slot=index, run=holder)
            time.sleep(0.002)
        return lock

    def _take_machine_lock(self, index: int, path: str) -> int:
        begun = time.monotonic()
        try:
            # A run of this account that is about to end may have released only the other lock.
            while (lock := take_machine_lock(path, create=True)) is None:
                if time.monotonic() - begun > SLOT_WAIT_S:
                    message = f"Slot {index} is held by {lock_taker(path)}, outside this account's runs ({path})."
                    raise Refused("slot_busy", f"{message} Wait for its end.", slot=index, run=None)
                time.sleep(0.005)
        except Refused as error:
            error.details["slot"] = index
            raise
        return lock

    def _refuse_hidden_holder(self) -> None:
        """Refuse slots of a living run whose lock file was removed, e.g. by a cleaner of temporary files."""
        for name in self.layout.runs():
            folder = self.layout.run(name)
            if name == self.folder.name or folder.has("ended"):
                continue
            shared = [index for index in plan_slots(folder.plan() or {}) if index in self.held]
            if shared and (folder.alive() or has_left(folder)):
                message = f"Slot {shared[0]} is used by run {name}, although its lock is free."
                raise Refused("slot_busy", f"{message} Wait for its end, or fence it.", slot=shared[0], run=name)

        # Without a label the file is new: no run has taken it, or a cleaner has removed the one before.
        new = {index for index, locks in self.held.items() if not os.fstat(locks[0]).st_size}
        for _, index, label in removed_slot_locks(self.layout) if new else ():
            if index in new:
                run = label.get("run")
                message = f"Slot {index} is used by run {run}, whose files were removed."
                raise Refused("slot_busy", f"{message} Wait for its end, or fence it.", slot=index, run=run)

    def check_tokens(self) -> None:
        """Record the token of the grant for each slot.

        :raises Refused: a slot was granted under a newer token
        """
        store = self.plan["store"]
        token = self.plan["token"]
        for index in self.held:
            known = number(self.layout.tokens(index).get(store))
            if known > token:
                message = f"Slot {index} was granted under token {known}, but the plan has {token}. Its grant is over."
                raise Refused("stale_token", message, slot=index, recorded=known)
        self.layout.record_tokens(store, token, self.held)

    def release(self) -> None:
        """Release the locks that were taken."""
        for lock in (lock for locks in self.held.values() for lock in locks):
            os.close(lock)
