"""Images, tables and texts of rank 0 become files within quotas, and never end or hold up a training."""

from __future__ import annotations

import io
import json
import logging
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import MediaError
from airflow_provider_dtrain.train.reports import media as module
from airflow_provider_dtrain.train.reports import media_data, media_images
from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.reports.media import MediaReports, MediaWriter, file_key
from airflow_provider_dtrain.train.reports.media_images import pixels_of, png

np = pytest.importorskip("numpy")


class Reports(MediaReports):
    """Reports of a rank at step 7."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        env = replace(RankEnvironment(), rank=rank, world_size=rank + 1, run_dir=folder, attempt=2)
        self.events = folder / f"events{rank}"
        self._media = MediaWriter(env, EventWriter(self.events))

    @property
    def media(self) -> MediaWriter:
        return self._media

    def _media_step(self) -> int:
        return 7


@pytest.fixture
def reports(tmp_path: Path) -> Iterator[Reports]:
    reports = Reports(tmp_path)
    yield reports
    # Its thread would write into the folder, which is removed, and warn during the next test.
    reports.media.close()


def files(reports: Reports, folder: Path) -> dict[str, bytes]:
    """Return the written files by path below the folder of media."""
    reports.media.close()
    root = folder / "work" / "media"
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def document(reports: Reports, folder: Path) -> Any:
    (content,) = files(reports, folder).values()
    return json.loads(content)


def decoded(content: bytes) -> tuple[tuple[int, int, int], bytes]:
    """Return height, width, channels and pixels of a PNG file, with a check of its checksums."""
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    at, chunks = 8, {}
    while at < len(content):
        (size,) = struct.unpack_from(">I", content, at)
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", content, at + 8 + size)[0] == zlib.crc32(kind + data)
        chunks[kind] = data
        at += 12 + size
    width, height, depth, colour = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    assert depth == 8
    channels = {0: 1, 2: 3, 6: 4}[colour]
    rows = zlib.decompress(chunks[b"IDAT"])
    stride = width * channels + 1
    assert len(rows) == stride * height
    lines = [rows[start : start + stride] for start in range(0, len(rows), stride)]
    assert all(line[0] == 0 for line in lines)
    return (height, width, channels), b"".join(line[1:] for line in lines)


GREY = np.arange(12, dtype="uint8").reshape(3, 4)
COLOUR = np.arange(60, dtype="uint8").reshape(4, 5, 3)


@pytest.mark.parametrize(
    ("make", "shape", "pixels"),
    [
        pytest.param(lambda: GREY, (3, 4, 1), GREY.tobytes(), id="HW"),
        pytest.param(lambda: COLOUR, (4, 5, 3), COLOUR.tobytes(), id="HWC"),
        pytest.param(lambda: COLOUR.transpose(2, 0, 1), (4, 5, 3), COLOUR.tobytes(), id="CHW"),
        pytest.param(lambda: COLOUR[None, :, :, 0], (4, 5, 1), COLOUR[:, :, 0].tobytes(), id="1HW"),
        pytest.param(lambda: np.ones((2, 3, 4), "uint8"), (2, 3, 4), bytes([1] * 24), id="RGBA"),
        pytest.param(lambda: np.array([[True, False]]), (1, 2, 1), b"\xff\x00", id="bool"),
        pytest.param(lambda: np.array([[0.0, 0.5, 1.0]]), (1, 3, 1), b"\x00\x80\xff", id="floats"),
        pytest.param(lambda: np.array([[0.0, 0.5, 1.0]], "float16"), (1, 3, 1), b"\x00\x80\xff", id="float16"),
        pytest.param(lambda: GREY[:, ::2], (3, 2, 1), GREY[:, ::2].tobytes(), id="strided"),
    ],
)
def test_an_array_becomes_a_png_file_with_its_pixels(make: Any, shape: Any, pixels: bytes) -> None:
    image = make()
    assert decoded(png(pixels_of(image))) == (shape, pixels)
    torch = pytest.importorskip("torch")
    assert decoded(png(pixels_of(torch.tensor(np.ascontiguousarray(image))))) == (shape, pixels)


def test_a_png_file_is_the_image_for_another_library() -> None:
    pillow = pytest.importorskip("PIL.Image")
    opened = pillow.open(io.BytesIO(png(pixels_of(COLOUR))))
    assert np.array_equal(np.asarray(opened), COLOUR)
    assert pixels_of(opened)[:4] == (5, 4, 3, COLOUR.tobytes())


def test_tensors_that_need_a_gradient_are_taken() -> None:
    torch = pytest.importorskip("torch")
    image = torch.full((1, 2, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)
    assert pixels_of(image)[:4] == (2, 2, 1, b"\x80" * 4)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_floats_outside_the_range_are_clipped_and_nan_is_black(library: str) -> None:
    values = np.array([[-1.0, 2.0, np.nan, np.inf, -np.inf]], "float32")
    kept = values.copy()
    image = values if library == "numpy" else pytest.importorskip("torch").tensor(values)
    pixels = pixels_of(image)
    assert (pixels.data, pixels.is_clipped) == (b"\x00\xff\x00\xff\x00", True)
    assert np.array_equal(values, kept, equal_nan=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: np.zeros((2, 2, 7)), r"got shape \(2, 2, 7\)"),
        (lambda: np.zeros((1, 3, 4, 4)), r"got shape \(1, 3, 4, 4\)"),
        (lambda: np.zeros(3), "got shape"),
        (lambda: np.zeros((0, 3)), "1 to 16,777,216 pixels, got 0 x 3"),
        (lambda: np.zeros((2, 2), "int64"), "got int64"),
        (lambda: np.zeros((2, 2), "complex64"), "got complex64"),
        (lambda: [[1, 2]], "got list"),
        (lambda: "a.png", "got str"),
    ],
)
def test_what_is_no_image_is_refused_with_what_was_expected(make: Any, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        pixels_of(make())


def test_an_image_above_the_limit_of_pixels_is_refused_before_it_is_converted() -> None:
    with pytest.raises(MediaError, match="got 5000 x 5000"):
        pixels_of(np.broadcast_to(np.uint8(0), (5000, 5000)))


def test_reports_become_files_by_key_step_attempt_and_kind(reports: Reports, tmp_path: Path) -> None:
    reports.report_image("val/samples", GREY)
    reports.report_image("val/samples", COLOUR, step=0)
    reports.report_text("prose", "ünï <b>", step=3)
    reports.report_table("worst", [{"id": 1, "loss": 0.5}], step=3)
    found = files(reports, tmp_path)
    assert list(found) == [
        "prose/3-attempt2-text.txt",
        "val%2Fsamples/0-attempt2-image.png",
        "val%2Fsamples/7-attempt2-image.png",
        "worst/3-attempt2-table.json",
    ]
    assert found["prose/3-attempt2-text.txt"].decode() == "ünï <b>"
    assert json.loads(found["worst/3-attempt2-table.json"]) == {
        "columns": ["id", "loss"],
        "rows": [[1, 0.5]],
        "rows_total": 1,
    }


def test_the_control_side_is_asked_for_a_copy_at_first_and_at_the_end(reports: Reports, tmp_path: Path) -> None:
    for step in range(5):
        reports.report_text("a", "b", step=step)
    reports.media.close()
    kinds = [json.loads(line.partition(b" ")[2])["kind"] for line in reports.events.read_bytes().splitlines()]
    assert kinds == ["media", "media"]


def test_the_caller_may_change_its_array_at_once(reports: Reports, tmp_path: Path) -> None:
    image = GREY.copy()
    reports.report_image("a", image)
    image[:] = 255
    ((content),) = files(reports, tmp_path).values()
    assert decoded(content)[1] == GREY.tobytes()


def test_files_of_png_and_jpeg_are_taken_as_they_are(reports: Reports, tmp_path: Path) -> None:
    jpeg = b"\xff\xd8\xff\xe0 some bytes"
    reports.report_image("a", png(pixels_of(GREY)))
    reports.report_image("b", jpeg)
    with pytest.raises(MediaError, match="those of a PNG or JPEG file"):
        reports.report_image("c", b"<svg onload=alert(1)>")
    found = files(reports, tmp_path)
    assert found["b/7-attempt2-image.jpg"] == jpeg
    assert list(found) == ["a/7-attempt2-image.png", "b/7-attempt2-image.jpg"]


def test_a_figure_becomes_an_image(reports: Reports, tmp_path: Path) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    figure = figures.Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2, 3])
    reports.report_figure("a", figure, dpi=50)
    with pytest.raises(MediaError, match=r"matplotlib\.figure\.Figure, got int"):
        reports.report_figure("a", 3)
    (content,) = files(reports, tmp_path).values()
    assert struct.unpack_from(">II", content, 16) == (100, 50)


def test_other_ranks_are_ignored_with_one_sentence_before_anything_is_converted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reports = Reports(tmp_path, rank=1)
    for _ in range(3):
        reports.report_image("a", object())
        reports.report_table("a", object())
    reports.media.close()
    assert [record.message for record in caplog.records] == [
        "Images, tables and texts are recorded on rank 0: those of the other ranks are ignored. Training continues."
    ]
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("key", ["", " a", "a" * 101, "a\nb", "a\x1b[31m", "a\u202eb", "é" * 40, 3, None])
def test_keys_that_cannot_be_names_are_refused(reports: Reports, key: Any) -> None:
    with pytest.raises(MediaError, match="A key of media must be"):
        reports.report_text(key, "a")


def test_keys_cannot_lead_out_of_the_folder() -> None:
    assert [file_key(key) for key in ("..", "../../etc", "a/b", "C:\\x", "50%")] == [
        "%2E%2E",
        "%2E%2E%2F%2E%2E%2Fetc",
        "a%2Fb",
        "C%3A%5Cx",
        "50%25",
    ]


@pytest.mark.parametrize("step", [-1, 1.5, True, "3", 10**15])
def test_steps_are_whole_numbers(reports: Reports, step: Any) -> None:
    with pytest.raises(MediaError, match="step must be a whole number"):
        reports.report_text("a", "b", step=step)


# -- quotas --------------------------------------------------------------------------------------------------------


def only_warning(caplog: pytest.LogCaptureFixture) -> str:
    found = [record for record in caplog.records if record.name.startswith("airflow_provider_dtrain")]
    assert [record.levelno for record in found] == [logging.WARNING], [record.message for record in found]
    return found[0].message


def test_more_files_than_the_quota_are_dropped_with_one_sentence(
    reports: Reports, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 3)
    for step in range(6):
        reports.report_text("a", "b", step=step)
    assert len(files(reports, tmp_path)) == 3
    assert only_warning(caplog) == (
        "Media are dropped from now on: a trial reports at most 3 of them. Training continues."
    )


def test_a_file_above_the_quota_is_dropped_with_one_sentence(
    reports: Reports, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_FILE_BYTES", 100)
    reports.report_text("a", "b" * 101, step=1)
    reports.report_text("a", "b" * 102, step=2)
    reports.report_text("a", "b" * 100, step=3)
    assert list(files(reports, tmp_path)) == ["a/3-attempt2-text.txt"]
    assert "such as a with 101 bytes" in only_warning(caplog)


def test_all_files_together_have_a_quota(
    reports: Reports, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 250)
    for step in range(6):
        reports.report_text("a", "b" * 100, step=step)
    assert len(files(reports, tmp_path)) == 2
    assert "are the most of a trial" in only_warning(caplog) or "which is the most" in only_warning(caplog)


def test_a_disk_that_hangs_never_blocks_a_step(
    reports: Reports, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.2)
    held = threading.Event()
    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, content: held.wait(60) and write(path, content))
    try:
        began = time.monotonic()
        for step in range(module.MOST_WAITING + 3):
            reports.report_text("a", "b", step=step)
        reports.media.close()
        assert time.monotonic() - began < 20
    finally:
        held.set()
    # Items that still wait are written now. They would fail, and warn, once the folder is removed.
    until = time.monotonic() + 30
    while reports.media._waiting_bytes and time.monotonic() < until:
        time.sleep(0.001)
    assert [record.message.partition(" are dropped")[2] for record in caplog.records] == [
        " while more wait to be written than memory is kept for. Training continues.",
        ": the disk did not take them within 0 s.",
    ]


def test_waiting_items_hold_a_bounded_amount_of_memory(
    reports: Reports, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 1000)
    held, begun = threading.Event(), threading.Event()
    reports.media.put("slow", 0, "text", "txt", lambda: (begun.set(), held.wait(60), b"a")[2], 900)
    assert begun.wait(30)
    reports.report_text("a", "b" * 101)
    reports.report_text("b", "b" * 100)
    held.set()
    assert list(files(reports, tmp_path)) == ["b/7-attempt2-text.txt", "slow/0-attempt2-text.txt"]
    assert "than memory is kept for" in only_warning(caplog)


def test_a_disk_that_fails_never_ends_a_training(
    reports: Reports, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "work").write_text("a file where the folder should be")
    for step in range(3):
        reports.report_text("a", "b", step=step)
    reports.media.close()
    assert "could not be written: FileExistsError" in only_warning(caplog) or "NotADirectory" in only_warning(caplog)


def test_nothing_is_recorded_after_the_end(reports: Reports, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reports.report_text("a", "b")
    assert len(files(reports, tmp_path)) == 1
    reports.report_text("b", "b")
    assert len(files(reports, tmp_path)) == 1
    assert "after the context was closed" in only_warning(caplog)


# -- documents -----------------------------------------------------------------------------------------------------


def test_tables_take_mappings_sequences_and_data_frames(reports: Reports) -> None:
    expected = {"columns": ["a", "b"], "rows": [[1, "x"], [None, "y"]], "rows_total": 2}
    assert media_data.table([{"a": 1, "b": "x"}, {"b": "y"}], None).content == expected
    assert media_data.table([(1, "x"), (None, "y")], ["a", "b"]).content == expected

    class Frame:
        columns = ("a", "b")
        values = np.array([[1, "x"], [None, "y"]], dtype=object)

    assert media_data.table(Frame(), None).content == expected


def test_cells_are_plain_json() -> None:
    row = [np.float32(0.5), np.int64(3), float("nan"), 2**60, "x" * 2000, [1], True]
    ((found),) = media_data.table([row], list("abcdefg")).content["rows"]
    assert found == [0.5, 3, "nan", str(2**60), "x" * 1000, "[1]", True]
    torch = pytest.importorskip("torch")
    assert media_data.table([[torch.tensor(2)]], ["a"]).content["rows"] == [[2]]


def test_long_tables_keep_their_first_rows(reports: Reports, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reports.report_table("a", [[number] for number in range(1001)], ["n"])
    found = document(reports, tmp_path)
    assert (len(found["rows"]), found["rows_total"]) == (1000, 1001)
    assert "1001 rows and 1 columns, of which at most 1000 and 100 are kept" in only_warning(caplog)


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [([], None, "needs columns"), ([[1]], None, "needs columns"), ([[1, 2]], ["a"], "must have 1 values, .* got 2")],
)
def test_tables_without_columns_are_refused(rows: Any, columns: Any, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        media_data.table(rows, columns)


@pytest.mark.parametrize("library", ["list", "numpy", "torch"])
def test_histograms_agree_with_numpy_and_count_what_is_not_finite(library: str) -> None:
    values = np.concatenate([np.random.default_rng(3).normal(size=1000).astype("float32"), [np.nan, np.inf]])
    given = {"list": values.tolist(), "numpy": values}.get(library)
    if given is None:
        given = pytest.importorskip("torch").tensor(values).reshape(2, -1)
    found = media_data.histogram(given, 16).content
    counts, edges = np.histogram(values[np.isfinite(values)], 16)
    assert found["left_out"] == 2
    assert np.allclose(found["edges"], edges, rtol=1e-5)
    # A value on an edge may be in either bin.
    assert np.abs(np.array(found["counts"]) - counts).sum() <= 2
    assert sum(found["counts"]) == 1000


@pytest.mark.parametrize("values", [[3.0, 3.0], [1e9, 1e9], [-1e30], [], [float("nan")]])
def test_histograms_of_equal_or_no_values_have_edges_that_grow(values: Any) -> None:
    torch = pytest.importorskip("torch")
    for given in (values, np.array(values), torch.tensor(values)):
        found = media_data.histogram(given, 4).content
        assert found["edges"] == sorted(set(found["edges"]))
        assert sum(found["counts"]) + found["left_out"] == len(values)


def test_a_confusion_matrix_has_true_classes_as_rows() -> None:
    found = media_data.confusion_matrix([0, 0, 1, 2], [0, 1, 1, 0], None).content
    assert found == {"labels": ["0", "1", "2"], "counts": [[1, 1, 0], [0, 1, 0], [1, 0, 0]]}


@pytest.mark.parametrize(
    ("targets", "predictions", "labels", "message"),
    [
        ([0], [0, 1], None, "got 1 and 2"),
        ([], [], None, "1 to 100 classes, got 0"),
        ([0], [100], None, "1 to 100 classes, got 101"),
        ([0], [2], ["a", "b"], "from 0 to 1, got 0 and 2"),
        ([-1], [1], None, "got -1 and 1"),
        ([0.5], [1], None, "got 0.5 and 1"),
    ],
)
def test_classes_that_do_not_fit_are_refused(targets: Any, predictions: Any, labels: Any, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        media_data.confusion_matrix(targets, predictions, labels)


def test_arrays_and_tensors_are_taken_as_classes(reports: Reports, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    reports.report_confusion_matrix("a", torch.tensor([0, 1]), np.array([1, 1]), labels=["cat", "dog"])
    assert document(reports, tmp_path) == {"labels": ["cat", "dog"], "counts": [[0, 1], [0, 1]]}
    with pytest.raises(MediaError, match="one dimension"):
        media_data.values_of(torch.zeros(2, 2))


def test_the_precision_recall_curve_is_that_of_the_definition() -> None:
    # Source: example of sklearn.metrics.average_precision_score: 0.83 for these values.
    found = media_data.pr_curve([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]).content
    assert found["note"] == "average precision 0.8333"
    assert list(zip(found["x"], found["y"], strict=True)) == [
        (0.0, 1.0),
        (0.5, 1.0),
        (0.5, 0.5),
        (1.0, 2 / 3),
        (1.0, 0.5),
    ]


def test_equal_scores_are_one_threshold_and_long_curves_are_thinned() -> None:
    assert media_data.pr_curve([1, 0, 1, 0], [0.5] * 4).content["x"] == [0.0, 1.0]
    many = media_data.pr_curve([1, 0] * 5000, list(range(10_000))).content
    assert len(many["x"]) == media_data.POINTS_LIMIT
    assert (many["x"][0], many["x"][-1]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("targets", "scores"), [([1], [1, 2]), ([2], [0.5]), ([0], [0.5]), ([1], [float("nan")]), ([], [])]
)
def test_targets_and_scores_that_do_not_fit_are_refused(targets: Any, scores: Any) -> None:
    with pytest.raises(MediaError):
        media_data.pr_curve(targets, scores)


def test_the_limits_fit_each_other() -> None:
    assert media_images.PIXELS_LIMIT * 4 < module.MOST_WAITING_BYTES
    assert media_data.TEXT_CHARS * 4 < module.MOST_FILE_BYTES


# -- contexts ------------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_a_script_reports_at_its_latest_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import airflow_provider_dtrain.train as dtrain

    monkeypatch.chdir(tmp_path)
    with dtrain.init(hparams={"global_batch_size": 4}) as ctx:
        ctx.report(3, {"loss": 1.0})
        ctx.report_image("a", GREY)
        ctx.report_image("a", GREY, step=9)
    assert sorted(path.name for path in (tmp_path / "media" / "a").iterdir()) == [
        "3-attempt1-image.png",
        "9-attempt1-image.png",
    ]


@pytest.mark.torch
def test_media_of_a_script_that_fails_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import airflow_provider_dtrain.train as dtrain

    monkeypatch.chdir(tmp_path)

    def fail(ctx: Any) -> None:
        with ctx:
            ctx.report_text("why", "the last words", step=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail(dtrain.init())
    assert (tmp_path / "media" / "why" / "1-attempt1-text.txt").read_text() == "the last words"


@pytest.mark.torch
def test_a_trial_class_reports_at_the_number_of_batches_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from airflow_provider_dtrain.train import pytorch
    from tests.support.small_trial import HPARAMS, Small

    class Reporting(Small):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx in (0, 2):
                self.context.report_text("training", "a")
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(self, batch: Any) -> Any:
            self.context.report_histogram("inputs", batch[0])
            return super().evaluate_batch(batch)

    monkeypatch.chdir(tmp_path)
    with pytorch.init(hparams=HPARAMS) as context:
        pytorch.Trainer(Reporting(context), context).fit(max_length=pytorch.Batch(4))
    found = sorted(str(path.relative_to(tmp_path / "media")) for path in (tmp_path / "media").rglob("*.*"))
    assert found == [
        "inputs/4-attempt1-histogram.json",
        "training/0-attempt1-text.txt",
        "training/2-attempt1-text.txt",
    ]
