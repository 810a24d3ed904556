"""Numbers of random examples, by the tier of a test run."""

from __future__ import annotations

from hypothesis import settings

#: The examples of each change are always the same, so that a failure belongs to the change.
CHANGE = "change"
#: The examples of the nightly tier are new in each run.
NIGHTLY = "nightly"
FEWEST = 20


def register_profiles() -> None:
    """Register the profiles of both tiers. Pytest's option ``--hypothesis-profile`` chooses one."""
    settings.register_profile(CHANGE, derandomize=True)
    settings.register_profile(NIGHTLY, derandomize=False)
    settings.load_profile(CHANGE)


def is_nightly() -> bool:
    """Return whether this is a run of the nightly tier."""
    return settings.get_current_profile_name() == NIGHTLY


def budget(examples: int) -> int:
    """Return the number of examples in this tier: a quarter for each change, four times as many at night."""
    if is_nightly():
        return 4 * examples
    return max(min(FEWEST, examples), examples // 4)
