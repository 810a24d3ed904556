"""Tests of slow modules that run for each change. The other tests of these modules are in the nightly tier.

A fact belongs to each change if a change in its code is likely to break it and no faster test would notice.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

#: Module -> tests, with or without the id of a parameter.
EACH_CHANGE: Mapping[str, frozenset[str]] = {
    "tests/faults/test_fuzz.py": frozenset({"test_a_fuzzed_run_leaves_no_violation[11]"}),
    "tests/faults/test_hosts.py": frozenset({
        "test_a_crashed_host_is_left_out_and_gives_its_slots_back_once_it_is_up",
        "test_a_reboot_ends_the_run_at_once",
        "test_a_full_disk_ends_the_run_and_the_trial_goes_on",
    }),
    "tests/faults/test_network.py": frozenset({
        "test_what_passes_before_the_deadline_costs_nothing[cut all]",
        "test_a_host_that_is_cut_off_ends_its_part_and_the_trial_goes_on_elsewhere",
    }),
    "tests/faults/test_processes.py": frozenset({
        "test_a_killed_rank_ends_its_gang_which_goes_on_from_the_latest_checkpoint",
        "test_a_killed_supervisor_takes_its_ranks_along_and_is_no_failure_of_the_code",
        "test_a_killed_trigger_process_changes_nothing_for_the_ranks",
        "test_a_child_that_detached_itself_does_not_outlive_its_killed_supervisor",
    }),
    "tests/faults/test_store.py": frozenset({
        "test_a_database_that_is_killed_and_comes_back_costs_nothing[postgresql]",
        "test_a_backup_from_before_the_grant_never_lets_two_gangs_share_a_slot[sqlite]",
    }),
    "tests/integration/test_main_job.py": frozenset({
        "test_digits_trains_on_one_two_and_three_hosts[gpus-4-2]",
        "test_a_gang_that_no_hosts_can_ever_hold_fails_at_once_with_the_reason",
        "test_a_kill_from_airflow_leaves_no_process_on_any_host[True-job]",
        "test_a_rank_that_raises_fails_the_task_with_its_traceback",
        "test_two_trials_run_on_one_held_gang_that_a_teardown_frees",
        "test_a_function_runs_as_the_ranks_of_a_gang",
    }),
    "tests/integration/test_search_dags.py": frozenset({
        "test_a_plan_that_is_wrong_starts_nothing",
        "test_an_experiment_needs_no_dag_of_ones_own",
        "test_the_asha_example_stops_bad_trials_and_starts_the_next_dag",
    }),
}  # fmt: skip


def mark_nightly(items: list[pytest.Item]) -> None:
    """Mark the tests that do not run for each change."""
    for item in items:
        module, _, name = item.nodeid.partition("::")
        chosen = EACH_CHANGE.get(module)
        if chosen is not None and not chosen & {name, name.partition("[")[0]}:
            item.add_marker(pytest.mark.nightly)
