"""Images, tables and texts that rank 0 reports, written as files of bounded number and size by a thread."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import MediaError
from airflow_provider_dtrain.train.reports import media_data
from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.reports.media_data import Document
from airflow_provider_dtrain.train.reports.media_images import JPEG_SIGNATURE, PNG_SIGNATURE, pixels_of, png

log = logging.getLogger(__name__)

#: Folder of the files below the working folder of the ranks. The control side copies it.
FOLDER = "media"
#: Quotas of one attempt: files, bytes of one file, bytes of all files.
MOST_FILES, MOST_FILE_BYTES, MOST_BYTES = 1000, 4 << 20, 256 << 20
#: Items, and bytes of them, that wait for the thread.
MOST_WAITING, MOST_WAITING_BYTES = 100, 128 << 20
#: Characters of a key, and of its form in a file name.
KEY_CHARS, KEY_FILE_CHARS = 100, 200
#: Seconds between two events that ask the control side for a copy, and for which the end of the program waits.
EVENT_PERIOD_S, CLOSE_S = 60.0, 10.0


class MediaWriter:
    """Writer of the media of rank 0. It drops what exceeds a quota, with one warning for each reason.

    Files are encoded and written by one thread, so that no step waits for the disk.
    """

    def __init__(self, env: RankEnvironment, writer: EventWriter) -> None:
        self._env = env
        self._events = writer
        #: Items that wait: path, function that returns the content, bytes in memory. None: no further item.
        self._waiting: queue.Queue[tuple[Path, int, Callable[[], bytes], int] | None] = queue.Queue(MOST_WAITING)
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._files = self._bytes = 0
        self._event_at = float("-inf")
        self._warned: set[str] = set()
        self._closed = False

    def takes(self, key: str) -> bool:
        """Return whether a report of this rank is recorded, before anything of it is converted.

        :raises MediaError: the key is not valid
        """
        file_key(key)
        if self._env.rank != 0:
            self.warn("rank", "Images, tables and texts are recorded on rank 0: those of the other ranks are ignored.")
            return False
        if self._closed:
            self.warn("closed", "Images, tables and texts are ignored after the context was closed.")
        elif self._files >= MOST_FILES:
            self.warn("files", f"Media are dropped from now on: a trial reports at most {MOST_FILES:,} of them.")
        elif self._bytes >= MOST_BYTES:
            self.warn("bytes", f"Media are dropped from now on: they have {MOST_BYTES >> 20} MiB, which is the most.")
        else:
            return True
        return False

    def put(self, key: str, step: int, kind: str, suffix: str, encode: Callable[[], bytes], cost_bytes: int) -> None:
        """Queue an item, or drop it if too many wait.

        :param kind: image, text, table, histogram, matrix or curve
        :param encode: returns the content of the file, in the thread
        :param cost_bytes: memory that the item holds until it is written
        """
        folder = (self._env.run_dir / "work" if self._env.run_dir else Path.cwd()) / FOLDER
        path = folder / file_key(key) / f"{_step(step)}-attempt{self._env.attempt or 1}-{kind}.{suffix}"
        with self._lock:
            has_room = not self._waiting_bytes or self._waiting_bytes + cost_bytes <= MOST_WAITING_BYTES
            if has_room:
                try:
                    self._waiting.put_nowait((path, step, encode, cost_bytes))
                except queue.Full:
                    has_room = False
            if not has_room:
                self.warn("late", "Media are dropped while more wait to be written than memory is kept for.")
                return
            self._waiting_bytes += cost_bytes
            self._files += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dtrain-media", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Write what waits, for a few seconds at most. Later items are dropped."""
        thread, self._thread, self._closed = self._thread, None, True
        if thread is None:
            return
        deadline = time.monotonic() + CLOSE_S
        while thread.is_alive() and time.monotonic() < deadline:
            try:
                self._waiting.put(None, timeout=0.1)
                break
            except queue.Full:
                continue
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            log.warning("Media are dropped: the disk did not take them within %.0f s.", CLOSE_S)
        elif self._event_at > float("-inf"):
            with contextlib.suppress(OSError):
                self._event(0)

    def warn(self, reason: str, sentence: str) -> None:
        """Log a sentence once."""
        if reason not in self._warned:
            self._warned.add(reason)
            log.warning("%s Training continues.", sentence)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            path, step, encode, cost_bytes = item
            try:
                self._write(path, step, encode())
            except Exception as error:
                self.warn("failed", f"A report of media could not be written: {type(error).__name__}: {error}.")
            finally:
                with self._lock:
                    self._waiting_bytes -= cost_bytes

    def _write(self, path: Path, step: int, content: bytes) -> None:
        if len(content) > MOST_FILE_BYTES:
            sentence = f"Media above {MOST_FILE_BYTES >> 20} MiB are dropped, such as {path.parent.name} with"
            self.warn("large", f"{sentence} {len(content):,} bytes.")
            return
        if self._bytes + len(content) > MOST_BYTES:
            self._bytes = MOST_BYTES
            self.warn("bytes", f"Media are dropped from now on: {MOST_BYTES >> 20} MiB are the most of a trial.")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}")
        partial.write_bytes(content)
        os.replace(partial, path)
        self._bytes += len(content)
        if time.monotonic() - self._event_at >= EVENT_PERIOD_S:
            self._event(step)

    def _event(self, step: int) -> None:
        self._event_at = time.monotonic()
        self._events.write("media", {"step": step})


class MediaReports(ABC):
    """Reports of images, tables and texts, which the contexts of scripts and of trial classes have.

    Rank 0 records them; on another rank a call is ignored with one warning. Each has a key, such as
    ``samples/validation``, under which the pages show it, with a slider over the steps. Files of one key and step
    replace each other. What exceeds a quota (1,000 files, 4 MiB each, 256 MiB together) is dropped with one warning:
    no call fails a training because of it, and none waits for the disk.
    """

    @property
    @abstractmethod
    def media(self) -> MediaWriter:
        """Writer of the files."""

    @abstractmethod
    def _media_step(self) -> int:
        """Return the step of a report that names none."""

    def report_image(self, key: str, image: Any, *, step: int | None = None) -> None:
        """Record an image. Its pixels are copied in this call, and from a GPU this waits for the device.

        :param key: name of a series of images, at most 100 characters; ``/`` makes groups
        :param image: NumPy array or torch tensor of shape (height, width), (height, width, channels) or (channels,
            height, width), with 1 (grey), 3 (RGB) or 4 (RGBA) channels; uint8 of 0..255, bool, or floats of 0..1
            (others are clipped). Or a Pillow image, or the bytes of a PNG or JPEG file
        :param step: default: the latest step that the program has reported
        :raises MediaError: type, shape or dtype is another one, or it has more than 16,777,216 pixels
        """
        if not self.media.takes(key):
            return
        step = self._step_of(step)
        if isinstance(image, (bytes, bytearray)):
            content = bytes(image)
            if not content.startswith((PNG_SIGNATURE, JPEG_SIGNATURE)):
                raise MediaError("The bytes of an image must be those of a PNG or JPEG file.")
            suffix = "png" if content.startswith(PNG_SIGNATURE) else "jpg"
            self.media.put(key, step, "image", suffix, lambda: content, len(content))
            return
        pixels = pixels_of(image)
        if pixels.is_clipped:
            self.media.warn("clipped", f"An image of {key!r} has floats outside 0..1, which are clipped, or NaN.")
        self.media.put(key, step, "image", "png", lambda: png(pixels), len(pixels.data))

    def report_figure(self, key: str, figure: Any, *, step: int | None = None, dpi: float = 100) -> None:
        """Record a figure of matplotlib as an image. It is drawn in this call, and stays open.

        :param figure: ``matplotlib.figure.Figure``
        :param dpi: pixels per inch
        :raises MediaError: it is no figure
        """
        if not self.media.takes(key):
            return
        if not callable(getattr(figure, "savefig", None)):
            raise MediaError(f"A figure must be a matplotlib.figure.Figure, got {type(figure).__name__}.")
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=dpi)
        self.report_image(key, target.getvalue(), step=step)

    def report_text(self, key: str, text: str, *, step: int | None = None) -> None:
        """Record a text, such as a generated sentence. It is shown as it is, without markup.

        :param text: at most 100,000 characters; the rest is dropped with one warning
        """
        if not self.media.takes(key):
            return
        if not isinstance(text, str):
            raise MediaError(f"A text must be a str, got {type(text).__name__}.")
        if len(text) > media_data.TEXT_CHARS:
            self.media.warn("text", f"Texts keep their first {media_data.TEXT_CHARS:,} characters.")
        content = text[: media_data.TEXT_CHARS].encode("utf-8", "replace")
        self.media.put(key, self._step_of(step), "text", "txt", lambda: content, len(content))

    def report_table(
        self, key: str, rows: Any, columns: Sequence[str] | None = None, *, step: int | None = None
    ) -> None:
        """Record a table.

        :param rows: mappings of column -> value, sequences of values, or a pandas DataFrame; the first 1,000 are kept
        :param columns: names of the columns, of which 100 are kept; default: keys of the first mapping
        :raises MediaError: there are no columns, or a row has another number of values
        """
        self._report_document(key, step, "table", lambda: media_data.table(rows, columns))

    def report_histogram(self, key: str, values: Any, *, bins: int = 64, step: int | None = None) -> None:
        """Record how values are distributed, in bins of equal width between the least and the largest one.

        :param values: array or tensor of any shape, or a sequence of numbers; NaN and infinite ones are counted apart
        :param bins: 1 to 512
        :raises MediaError: a value is no number
        """
        self._report_document(key, step, "histogram", lambda: media_data.histogram(values, bins))

    def report_confusion_matrix(
        self,
        key: str,
        targets: Any,
        predictions: Any,
        *,
        labels: Sequence[str] | None = None,
        step: int | None = None,
    ) -> None:
        """Record how often each class was predicted for each true class.

        With more than one rank, gather the classes of all ranks first: ``ctx.distributed.gather(values.tolist())``.

        :param targets: array, tensor or sequence of shape (samples,): true classes, whole numbers from 0 on
        :param predictions: predicted classes, of the same shape
        :param labels: names of the classes, at most 100; default: their numbers
        :raises MediaError: the shapes differ, or a value is no class
        """
        values = media_data.values_of
        self._report_document(
            key, step, "matrix", lambda: media_data.confusion_matrix(values(targets), values(predictions), labels)
        )

    def report_pr_curve(self, key: str, targets: Any, scores: Any, *, step: int | None = None) -> None:
        """Record precision over recall of a class for all thresholds, and the average precision.

        :param targets: array, tensor or sequence of shape (samples,): 1 for samples of the class, else 0
        :param scores: score or probability of each sample, of the same shape, higher for the class
        :raises MediaError: the shapes differ, a target is neither 0 nor 1, a score is NaN, or no target is 1
        """
        values = media_data.values_of
        self._report_document(key, step, "curve", lambda: media_data.pr_curve(values(targets), values(scores)))

    def _report_document(self, key: str, step: int | None, kind: str, make: Callable[[], Document]) -> None:
        if not self.media.takes(key):
            return
        try:
            document = make()
            content = json.dumps(document.content, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, ArithmeticError) as error:
            if isinstance(error, MediaError):
                raise
            raise MediaError(f"{kind} {key!r} cannot be recorded: {error}") from error
        if document.left_out:
            self.media.warn("table", f"A table of {key!r} has {document.left_out}.")
        self.media.put(key, self._step_of(step), kind, "json", lambda: content, len(content))

    def _step_of(self, step: int | None) -> int:
        return self._media_step() if step is None else step


def file_key(key: str) -> str:
    """Return the form of a key in a file name: ASCII without dots and slashes.

    :raises MediaError: the key is empty, too long, or has characters that cannot be printed
    """
    encoded = quote(key, safe=" ,=+()[]").replace(".", "%2E") if isinstance(key, str) and key.isprintable() else ""
    if not encoded or len(key) > KEY_CHARS or len(encoded) > KEY_FILE_CHARS or key != key.strip():
        raise MediaError(
            f"A key of media must be 1 to {KEY_CHARS} printable characters without spaces around, got {key!r:.200}."
        )
    return encoded


def _step(step: int) -> int:
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**15:
        raise MediaError(f"step must be a whole number from 0 on, got {step!r}.")
    return step
