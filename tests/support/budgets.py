"""Numbers of random examples, by the tier of a test run."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

#: The examples of each change are always the same, so that a failure belongs to the change.
CHANGE = "change"
#: The examples of the nightly tier are new in each run.
NIGHTLY = "nightly"
FEWEST = 10
#: Examples of tests that name no number: for each change, and at night.
FEW, USUAL = 25, 100


def register_profiles() -> None:
    """Register the profiles of both tiers. Pytest's option ``--hypothesis-profile`` chooses one.

    The time that an example takes is no fact about the code: the other tests share the machine. Examples that are the
    same in each run show once what they show, so there are few of them.
    """
    for name, is_fixed, examples in ((CHANGE, True, FEW), (NIGHTLY, False, USUAL)):
        settings.register_profile(
            name,
            derandomize=is_fixed,
            max_examples=examples,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile(CHANGE)


def is_nightly() -> bool:
    """Return whether this is a run of the nightly tier."""
    return settings.get_current_profile_name() == NIGHTLY


def budget(examples: int) -> int:
    """Return the number of examples in this tier: an eighth for each change, four times as many at night."""
    if is_nightly():
        return 4 * examples
    return max(min(FEWEST, examples), examples // 8)
