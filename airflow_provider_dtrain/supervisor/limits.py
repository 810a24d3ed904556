"""Sizes, periods and bounds of the supervisor, each with its reason."""

from __future__ import annotations

PROTOCOL = 1
#: Longest line in either direction.
MAX_LINE = 8 << 20
#: Most bytes of one stream that the control side has not acknowledged.
WINDOW = 1 << 20
CHUNK = 256 << 10
#: A frame with fewer bytes is small. Pause after a small frame of a run, and after a small one of a log: a rank that
#: prints line by line causes no frame for each, and its lines wait longer for their record in the task log anyway.
SMALL, FRAME_PAUSE_S, LOG_PAUSE_S = 16 << 10, 0.004, 0.1
#: A follower that lags further behind in a log gets a gap, and then the last eighth of this.
LOG_LAG = 8 << 20
#: Bytes of an overlong line that are searched for its end at once.
SKIP = 16 << 20
#: New frames are created only while fewer bytes than this are queued for the control side.
HIGH_WATER = 4 << 20
BEAT_S = 5.0
#: Period at which the progress of ranks is polled.
POLL_S = 1.0
#: A rank stalled for STANDS_S to STOOD_S is reported at every poll. After that the heartbeat reports it.
STANDS_S, STOOD_S = 3.0, 20.0
#: A process that uses less of one CPU than this is idle.
IDLE_RATIO = 0.05
PAGE_BYTES = 512
LOG_TAIL = 4096
#: Bytes at the end of a failed rank's log that are searched for a traceback.
LOG_SEARCH = 64 << 10
#: Time that a fenced supervisor has to notice the fence, and to kill its ranks. After that it is killed.
OBEY_S, KILLING_S = 1.0, 5.0
FENCE_WAIT_S = 10.0
#: Time that a start waits for a slot whose last run has ended.
SLOT_WAIT_S = 2.0
#: A lock must be taken for longer than this before its slot counts as busy. A probe holds it for microseconds.
PROBE_S = 0.1
ATTACH_WAIT_S = 20.0
GO_WAIT_S = 30.0
#: Period of the checks of log sizes: the longest one, and the one at the start and after a log was cut.
LOG_CHECK_S, FLOOD_CHECK_S = 2.0, 0.25
#: Most records of the clock of a log: with one every 2 s, they are enough for 36 hours.
CLOCK_RECORDS = 1 << 16
#: Seconds after the start at which the users of devices are compared with the ranks. A program may prepare for long
#: before it uses its device.
DEVICE_CHECKS_S = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)
#: For file systems without hole punching: bytes at the end that a cut keeps, and bytes that may be written meanwhile.
CUT_TAIL, CUT_SLACK = 4 << 20, 1 << 20
#: Time that a program has to join the training library before a requested stop is sent to it as SIGTERM.
JOIN_S = 10.0
#: Time between two looks for programs that have not got a requested stop, e.g. the next command of a shell script.
ASK_AGAIN_S = 1.0
TOMBSTONE_DAYS = 90
#: Time for the start of an interpreter in a test of the host. A busy host takes seconds.
SELF_TEST_S = 10.0
#: A start creates some tens of files, and the training library some more for each checkpoint.
LOW_INODES = 1000
#: Most names of variables that a probe reports.
WITHHELD_LIMIT = 100
#: Least age of a folder that is collected although its run may still start. A start that sends files holds no lock.
UNSTARTED_S = 3600.0
#: A folder with a longer path is moved up before it is emptied: the system limits paths to 4,096 bytes.
LONG_PATH = 2048
#: Most runs that one command names or removes.
COLLECT_LIMIT = 20_000
#: Most bytes of the runs in one answer to ``status``. Far below MAX_LINE, which would end the channel.
STATUS_BYTES = 2 << 20
#: Most bytes of all environments of this account. A build removes those that were not used for longest.
ENVIRONMENTS_BYTES = 200 << 30
#: Time of a setup script, most bytes of its output that are kept, and most bytes of all variables afterwards. A start
#: waits for it, far below the time that the control side gives to a start.
SETUP_S, SETUP_OUTPUT, SETUP_BYTES = 60.0, 64 << 10, 1 << 20
#: Time in which ranks that are about to be ended write their stacks, and most bytes of one rank's.
EXIT_STACKS_S, EXIT_STACK_BYTES = 0.5, 8 << 10
#: Most faults of GPUs that are recorded per run, and that the end of one rank reports.
FAULTS_LIMIT, FAULTS_SHOWN = 256, 16
MAX_THREADS = 64
UNPACKED_LIMIT = 16 << 30
MEMBER_LIMIT = 500_000
#: Most output files that are sent, most that are examined, longest path of one, most folders above one.
OUTPUT_FILES, OUTPUT_CHECKED, OUTPUT_PATH, OUTPUT_DEPTH = 10_000, 500_000, 1024, 31
#: A file that changed within SETTLED_S and is open for writing is not sent yet. SETTLE_WAIT_S limits the wait.
SETTLED_S, SETTLE_WAIT_S = 5.0, 10.0
#: Bytes reserved so that the end of a run can be recorded on a full disk.
RESERVE = 64 << 10
#: A record that must change on a full disk is padded to this size when it is overwritten in place.
IN_PLACE_BYTES = 128
#: Limits of a search in the logs of one run: CPU seconds of each pattern, wall-clock seconds of the whole search.
MATCH_CPU_S, MATCH_WALL_S = 10, 30.0
#: Most decisions of the searcher about one run. No search has more rungs.
DECISIONS_LIMIT = 256
#: Bytes of a line that are searched, and characters of a matching line that are reported.
MATCH_LINE, MATCH_SHOWN = 16 << 10, 500
#: Upper bound of both segments of the file of system metrics. The older one is dropped when the newer one is full.
SAMPLES_LIMIT = 64 << 20
#: Time between two looks into the metrics file of a program without the training library, seconds.
METRICS_CHECK_S = 1.0
#: Most bytes of measurements in one answer, and the queued output above which none are sent: anything else goes first.
TELEMETRY_BYTES, TELEMETRY_WATER = 1 << 20, 256 << 10
#: Time that a killed sampler stuck in a driver may delay the end of a run.
SAMPLER_PATIENCE_S = 2.0
#: Time that ranks have to write their stacks, most bytes of one rank and of an answer. JSON may write a byte as six, so
#: the answer is far below MAX_LINE.
STACK_WAIT_S, STACK_BYTES, STACKS_BYTES = 5.0, 60_000, 1 << 20
#: Most bytes of a command's output in an answer, for the same reason. Longest time of a command that a user runs beside
#: a rank.
EXEC_BYTES, EXEC_MOST_S = 1 << 20, 3600.0
#: Longest time of a measurement of this host, most bytes that its program may print, and bounds of one transfer to
#: another host.
MEASURE_MOST_S, MEASURE_BYTES, TRANSFER_MOST_S, TRANSFER_MOST_STREAMS = 300.0, 1 << 20, 10.0, 8
#: Longest time of a download of an image.
IMAGE_S = 86400.0
#: Time for the start of a container, whose image is on the host. Time of the runtime's command after the end of the
#: container. Time for an answer of the runtime, and most bytes of one.
CONTAINER_START_S, CONTAINER_END_S, RUNTIME_S, RUNTIME_BYTES = 90.0, 3.0, 10.0, 4 << 20
#: Time that a launch waits for a warm parent, which may have to import first. Time between the parent's checks of the
#: available memory, and the part of all memory below which it ends.
WARM_IMPORT_S, WARM_CHECK_S, WARM_MEMORY_RATIO = 45.0, 30.0, 0.1
#: Most warm parents of an account, whose memory is some 300 MB each. Those that were not used for longest end.
WARM_PARENTS = 4
#: Most versions of the code of a program of which a record knows that they were launched.
WARM_CODES = 50
#: Most modules and bytes of a record of imports, days for which it is kept, bytes that imports may write.
WARM_MODULES, WARM_RECORD_BYTES, WARM_RECORD_DAYS, WARM_OUTPUT_BYTES = 20_000, 2 << 20, 30, 64 << 10
#: Time for which the ranks of a program are executed whose parent has failed.
WARM_BAD_S = 3600.0
#: Most batches that a rank records on request, as many as the training library writes into one trace.
PROFILED_MOST = 100
