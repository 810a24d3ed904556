"""Flow control of a subscription, enforced by the reader so that a host cannot fill this process's memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection

from airflow_provider_dtrain.hosts.wire import Frame, WireError

#: Maximum bytes and frames of one stream without an acknowledgement. The host's own limit is 1 MiB, and as many bytes
#: of the subscription before this one may still be on the way. The host sends a rank's lines in frames at least 4 ms
#: apart.
WINDOW_BYTES, WINDOW_FRAMES = 2 << 20, 1 << 16
#: Maximum number of streams of a subscription that does not name them.
STREAMS_LIMIT = 4096
#: Offset that no file reaches.
_LAST_OFFSET = 2**62


class FlowWindow:
    """Received frames of one run that are not acknowledged yet. Thread-safe.

    :param streams: names that the run has on the host; None = any
    """

    def __init__(self, streams: Collection[str] | None = None) -> None:
        self._streams = frozenset(streams) if streams is not None else None
        self._lock = threading.Lock()
        #: stream -> (end, bytes) of its frames
        self._open: dict[str, deque[tuple[int, int]]] = {}
        self._bytes: dict[str, int] = {}

    def take(self, frame: Frame) -> None:
        """Count a received frame.

        :raises WireError: the frame exceeds the window, or belongs to no stream of the subscription
        """
        stream = frame.stream or ""
        with self._lock:
            if stream not in self._open and (
                stream not in self._streams if self._streams is not None else len(self._open) >= STREAMS_LIMIT
            ):
                raise WireError(f"a frame of stream '{stream[:64]}', which run {frame.run} does not have here")
            frames = self._open.setdefault(stream, deque())
            frames.append((frame.end, len(frame.data)))
            self._bytes[stream] = self._bytes.get(stream, 0) + len(frame.data)
            if frame.end > _LAST_OFFSET or self._bytes[stream] > WINDOW_BYTES or len(frames) > WINDOW_FRAMES:
                raise WireError(
                    f"{self._bytes[stream]:,} bytes of {stream} in {len(frames):,} frames without an acknowledgement, "
                    f"but at most {WINDOW_BYTES:,} bytes in {WINDOW_FRAMES:,} frames are accepted"
                )

    def ack(self, stream: str, offset: int) -> None:
        """Forget the frames of a stream up to the one that ends at ``offset``."""
        with self._lock:
            frames = self._open.get(stream, deque())
            # The stream's file was restarted: earlier frames have larger end offsets than the frames that follow.
            is_restart = any(end == offset for end, _ in frames)
            while frames and (is_restart or frames[0][0] <= offset):
                end, size = frames.popleft()
                self._bytes[stream] -= size
                if end == offset:
                    return
