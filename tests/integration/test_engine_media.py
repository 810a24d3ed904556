"""Media from the ranks to the copies on the control side, over a restart."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.engine.copies.checkpoints import trial_folder
from airflow_provider_dtrain.engine.copies.media_files import media_of, read_media
from airflow_provider_dtrain.engine.copies.output_generations import OutputCopies
from tests.support.engines import Engine, config

pytestmark = pytest.mark.usefixtures("quick_looks")


@pytest.mark.nightly
async def test_media_of_rank_0_reach_the_control_side_and_those_of_a_failed_attempt_stay(engine: Engine) -> None:
    document = {**config("", slots=2), "entrypoint": "python reporting.py", "max_restarts": 1}
    ticket = engine.submit(document)
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.failure is None
    folder = trial_folder(engine.hook.settings.checkpoint_dir, ticket.experiment_id, ticket.trial_id)
    copy = OutputCopies(folder).newest()
    assert copy is not None
    assert set(copy.manifest.files) == {
        "work/media/a%2Fb/1-attempt1-text.txt",
        "work/media/a%2Fb/2-attempt1-text.txt",
        "work/media/a%2Fb/2-attempt2-text.txt",
        "work/media/a%2Fb/3-attempt2-text.txt",
        "work/media/values/2-attempt1-histogram.json",
        "work/media/values/3-attempt2-histogram.json",
    }
    series = {one.key: one.items for one in media_of(copy).series}
    assert [(one.step, one.attempt) for one in series["a/b"]] == [(1, 1), (2, 2), (3, 2)]
    assert [(one.step, one.attempt) for one in series["values"]] == [(2, 1), (3, 2)]
    assert read_media(copy, series["a/b"][1].path)[1] == b"attempt 2, rank 0"
