"""Periods and time-outs of the protocol between the control side and the hosts, each with its reason.

The supervisor imports nothing of the package. It gets ``kill_grace_s`` and ``orphan_timeout_s`` with its launch plan.
"""

from __future__ import annotations

from datetime import timedelta

# -- leases: how long a silent process is trusted ---------------------------------------------------
#: Seconds of a follower's silence after which another process may recover its attempt. Four renewals may be lost before
#: that. The hosts report whether the attempt is alive.
LEASE_TTL_S = 60.0
#: The same for the store. Recovery checks an attempt whose lease is older. Only its hosts know whether it still runs.
LEASE_TTL = timedelta(seconds=LEASE_TTL_S)
#: Seconds for which a follower counts as alive after its watch was last known to be current. Within this time it may
#: act without asking the store, because recovery does not start before the lease has expired.
PROVED_S = LEASE_TTL_S
#: Seconds of silence after which a follower no longer acts, for a trigger and for the release of a held gang.
SILENT_S = FOLLOWER_SILENT_S = LEASE_TTL_S
#: A waiting request that was not renewed within this time is skipped, but keeps its place.
SILENT_AFTER = timedelta(seconds=LEASE_TTL_S)
#: Time that a task may take from a worker to the triggerer before it counts as lost. On a busy machine, Airflow needs
#: minutes to start a trigger.
HAND_OVER_MOST = timedelta(minutes=5)
#: Seconds without progress after which a coroutine's lease is not renewed, and may run out.
PROGRESS_LIMIT_S = 60.0
#: Seconds between two renewals of an attempt while no supervisor sends heartbeats for it. A quarter of the lease.
ATTEMPT_RENEW_S = 15.0
#: Seconds between two renewals of an idle request. A third of the time after which the queue skips it.
REQUEST_RENEW_S = 20.0
#: Seconds for which a request needs no renewal after the last one. With the time above, half of what the queue allows.
REQUEST_FRESH_S = 10.0
#: Seconds after which a claim of recovery that is not renewed expires. Another process then recovers the attempt.
CLAIM_S = 60.0
#: Seconds between two recovery rounds of one process, and the same while something is left to do. A silent attempt is
#: then found within a sixth of its lease.
RECOVERY_EVERY_S, RECOVERY_BUSY_EVERY_S = 10.0, 5.0
#: Seconds after which the recovery of one attempt or host times out. It covers the wait of a fence and the data that
#: the hosts still have.
RECOVERY_MOST_S = 600.0
#: Seconds between two polls of an attempt that recovery has taken over, and seconds after which its former follower
#: takes it back although recovery has not returned it.
RETAKE_POLL_S, RETAKE_MOST_S = 2.0, 180.0
#: Seconds between two checks of the watch: a follower that writes nothing would not notice that it was replaced.
CHECK_WATCH_S = 10.0
#: Seconds by which the clocks of a host and of the store may count a held lease differently.
HOLD_MARGIN_S = 60.0
#: Seconds that the follower of a trial has to end the trial by itself when its gang ends.
FOLLOWER_GRACE_S = 30.0
#: A grant that was not taken up within this time returns to the queue, because its task has probably died.
UNTAKEN_AFTER = timedelta(seconds=30)
#: Seconds between two polls of a trial that another process follows. It is done when its task resumes.
POLL_AGAIN_S = 10.0

# -- notifications ------------------------------------------------------------------------------------
#: Seconds after which a notifier counts as failed. The task goes on, and the notifier's thread is left alone.
NOTIFIER_MOST_S = 30.0
#: Seconds that all notifiers of an event together may delay the end of a task.
NOTIFIERS_MOST_S = 60.0
#: Time after which the claim of an event expires whose process has died while it sent the notification.
NOTIFYING_FOR = timedelta(minutes=5)

# -- the store --------------------------------------------------------------------------------------
#: Seconds of retries while the store does not answer. Ranks keep running meanwhile.
STORE_PATIENCE_S = 300.0
#: Seconds between two reads of the control requests of users and of other gangs.
CONTROL_CHECK_S = 2.0
#: Seconds between two polls of a paused trial. A user who activates it waits for as long at most.
PAUSED_POLL_S = 3.0

# -- hosts: how long one that does not answer is waited for ------------------------------------------
#: Seconds for which a channel may be silent. Hosts send a beat every 5 s.
SILENCE_S = 30.0
#: Seconds between two pings of a follower to a job. Two may be late before a channel counts as silent.
JOB_PING_S = 10.0
#: Seconds for a new channel to a host: SSH, installation of the supervisor and handshake.
CONNECT_TIMEOUT_S = 30.0
#: Seconds between two keep-alives of an SSH connection. They ensure that a dead connection has unacknowledged bytes.
KEEPALIVE_S = 15
#: Seconds after which unacknowledged bytes end a connection. Two keep-alives may be lost before that.
TCP_TIMEOUT_S = 45
#: Seconds for a host to take the bytes of a command. As long as it may be silent.
SEND_TIMEOUT_S = 30.0
#: Seconds for the answer to a command that only reads or notes something.
COMMAND_TIMEOUT_S = 30.0
#: Seconds without progress after which a file transfer has failed. A slow disk may pause for tens of seconds.
STALL_S = 60.0
#: Seconds after which a subscription that stays open counts as a working connection, even without data.
STEADY_S = 3.0
#: Seconds within which several protocol violations end a host's part. See ``BREACHES_MOST`` in the stream.
BREACHES_WITHIN_S = 600.0
#: Seconds that a restarted host may take to send the data of the run that its disk has kept.
RESTARTED_READ_S = 20.0
#: First and longest pause between two connections to a host that does not answer.
RECONNECT_FIRST_S, RECONNECT_MOST_S = 0.5, 30.0
#: Seconds that a host may take to confirm a subscription to a run.
SUBSCRIBE_S = 30.0
#: Seconds after which a silent host is marked as unreachable, and gets no new gangs.
SHOWN_AFTER_S = 10.0
#: Seconds for the connections of recovery. Few, because most hosts that it contacts are unreachable.
CONNECT_S = 8.0
#: Time between two probes of a host that does not answer, over all processes.
PROBED_AFTER = timedelta(seconds=30)
#: Time for which a trial avoids a host that did not answer, even if it cannot run without that host.
AWAY_FOR = timedelta(seconds=30)
#: An exclusion that leaves no host that could serve the trial expires after this time.
EXCLUDED_FOR = timedelta(minutes=10)

# -- the end of a run ---------------------------------------------------------------------------------
#: Seconds beyond the grace period of a kill that a supervisor needs to confirm that everything is gone.
STOP_MARGIN_S = 15.0
#: Seconds that a host waits for the last processes of a fenced run before it names the survivors.
FENCE_WAIT_S = 10.0
#: Seconds between two attempts to fence a host that does not answer.
FENCE_AGAIN_S = 10.0
#: Seconds between two requests to a host that did not confirm the request to stop. Few, because preemption waits.
STOP_AGAIN_S = 5.0
#: Seconds by which a host may end a run earlier than its follower expects.
CLOCK_SLACK_S = 5.0
#: Most seconds that a gang keeps its slots for the last copies. It is the default of ``orphan_timeout``: slots wait no
#: longer for files of a host than for a silent host.
SLOTS_WAIT_S = 900.0
#: Seconds for a host to remove checkpoints.
REMOVE_TIMEOUT_S = 60.0
#: Seconds for a host to read a piece of a log.
LOG_READ_S = 30.0
#: Seconds for a host to remove old runs, which may hold many files.
COLLECT_TIMEOUT_S = 300.0
#: Seconds for which an ended run stays, whatever age is requested: its follower may still read it.
COLLECT_AGE_S = 3600.0

# -- while ranks run ----------------------------------------------------------------------------------
#: Seconds after which a stopped process is reported. As long as the pause between two heartbeats.
STOPPED_S = 5.0
#: Seconds after which a host's report on its ranks is outdated. Hosts report with each heartbeat, every 5 s.
REPORT_FRESH_S = 12.0
#: Seconds for which a follower must have seen a hang before it ends the gang, whatever the hosts' clocks say.
HANG_SEEN_S = 60.0
#: Seconds between two attempts to send the searcher's decision to a host that did not answer, and seconds for the
#: answer. Few, because the ranks wait for the decision.
DECIDE_AGAIN_S, DECIDE_TIMEOUT_S = 2.0, 10.0

# -- telemetry -----------------------------------------------------------------------------------------
#: Seconds between two collections of an attempt's telemetry. Each is one command per host and one transaction.
TELEMETRY_S = 10.0
#: The same while a host has more than one answer holds.
TELEMETRY_BEHIND_S = 1.0
#: Longest pause after collections that failed or took long: telemetry makes room first.
TELEMETRY_MOST_S = 300.0
#: Seconds for the answer to a request for telemetry.
TELEMETRY_TIMEOUT_S = 10.0
#: Seconds for the last telemetry of an attempt. The end of a trial waits for it no longer.
TELEMETRY_END_S = 5.0
#: Seconds between two compactions of an attempt's telemetry. A query reads each slice since the last one.
TELEMETRY_COMPACT_S = 600.0
#: Seconds between two removals of old telemetry by one process.
TELEMETRY_PRUNE_S = 900.0
#: Seconds by which a line may be newer than now, and older than the grant of its attempt.
TELEMETRY_CLOCK_S = 60.0

# -- metrics -------------------------------------------------------------------------------------------
#: Seconds between two gauge passes of a process. Prometheus usually scrapes every 15 s or more.
GAUGES_S = 10.0
#: Seconds between two writes of a trial's TensorBoard files. TensorBoard looks for new data every 30 s.
TENSORBOARD_S = 30.0

# -- several trials of one task -------------------------------------------------------------------------
#: Seconds after which the failed follower of a trial starts again, while other trials of its task run. Airflow retries
#: a task after as long (the default of ``retry_delay``).
SIBLING_RETRY_S = 30.0

# -- the start of a run -------------------------------------------------------------------------------
#: Seconds for a host to unpack the code, lock its slots and bind the port of rank 0.
PREPARE_TIMEOUT_S = 120.0
#: Seconds that a host gives to a setup script.
SETUP_S = 60.0
#: Seconds for each answer of a package index, and for each part of one.
INDEX_STALL_S = 30.0
#: Seconds for the download of uv for hosts of another platform, about 20 MiB. A gang keeps its slots meanwhile.
UV_FETCH_S = 120.0
#: Seconds that an answer about a build waits for its end, and seconds between two lines about it in the task log.
ENVIRONMENT_POLL_S, ENVIRONMENT_LOG_S = 5.0, 10.0
#: Seconds for the download of an image to a host: 10 GB at 6 MB/s. Slots wait meanwhile, so it is not longer.
IMAGE_TIMEOUT_S = 1800.0
#: Seconds for a host to connect to another host of the gang, once both listen.
PEER_CONNECT_S = 5.0
#: Time for which a host check holds its slots without a renewal, so that the slots of a killed check become free. A
#: check renews them at a third of it.
CHECK_HOLD_S = 60.0
