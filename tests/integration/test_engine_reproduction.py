"""A trial that runs again gives the same weights bit for bit, and the first step that differs is named. Real ranks."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.engine.submission.granted import grant
from airflow_provider_dtrain.engine.submission.reproduction import recorded_code, recorded_config, with_secrets
from airflow_provider_dtrain.engine.submission.search import plan_search
from airflow_provider_dtrain.engine.submission.submit import config_of, submit
from airflow_provider_dtrain.resources.reproductions import Reproduction
from airflow_provider_dtrain.store.queries.reproductions import compared, linked_trials
from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey
from tests.support.counting import preempt, until
from tests.support.engines import Engine

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("quick_looks")]

DIGITS = Path(__file__).parents[2] / "dags" / "digits"
#: Batches of an epoch of the digits.
BATCHES = 23


def config(*, slots: int, epochs: int, **more: Any) -> dict[str, Any]:
    return {
        "name": "digits",
        "entrypoint": "python train.py",
        "hyperparameters": {"epochs": epochs, "lr": 0.006},
        "resources": {"slots_per_trial": slots},
        "checkpoint_policy": "all",
        "max_restarts": 0,
        "reproducibility": {"experiment_seed": 17, "record_steps": True},
        **more,
    }


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    folder.mkdir()
    shutil.copy(DIGITS / "train.py", folder)
    return folder


def insert(folder: Path, body: str, *, before_main: str = "") -> None:
    """Insert lines behind each step of the program."""
    line = '                ctx.report(step, {"loss": loss})\n'
    text = (folder / "train.py").read_text()
    assert line in text
    text = text.replace(line, line + body).replace("def main():", before_main + "def main():")
    (folder / "train.py").write_text(text)


def steps_of(engine: Engine, ticket: Ticket) -> list[int]:
    records = engine.hook.store.weights.of_trial(ticket.trial_id)
    return [one.step for one in records if one.kind == "step_weights"]


async def original(engine: Engine, folder: Path, document: dict[str, Any], *, preempted: bool = False) -> Ticket:
    ticket = engine.submit(document, folder=folder)
    carrying = asyncio.ensure_future(engine.carry(ticket))
    if preempted:
        await until(lambda: len(steps_of(engine, ticket)) > BATCHES // 2, carrying)
        preempt(engine, ticket)
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    return ticket


async def again(engine: Engine, ticket: Ticket, folder: Path) -> Reproduction:
    """Run a trial again as the tasks of its DAG run do, and return the comparison."""
    hook, store = engine.hook, engine.hook.store
    trial = store.trials.get(ticket.trial_id)
    recorded_config(store, trial)
    code = recorded_code(store, trial)
    stored = with_secrets(store, trial, {}, copies=True)
    run_id = grant(store, "dag", stored, code, None, reproduces=trial.trial_id)
    rendered = {"config_id": stored.config_id, "digest": stored.digest}
    key = TrialKey(dag_id="dag", run_id=run_id, task_id="plan")
    (planned,) = plan_search(hook, key, rendered, None, folder, payload=code, needs_submission=True)
    key = TrialKey(dag_id="dag", run_id=run_id, task_id="trial", map_index=0)
    own = config_of(hook, None, None, folder, trial=planned)
    other = submit(hook, own, key=key, folder=folder, trial=planned)
    outcome = await engine.carry(other)
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    found = compared(store, linked_trials(store, AllRights(), other.trial_id)).of
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("slots", "preempted"),
    [
        pytest.param(1, False, id="one-rank"),
        pytest.param(2, False, id="two-ranks"),
        pytest.param(1, True, id="one-rank-preempted"),
        pytest.param(2, True, id="two-ranks-preempted"),
    ],
)
async def test_the_digits_are_equal_bit_for_bit_also_if_the_original_was_preempted(
    engine: Engine, code: Path, slots: int, preempted: bool
) -> None:
    epochs = 3
    if preempted:
        insert(code, "                __import__('time').sleep(0.05)\n")
    document = config(slots=slots, epochs=epochs, scheduling_unit=2)
    ticket = await original(engine, code, document, preempted=preempted)
    assert engine.hook.store.trials.get(ticket.trial_id).attempts == 1 + preempted
    found = await again(engine, ticket, code)
    assert found.verdict == "equal", found.text
    # The checkpoint of the preemption is one that the reproduction has not.
    assert (found.checkpoints, found.steps) == (epochs, epochs * BATCHES), found.text


NOISE = """\
            {where}
                import time
                with torch.no_grad():
                    dtrain.unwrap(model)[9].bias += {noise}
"""


@pytest.mark.parametrize(
    ("noise", "where"),
    [
        pytest.param("time.time() % 1", "if step == 30:", id="time"),
        pytest.param("torch.rand((), generator=fresh(torch)).item()", "if step == 30:", id="unseeded"),
    ],
)
async def test_a_program_that_is_not_deterministic_is_named_by_step_and_tensor(
    engine: Engine, code: Path, noise: str, where: str
) -> None:
    body = "".join(f"    {part}\n" for part in NOISE.format(noise=noise, where=where).splitlines())
    fresh = "def fresh(torch):\n    generator = torch.Generator()\n    generator.seed()\n    return generator\n\n\n"
    insert(code, body, before_main=fresh)
    found = await again(engine, await original(engine, code, config(slots=2, epochs=2)), code)
    # The bias changes after step 30, so the weights after step 31 differ, and first of all the bias itself.
    assert (found.verdict, found.step) == ("differs", 31), found.text
    assert found.tensor is not None
    assert "first at step 31, in tensor" in found.text


async def test_without_recorded_steps_the_checkpoints_are_compared(engine: Engine, code: Path) -> None:
    document = config(slots=1, epochs=2, reproducibility={"experiment_seed": 17})
    found = await again(engine, await original(engine, code, document), code)
    assert (found.verdict, found.checkpoints, found.steps) == ("equal", 2, 0), found.text


async def test_a_program_without_checkpoints_has_nothing_to_compare(engine: Engine, code: Path) -> None:
    (code / "train.py").write_text("print('done')\n")
    document = config(slots=1, epochs=1)
    found = await again(engine, await original(engine, code, document), code)
    assert found.verdict == "nothing", found.text
