"""Table of the mutants: the break, its place, and the test that detects it."""

from __future__ import annotations

from dataclasses import dataclass

SUPERVISOR = "airflow_provider_dtrain/supervisor"
STORE = "airflow_provider_dtrain/store"
ENGINE = "airflow_provider_dtrain/engine"
HOSTS = "airflow_provider_dtrain/hosts"
CORE = "airflow_provider_dtrain/core"
INFERENCE = "airflow_provider_dtrain/train/inference"
CHECKPOINT = "airflow_provider_dtrain/train/checkpoint"
FILES = "airflow_provider_dtrain/train/files"
GRADIENTS = "airflow_provider_dtrain/train/gradients"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One deliberate break.

    :param name: wrong behaviour of the broken code
    :param path: file, relative to the repository
    :param old: text that occurs in the file exactly once
    :param new: replacement text
    :param test: pytest node id of the test that must fail
    """

    name: str
    path: str
    old: str
    new: str
    test: str


MUTANTS: tuple[Mutant, ...] = (
    # -- deletion of experiments
    Mutant(
        name="an experiment whose checkpoint another one needs is deleted",
        path=f"{STORE}/deletions.py",
        old="        return int(number) in trial_ids",
        new="        return False",
        test="tests/contract/test_store_deletions.py::test_the_source_of_a_fork_is_not_deleted[sqlite-source0]",
    ),
    Mutant(
        name="a trial of an experiment that is being deleted starts again",
        path=f"{STORE}/attempts.py",
        old=", experiments.c.delete_requested_at.is_(None))",
        new=")",
        test="tests/contract/test_store_deletions.py::test_no_trial_of_a_deleted_experiment_starts[sqlite]",
    ),
    # -- removal of what the provider has put on a host
    Mutant(
        name="a purge follows a folder that is a link",
        path=f"{SUPERVISOR}/channel/purge.py",
        old="if stat.S_ISLNK(os.lstat(path).st_mode):",
        new="if False:",
        test="tests/contract/test_supervisor_purge.py::test_links_are_never_followed[environments]",
    ),
    Mutant(
        name="a purge removes files of a user",
        path=f"{SUPERVISOR}/channel/purge.py",
        old="if pattern.fullmatch(one)]",
        new="if one]",
        test="tests/contract/test_supervisor_purge.py::test_files_of_a_user_stay_wherever_they_are",
    ),
    Mutant(
        name="a purge begins although a run lives",
        path=f"{SUPERVISOR}/channel/purge.py",
        old="    if busy and not dry_run:",
        new="    if False:",
        test="tests/contract/test_supervisor_purge.py::test_a_lock_that_a_process_holds_stops_the_removal_before_it_begins"
        "[slots/0.lock]",
    ),
    Mutant(
        name="a purge removes a run that has started since its check",
        path=f"{SUPERVISOR}/channel/purge.py",
        old="            if held is None:",
        new="            if False:",
        test="tests/contract/test_supervisor_purge.py::test_a_run_that_starts_after_the_check_stays_and_is_named",
    ),
    # -- runs
    Mutant(
        name="a comparison with a missing value is NULL, and so is its opposite",
        path=f"{STORE}/run_table/conditions.py",
        old="never_null = sa.func.coalesce(made, sa.false())",
        new="never_null = made",
        test="tests/contract/test_run_table.py::test_both_databases_find_the_trials_that_an_expression_means[sqlite]",
    ),
    Mutant(
        name="a hyperparameter that is a text equals the number that it looks like",
        path=f"{STORE}/run_table/values.py",
        old='number = sa.case((kind.in_(("integer", "real")), sa.type_coerce(value, sa.Double)))',
        new="number = sa.cast(value, sa.Double)",
        test="tests/contract/test_run_table.py::test_each_comparison_agrees_at_the_values_that_occur[sqlite]",
    ),
    Mutant(
        name="rows of all DAGs are read by every user",
        path=f"{STORE}/run_table/table.py",
        old="    if query.dags is not None:\n",
        new="    if query.dags:\n",
        test="tests/contract/test_api_runs.py"
        "::test_rows_names_groups_and_files_have_only_trials_that_the_user_may_read[sqlite]",
    ),
    Mutant(
        name="a shared view is changed by any user",
        path=f"{STORE}/run_views.py",
        old="run_views.update().where(own, run_views.c.id == view_id)",
        new="run_views.update().where(run_views.c.id == view_id)",
        test="tests/contract/test_api_runs.py"
        "::test_a_user_saves_changes_and_removes_views_and_shares_them_for_reading[sqlite]",
    ),
    Mutant(
        name="a report of the training replaces a validated value",
        path=f"{STORE}/latest_metrics.py",
        old='after["validation" if report["metric_group"] == "validation" else "training"]',
        new='after["validation"]',
        test="tests/contract/test_run_table.py"
        "::test_the_value_of_a_metric_is_the_latest_validated_one_else_the_latest_of_the_training[sqlite]",
    ),
    Mutant(
        name="or binds closer than and",
        path=f"{CORE}/expressions/parser.py",
        old='        parts = [self.term()]\n        while self.take_word("and"):',
        new='        parts = [self.term()]\n        while self.take_word("or"):',
        test="tests/unit/test_expressions.py::test_an_expression_has_its_meaning",
    ),
    Mutant(
        name="nested parentheses reach the limit of Python's stack",
        path=f"{CORE}/expressions/parser.py",
        old="        if self.depth > DEPTH_MOST:\n",
        new="        if self.depth > 100_000:\n",
        test="tests/unit/test_expressions.py::test_an_error_points_at_the_character",
    ),
    # -- built-in metrics
    Mutant(
        name="the program's questions for its reports are answered with built-in metrics",
        path=f"{STORE}/metrics.py",
        old='_IS_REPORTED = metrics.c.metric_group != "builtin"',
        new="_IS_REPORTED = sa.true()",
        test="tests/contract/test_metric_pages.py::"
        "test_builtin_metrics_are_a_group_of_their_own_beside_reported_ones_of_the_same_name",
    ),
    Mutant(
        name="a host may send built-in metrics of any name",
        path=f"{CORE}/event_log.py",
        old="return isinstance(value, dict) and value.keys() <= BUILTIN_METRICS and _metrics(value, source)",
        new="return isinstance(value, dict) and _metrics(value, source)",
        test="tests/unit/test_events.py::test_a_rank_writes_no_builtin_metric_of_another_name",
    ),
    # -- causes of failures
    Mutant(
        name="a rank in its cleanup is named while another rank works",
        path=f"{CORE}/lifecycle/watchdog.py",
        old="rests = all(_stands_in_collective(one, STILL_S) and one.idle_s >= STILL_S for one in reports)",
        new="rests = any(_stands_in_collective(one, STILL_S) and one.idle_s >= STILL_S for one in reports)",
        test="tests/unit/test_failed_cleanup.py::test_no_rank_is_named_while_one_works_or_is_not_in_a_collective",
    ),
    Mutant(
        name="a rank that waits for another one's cleanup is blamed, because it has entered fewer collectives",
        path=f"{CORE}/lifecycle/watchdog.py",
        old="behind = [*stopped, *(_after_error(reports) or [one for one in found if one is not None])]",
        new="behind = [*stopped, *([one for one in found if one is not None] or _after_error(reports))]",
        test="tests/unit/test_failed_cleanup.py::test_a_cleanup_after_some_steps_is_named_and_not_the_ranks_that_wait",
    ),
    Mutant(
        name="a log policy takes the place of the cause",
        path=f"{ENGINE}/attempt/log_policies.py",
        old="    if error.cause_kind not in _SPECIFIC:\n        return f",
        new="    if True:\n        return f",
        test="tests/unit/test_log_policies.py::test_a_cause_that_says_what_to_do_comes_before_the_policy",
    ),
    Mutant(
        name="tracebacks are shown to users who may not read task logs",
        path=f"{STORE}/queries/failures.py",
        old='details=details[-DETAIL_CHARS:] if may_read_logs else "",',
        new="details=details[-DETAIL_CHARS:],",
        test="tests/contract/test_failures.py::test_errors_and_logs_are_for_users_who_may_read_task_logs[sqlite]",
    ),
    Mutant(
        name="a good run after the failure is its baseline",
        path=f"{STORE}/failures.py",
        old="trials.c.ended_at <= until",
        new="trials.c.ended_at.is_not(None)",
        test="tests/contract/test_failures.py::test_it_names_what_has_changed_since_the_last_good_run_of_the_experiment[sqlite]",
    ),
    Mutant(
        name="an exception at another line of the program is the same cause",
        path=f"{CORE}/lifecycle/failure_groups.py",
        old="if kind in _OF_PLACE else None",
        new="if kind in () else None",
        test="tests/unit/test_failure_groups.py::test_another_error_or_line_of_the_program_is_another_cause",
    ),
    Mutant(
        name="the series of callbacks of a rank have no bound",
        path=f"{CORE}/series/metrics.py",
        old="if len(self._known) >= CALLBACKS_MOST:",
        new="if len(self._known) >= 10 * CALLBACKS_MOST:",
        test="tests/unit/test_measurements.py::test_a_rank_has_a_limited_number_of_callbacks_over_all_answers",
    ),
    Mutant(
        name="rates count the time of validations",
        path="airflow_provider_dtrain/train/reports/builtin_metrics.py",
        old="            self._since = 0.0\n",
        new="            pass\n",
        test="tests/unit/test_train_builtin_metrics.py::test_rates_are_of_training_time_alone",
    ),
    Mutant(
        name="the norm of gradients is that after their clipping",
        path=f"{GRADIENTS}/optimizer_step.py",
        old="        if self._norm_every and clip.norm is None:\n            self._measure_norm(optimizer)\n"
        "        norm = clip.apply(optimizer, on_norm)\n",
        new="        norm = clip.apply(optimizer, on_norm)\n"
        "        if self._norm_every and clip.norm is None:\n            self._measure_norm(optimizer)\n",
        test="tests/unit/test_train_builtin_metrics.py::"
        "test_a_clipped_training_stays_as_it_is_and_the_norm_is_that_before_clipping[1-clip1]",
    ),
    Mutant(
        name="a counter of operations stays on the model after its batch",
        path=f"{GRADIENTS}/flop_count.py",
        old="        while self._undo:\n            self._undo.pop()()\n",
        new="",
        test="tests/unit/test_train_builtin_metrics.py::test_a_loop_with_its_own_backward_pass_has_no_count",
    ),
    Mutant(
        name="a second record of a failure loses the place of its snapshot",
        path="airflow_provider_dtrain/train/reports/failure.py",
        old="if _latest[0] != id(error):",
        new="if True:",
        test="tests/unit/test_train_memory_snapshot.py::"
        "test_the_failure_names_the_snapshot_and_the_places_that_hold_most",
    ),
    # -- slow ranks
    Mutant(
        name="a rank that is slow in a single moment is called slow",
        path=f"{CORE}/series/step_times.py",
        old=" and part >= SLOW_MOMENTS",
        new="",
        test="tests/unit/test_step_times.py::test_a_rank_that_is_slow_now_and_then_is_not_named",
    ),
    Mutant(
        name="a rank is called slow before the time of the rule has passed",
        path=f"{CORE}/series/step_times.py",
        old=" or (whole[-1] - whole[0] + 1) * bucket_s < rule.after_s",
        new="",
        test="tests/unit/test_step_times.py::test_a_short_run_names_no_rank",
    ),
    Mutant(
        name="a fact that all ranks have counts as the cause of a slow one",
        path=f"{CORE}/series/slow_causes.py",
        old="value - other.get(one.metric, 0.0) >= one.distance",
        new="value >= one.distance",
        test="tests/unit/test_slow_causes.py::test_what_all_ranks_have_is_no_cause",
    ),
    Mutant(
        name="the window of slow ranks keeps the measurements of a whole run",
        path=f"{CORE}/series/stragglers.py",
        old="        self._remove_old()\n",
        new="",
        test="tests/unit/test_stragglers.py::test_the_window_does_not_grow",
    ),
    Mutant(
        name="a follower that was replaced names slow ranks",
        path=f"{STORE}/stragglers.py",
        old="        check_watch(conn, attempt_id, watch)\n",
        new="",
        test="tests/contract/test_store_telemetry.py::test_slow_ranks_need_the_watch_and_times_of_the_host_are_not_trusted",
    ),
    Mutant(
        name="a slow rank that could not be stored is not named again",
        path=f"{ENGINE}/attempt/stragglers.py",
        old="watch, self._watch = self._watch, None",
        new="watch = self._watch",
        test="tests/contract/test_straggler_reporter.py::test_a_slow_rank_that_could_not_be_stored_is_named_later",
    ),
    # -- several trials of one task
    Mutant(
        name="a clear of a task with several trials does not repeat those that failed",
        path=f"{STORE}/trials.py",
        old="in_states(TRIAL_SUCCEEDED),",
        new="trials.c.ended_at.is_not(None),",
        test="tests/contract/test_store_task_trials.py::test_a_clear_of_the_task_repeats_only_trials_without_a_result",
    ),
    Mutant(
        name="trials of one task replace each other",
        path=f"{STORE}/trials.py",
        old='_SAME = ("dag_id", "run_id", "task_id", "map_index", "trial_index")',
        new='_SAME = ("dag_id", "run_id", "task_id", "map_index")',
        test="tests/contract/test_store_task_trials.py::test_trials_of_one_task_are_several_and_a_retry_finds_each",
    ),
    Mutant(
        name="a trial ends the attempts of its siblings from before a clear",
        path=f"{STORE}/attempts.py",
        old="where += [trials.c.trial_index == trial_index, trials.c.max_tries != key.max_tries]",
        new="where += [trials.c.max_tries != key.max_tries]",
        test="tests/contract/test_store_task_trials.py::test_a_clear_while_a_trial_runs_replaces_it",
    ),
    Mutant(
        name="the failed follower of one trial ends those of its siblings",
        path=f"{ENGINE}/attempt/siblings.py",
        old="                if not working:",
        new="                if working:",
        test="tests/unit/test_several_trials.py::test_a_follower_that_fails_starts_again_while_a_sibling_works",
    ),
    Mutant(
        name="a task fails at once although a retry helps one of its trials",
        path="airflow_provider_dtrain/operators/_several_trials.py",
        old='(failure for _, failure in failed if failure.kind != "user")',
        new='(failure for _, failure in failed if failure.kind == "user")',
        test="tests/unit/test_several_trials.py::test_airflow_retries_a_task_if_that_helps_one_of_its_trials",
    ),
    Mutant(
        name="the end of a task in Airflow kills the first of its trials only",
        path="airflow_provider_dtrain/triggers/trial.py",
        old="await asyncio.gather(*(trial.kill() for trial in self._trials.values()), return_exceptions=True)",
        new="await asyncio.gather(*(trial.kill() for trial in [*self._trials.values()][:1]), return_exceptions=True)",
        test="tests/integration/test_several_trials.py::test_the_end_of_the_task_in_airflow_kills_all_of_its_trials",
    ),
    # -- store: what a host reports
    Mutant(
        name="a rank other than 0 sets the result",
        path=f"{STORE}/events.py",
        old='    if rank == 0:\n        values = {"result"',
        new='    if rank is not None:\n        values = {"result"',
        test="tests/contract/test_store_attempts.py::test_only_rank_0_sets_the_result[sqlite]",
    ),
    Mutant(
        name="a host changes the ranks of other hosts",
        path=f"{STORE}/events.py",
        old=', ranks.c.host == event["host"])',
        new=")",
        test="tests/contract/test_store_attempts.py::test_a_host_speaks_only_for_its_own_ranks[sqlite]",
    ),
    Mutant(
        name="events of a file that began anew are stored twice",
        path=f"{STORE}/events.py",
        old="        if epoch:\n            batch",
        new="        if False:\n            batch",
        test="tests/contract/test_store_streams.py"
        "::test_a_file_that_lost_its_end_is_read_again_and_only_what_is_new_is_stored[sqlite]",
    ),
    Mutant(
        name="a frame of an older epoch moves the offset",
        path=f"{STORE}/events.py",
        old='streams.c.position == sa.bindparam("old"), streams.c.epoch == sa.bindparam("of_epoch"))',
        new='streams.c.position == sa.bindparam("old"))',
        test="tests/contract/test_store_streams.py::test_a_frame_of_an_older_epoch_is_refused[sqlite]",
    ),
    Mutant(
        name="a decision that is stored is replaced by a later one",
        path=f"{STORE}/rungs.py",
        old="set_=values, where=rung_entries.c.is_error)",
        new="set_=values)",
        test="tests/contract/test_store_search_rungs.py"
        "::test_an_entry_that_was_decided_is_not_replaced_by_another_one[sqlite]",
    ),
    Mutant(
        name="a cleared trial enters its rungs",
        path=f"{STORE}/rungs.py",
        old="own[0].cleared_at is not None or is_decided",
        new="is_decided",
        test="tests/contract/test_store_search_rungs.py"
        "::test_a_late_question_of_a_cleared_trial_enters_nothing[sqlite]",
    ),
    # -- supervisor
    Mutant(
        name="a run of another launch is taken for this one",
        path=f"{SUPERVISOR}/files/layout.py",
        old="return launch is not None and known is not None and launch != known",
        new="return False",
        test="tests/contract/test_supervisor_launches.py"
        "::test_a_living_run_of_another_launch_is_refused_and_not_attached_to",
    ),
    Mutant(
        name="a fence that is out of date ends a later run",
        path=f"{SUPERVISOR}/run/fencing.py",
        old='    if token < int(run.rpartition(".")[2]):\n        raise Refused("stale_token", f"Run {run} was',
        new='    if False:\n        raise Refused("stale_token", f"Run {run} was',
        test="tests/unit/test_supervisor_records.py::test_a_fence_from_before_the_grant_of_its_run_changes_nothing",
    ),
    Mutant(
        name="a fence answers before its tombstone is written",
        path=f"{SUPERVISOR}/run/fencing.py",
        old="        mark_fenced(layout, folder, token)\n    except",
        new="        pass\n    except",
        test="tests/contract/test_supervisor_fencing.py"
        "::test_fence_of_a_run_that_never_was_here_is_clear_and_keeps_it_away",
    ),
    Mutant(
        name="recorded tokens of a slot fall",
        path=f"{SUPERVISOR}/files/layout.py",
        old="if number(known.get(store)) < token:\n                    path",
        new="if True:\n                    path",
        test="tests/unit/test_supervisor_records.py::test_recorded_tokens_never_fall",
    ),
    Mutant(
        name="a decision for another grant is believed",
        path=f"{SUPERVISOR}/run/control.py",
        old='    if token != known:\n        raise Refused("stale_token", f"Run {folder.name} was granted under',
        new='    if False:\n        raise Refused("stale_token", f"Run {folder.name} was granted under',
        test="tests/contract/test_supervisor_decide.py::test_a_decision_for_another_grant_is_refused",
    ),
    Mutant(
        name="a later decision replaces the one that ranks have read",
        path=f"{SUPERVISOR}/run/control.py",
        old="after = {**decisions, **before}",
        new="after = {**before, **decisions}",
        test="tests/contract/test_supervisor_decide.py"
        "::test_a_repeated_decision_changes_nothing_and_one_that_is_there_stands",
    ),
    Mutant(
        name="go starts a run that a stop has forbidden",
        path=f"{SUPERVISOR}/run/control.py",
        old="    if folder.has_tombstone:\n        raise fenced_refusal(run)\n    if not folder.alive():",
        new="    if not folder.alive():",
        test="tests/unit/test_supervisor_records.py::"
        "test_a_run_that_a_fence_or_a_stop_has_forbidden_is_refused_as_such_when_it_shall_go",
    ),
    Mutant(
        name="a stop of an unknown run leaves no tombstone",
        path=f"{SUPERVISOR}/run/fencing.py",
        old="        layout.bury(run, None)\n        folder.ring()",
        new="        folder.ring()",
        test="tests/contract/test_supervisor_fencing.py::test_stop_of_an_unknown_run_refuses_its_late_start",
    ),
    Mutant(
        name="the reading of a boot before counts as a renewal",
        path=f"{SUPERVISOR}/run/status.py",
        old="boottime() - renewed if of_this_boot and",
        new="boottime() - renewed if",
        test="tests/contract/test_supervisor_protocol.py::test_status_says_what_recovery_asks_for",
    ),
    Mutant(
        name="a damaged line of the supervisor's events is believed",
        path=f"{SUPERVISOR}/files/events.py",
        old='return parse_object(body) if checksum == b"%08x" % zlib.crc32(body) else None',
        new="return parse_object(body)",
        test="tests/unit/test_supervisor_records.py::test_an_event_that_its_writer_did_not_write_is_none",
    ),
    Mutant(
        name="the first rank that fails is not the one that is named",
        path=f"{SUPERVISOR}/run/supervisor.py",
        old="if code != 0 and not rank.signalled and self.first_failure is None:",
        new="if code != 0:",
        test="tests/contract/test_supervisor_process.py::test_the_first_failing_rank_stops_the_others_and_is_named",
    ),
    # -- protocol: renewals and silence
    Mutant(
        name="a renewal counts from its arrival instead of the host's reading",
        path=f"{SUPERVISOR}/run/control.py",
        old="deadline = reading + orphan_timeout_s",
        new="deadline = boottime() + orphan_timeout_s",
        test="tests/unit/test_renewal.py"
        "::test_a_deadline_counts_from_the_hosts_reading_and_not_from_the_answers_arrival",
    ),
    Mutant(
        name="an older reading than the last one renews",
        path=f"{SUPERVISOR}/run/control.py",
        old='known.get("renewed_boottime_s", -1.0) >= reading',
        new="False",
        test="tests/unit/test_renewal.py::test_an_answer_that_was_overtaken_or_repeated_moves_no_deadline",
    ),
    Mutant(
        name="a reading from the future renews",
        path=f"{SUPERVISOR}/run/control.py",
        old="    if reading > boottime():",
        new="    if False:",
        test="tests/unit/test_supervisor_records.py::test_a_renewal_can_neither_come_from_the_future_nor_go_back",
    ),
    Mutant(
        name="a host is renewed before the store",
        path=f"{ENGINE}/session/lease_renewer.py",
        old="        for store in {follower.store for follower in wanted.values()}:\n",
        new="        for link, frame in beats:\n"
        "            self._send(link, frame, wanted, {one.store: 0.0 for one in wanted.values()})\n"
        "        for store in {follower.store for follower in wanted.values()}:\n",
        test="tests/unit/test_renewal.py::test_a_host_is_renewed_after_the_store_and_gets_its_own_reading_back",
    ),
    Mutant(
        name="a host is renewed under a stale watch",
        path=f"{ENGINE}/session/lease_renewer.py",
        old="if follower.attempt_id in renewed}",
        new="if follower.attempt_id}",
        test="tests/unit/test_renewal.py::test_a_host_is_not_renewed_for_a_follower_whose_watch_is_stale",
    ),
    Mutant(
        name="a follower that hangs renews its leases",
        path=f"{ENGINE}/session/lease_renewer.py",
        old="if run in alive and now - follower.progressed_at < PROGRESS_LIMIT_S",
        new="if run in alive",
        test="tests/unit/test_renewal.py::test_a_coroutine_that_makes_no_progress_renews_nothing",
    ),
    Mutant(
        name="a hold does not lengthen leases",
        path=f"{ENGINE}/session/lease_renewer.py",
        old="max(follower.orphan_timeout_s, held_s)",
        new="follower.orphan_timeout_s",
        test="tests/unit/test_renewal.py::test_a_lease_that_a_person_holds_lasts_as_long",
    ),
    Mutant(
        name="a follower gives a silent host up at once",
        path=f"{ENGINE}/attempt/stream.py",
        old="self.rt.settings.orphan_timeout_s and now - self.unreachable_since > limit_s",
        new="self.rt.settings.orphan_timeout_s",
        test="tests/unit/test_silent_hosts.py::test_a_silent_host_is_tried_again_until_its_run_must_have_ended_itself",
    ),
    Mutant(
        name="recovery gives a silent host up at once",
        path=f"{ENGINE}/upkeep/recovery.py",
        old="if not self.hook.settings.orphan_timeout_s or silent_s <= limit_s:",
        new="if not self.hook.settings.orphan_timeout_s:",
        test="tests/unit/test_renewal.py::test_a_silent_host_is_not_given_up_before_its_run_must_have_ended_itself",
    ),
    Mutant(
        name="a silent host is given up although its lease is held",
        path=f"{ENGINE}/attempt/stream.py",
        old="if is_over and not await self.rt.is_held():",
        new="if is_over:",
        test="tests/unit/test_silent_hosts.py::test_a_silent_host_whose_run_may_live_on_is_not_given_up",
    ),
    Mutant(
        name="breaches of the protocol are not counted",
        path=f"{ENGINE}/attempt/stream.py",
        old="        self.breaches.append(time.monotonic())\n",
        new="",
        test="tests/unit/test_protocol_breaches.py::test_a_few_breaches_within_minutes_end_the_hosts_part",
    ),
    Mutant(
        name="a host restarts its events file without end",
        path=f"{ENGINE}/attempt/stream.py",
        old="epoch > RESTARTS_MOST",
        new="epoch > 10**9",
        test="tests/contract/test_restarted_files.py"
        "::test_a_file_that_is_cut_again_and_again_ends_the_hosts_part_and_the_refusal_is_stored[sqlite-1]",
    ),
    Mutant(
        name="a host refuses the launches of a trial without end",
        path=f"{CORE}/lifecycle/after_failure.py",
        old="self.refusals + 1 >= MOST_REFUSALS",
        new="self.refusals + 1 >= 10**9",
        test="tests/contract/test_host_refusals.py"
        "::test_a_host_that_refuses_every_launch_is_left_out_while_another_can_serve_the_trial[sqlite]",
    ),
    # -- shards of a batch inference
    Mutant(
        name="the shard failure counts against max_restarts",
        path=f"{CORE}/lifecycle/after_failure.py",
        old="is_counted = facts.error != ShardFailedError.__name__",
        new="is_counted = True",
        test="tests/unit/test_after_failure.py::test_the_action_after_a_failure[a failed shard does not count]",
    ),
    Mutant(
        name="the shard that a rank has finished is blamed for its death",
        path=f"{CORE}/lifecycle/shard_blame.py",
        old='elif last is not None and event.get("shard") == last.index:',
        new="elif False:",
        test="tests/unit/test_shard_blame.py::test_the_shard_that_a_rank_started_last_is_blamed_unless_it_ended",
    ),
    Mutant(
        name="the host chooses the folder of a shard manifest",
        path=f"{ENGINE}/attempt/xcom_result.py",
        old='"location": section["outputs"]["path"], **own',
        new='"location": body["location"], **own',
        test="tests/contract/test_inference_task.py::test_the_operator_submits_a_trial_whose_result_has_the_manifest",
    ),
    Mutant(
        name="the seed differs in a later run over the same shards",
        path=f"{ENGINE}/submission/submit.py",
        old='seed = 0 if document.get("inference") else secrets.randbelow(SEED_LIMIT)',
        new="seed = secrets.randbelow(SEED_LIMIT)",
        test="tests/contract/test_inference_task.py::test_two_runs_of_an_inference_have_one_seed",
    ),
    # -- output folder of a batch inference
    Mutant(
        name="the entry of a shard is written before its part",
        path=f"{INFERENCE}/pipeline.py",
        old="self._ledger.folder.deliver(self._path,",
        new='self._ledger.add(Entry(work.shard.index, self._ledger.run, None, 0, 0, ""))\n'
        "            self._ledger.folder.deliver(self._path,",
        test="tests/unit/test_inference_delivery.py::test_a_part_that_could_not_be_delivered_has_no_entry",
    ),
    Mutant(
        name="a part has its name before it is on disk",
        path=f"{FILES}/local.py",
        old="            sync(file)\n            _make(target.parent)",
        new="            _make(target.parent)",
        test="tests/unit/test_inference_delivery.py::test_a_file_is_durable_before_it_has_its_name[deliver]",
    ),
    Mutant(
        name="a run publishes into a folder that another one has taken over",
        path=f"{INFERENCE}/publication.py",
        old=", confirm=confirm)",
        new=")",
        test="tests/integration/test_inference_ranks.py::test_a_run_whose_folder_was_taken_over_publishes_nothing",
    ),
    Mutant(
        name="each rank counts its claims itself",
        path=f"{INFERENCE}/work_queue.py",
        old='place = self._distributed.count("shards") - 1\n',
        new='place = self._place = getattr(self, "_place", -1) + 1\n',
        test="tests/integration/test_inference_ranks.py::test_the_union_of_the_outputs_is_that_of_one_process_row_for_row[2]",
    ),
    Mutant(
        name="a shard with a failed batch is recorded",
        path=f"{INFERENCE}/pipeline.py",
        old="        if work.error is None:\n            try:\n                self._record",
        new="        if output is not None:\n            try:\n                self._record",
        test="tests/unit/test_inference_delivery.py::test_a_shard_with_a_failed_batch_is_not_recorded_and_leaves_no_file",
    ),
    Mutant(
        name="a part of the size that an entry names is that of the entry",
        path=f"{INFERENCE}/ledger.py",
        old='return hashlib.sha256(self.folder.read(place) or b"").hexdigest() == entry.sha256',
        new="return True",
        test="tests/unit/test_inference_ledger.py::test_the_published_part_of_one_run_is_not_taken_for_the_lost_part_of_another_one",
    ),
    Mutant(
        name="a publication keeps the entries of other runs",
        path=f"{INFERENCE}/ledger.py",
        old="        self.tidy(ordered)\n",
        new="",
        test="tests/unit/test_inference_ledger.py::test_a_publication_leaves_no_entry_of_another_run",
    ),
    Mutant(
        name="old results lose their document before their parts",
        path=f"{INFERENCE}/ledger.py",
        old="        folder.remove(MANIFEST)\n        for place",
        new="        folder.remove(MANIFEST)\n        folder.remove(RUN)\n        for place",
        test="tests/unit/test_inference_ledger.py::test_a_removal_of_old_results_that_was_cut_off_is_continued",
    ),
    Mutant(
        name="a damaged owner is taken for none",
        path=f"{FILES}/lease.py",
        old="return holder if isinstance(holder, dict) else {}",
        new="return holder if isinstance(holder, dict) else None",
        test="tests/unit/test_train_lease.py::test_a_damaged_lease_is_one_of_a_dead_holder",
    ),
    # -- protocol: frames and events
    Mutant(
        name="bytes beyond the window are taken",
        path=f"{HOSTS}/channel/window.py",
        old="self._bytes[stream] > WINDOW_BYTES",
        new="self._bytes[stream] < 0",
        test="tests/unit/test_window.py::test_bytes_beyond_the_window_break_the_protocol",
    ),
    Mutant(
        name="an acknowledgement frees what comes after it",
        path=f"{HOSTS}/channel/window.py",
        old="frames[0][0] <= offset",
        new="frames",
        test="tests/unit/test_window.py::test_an_acknowledgement_within_a_frame_does_not_free_it",
    ),
    Mutant(
        name="a frame that does not continue its stream is stored",
        path=f"{ENGINE}/attempt/event_intake.py",
        old="if (frame.offset, frame.epoch) != (offset, epoch + epochs):",
        new="if False:",
        test="tests/unit/test_intake.py"
        "::test_a_frame_that_does_not_continue_its_stream_breaks_the_protocol_and_reaches_no_store",
    ),
    Mutant(
        name="raw bytes of any length are waited for",
        path=f"{HOSTS}/wire.py",
        old="length > RAW_LIMIT_BYTES",
        new="False",
        test="tests/contract/test_remote.py::test_a_breach_of_the_protocol_ends_the_link_and_is_quoted",
    ),
    Mutant(
        name="the checksum of an event is ignored",
        path=f"{CORE}/event_log.py",
        old='if checksum != b"%08x" % zlib.crc32(body):',
        new="if False:",
        test="tests/unit/test_events.py::test_anything_else_is_refused_with_its_place",
    ),
    Mutant(
        name="a rank ends its run by an event of the supervisor",
        path=f"{CORE}/event_log.py",
        old="(kind in SUPERVISOR_KINDS) != (source.rank is None)",
        new="False",
        test="tests/unit/test_events.py::test_a_rank_cannot_write_what_only_a_supervisor_or_the_store_writes",
    ),
    Mutant(
        name="a host reports the exit of any rank",
        path=f"{CORE}/event_log.py",
        old="type(value) is int and value in source.ranks",
        new="type(value) is int",
        test="tests/unit/test_events.py::test_the_exit_of_a_rank_that_the_host_does_not_have_is_refused",
    ),
    # -- protocol: the log
    Mutant(
        name="the offset of the log runs ahead of what Airflow has written",
        path=f"{ENGINE}/logs/rank_log.py",
        old="        written = self.written",
        new="        written = self._handed",
        test="tests/unit/test_rank_log.py"
        "::test_what_is_committed_stays_behind_what_was_handed_over_until_airflow_has_read_it",
    ),
    Mutant(
        name="a record counts as written without the parent's answer",
        path=f"{ENGINE}/logs/sender.py",
        old="is_done = channel.confirm()",
        new="is_done = channel.confirm() or True",
        test="tests/unit/test_rank_log.py::test_nothing_is_confirmed_before_the_parent_has_answered",
    ),
    Mutant(
        name="a part of a line is copied while its rank runs",
        path=f"{ENGINE}/operations/log_copy.py",
        old='else data.rfind(b"\\n") + 1',
        new="else len(data)",
        test="tests/contract/test_log_copies.py::test_a_log_that_grows_is_copied_once_in_whole_lines_and_numbered",
    ),
    Mutant(
        name="lines of a log are read without the right to read task logs",
        path="airflow_provider_dtrain/store/queries/log_lines.py",
        old="    rights.require_logs(trial.key.dag_id)\n",
        new="",
        test="tests/contract/test_log_copies.py::test_only_users_who_may_read_the_task_logs_read_lines_and_search",
    ),
    Mutant(
        name="the end of a run waits for the pause of its log",
        path=f"{SUPERVISOR}/channel/streams.py",
        old="if now < stream.not_before and not self.final:",
        new="if now < stream.not_before:",
        test="tests/unit/test_supervisor_streams.py::test_the_end_of_a_run_does_not_wait_for_the_pause_of_its_log",
    ),
    Mutant(
        name="any number of connections begins at a bastion",
        path=f"{HOSTS}/transport/handshakes.py",
        old="return 0.0 if len(self._begun) < MOST_BEGUN else",
        new="return 0.0 if len(self._begun) < 1000 else",
        test="tests/unit/test_handshakes.py::test_further_connections_wait_until_one_has_its_first_bytes",
    ),
    Mutant(
        name="bytes that are left out of the log have no mark",
        path=f"{ENGINE}/logs/buffer.py",
        old="return [self.place.missing(gap.offset, gap.end, gap.reason)]",
        new="return []",
        test="tests/unit/test_log_buffer.py::test_what_waits_is_bounded_and_what_is_left_out_is_marked_to_the_byte",
    ),
    Mutant(
        name="what waits of a log has no bound",
        path=f"{ENGINE}/logs/buffer.py",
        old="if self._is_full:\n                self._add",
        new="if False:\n                self._add",
        test="tests/unit/test_log_buffer.py::test_what_waits_is_bounded_and_what_is_left_out_is_marked_to_the_byte",
    ),
    # -- checkpoints of the training library
    Mutant(
        name="a checkpoint whose metric is NaN ranks among the best",
        path=f"{CHECKPOINT}/retention.py",
        old=" and not isinstance(value, bool) and math.isfinite(value)",
        new=" and not isinstance(value, bool)",
        test="tests/unit/test_train_checkpoint.py::test_the_best_and_the_latest_are_kept",
    ),
    Mutant(
        name="the metadata of a checkpoint is not on the disk when the checkpoint counts",
        path=f"{FILES}/local.py",
        old="            result = write(file)\n            os.fsync(file.fileno())",
        new="            result = write(file)",
        test="tests/contract/test_checkpoint_power_cut.py"
        "::test_no_reported_checkpoint_is_lost_or_damaged_by_a_power_cut",
    ),
    Mutant(
        name="the name of a checkpoint is not on the disk when it is reported",
        path=f"{FILES}/local.py",
        old="            begun.rename(self._root / name)\n            sync(self._root)",
        new="            begun.rename(self._root / name)",
        test="tests/contract/test_checkpoint_power_cut.py"
        "::test_no_reported_checkpoint_is_lost_or_damaged_by_a_power_cut",
    ),
    Mutant(
        name="a new folder of checkpoints is not on the disk when its first one is reported",
        path=f"{FILES}/local.py",
        old="            sync(self._root)\n            _sync_parents(self._root)",
        new="            sync(self._root)",
        test="tests/contract/test_checkpoint_power_cut.py"
        "::test_no_reported_checkpoint_is_lost_or_damaged_by_a_power_cut",
    ),
    Mutant(
        name="weights that are NaN replace the last good checkpoint",
        path=f"{CHECKPOINT}/saver.py",
        old="        if self._is_dead():\n            return None\n",
        new="",
        test="tests/unit/test_train_health.py::test_a_training_that_goes_on_with_nan_keeps_its_last_finite_checkpoint",
    ),
    Mutant(
        name="tensors are restored row by row",
        path=f"{CHECKPOINT}/save_plan.py",
        old="    if tensor.stride() == row_by_row(tensor.shape):\n        return None",
        new="    return None",
        test="tests/unit/test_train_tensor_kinds.py::test_the_order_of_numbers_in_memory_survives_a_checkpoint",
    ),
    Mutant(
        name="a loss that is NaN trains on",
        path=f"{GRADIENTS}/health.py",
        old="        if not math.isfinite(value):\n            self._judge_loss(value, number, loss)",
        new="        del value",
        test="tests/unit/test_train_health.py::test_a_loss_that_is_nan_stops_the_training_whatever_its_name",
    ),
    # -- what hosts may store
    Mutant(
        name="a checkpoint's path leads out of its run",
        path=f"{CORE}/checkpoint_location.py",
        old="or not all(map(_is_name, parts))",
        new="",
        test="tests/unit/test_checkpoint_place.py::test_every_other_path_is_refused",
    ),
    Mutant(
        name="a checkpoint lies anywhere below the trial's folder",
        path=f"{CORE}/checkpoint_location.py",
        old="or not _is_name(name):",
        new="or not name:",
        test="tests/unit/test_checkpoint_place.py::test_every_other_path_is_refused",
    ),
    Mutant(
        name="a URL of another kind of storage is opened",
        path=f"{CORE}/checkpoint_location.py",
        old="if wanted is None or ALIASES.get(scheme, scheme) != wanted:",
        new="if wanted is None:",
        test="tests/unit/test_checkpoint_place.py::test_only_urls_of_the_configured_storage_are_opened_from_here",
    ),
    Mutant(
        name="long events count as short ones",
        path=f"{CORE}/quotas.py",
        old="and self.usage.event_bytes + size <= bytes_)",
        new="and size >= 0 <= bytes_)",
        test="tests/unit/test_quotas.py::test_long_events_count_by_their_bytes",
    ),
    Mutant(
        name="what ends a trial has no reserve",
        path=f"{CORE}/quotas.py",
        old="if kind in RESERVED_KINDS:",
        new="if kind in ():",
        test="tests/unit/test_quotas.py::test_what_ends_a_trial_is_taken_beyond_the_limit_up_to_a_reserve",
    ),
    Mutant(
        name="an attempt stores one row more than its limit",
        path=f"{CORE}/quotas.py",
        old="0 < limits.metric_rows <= rows",
        new="0 < limits.metric_rows < rows",
        test="tests/unit/test_quotas.py::test_rows_are_counted_for_training_and_validation_apart",
    ),
    Mutant(
        name="an extended header is read whole",
        path=f"{HOSTS}/channel/archive_reader.py",
        old="not 0 <= self.size <= HEADER_LIMIT",
        new="self.size < 0",
        test="tests/unit/test_unpacking.py::test_an_extended_header_is_bounded_before_it_is_read",
    ),
    # -- store: leases, gaps, durability
    Mutant(
        name="a stale watch renews the lease",
        path=f"{STORE}/attempts.py",
        old="pairs = sa.tuple_(attempts.c.id, attempts.c.watch).in_(list(watches.items()))",
        new="pairs = attempts.c.id.in_(list(watches))",
        test="tests/contract/test_store_attempts.py::test_renewal_says_whose_watch_is_current[sqlite]",
    ),
    Mutant(
        name="a hand-over keeps the watch",
        path=f"{STORE}/attempts.py",
        old='values = {"watch": watch + 1, "watcher": HANDED_OVER',
        new='values = {"watch": watch, "watcher": HANDED_OVER',
        test="tests/contract/test_store_attempts.py::test_each_follower_gets_a_higher_watch[sqlite]",
    ),
    Mutant(
        name="writes of a stale follower are carried out",
        path=f"{STORE}/database/transactions.py",
        old='attempts.c.id == _ATTEMPT, attempts.c.watch == sa.bindparam("watch"))\n    .with_for_update()',
        new='attempts.c.id == _ATTEMPT, sa.bindparam("watch") > 0)\n    .with_for_update()',
        test="tests/contract/test_store_search_rungs.py::test_a_stale_follower_decides_nothing[sqlite]",
    ),
    Mutant(
        name="a run of another launch counts as known",
        path=f"{STORE}/hosts.py",
        old="return mine is not None and launch is not None and mine != launch",
        new="return False",
        test="tests/contract/test_store_streams.py"
        "::test_a_run_of_another_launch_or_of_slots_that_were_released_is_unknown[sqlite]",
    ),
    Mutant(
        name="a stream has any number of gaps",
        path=f"{STORE}/gaps.py",
        old="and len(known) < MOST_GAPS",
        new="",
        test="tests/contract/test_store_gaps.py::test_very_many_gaps_share_rows[sqlite]",
    ),
    Mutant(
        name="SQLite reports commits that are not on the disk",
        path=f"{STORE}/database/durability.py",
        old='("synchronous", "FULL", 2)',
        new='("synchronous", "OFF", 0)',
        test="tests/contract/test_store_durability.py::test_every_connection_of_a_sqlite_store_is_durable",
    ),
    # -- the channel of a job
    Mutant(
        name="a stranger without the certificate may send frames",
        path=f"{SUPERVISOR}/serve/tls.py",
        old="    context.verify_mode = ssl.CERT_REQUIRED\n",
        new="    context.verify_mode = ssl.CERT_NONE if is_server else ssl.CERT_REQUIRED\n",
        test="tests/contract/test_job_strangers.py::test_a_stranger_without_the_key_gets_no_further_than_the_handshake",
    ),
    Mutant(
        name="connections of strangers have no limit",
        path=f"{SUPERVISOR}/serve/first_node.py",
        old="            if len(self._pending) > PENDING_LIMIT:",
        new="            if False:",
        test="tests/contract/test_job_strangers.py::test_foreign_connections_are_bounded_in_number_and_time",
    ),
    Mutant(
        name="a stalled handshake lasts for ever",
        path=f"{SUPERVISOR}/serve/first_node.py",
        old="            if now_s - connection.began_s > HANDSHAKE_S:",
        new="            if False:",
        test="tests/contract/test_job_strangers.py::test_foreign_connections_are_bounded_in_number_and_time",
    ),
    Mutant(
        name="another account uses the socket of a job",
        path=f"{SUPERVISOR}/serve/first_node.py",
        old="uid_of_peer(sock) != os.getuid()",
        new="False",
        test="tests/contract/test_job_strangers.py::test_another_account_cannot_use_the_unix_socket",
    ),
    Mutant(
        name="a follower fills the memory of a node",
        path=f"{SUPERVISOR}/serve/commands.py",
        old="        if self._queued + len(data) > WINDOW:",
        new="        if False:",
        test="tests/contract/test_job_strangers.py::test_broken_frames_for_a_command_end_that_command_only",
    ),
    Mutant(
        name="a node fills the memory of a follower",
        path=f"{HOSTS}/job/channel.py",
        old="if len(self._output) + self._consumed + len(frame.body) > WINDOW:",
        new="if False:",
        test="tests/contract/test_job_strangers.py::test_a_node_that_breaks_the_protocol_of_a_command_is_named[flood]",
    ),
    Mutant(
        name="output that is not read fills the memory of a node",
        path=f"{SUPERVISOR}/serve/commands.py",
        old="            self._credit -= len(data)\n",
        new="",
        test="tests/contract/test_job_channel.py::test_a_stream_that_is_not_read_stalls_no_other_and_fills_no_memory",
    ),
    Mutant(
        name="commands of a killed follower keep their input",
        path=f"{SUPERVISOR}/serve/first_node.py",
        old="                link.send(Frame(Kind.GONE, peer=peer))",
        new="                pass",
        test="tests/contract/test_job_channel.py::test_the_commands_of_a_killed_follower_read_the_end_of_their_input",
    ),
    Mutant(
        name="commands get the variables of Slurm",
        path=f"{SUPERVISOR}/serve/commands.py",
        old="if not _OF_SLURM.fullmatch(name)}",
        new="}",
        test="tests/contract/test_job_channel.py::test_commands_get_the_environment_without_slurm",
    ),
    Mutant(
        name="a policy changes no limit",
        path=f"{SUPERVISOR}/serve/first_node.py",
        old="self.parameters.unattended_s if self.policy is None else self.policy.orphan_timeout_s",
        new="self.parameters.unattended_s",
        test="tests/contract/test_job_lifetime.py::test_a_policy_replaces_the_limit_of_an_unused_job",
    ),
    Mutant(
        name="a node that connects later has no policy",
        path=f"{SUPERVISOR}/serve/first_node.py",
        old="            connection.send(self._policy_frame)",
        new="            pass",
        test="tests/contract/test_job_lifetime.py::test_a_lost_node_ends_its_streams_only_and_may_come_back",
    ),
    Mutant(
        name="a warning waits for a follower",
        path=f"{SUPERVISOR}/serve/node.py",
        old="            self._on_warning = self.commands.run(self.policy.on_warning)",
        new="            pass",
        test="tests/contract/test_job_lifetime.py::test_a_warning_asks_the_ranks_although_no_follower_is_there",
    ),
    Mutant(
        name="streams of a lost node wait for ever",
        path=f"{HOSTS}/job/connection.py",
        old="            if user.node == node:",
        new="            if False:",
        test="tests/contract/test_job_lifetime.py::test_a_lost_node_ends_its_streams_only_and_may_come_back",
    ),
    Mutant(
        name="queued input is lost when a connection closes",
        path=f"{HOSTS}/job/connection.py",
        old="                self.confirm(time.monotonic() + _FLUSH_S)",
        new="                pass",
        test="tests/contract/test_job_channel.py::test_input_arrives_although_the_connection_closes_at_once",
    ),
    # -- supervisor: marks, locks, survivors
    Mutant(
        name="the mark of the start is not on the disk",
        path=f"{SUPERVISOR}/file_access.py",
        old='write_all(fd, json.dumps(document, separators=(",", ":")).encode())\n        os.fsync(fd)',
        new='write_all(fd, json.dumps(document, separators=(",", ":")).encode())',
        test="tests/unit/test_supervisor_records.py::test_a_mark_and_its_name_are_on_the_disk_before_it_counts",
    ),
    Mutant(
        name="a lock file is not compared after it was locked",
        path=f"{SUPERVISOR}/machine/locks.py",
        old="return here.st_nlink > 0 and (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)",
        new="return True",
        test="tests/unit/test_supervisor_slot_locks.py"
        "::test_a_lock_file_that_was_replaced_before_it_was_locked_is_opened_again",
    ),
    Mutant(
        name="a folder that is not sticky holds the locks",
        path=f"{SUPERVISOR}/machine/locks.py",
        old="found.st_uid != 0 or not mode & stat.S_ISVTX or",
        new="found.st_uid != 0 or",
        test="tests/unit/test_supervisor_slot_locks.py"
        "::test_only_a_sticky_folder_of_root_holds_the_locks_of_all_accounts",
    ),
    Mutant(
        name="a lock file with a second name is used",
        path=f"{SUPERVISOR}/machine/locks.py",
        old="if not stat.S_ISREG(os.fstat(fd).st_mode) or os.fstat(fd).st_nlink > 1:",
        new="if not stat.S_ISREG(os.fstat(fd).st_mode):",
        test="tests/unit/test_supervisor_slot_locks.py"
        "::test_what_is_no_lock_file_is_refused_at_once_with_its_owner_and_the_command_that_repairs_it",
    ),
    Mutant(
        name="only one account reads the lock file",
        path=f"{SUPERVISOR}/machine/locks.py",
        old="flags | os.O_CREAT | os.O_EXCL, 0o444)",
        new="flags | os.O_CREAT | os.O_EXCL, 0o400)",
        test="tests/unit/test_supervisor_slot_locks.py"
        "::test_a_lock_file_is_made_readable_for_every_account_and_held_on_a_descriptor_that_cannot_write",
    ),
    Mutant(
        name="orphans of a dead supervisor pass its reaper by",
        path=f"{SUPERVISOR}/run/launcher.py",
        old="LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)\n    set_name(REAPER_NAME)",
        new="set_name(REAPER_NAME)",
        test="tests/contract/test_supervisor_survivors.py"
        "::test_root_without_a_cgroup_loses_nothing_by_a_killed_supervisor",
    ),
    Mutant(
        name="a fence is clear although suspects live",
        path=f"{SUPERVISOR}/run/leftovers.py",
        old="return found, [] if found else suspects(folder)",
        new="return found, []",
        test="tests/contract/test_supervisor_survivors.py"
        "::test_what_outlives_supervisor_and_reaper_is_named_and_not_clear_until_it_has_ended",
    ),
    Mutant(
        name="a run without folder is gone although a reaper is at work",
        path=f"{SUPERVISOR}/run/lost_folder.py",
        old="    reapers = unknown_reapers(folder)",
        new="    reapers = []",
        test="tests/contract/test_supervisor_lost_folders.py"
        "::test_a_reaper_at_work_for_a_run_without_folder_is_no_proof",
    ),
    Mutant(
        name="the removed lock of a slot is no proof of a run without folder",
        path=f"{SUPERVISOR}/run/lost_folder.py",
        old='        if label.get("run") == folder.name:',
        new="        if False:",
        test="tests/contract/test_supervisor_lost_folders.py"
        "::test_a_process_that_keeps_only_the_removed_lock_of_its_slot_is_found",
    ),
    Mutant(
        name="a slot is free although its lock was removed under the run that has it",
        path=f"{SUPERVISOR}/run/slot_locks.py",
        old="        new = {index for index, locks in self.held.items() if not os.fstat(locks[0]).st_size}",
        new="        new = set()",
        test="tests/contract/test_supervisor_lost_folders.py"
        "::test_a_slot_whose_lock_for_all_accounts_was_removed_too_is_not_taken_by_another_run",
    ),
    Mutant(
        name="another state folder without locks for all accounts counts as proof",
        path=f"{SUPERVISOR}/run/lost_folder.py",
        old="    if is_elsewhere and folder.layout.lock_dir is None",
        new="    if False",
        test="tests/contract/test_supervisor_lost_folders.py"
        "::test_without_a_lock_folder_another_state_folder_proves_nothing",
    ),
    Mutant(
        name="the next holder of a slot is ended as a leftover",
        path=f"{SUPERVISOR}/run/leftovers.py",
        old=" if run_of(proc.pid) in (None, folder.name)]",
        new="]",
        test="tests/contract/test_supervisor_lost_folders.py"
        "::test_the_next_holder_of_a_slot_that_has_not_written_its_name_is_nobodys_leftover",
    ),
    Mutant(
        name="a run whose folder is gone goes on",
        path=f"{SUPERVISOR}/run/supervisor.py",
        old="        if folder.is_removed(self.prepared.inode):",
        new="        if False:",
        test="tests/contract/test_supervisor_lost_folders.py"
        "::test_a_run_without_folder_ends_itself_although_no_fence_comes",
    ),
    Mutant(
        name="a host answers a fault on one channel without end",
        path=f"{HOSTS}/channel/link.py",
        old="        if self._faults[cmd] >= MOST_FAULTS:",
        new="        if False:",
        test="tests/contract/test_remote.py::test_a_fault_that_a_host_answers_again_and_again_ends_the_channel",
    ),
    # -- requests to stop, and programs of the host
    Mutant(
        name="a helper is asked to write a checkpoint",
        path=f"{SUPERVISOR}/machine/programs.py",
        old='            elif not _HELPER.search(read_text(f"/proc/{proc.pid}/cmdline") or ""):',
        new="            else:",
        test="tests/contract/test_supervisor_stop_requests.py"
        "::test_helpers_of_a_program_that_sets_its_own_rank_are_no_ranks",
    ),
    Mutant(
        name="a launcher is asked to write a checkpoint",
        path=f"{SUPERVISOR}/machine/programs.py",
        old="        if ranks or key_of(proc) in self._launchers:",
        new="        if False:",
        test="tests/contract/test_supervisor_stop_requests.py"
        "::test_the_ranks_of_a_launcher_are_asked_and_not_the_launcher",
    ),
    Mutant(
        name="a shell without a trap dies of a request to write a checkpoint",
        path=f"{SUPERVISOR}/machine/programs.py",
        old="        if not children or not (is_passing or (waits(proc) and not acts(proc))):",
        new="        if not children or not (waits(proc) and not acts(proc)) or is_passing:",
        test="tests/contract/test_supervisor_stop_requests.py::test_a_shell_passes_the_request_to_its_program",
    ),
    Mutant(
        name="a command that cannot save is ended by the request of the one before",
        path=f"{SUPERVISOR}/run/stop_request.py",
        old="        return is_earlier and not passes_on(proc)",
        new="        return not passes_on(proc)",
        test="tests/contract/test_supervisor_stop_requests.py"
        "::test_the_next_program_of_a_script_is_asked_as_well_and_an_upload_is_not",
    ),
    # -- the queue of a pool
    Mutant(
        name="slots are free without the answer of their host, because their attempt waits again",
        path=f"{STORE}/queue/requests.py",
        old='        if held and row.state != "granted":',
        new='        if held and row.state == "starting":',
        test="tests/contract/test_store_exclusions.py"
        "::test_no_slot_becomes_free_by_putting_back_what_one_host_has_not_confirmed",
    ),
    Mutant(
        name="a held gang is free without the answer of its hosts, because its attempt waits again",
        path=f"{STORE}/queue/requests.py",
        old="            require_confirmed(conn, row, attempt_id)\n            leave_gang(conn, now, row, attempt_id)\n"
        "            return set_waiting",
        new="            leave_gang(conn, now, row, attempt_id)\n            return set_waiting",
        test="tests/contract/test_store_gangs.py::test_an_attempt_that_could_not_start_waits_for_the_same_gang_again",
    ),
    Mutant(
        name="a silent request that is renewed waits for another event",
        path=f"{STORE}/queue/requests.py",
        old="    if was_silent:\n        bump(conn, row.pool)",
        new="    if False:\n        bump(conn, row.pool)",
        test="tests/contract/test_store_queue.py"
        "::test_a_silent_request_that_is_renewed_makes_a_pass_due_by_itself[sqlite]",
    ),
    Mutant(
        name="a blocked slot is free once its gang ends",
        path=f"{CORE}/scheduling/free_slots.py",
        old=".difference(host.blocked))",
        new=")",
        test="tests/unit/test_queueing_policy.py"
        "::test_a_slot_that_cannot_be_granted_is_not_free_once_its_gang_ends[blocked]",
    ),
    Mutant(
        name="two requests claim one slot",
        path=f"{CORE}/scheduling/pool_state.py",
        old="        return all(self.claimed.get(place, mine) == mine for place in places) and",
        new="        return bool(places and mine) and",
        test="tests/unit/test_queueing_policy.py::test_two_requests_cannot_claim_one_slot",
    ),
    Mutant(
        name="a request ages while it waits at its cap",
        path=f"{CORE}/scheduling/queue.py",
        old="(now - self.since if self.is_eligible else 0.0)",
        new="(now - self.since)",
        test="tests/unit/test_queueing_policy.py::test_a_request_does_not_age_while_it_waits_at_its_cap",
    ),
    Mutant(
        name="protected requests go by submission alone",
        path=f"{CORE}/scheduling/pool_state.py",
        old="Late(-steps, -slots,",
        new="Late(-min(steps, 0), -slots,",
        test="tests/unit/test_queueing_policy.py::test_the_protected_go_by_steps_of_waiting_then_by_submission",
    ),
    Mutant(
        name="of protected requests that waited as many steps, the first submitted ones fill the share",
        path=f"{CORE}/scheduling/pool_state.py",
        old="Late(-steps, -slots,",
        new="Late(-steps, of.sequence,",
        test="tests/unit/test_queueing_policy.py"
        "::test_of_the_protected_that_waited_as_many_steps_those_with_more_slots_go_first",
    ),
    Mutant(
        name="inside a class, requests go by submission alone",
        path=f"{CORE}/scheduling/priority_tiers.py",
        old="    return slots * held_s\n",
        new="    return 0\n",
        test="tests/unit/test_queueing_policy.py"
        "::test_requests_of_a_class_go_by_used_slot_hours_where_they_interrupt_each_other[slices-4312]",
    ),
    Mutant(
        name="a request that ran meanwhile keeps the place of what it had used before",
        path=f"{CORE}/scheduling/queue.py",
        old=" and queue[0] == self._entry(waiter):",
        new=":",
        test="tests/unit/test_queueing_policy.py"
        "::test_a_request_that_ran_meanwhile_has_the_place_of_what_it_has_used_now",
    ),
    Mutant(
        name="requests are overdue although the protected ones that fill the share waited much longer",
        path=f"{CORE}/scheduling/aging.py",
        old="last = chosen[-1].minus_steps if len(chosen) < len(candidates) else 0",
        new="last = 0",
        test="tests/unit/test_queueing_policy.py"
        "::test_while_the_share_is_full_only_those_a_step_behind_the_last_protected_are_overdue",
    ),
    Mutant(
        name="each pass renews the requests of all that wait",
        path="airflow_provider_dtrain/engine/slots/queue_slots.py",
        old="if not is_fresh or",
        new="if is_fresh or not is_fresh or",
        test="tests/contract/test_slot_port.py::test_a_request_is_renewed_in_the_store_only_when_that_is_due[sqlite-queue]",
    ),
    Mutant(
        name="slots are granted to a request that no process follows",
        path=f"{CORE}/scheduling/cycle.py",
        old="        if not waiter.request.is_followed:\n            return True\n",
        new="",
        test="tests/unit/test_queueing_crowds.py"
        "::test_a_slot_goes_to_the_first_trial_that_has_a_follower_and_the_trial_before_it_is_next",
    ),
    Mutant(
        name="a trial whose trigger starts waits for another event",
        path=f"{STORE}/attempts.py",
        old="            lock_pool(conn, handed_over.pool)\n            bump(conn, handed_over.pool)\n",
        new="            lock_pool(conn, handed_over.pool)\n",
        test="tests/contract/test_store_hand_over.py::test_the_start_of_a_trigger_alone_makes_a_pass_due[sqlite]",
    ),
    Mutant(
        name="a cleared mapped task leaves its first trial to the triggerer",
        path=f"{STORE}/trials.py",
        old='for name in ("dag_id", "run_id", "task_id", "max_tries")',
        new='for name in ("dag_id", "run_id", "task_id")',
        test="tests/contract/test_store_hand_over.py"
        "::test_the_first_trial_is_that_of_one_task_in_one_dag_run_until_it_is_cleared",
    ),
    Mutant(
        name="a retry of a mapped task starts its trial in its worker",
        path="airflow_provider_dtrain/operators/trial.py",
        old="return self.deferrable and (task.key.map_index >= 0 or",
        new="return self.deferrable and (task.key.map_index > 0 or",
        test="tests/contract/test_store_hand_over.py::test_a_retry_of_the_first_trial_leaves_it_to_the_triggerer",
    ),
    Mutant(
        name="the links of a trial are stored before it starts",
        path="airflow_provider_dtrain/operators/trial.py",
        old="if state in STARTED and self._storing is None:",
        new="if self._storing is None:",
        test="tests/integration/test_search_tasks.py"
        "::test_the_mapped_trial_that_is_submitted_first_starts_in_its_worker_and_its_links_do_not_delay_it",
    ),
    Mutant(
        name="a grant stays with a worker that has handed its trial over",
        path=f"{STORE}/attempts.py",
        old='        if row.state == "granted":\n            ungrant(conn, now, row,',
        new='        if row.state == "never":\n            ungrant(conn, now, row,',
        test="tests/contract/test_store_hand_over.py"
        "::test_a_grant_that_comes_between_the_last_pass_of_a_worker_and_its_deferral_returns_to_the_queue[sqlite]",
    ),
    Mutant(
        name="a host reports the former packages of an interpreter",
        path=f"{SUPERVISOR}/checks/interpreters.py",
        old="if known is None or known[0] != _stamps(known[1]):",
        new="if known is None:",
        test="tests/unit/test_known_interpreters.py::test_a_change_of_the_packages_is_seen_at_once[upgrade]",
    ),
    # -- configurations and files that users name
    Mutant(
        name="a wrong field of a template contradicts others",
        path=f"{CORE}/config/scope.py",
        old="not self._is_repaired(path) and self._is_written(path)",
        new="self._is_written(path)",
        test="tests/unit/test_config_rules.py::test_a_wrong_field_of_a_template_contradicts_no_other_field",
    ),
    Mutant(
        name="hyperparameters that are too long for a variable are set",
        path=f"{SUPERVISOR}/run/rank_environment.py",
        old="< MAX_VARIABLE_BYTES:",
        new="<= MAX_VARIABLE_BYTES:",
        test="tests/unit/test_rank_environment.py"
        "::test_hyperparameters_that_linux_would_refuse_are_left_out_with_a_sentence",
    ),
    Mutant(
        name="the training library reads a checkpoint from a derived variable",
        path="airflow_provider_dtrain/train/environment.py",
        old='_place(context.get("latest_checkpoint"))',
        new='_place(context.get("latest_checkpoint") or env.get("DTRAIN_LATEST_CHECKPOINT"))',
        test="tests/unit/test_train_environment.py::test_the_values_of_a_trial_come_from_the_context_file_alone",
    ),
    Mutant(
        name="a pipe is waited for",
        path=f"{CORE}/regular_files.py",
        old="os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC",
        new="os.O_RDONLY | os.O_CLOEXEC",
        test="tests/unit/test_config_hostile.py"
        "::test_a_file_that_becomes_a_pipe_after_it_was_looked_at_is_not_waited_for",
    ),
    # -- containers
    Mutant(
        name="a container counts as gone although its runtime does not say so",
        path=f"{SUPERVISOR}/run/container.py",
        old="    reason = remove_containers(runtime, label_of(folder))",
        new="    reason = None",
        test="tests/contract/test_supervisor_container_runtime.py"
        "::test_nothing_is_clear_before_the_runtime_has_confirmed_the_end",
    ),
    Mutant(
        name="a supervisor ends its run while the runtime does not answer",
        path=f"{SUPERVISOR}/run/supervisor.py",
        old="if self.container is not None and (reason := self.container.kill()) is not None:",
        new="if self.container is not None and (reason := self.container.kill()) is False:",
        test="tests/contract/test_supervisor_container_runtime.py"
        "::test_a_runtime_that_does_not_answer_keeps_the_slot_stuck",
    ),
    Mutant(
        name="a refused start ends the container of the run that lives",
        path=f"{SUPERVISOR}/run/container.py",
        old="        if not self.is_begun:",
        new="        if False:",
        test="tests/contract/test_supervisor_container_runtime.py"
        "::test_a_second_start_leaves_the_container_of_the_first_alone",
    ),
    Mutant(
        name="a list of containers that is no list proves that none is left",
        path=f"{SUPERVISOR}/machine/container_runtime.py",
        old="    if not all(_ID.fullmatch(one) for one in found):",
        new="    found = [one for one in found if _ID.fullmatch(one)]\n    if False:",
        test="tests/unit/test_hostile_runtimes.py::test_a_runtime_that_proves_nothing_leaves_the_container_in_doubt",
    ),
    Mutant(
        name="ranks get the password of a registry",
        path="airflow_provider_dtrain/hooks/secrets.py",
        old='if not _is_variable(path) and not path.startswith(f"{REGISTRY}.")',
        new="if not _is_variable(path)",
        test="tests/unit/test_registry_login.py::test_a_password_is_sealed_and_goes_to_no_rank",
    ),
    Mutant(
        name="the pid that a rank has in its container is taken for one of the host",
        path=f"{SUPERVISOR}/machine/processes.py",
        old="        if proc.start_time == start_time and pids_of(proc.pid)[depth : depth + 1] == [pid]:",
        new="        if proc.start_time == start_time and proc.pid == pid:",
        test="tests/unit/test_launched_ranks.py::test_a_process_of_a_container_is_found_by_the_pid_that_it_has_there",
    ),
    # -- work beside ranks
    Mutant(
        name="a command beside a rank runs without the option",
        path=f"{ENGINE}/operations/ranks.py",
        old="    if not hook.settings.allow_exec:",
        new="    if False:",
        test="tests/contract/test_operations.py::test_the_process_that_runs_a_command_checks_the_option_and_the_limit[sqlite]",
    ),
    Mutant(
        name="the API takes a command from a user who may not edit connections",
        path="airflow_provider_dtrain/api/routes/operations.py",
        old="    _require_hosts(call, OperationKind.EXEC, trial, {})\n    command = shlex.join(body.argv)",
        new="    command = shlex.join(body.argv)",
        test="tests/contract/test_operations.py::test_a_command_needs_the_option_and_both_rights_and_is_logged[sqlite]",
    ),
    Mutant(
        name="a user reads an operation of another user",
        path="airflow_provider_dtrain/api/routes/operations.py",
        old="    if found.by != call.access.name:",
        new="    if not found.by:",
        test="tests/contract/test_operations.py::test_only_its_user_reads_an_operation_and_only_while_the_user_has_the_rights[sqlite]",
    ),
    # -- environments
    Mutant(
        name="a run is refused because another process checks its environment",
        path=f"{SUPERVISOR}/environments/folder.py",
        old="            if lock is not None or time.monotonic() > deadline:",
        new="            if True:",
        test="tests/contract/test_supervisor_environments.py::"
        "test_a_run_gets_its_environment_while_other_processes_ask_for_its_use",
    ),
    Mutant(
        name="an environment is removed while a run uses it",
        path=f"{SUPERVISOR}/environments/folder.py",
        old="        fd = self.seize()\n        if fd is None:",
        new="        fd = self.seize() or os.dup(0)\n        if fd is None:",
        test="tests/contract/test_supervisor_environments.py::"
        "test_environments_are_listed_with_the_runs_that_use_them_and_removed_by_name",
    ),
    Mutant(
        name="what a setup script detaches outlives it",
        path=f"{SUPERVISOR}/environments/supervised.py",
        old="            kill_descendants()",
        new="            pass",
        test="tests/contract/test_supervisor_setup_scripts.py::test_processes_that_a_setup_script_detaches_end_with_it",
    ),
    Mutant(
        name="a compiler outlives its build",
        path=f"{SUPERVISOR}/environments/supervised.py",
        old="                if select.select([0], [], [], 0.01)[0]:",
        new="                if not time.sleep(0.01) and False:",
        test="tests/contract/test_supervisor_environments.py::test_what_builds_a_package_ends_with_a_killed_build",
    ),
    # -- warm starts
    Mutant(
        name="a rank is forked from an interpreter of other variables",
        path=f"{SUPERVISOR}/run/warm_image.py",
        old="        if warm_key(layout, plan).digest != self.digest:",
        new="        if False:",
        test="tests/contract/test_supervisor_warm_parents.py::test_the_variables_of_a_setup_script_are_part_of_the_key",
    ),
    Mutant(
        name="a parent with a thread is forked",
        path=f"{SUPERVISOR}/run/warm_image.py",
        old="    if len(threads) != 1:",
        new="    if False:",
        test="tests/contract/test_supervisor_warm_parents.py"
        "::test_a_parent_that_would_fork_threads_lets_the_ranks_be_executed",
    ),
    Mutant(
        name="the code gets a module of Python instead of its own",
        path=f"{SUPERVISOR}/run/warm_image.py",
        old='                if name.partition(".")[0] in hidden and',
        new='                if name.partition(".")[1:] in hidden and',
        test="tests/contract/test_supervisor_warm_parents.py::test_code_that_hides_an_imported_module_is_executed_and_starts_no_second_parent",
    ),
    Mutant(
        name="a parent imports what a rank reports, wherever it is",
        path=f"{SUPERVISOR}/run/warm_image.py",
        old="                    allowed[top] = top in wanted and is_installed(_origin(top), libraries)",
        new="                    allowed[top] = True",
        test="tests/contract/test_supervisor_warm_parents.py::test_names_of_modules_that_a_rank_reports_are_not_trusted",
    ),
    Mutant(
        name="a parent gets private variables",
        path=f"{SUPERVISOR}/run/warm_key.py",
        old="for name, value in shared.items() if name not in withheld}",
        new="for name, value in shared.items()}",
        test="tests/contract/test_supervisor_warm_parents.py::test_a_parent_has_no_value_of_a_trial_and_no_secret",
    ),
    Mutant(
        name="forked ranks draw the same random numbers",
        path=f"{SUPERVISOR}/run/forked_program.py",
        old="        torch.default_generator.seed()",
        new="        pass",
        test="tests/contract/test_supervisor_warm_parents.py"
        "::test_a_forked_training_has_the_same_bits_and_random_state_of_its_own",
    ),
    Mutant(
        name="a forked rank is not found by its environment",
        path=f"{SUPERVISOR}/run/forked_program.py",
        old="        show_strings([os.fsencode(one) for one in self.argv], variables_of(self.env))",
        new="        pass",
        test="tests/contract/test_supervisor_forked_ranks.py::test_a_forked_program_sees_the_same_as_an_executed_one",
    ),
    Mutant(
        name="a parent waits for ever",
        path=f"{SUPERVISOR}/run/warm_parent.py",
        old="        while time.monotonic() < until and not is_memory_short() and not job.has_ended:",
        new="        while not is_memory_short() and not job.has_ended:",
        test="tests/contract/test_supervisor_warm_parents.py::test_a_parent_ends_when_nobody_asks",
    ),
    # -- Slurm
    Mutant(
        name="a second job of an attempt may run beside the first",
        path=f"{CORE}/slurm/submission.py",
        old='        ("dependency", "singleton"),\n',
        new="",
        test="tests/unit/test_slurm_submission.py::test_a_job_has_the_arguments_that_make_it_one_gang",
    ),
    Mutant(
        name="the warning goes to the batch shell, which dies",
        path=f"{CORE}/slurm/submission.py",
        old='("signal", f"URG@',
        new='("signal", f"B:URG@',
        test="tests/unit/test_slurm_submission.py::test_a_job_has_the_arguments_that_make_it_one_gang",
    ),
    Mutant(
        name="the shell expands the input of a step",
        path=f"{CORE}/slurm/submission.py",
        old="{step} <<'{stdin_end}'",
        new="{step} <<{stdin_end}",
        test="tests/unit/test_slurm_submission.py::test_the_step_gets_loader_and_input_as_they_are",
    ),
    Mutant(
        name="setup lines that fail start the gang",
        path=f"{CORE}/slurm/submission.py",
        old="\nset -e\n",
        new="\n",
        test="tests/unit/test_slurm_submission.py::test_setup_lines_that_fail_start_nothing_and_report",
    ),
    Mutant(
        name="the name of a job makes rows of the queue",
        path=f"{HOSTS}/slurm/answers.py",
        old="self._mark = secrets.token_hex(8)",
        new='self._mark = "1"',
        test="tests/unit/test_slurm_answers.py::test_hostile_fields_make_no_rows",
    ),
    Mutant(
        name="a job whose answer was lost counts as refused",
        path=f"{HOSTS}/slurm/client.py",
        old="failure.kind in (FailureKind.AMBIGUOUS, FailureKind.UNKNOWN)",
        new="failure.kind in (FailureKind.UNKNOWN,)",
        test="tests/unit/test_slurm_answers.py::test_an_answer_that_is_not_clear_may_have_been_accepted",
    ),
    Mutant(
        name="a job that is COMPLETING counts as ended",
        path=f"{CORE}/slurm/job_states.py",
        old="    if JobState.COMPLETING in states:\n        return JobState.COMPLETING\n",
        new="",
        test="tests/unit/test_slurm_jobs.py::test_texts_of_states_are_read",
    ),
    Mutant(
        name="an abbreviated option passes",
        path=f"{CORE}/slurm/user_options.py",
        old="if one.startswith(name)), None)",
        new="if one == name), None)",
        test="tests/unit/test_slurm_options.py::test_an_option_that_breaks_the_job_of_a_gang_is_refused",
    ),
    Mutant(
        name="an unlimited job is submitted",
        path=f"{CORE}/slurm/cluster.py",
        old="    if chosen is None:",
        new="    if chosen is None and partition is None:",
        test="tests/unit/test_slurm_quantities.py::test_a_job_always_has_a_time_limit",
    ),
    # -- external schedulers
    Mutant(
        name="pages keep the state of a job that has changed",
        path=f"{STORE}/external_jobs.py",
        old="        if after != before:\n            bump(conn, pool)",
        new="        if after == before:\n            bump(conn, pool)",
        test="tests/contract/test_store_external_jobs.py::test_an_estimate_that_moves_little_is_not_written[sqlite]",
    ),
    Mutant(
        name="a gang of an external scheduler has a place in our queue",
        path=f"{STORE}/queries/tasks.py",
        old="or gang.is_external",
        new="or False",
        test="tests/contract/test_store_external_jobs.py"
        "::test_the_queue_shows_number_reason_and_expected_start_of_a_waiting_job[sqlite]",
    ),
    Mutant(
        name="options of a connection replace those of a pool",
        path=f"{HOSTS}/slurm/scheduler.py",
        old="{**defaults, **options}",
        new="{**options, **defaults}",
        test="tests/unit/test_slurm_description.py::test_options_of_a_pool_replace_those_of_its_connection",
    ),
    Mutant(
        name="a pool with a live job can be removed",
        path=f"{STORE}/pools.py",
        old="    if jobs := conn.execute(query.order_by(external_jobs.c.id)).all():\n",
        new="    if (jobs := conn.execute(query.order_by(external_jobs.c.id)).all()) and False:\n",
        test="tests/contract/test_store_external_jobs.py"
        "::test_a_pool_with_a_live_job_stays_and_its_nodes_refuse_commands_of_hosts[sqlite]",
    ),
    Mutant(
        name="a job that Slurm has forgotten runs for ever",
        path=f"{HOSTS}/slurm/scheduler.py",
        old="        if time.monotonic() - since < LOST_AFTER_S:\n",
        new="        if time.monotonic() - since < 1e9:\n",
        test="tests/unit/test_slurm_scheduler.py::test_a_job_that_the_controller_denies_twice_has_ended",
    ),
    Mutant(
        name="a killed step prints the key of its job",
        path=f"{CORE}/slurm/submission.py",
        old='  exec "$dtrain_srun"',
        new='  "$dtrain_srun"',
        test="tests/unit/test_slurm_submission.py::test_a_step_that_a_signal_kills_shows_no_secret",
    ),
    Mutant(
        name="a trial that ends leaves its waiting job in the queue of its scheduler",
        path=f"{ENGINE}/attempt/trial_end.py",
        old="    await slots.leave()\n",
        new="    pass\n",
        test="tests/contract/test_external_slots.py::test_a_trial_that_ends_before_its_job_starts_cancels_it[sqlite]",
    ),
    Mutant(
        name="a job is given back before the log was read",
        path=f"{ENGINE}/slots/external_slots.py",
        old="        await self.rt.logs.receive(await self.rt.view())\n",
        new="        pass\n",
        test="tests/contract/test_external_slots.py"
        "::test_the_log_is_read_to_its_end_before_the_job_is_given_back[sqlite-some]",
    ),
    Mutant(
        name="a job is given back before a log of which nothing was received was read",
        path=f"{ENGINE}/logs/trial_logs.py",
        old="            self._begin(view.attempt_id, self._unread(view))\n",
        new="            return\n",
        test="tests/contract/test_external_slots.py"
        "::test_the_log_is_read_to_its_end_before_the_job_is_given_back[sqlite-nothing]",
    ),
    Mutant(
        name="a job that Slurm itself cancelled kills its trial",
        path=f"{HOSTS}/slurm/scheduler.py",
        old="        return EndKind.LOST\n",
        new="        pass\n",
        test="tests/unit/test_slurm_scheduler.py::test_a_job_that_slurm_itself_cancelled_is_no_kill_by_a_user",
    ),
    Mutant(
        name="each reason of a waiting job is an entry of the timeline",
        path=f"{STORE}/external_jobs.py",
        old="if row.reason and now.timestamp() - since_s >= shortest_s(row.reason_entries, KEPT_FROM_S):",
        new="if row.reason:",
        test="tests/contract/test_store_external_jobs.py"
        "::test_the_waits_of_a_trial_follow_each_other_and_short_ones_belong_to_the_next[sqlite]",
    ),
    Mutant(
        name="a submission whose answer was lost is repeated at once",
        path=f"{ENGINE}/slots/job_request.py",
        old=".total_seconds() < scheduler.settles_in_s",
        new=".total_seconds() < 0",
        test="tests/unit/test_job_request.py::test_a_submission_that_may_still_be_accepted_is_not_repeated",
    ),
    Mutant(
        name="ranks that were stopped on a host without an answer have finished",
        path=f"{ENGINE}/attempt/gang.py",
        old="return has_completed >= view.placement.keys() or self.has_succeeded(view)",
        new="return not set(self.ended) - has_completed",
        test="tests/unit/test_engine_parts.py::test_ranks_of_which_nothing_is_known_have_not_finished",
    ),
    Mutant(
        name="a submission is repeated after the first answer of a controller that was stopped",
        path=f"{ENGINE}/slots/job_request.py",
        old=" or time.monotonic() - self._missed_at < MISSED_FOR_S",
        new="",
        test="tests/unit/test_job_request.py"
        "::test_a_controller_that_was_stopped_is_asked_twice_before_a_submission_is_repeated",
    ),
    Mutant(
        name="a job that was accepted late stays",
        path=f"{HOSTS}/slurm/scheduler.py",
        old="            self.client.cancel(found)\n",
        new="            pass\n",
        test="tests/unit/test_slurm_scheduler.py::test_a_job_that_was_accepted_late_is_cancelled",
    ),
    Mutant(
        name="a job that waits again keeps its gang",
        path=f"{STORE}/external_jobs.py",
        old="sa.or_(has_left, is_stuck, is_back, ",
        new="sa.or_(has_left, is_stuck, ",
        test="tests/contract/test_store_job_polls.py"
        "::test_a_granted_job_that_waits_again_is_cancelled_and_its_second_start_is_no_grant[sqlite]",
    ),
    Mutant(
        name="a job lives on because one of its nodes does not answer",
        path=f"{STORE}/external_jobs.py",
        old="sa.or_(has_left, is_stuck, is_back, ",
        new="sa.or_(has_left, is_back, ",
        test="tests/contract/test_store_job_polls.py"
        "::test_the_job_of_an_attempt_that_has_ended_is_cancelled_although_a_node_does_not_answer[sqlite]",
    ),
    Mutant(
        name="a warm parent outlives the job",
        path=f"{SUPERVISOR}/run/warm_start.py",
        old="for name in (JOB_PROCESS,) if name in os.environ}",
        new="for name in (JOB_PROCESS,) if name in {}}",
        test="tests/contract/test_supervisor_warm_parents.py::test_a_parent_ends_with_the_process_of_its_job",
    ),
    Mutant(
        name="a held gang leaves an evacuated host under its tasks",
        path=f"{STORE}/queue/evacuations.py",
        old="    allocations.c.trial_id.is_not(None), sa.exists()",
        new="    sa.true(), sa.exists()",
        test="tests/contract/test_store_evacuations.py::test_a_held_gang_is_named_and_stays[sqlite]",
    ),
    Mutant(
        name="an enabled host keeps its deadline",
        path=f"{STORE}/hosts.py",
        old="values(state_reason=reason, **no_deadline)",
        new="values(state_reason=reason)",
        test="tests/contract/test_store_evacuations.py::test_enabling_a_host_takes_its_deadline_back[sqlite]",
    ),
    Mutant(
        name="a grant on an evacuated host is taken up",
        path=f"{STORE}/hosts.py",
        old="        if deadline <= now:\n",
        new="        if False:\n",
        test="tests/contract/test_store_evacuations.py"
        "::test_a_grant_that_no_follower_has_taken_up_goes_back_to_the_queue[sqlite]",
    ),
    Mutant(
        name="a gang is asked at the deadline, when its host should be empty",
        path=f"{CORE}/scheduling/evacuation.py",
        old="return drain.by - timedelta(seconds=gang.margin_s)",
        new="return drain.by",
        test="tests/unit/test_evacuation.py::test_a_gang_is_asked_before_the_deadline_by_its_margin",
    ),
    Mutant(
        name="a stop is seen at the end of a unit only",
        path="airflow_provider_dtrain/train/core_context.py",
        old="        if vote == STOP:\n            self._apply(STOP)\n",
        new="",
        test="tests/unit/test_train_script.py"
        "::test_a_stop_is_seen_about_a_second_later_and_at_the_next_boundary_at_last[after-a-second]",
    ),
    # -- media and comments
    Mutant(
        name="a small file with billions of pixels is sent to a browser",
        path=f"{CORE}/shown_images.py",
        old="if not 0 < found.width * found.height <= PIXELS_LIMIT:",
        new="if not 0 < found.width * found.height:",
        test="tests/unit/test_shown_images.py::test_small_files_with_many_pixels_are_refused",
    ),
    Mutant(
        name="compressed texts and animations of a PNG file are sent to a browser",
        path=f"{CORE}/shown_images.py",
        old="        if kind in _KEPT:\n",
        new="        if kind:\n",
        test="tests/unit/test_shown_images.py::test_texts_profiles_animations_and_what_follows_the_end_are_left_out",
    ),
    Mutant(
        name="a full disk queue of media blocks the step",
        path="airflow_provider_dtrain/train/reports/media.py",
        old="self._waiting.put_nowait((path, step, encode, cost_bytes))",
        new="self._waiting.put((path, step, encode, cost_bytes), timeout=15)",
        test="tests/unit/test_train_media.py::test_a_disk_that_hangs_never_blocks_a_step",
    ),
    Mutant(
        name="media of an earlier attempt hide those of a later one",
        path=f"{ENGINE}/copies/media_files.py",
        old="items[place][0] < name.attempt",
        new="items[place][0] > name.attempt",
        test="tests/contract/test_api_media.py::test_the_latest_attempt_replaces_a_step_of_an_earlier_one[sqlite]",
    ),
    Mutant(
        name="a host that reports media without end is copied without end",
        path=f"{ENGINE}/copies/outputs.py",
        old="self._next_copy_at = at + MEDIA_PERIOD_S",
        new="self._next_copy_at = at",
        test="tests/unit/test_output_copies.py::test_a_host_that_reports_media_without_end_starts_a_copy_now_and_then",
    ),
    Mutant(
        name="a user removes the comment of another one",
        path=f"{STORE}/comments.py",
        old="            & (comments.c.user_id == user_id[:_NAME_CHARS])\n",
        new="",
        test="tests/contract/test_comments.py::test_only_the_author_removes_a_comment[sqlite]",
    ),
    # -- days of hosts
    Mutant(
        name="a host keeps no former states",
        path=f"{STORE}/queue/slot_release.py",
        old="was = sa.select(*former).where(is_host, hosts.c.state_since < now)",
        new="was = sa.select(*former).where(is_host, sa.false())",
        test="tests/contract/test_host_days.py::test_former_states_are_kept_with_their_reasons[sqlite]",
    ),
    Mutant(
        name="the day of a host names work of DAGs that the reader may not read",
        path=f"{STORE}/queries/host_days.py",
        old="        elif first is None or not self._may_read(dag_id):\n",
        new="        elif first is None:\n",
        test="tests/contract/test_host_days.py::test_work_of_dags_that_a_user_may_not_read_has_no_names[sqlite]",
    ),
    Mutant(
        name="a slot that was held at the end of a day and released later was idle on it",
        path=f"{STORE}/host_days.py",
        old="others = (*conn.execute(_HELD_AT_END, values), *conn.execute(_NOW_HELD, values))",
        new="others = (*conn.execute(_NOW_HELD, values),)",
        test="tests/contract/test_host_days.py::test_a_day_is_one_of_utc_and_work_may_begin_before_it[sqlite]",
    ),
    Mutant(
        name="a day with too many releases has sums of a part of it",
        path=f"{STORE}/host_days.py",
        old="            begins.append(released.pop().released_at)\n",
        new="            released.pop()\n",
        test="tests/contract/test_host_days.py::test_of_more_than_an_answer_has_the_latest_part_is_complete[sqlite]",
    ),
)
