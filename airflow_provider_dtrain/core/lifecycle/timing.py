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
#: Seconds without progress after which a coroutine's lease is not renewed, and may run out.
PROGRESS_LIMIT_S = 60.0
#: Seconds between two renewals of an attempt while no supervisor sends heartbeats for it. A quarter of the lease.
ATTEMPT_RENEW_S = 15.0
#: Seconds between two renewals of an idle request. A third of the time after which the queue skips it.
REQUEST_RENEW_S = 20.0
#: Seconds after which a claim of recovery that is not renewed expires. Another process then recovers the attempt.
CLAIM_S = 60.0
#: Seconds by which the clocks of a host and of the store may count a held lease differently.
HOLD_MARGIN_S = 60.0
#: Seconds that the follower of a trial has to end the trial by itself when its gang ends.
FOLLOWER_GRACE_S = 30.0
#: A grant that was not taken up within this time returns to the queue, because its task has probably died.
UNTAKEN_AFTER = timedelta(seconds=30)

# -- hosts: how long one that does not answer is waited for ------------------------------------------
#: Seconds for which a channel may be silent. Hosts send a beat every 5 s.
SILENCE_S = 30.0
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

# -- the start of a run -------------------------------------------------------------------------------
#: Seconds for a host to unpack the code, lock its slots and bind the port of rank 0.
PREPARE_TIMEOUT_S = 120.0
