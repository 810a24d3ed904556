"""Names of media of a host mean what the training library means, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.core import media_names
from airflow_provider_dtrain.core.media_names import FOLDER, media_name
from airflow_provider_dtrain.engine.copies import media_files, output_generations
from airflow_provider_dtrain.supervisor import names
from airflow_provider_dtrain.train.errors import MediaError
from airflow_provider_dtrain.train.reports import media
from airflow_provider_dtrain.train.reports.media import file_key


@given(st.text(max_size=30))
def test_each_key_of_the_library_comes_back(key: str) -> None:
    try:
        encoded = file_key(key)
    except MediaError:
        return
    assert media_name(f"{FOLDER}/{encoded}/12-attempt3-image.png") == (key, 12, 3, "image")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("image.png", "image"),
        ("image.jpg", "image"),
        ("text.txt", "text"),
        ("table.json", "table"),
        ("histogram.json", "histogram"),
        ("matrix.json", "matrix"),
        ("curve.json", "curve"),
    ],
)
def test_the_kind_is_in_the_name(name: str, kind: str) -> None:
    found = media_name(f"work/media/a/0-attempt1-{name}")
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize(
    "path",
    [
        "work/media/a/1-attempt1-image.svg",
        "work/media/a/1-attempt1-image.html",
        "work/media/a/1-attempt1-table.png",
        "work/media/a/1-attempt0-image.png",
        "work/media/a/01-attempt1-image.png",
        "work/media/a/-1-attempt1-image.png",
        "work/media/a/1000000000000000-attempt1-image.png",
        "work/media/a/\u0661-attempt1-image.png",
        "work/media/a/.1-attempt1-image.png",
        "work/media/1-attempt1-image.png",
        "work/media/a/b/1-attempt1-image.png",
        "work/other/a/1-attempt1-image.png",
        "checkpoints/media/a/1-attempt1-image.png",
        "work/media//1-attempt1-image.png",
        "work/media/%61/1-attempt1-image.png",
        "work/media/%2e%2e/1-attempt1-image.png",
        "work/media/a%/1-attempt1-image.png",
        "work/media/a%0Ab/1-attempt1-image.png",
        "work/media/%1B%5B31m/1-attempt1-image.png",
        "work/media/%E2%80%AEa/1-attempt1-image.png",
        "work/media/%FF/1-attempt1-image.png",
        "work/media/%20a/1-attempt1-image.png",
        f"work/media/{'%C3%A9' * 34}/1-attempt1-image.png",
        f"work/media/{'a' * 101}/1-attempt1-image.png",
        "work/media/a/1-attempt1-image.png\n",
    ],
)
def test_other_names_mean_nothing(path: str) -> None:
    assert media_name(path) is None


def test_both_sides_have_the_same_folder_and_limits() -> None:
    assert f"work/{media.FOLDER}" == FOLDER == output_generations.MEDIA
    assert names.LIBRARY_FOLDERS == output_generations.LIBRARY_FOLDERS
    assert (media.KEY_CHARS, media.KEY_FILE_CHARS) == (media_names.KEY_CHARS, media_names.KEY_FILE_CHARS)
    assert media.MOST_FILE_BYTES == media_files.FILE_LIMIT_BYTES
    assert output_generations.EARLIER_FILES + media.MOST_FILES <= media_files.ITEMS_MOST
