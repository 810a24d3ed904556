"""Notifications: each event once, with its facts, and never a harm to the trial."""

from __future__ import annotations

import json
import math
import runpy
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG, BaseNotifier
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_dtrain.errors import HostUnreachableError, StoreUnavailableError, TaskEndedError, UserError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.tasks import TaskFacts, as_airflow, task_facts
from airflow_provider_dtrain.notifications import dispatch
from airflow_provider_dtrain.notifications.events import NotifyEvent, notifiers_of, seconds_of
from airflow_provider_dtrain.notifications.log import LogNotifier
from airflow_provider_dtrain.notifications.notice import trial_notice
from airflow_provider_dtrain.notifications.search_end import notify_search
from airflow_provider_dtrain.notifications.serialization import PackingError, pack, unpack
from airflow_provider_dtrain.notifications.straggler import StragglerNotification
from airflow_provider_dtrain.notifications.wait_limit import WaitLimit
from airflow_provider_dtrain.operators._notifications import TrialNotifications
from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store
from airflow_provider_dtrain.task_groups import experiment
from airflow_provider_dtrain.triggers.trial import TrialTrigger
from testbed.stores import host, new_sqlite
from tests.support.mail_server import mail_server
from tests.support.notifiers import AsyncNotifier, HangingNotifier, KeepingNotifier, RaisingNotifier
from tests.support.search_world import Search
from tests.support.store_world import Clock, until

FAILURE = {"error": "RankFailedError", "kind": "user", "message": "ValueError: no data\nTraceback"}


class Log:
    """Keeps warnings."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, event: str, *args: Any) -> None:
        self.lines.append(event % args)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(KeepingNotifier, "sent", [])
    store = Store.open(new_sqlite(tmp_path / "s.db"), clock=clock)
    monkeypatch.setattr(DtrainHook, "store", property(lambda hook: store))
    store.hosts.add(host("a", 8))
    yield store
    store.close()


@pytest.fixture
def search(store: Store) -> Search:
    search = Search(store, name="resnet")
    search.plan(rungs={}, max_trials=9)
    return search


def context(task: str = "train", *, try_number: int = 1, max_tries: int = 0) -> Any:
    of = {"dag_id": "d", "run_id": "r", "task_id": task, "map_index": -1}
    ti = SimpleNamespace(**of, try_number=try_number, max_tries=max_tries)
    return {"ti": ti, "dag": DAG("d", schedule=None)}


def facts(**tries: int) -> TaskFacts:
    return task_facts(context(**tries))


def alone(store: Store, *, metric: str | None = None) -> int:
    """Return a trial of no search."""
    document = {"entrypoint": "x", "searcher": {"name": "single", "metric": metric}}
    key = TrialKey(dag_id="d", run_id="r", task_id="train")
    config = store.configs.put(document, origins={}).config_id
    submission = TrialSubmission(key=key, experiment_name="e", config_id=config, pool="gpus", slots=1)
    return store.trials.submit(submission).trial_id


def completed(store: Store) -> int:
    """Return a trial of no search that has completed."""
    trial_id = alone(store)
    attempt_id = store.trials.get(trial_id).attempt_id
    watch = store.attempts.watch(attempt_id, watcher="test")
    store.attempts.end(attempt_id, watch, state="completed")
    return trial_id


def told(log: Log | None = None, **given: BaseNotifier) -> TrialNotifications:
    found = given or {str(event): KeepingNotifier() for event in NotifyEvent}
    return TrialNotifications(found, timedelta(hours=1), log or Log())


def test_a_trial_that_completes_is_notified_once(store: Store) -> None:
    trial_id = completed(store)
    for _ in range(2):
        notifications = told()
        with notifications.about(facts()):
            notifications.trial_id = trial_id
    assert KeepingNotifier.sent == [f"finished: Trial {trial_id} of e finished: completed"]
    assert store.notifications.sent(trial_id) == {"finished": ""}


def test_only_the_last_try_of_a_task_is_a_failure(store: Store) -> None:
    trial_id = alone(store)
    for try_number in (1, 2):
        notifications = told()
        notifications.trial_id = trial_id
        with pytest.raises(HostUnreachableError), notifications.about(facts(try_number=try_number, max_tries=1)):
            raise HostUnreachableError("a", "Host 'a' does not answer.\nmore")
        assert len(KeepingNotifier.sent) == try_number - 1
    assert KeepingNotifier.sent == [f"failed: Trial {trial_id} of e failed: Host 'a' does not answer."]


def test_an_error_of_the_user_is_a_failure_at_once(store: Store) -> None:
    notifications = told()
    notifications.trial_id = trial_id = alone(store)
    with pytest.raises(AirflowFailException), notifications.about(facts(max_tries=9)):
        raise as_airflow(UserError("the file is missing"))
    assert KeepingNotifier.sent == [f"failed: Trial {trial_id} of e failed: the file is missing"]


def test_a_task_that_fails_before_its_trial_exists_is_notified_with_its_own_name(store: Store) -> None:
    with pytest.raises(AirflowFailException), told().about(facts()):
        raise as_airflow(UserError("config: unknown field 'x'"))
    assert KeepingNotifier.sent == ["failed: Task d.train failed: config: unknown field 'x'"]


def test_a_failure_is_notified_although_the_store_does_not_answer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: Any, **kwargs: Any) -> None:
        raise StoreUnavailableError("the store is away")

    monkeypatch.setattr(store.trials, "get", away)
    notifications = told()
    notifications.trial_id = 7
    with pytest.raises(StoreUnavailableError), notifications.about(facts()):
        raise StoreUnavailableError("the store is away")
    assert KeepingNotifier.sent == ["failed: Task d.train failed: the store is away"]


def test_what_a_user_did_in_airflow_and_a_deferral_are_no_events(store: Store) -> None:
    notifications = told()
    notifications.trial_id = alone(store)
    with pytest.raises(TaskEndedError), notifications.about(facts()):
        raise TaskEndedError("marked")
    with pytest.raises(GeneratorExit), notifications.about(facts()):
        raise GeneratorExit
    assert KeepingNotifier.sent == []


def test_trials_of_a_search_notify_failures_and_new_bests(store: Store, search: Search) -> None:
    for number, loss in enumerate((0.5, 0.7, 0.4, 0.4)):
        ticket = search.start(number)
        search.validate(ticket, loss=loss)
        search.end(ticket)
        notifications = told()
        with notifications.about(facts()):
            notifications.trial_id = ticket.trial_id
    failed = search.start(5)
    search.end(failed, "errored", failure=FAILURE)
    notifications = told()
    notifications.trial_id = failed.trial_id
    with pytest.raises(AirflowFailException), notifications.about(facts()):
        raise AirflowFailException("x") from None
    assert KeepingNotifier.sent == [
        "best: Trial 3 of resnet is the new best: loss 0.4 (before: 0.5)",
        "trial_failed: Trial 5 of resnet failed: x",
    ]


def test_the_end_of_a_search_is_notified_once_for_its_experiment(
    store: Store, search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.org/team/")
    assert search.view is not None
    key = TrialKey(dag_id="d", run_id="r", task_id="best")
    found = notifiers_of({"finished": KeepingNotifier("{{ dtrain.text }}"), "failed": KeepingNotifier()})
    log = Log()
    for outcome in ({"metric": 0.25, "trial_id": 7}, {"metric": 0.25, "trial_id": 7}, UserError("all\nfailed")):
        notify_search(store, log, search.view.search_id, key, outcome, found, {})  # type: ignore[arg-type]
    assert KeepingNotifier.sent == [
        "Experiment resnet finished: best trial 7, loss 0.25. Task d.best, run r. "
        "https://airflow.example.org/team/plugin/dtrain/experiments/1",
        "failed: Experiment resnet failed: all",
    ]
    assert log.lines == []


def test_a_trial_that_waits_too_long_is_notified_once_with_the_reason(store: Store, clock: Clock) -> None:
    Search(store, name="first").start(0, slots=8)
    waiting = Search(store, name="second", run="other").submit(0, slots=8)
    watch = store.attempts.watch(waiting.attempt_id, watcher="test")
    text = "{{ dtrain.trial_id }} after {{ dtrain.waited_s | int }} s: {{ dtrain.reason }}"
    store.queue.schedule("gpus")
    log = Log()
    limit = WaitLimit(store, waiting.trial_id, 100.0, [KeepingNotifier(text)], log=log, context={})
    for _ in range(5):
        limit.check()
        clock.advance(50)
        store.queue.renew(waiting.attempt_id, watch)
        store.queue.schedule("gpus")
    assert log.lines == []
    [line] = KeepingNotifier.sent
    assert line.startswith(f"{waiting.trial_id} after 100 s: ")
    assert "missing" in line


def test_a_look_that_fails_is_a_warning_and_the_next_one_comes_later(store: Store) -> None:
    log = Log()
    limit = WaitLimit(store, 99, 1.0, [KeepingNotifier()], log=log, context={})
    limit()
    until(lambda: log.lines)
    limit()
    assert len(log.lines) == 1
    assert "There is no trial 99" in log.lines[0]


def test_the_first_slow_rank_of_a_trial_is_notified_once(store: Store) -> None:
    trial_id = alone(store)
    sentence = "Rank 3 on gpu-b takes 1.6 times as long as the other ranks since 14:02:00 UTC: its GPU is too hot."
    found = told(straggler=KeepingNotifier("{{ dtrain.title }} / {{ dtrain.reason }}"))
    notification = found.straggler(store, trial_id, facts())
    assert isinstance(notification, StragglerNotification)
    notification(sentence)
    until(lambda: store.notifications.sent(trial_id) == {"straggler": ""})
    notification.send("Rank 4 is slow.")
    assert KeepingNotifier.sent == [f"Trial {trial_id} of e has a slow rank: {sentence} / {sentence}"]
    assert told(finished=KeepingNotifier()).straggler(store, trial_id, facts()) is None


def test_a_notification_about_a_slow_rank_that_fails_is_a_warning(store: Store) -> None:
    log = Log()
    StragglerNotification(store, 99, [KeepingNotifier()], log=log, context={}).send("Rank 3 is slow.")
    assert "There is no trial 99" in log.lines[0]


@pytest.mark.parametrize("error", [ValueError("no\nroute"), SystemExit(3), KeyboardInterrupt()])
def test_a_notifier_that_raises_is_a_warning(store: Store, error: BaseException) -> None:
    log, trial_id = Log(), alone(store)
    notifications = TrialNotifications({"finished": [RaisingNotifier(error), KeepingNotifier()]}, 1.0, log)
    with notifications.about(facts()):
        notifications.trial_id = trial_id
    assert len(KeepingNotifier.sent) == 1
    assert [line.partition(":")[0] for line in log.lines] == ["Notifier RaisingNotifier for 'finished' failed"]
    assert type(error).__name__ in store.notifications.sent(trial_id)["finished"]


def test_a_notifier_that_hangs_delays_the_task_only_for_its_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "NOTIFIER_MOST_S", 0.2)
    monkeypatch.setattr(dispatch, "NOTIFIERS_MOST_S", 0.5)
    log, begin = Log(), time.monotonic()
    notifications = TrialNotifications({"finished": [HangingNotifier()] * 9}, 1.0, log)
    try:
        with notifications.about(facts()):
            notifications.trial_id = alone(store)
    finally:
        HangingNotifier.free.set()
    assert time.monotonic() - begin < 20
    assert len(log.lines) == 9
    assert "it did not return within" in log.lines[0]
    assert "other notifiers took too long" in log.lines[-1]


def test_a_notifier_that_can_only_be_awaited_is_awaited(store: Store) -> None:
    notifications = told(finished=AsyncNotifier("{{ dtrain.event }}"))
    with notifications.about(facts()):
        notifications.trial_id = alone(store)
    assert KeepingNotifier.sent == ["finished"]


def test_rendering_changes_no_notifier_that_is_used_again(store: Store) -> None:
    notifier = KeepingNotifier("{{ dtrain.trial_id }}")
    for trial_id in (alone(store), Search(store).submit(0).trial_id):
        dispatch.send(Log(), trial_notice(NotifyEvent.FINISHED, store, trial_id), [notifier], {})
    assert KeepingNotifier.sent == ["1", "2"]


def test_hostile_names_are_single_lines_and_escaped_in_html(store: Store) -> None:
    search = Search(store, name="<b>" + "e" * 200)
    search.plan(metric="<script>alert(1)</script>\n" + "m" * 200, rungs={}, max_trials=3)
    ticket = search.submit(0, hparams={"<i>": "\x1b[0m" + "v" * 10_000, "nan": math.nan})
    found = trial_notice(NotifyEvent.BEST, store, ticket.trial_id, before=math.nan).to_context()
    assert "<" not in found["html"].replace("<a href=", "").replace("</a>", "")
    assert not set("<>") & set(found["slack"])
    assert found["title"].isprintable()
    assert found["text"].isprintable()
    assert len(found["text"]) < 1200
    assert len(found["name"]) <= 200


def test_a_notifier_reaches_the_triggerer_with_its_attributes() -> None:
    packed = json.loads(json.dumps(pack(KeepingNotifier("hello {{ dtrain.title }}"))))
    rebuilt = unpack(packed)
    assert type(rebuilt) is KeepingNotifier
    assert rebuilt.text == "hello {{ dtrain.title }}"
    trigger = TrialTrigger([7], None, {"limit_s": 60.0, "waited": [packed], "straggler": [packed]})
    assert TrialTrigger(**trigger.serialize()[1]).notifications == trigger.notifications


def test_airflows_notifier_for_mail_sends_from_the_triggerer_what_its_templates_say(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    html = "<p>{{ dtrain.html }}</p>"
    notifier = SmtpNotifier(to="me@example.org", from_email="dtrain@example.org", subject="{{ dtrain.title }}",
                            html_content=html)  # fmt: skip
    trial_id = completed(store)
    with mail_server() as server:
        extra = json.dumps({"disable_ssl": True, "disable_tls": True})
        conn = {"conn_type": "smtp", "host": "127.0.0.1", "port": server.port, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(conn))
        found = trial_notice(NotifyEvent.FINISHED, store, trial_id)
        errors = dispatch.send(Log(), found, [unpack(pack(notifier))], {"ti": None})
    assert errors == []
    [message] = server.messages
    assert f"Subject: Trial {trial_id} of e finished: completed" in message


def test_a_notifier_that_cannot_reach_the_triggerer_is_a_warning_that_says_why() -> None:
    class Local(KeepingNotifier):
        pass

    log = Log()
    found = told(log, waited=RaisingNotifier(ValueError("x")))
    assert found.packed() is None
    assert told(log, waited=Local()).packed() is None
    assert told(log, waited=KeepingNotifier()).packed() == {
        "limit_s": 3600.0,
        "waited": [pack(KeepingNotifier())],
        "straggler": [],
    }
    assert "RaisingNotifier.error is a ValueError, and only JSON can be sent" in log.lines[0]
    assert "Local is defined in a DAG file" in log.lines[1]
    with pytest.raises(PackingError, match="is no notifier"):
        unpack({"path": "json.JSONDecoder", "state": {}})
    with pytest.raises(PackingError, match="cannot import"):
        unpack({"path": "no_such_module.Notifier", "state": {}})


def test_unknown_events_and_objects_that_are_no_notifiers_are_refused() -> None:
    with pytest.raises(ValueError, match="finished, failed, trial_failed, waited, straggler, best, got 'done'"):
        TrialOperator(task_id="t", config={}, notify={"done": KeepingNotifier()})
    with pytest.raises(TypeError, match=r"notify\['failed'\] expects notifiers.*got str"):
        TrialOperator(task_id="t", config={}, notify={"failed": ["mail"]})  # type: ignore[dict-item]
    for wrong in (0, -1.0, math.nan, math.inf, timedelta(0)):
        with pytest.raises(ValueError, match="notify_waiting_after"):
            seconds_of(wrong)


def test_a_dag_with_notifiers_is_serialized_the_same_way_each_time() -> None:
    def parsed() -> Any:
        with DAG("d", schedule=None) as dag:
            experiment({"name": "x"}, notify={"failed": LogNotifier(), "waited": [KeepingNotifier()]})
            TrialOperator(task_id="alone", config={}, notify={"best": KeepingNotifier()})
        return DagSerialization.to_dict(dag)

    assert json.dumps(parsed(), sort_keys=True) == json.dumps(parsed(), sort_keys=True)


def test_the_example_has_a_notifier_for_every_event_that_the_triggerer_can_run() -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "dags" / "dtrain_notifications.py"))
    dag = example["dag"]
    given = dag.get_task("experiment.trial").partial_kwargs["notify"]
    assert set(given) == {str(event) for event in NotifyEvent}
    assert told(None, **given).packed() is not None
