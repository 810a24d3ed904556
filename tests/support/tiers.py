"""Tests that run for each change, and tests of the nightly tier.

A fact belongs to each change if a change in its code is likely to break it and no faster test would notice.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

#: Slow module -> its tests that run for each change, with or without the id of a parameter. Its others are nightly.
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
    "tests/integration/test_cli_hold.py": frozenset({
        "test_a_run_outlives_its_usual_lease_while_leases_are_held",
        "test_a_maintenance_that_makes_no_sense_is_a_usage_error",
    }),
    "tests/integration/test_engine_checkpoints.py": frozenset({
        "test_a_restart_goes_on_from_the_latest_checkpoint_and_ends_as_an_unbroken_run",
        "test_what_the_whole_experiment_does_not_keep_is_removed_on_the_host_and_here",
    }),
    "tests/integration/test_engine_preemption.py": frozenset({
        "test_a_preempted_gang_writes_a_checkpoint_and_goes_on_from_it",
        "test_ranks_that_do_not_listen_are_stopped_after_preemption_timeout",
        "test_a_paused_trial_holds_nothing_until_it_is_activated",
    }),
    "tests/integration/test_engine_recovery.py": frozenset({
        "test_a_run_goes_on_without_its_follower_and_is_completed_by_whoever_looks",
        "test_an_attempt_whose_follower_died_before_the_launch_waits_again",
        "test_a_waiting_trial_gets_the_slots_of_one_whose_follower_died",
        "test_a_follower_that_another_one_replaced_stops_silently",
        "test_a_restored_store_takes_no_other_run_for_its_own",
        "test_a_run_that_a_restored_store_has_forgotten_is_fenced_and_its_slots_are_used",
    }),
    "tests/integration/test_engine_rungs.py": frozenset({
        "test_a_rank_that_dies_around_a_decision_to_go_on_goes_on_and_is_told_the_same_again",
        "test_an_answer_after_decision_timeout_ends_the_ranks_at_a_later_boundary",
    }),
    "tests/integration/test_example_scripts.py": frozenset({
        "test_the_configurations_use_nothing_that_is_not_built",
        "test_the_trial_class_runs_off_cluster",
    }),
    "tests/integration/test_task_log.py": frozenset({
        "test_a_log_without_a_fault_is_there_once_and_in_order",
        "test_a_killed_triggerer_loses_no_line",
    }),
    "tests/integration/test_task_log_workers.py": frozenset({
        "test_the_log_of_a_worker_without_a_fault_is_there_once_and_in_order",
        "test_a_killed_worker_loses_no_line",
    }),
    "tests/integration/test_train_optimizations.py": frozenset({
        "test_the_weight_after_each_batch_is_the_one_computed_by_hand",
        "test_all_ranks_hold_the_same_bits",
        "test_a_run_resumed_inside_a_group_has_the_bits_of_an_unbroken_one[fp16-2]",
    }),
    "tests/integration/test_train_ranks.py": frozenset({
        "test_digits_learns_at_two_ranks",
        "test_all_ranks_end_with_identical_parameters",
        "test_the_result_names_a_checkpoint_that_is_there",
        "test_one_and_two_ranks_train_on_the_same_global_batches",
        "test_the_failing_rank_is_the_one_with_the_cause_in_its_error_file",
        "test_torchrun_runs_the_same_script",
    }),
    "tests/integration/test_train_rungs.py": frozenset({
        "test_two_hosts_stop_at_the_same_step_when_the_searcher_says_so",
        "test_a_restart_below_the_asked_rung_asks_again_and_takes_the_stored_answer",
        "test_a_trial_class_validates_at_its_rungs_and_ends_with_a_checkpoint",
    }),
    "tests/integration/test_train_saving.py": frozenset({
        "test_a_resumed_run_ends_as_an_unbroken_one[2-2-3]",
        "test_a_full_disk_is_a_named_error_and_no_older_checkpoint_is_lost",
        "test_the_last_save_failing_fails_the_trial",
    }),
    "tests/integration/test_train_trial_ranks.py": frozenset({
        "test_two_ranks_resumed_in_the_middle_of_an_epoch_and_a_group_equal_an_unbroken_run",
        "test_torchrun_runs_a_trial_class",
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
    "tests/ui/test_pages.py": frozenset({
        "test_a_page_shows_the_seeded_facts_and_is_accessible[experiments-light]",
        "test_a_page_shows_the_seeded_facts_and_is_accessible[cluster-dark]",
        "test_a_page_shows_the_seeded_facts_and_is_accessible[queue-light]",
        "test_an_admin_drains_and_enables_a_host_with_the_keyboard",
        "test_a_viewer_sees_no_action_and_the_api_refuses_one",
        "test_an_address_with_filters_shows_the_same_after_a_reload",
    }),
}  # fmt: skip


#: Other module -> its nightly tests. Its other tests run for each change.
NIGHTLY: Mapping[str, frozenset[str]] = {
    "tests/contract/test_store_migrations.py": frozenset({
        "test_every_step_says_with_which_code_its_schema_works",
        "test_a_search_goes_with_its_rungs_on_the_way_down_and_its_trials_stay",
    }),
    "tests/integration/test_cli_examples.py": frozenset({
        "test_an_example_is_validated_previewed_and_created[digits-grid]",
        "test_an_example_is_validated_previewed_and_created[digits-digits]",
        "test_an_example_is_validated_previewed_and_created[large_batch-large]",
    }),
    "tests/integration/test_cli_hosts.py": frozenset({
        "test_a_host_that_is_cut_off_is_found_out_and_comes_back",
        "test_a_host_that_another_store_uses_names_that_store",
    }),
    "tests/integration/test_cli_queue.py": frozenset({
        "test_a_trial_that_waits_is_paused_and_goes_on_in_its_place",
        "test_a_configuration_is_explained_as_a_scheduling_pass_would_decide_it",
    }),
    "tests/integration/test_engine_failures.py": frozenset({
        "test_a_pattern_that_never_ends_and_one_without_an_action_are_warnings",
        "test_the_library_refuses_hyperparameters_for_the_script",
        "test_a_loss_that_is_nan_is_one_line_with_step_and_rank",
        "test_trial_metrics_show_each_step_once_after_a_restart",
    }),
    "tests/integration/test_engine_poison.py": frozenset({
        "test_a_rank_that_reports_100_000_times_is_bounded_and_ends_soon_after_its_ranks",
    }),
    "tests/integration/test_engine_search.py": frozenset({
        "test_a_sample_that_was_refused_before_is_passed_over",
        "test_a_trial_whose_every_sample_is_refused_fails_by_name",
        "test_a_trial_that_gives_its_gang_back_keeps_its_rungs[paused]",
        "test_checkpoints_of_refused_hyperparameters_are_no_start_for_others",
        "test_a_program_that_ignores_the_stop_is_ended_after_preemption_timeout",
    }),
    "tests/integration/test_engine_watchdog.py": frozenset({
        "test_a_gang_that_hangs_is_ended_after_hang_timeout[on-ProcessStuckError-infra]",
    }),
    "tests/integration/test_rendezvous.py": frozenset({
        "test_a_gang_of_one_host_listens_on_the_loopback_address_only[library]",
    }),
    "tests/integration/test_search_tasks.py": frozenset({
        "test_a_cleared_trial_of_optuna_runs_again_with_what_it_drew",
        "test_only_what_beats_every_earlier_run_is_announced",
        "test_metrics_that_are_no_numbers_make_no_best_trial",
        "test_a_run_announces_the_same_best_once_unless_its_announcement_may_be_lost",
    }),
    "tests/integration/test_train_seeds.py": frozenset({
        "test_the_same_seed_gives_the_same_weights_bit_for_bit[1]",
    }),
    "tests/integration/test_train_storage.py": frozenset({
        "test_two_ranks_resume_from_the_bucket_bit_for_bit",
    }),
    "tests/property/test_lifecycle_model.py": frozenset({
        "test_no_interleaving_leaves_a_process_in_a_slot_that_was_given_back[a trial waits again]",
    }),
    "tests/property/test_untrusted_input.py": frozenset({
        "test_the_worst_mebibyte_stays_within_bounded_memory[line-lists-body0]",
    }),
    "tests/unit/test_search_optuna.py": frozenset({
        "test_what_was_good_is_drawn_again_in_its_neighbourhood[1-gp]",
        "test_what_was_good_is_drawn_again_in_its_neighbourhood[-1-gp]",
    }),
}  # fmt: skip


def mark_nightly(items: list[pytest.Item]) -> None:
    """Mark the tests that do not run for each change."""
    for item in items:
        module, _, name = item.nodeid.partition("::")
        names = {name, name.partition("[")[0]}
        chosen = EACH_CHANGE.get(module)
        is_left_out = chosen is not None and not chosen & names
        if is_left_out or NIGHTLY.get(module, frozenset()) & names:
            item.add_marker(pytest.mark.nightly)
