from __future__ import annotations

import pytest

from airflow_provider_dtrain.core.simulation.simulator import SimulatedJob
from airflow_provider_dtrain.core.simulation.trace import between, read_jobs, with_not_preemptible
from airflow_provider_dtrain.errors import ConfigError

HEADER = "job_id,submit_s,gpus,duration_s"


def refusal(*lines: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_jobs([f"{line}\n" for line in lines], source="jobs.csv")
    return str(caught.value)


def jobs(number: int) -> list[SimulatedJob]:
    return [SimulatedJob(job_id=str(n), submit_s=float(n), slots=1, duration_s=1.0) for n in range(number)]


def test_the_four_columns_are_enough():
    assert read_jobs([HEADER, "a,0,8,3600", "b,1.5,0,0"]) == [
        SimulatedJob(job_id="a", submit_s=0.0, slots=8, duration_s=3600.0),
        SimulatedJob(job_id="b", submit_s=1.5, slots=0, duration_s=0.0),
    ]


def test_optional_columns_may_stand_anywhere_and_be_empty():
    lines = ["vc,job_id,submit_s,gpus,duration_s,user,priority,max_runtime_s", "x,a,0,1,5,me,7,9", ",b,0,1,5,,,"]
    first, second = read_jobs(lines)
    assert (first.group, first.priority, first.max_runtime_s) == ("x", 7, 9.0)
    assert (second.group, second.priority, second.max_runtime_s) == ("", 42, None)


def test_a_group_goes_before_a_vc():
    (job,) = read_jobs([f"{HEADER},vc,group", "a,0,1,5,x,y"])
    assert job.group == "y"


def test_a_job_works_no_longer_than_its_max_runtime():
    (job,) = read_jobs([f"{HEADER},max_runtime_s", "a,0,1,100,60"])
    assert (job.duration_s, job.max_runtime_s) == (60, 60)


def test_a_byte_order_mark_spaces_and_quotes_are_accepted():
    (job,) = read_jobs(["\ufeffjob_id, submit_s, gpus, duration_s", '"a, b", 1, 2, 3'])
    assert job == SimulatedJob(job_id="a, b", submit_s=1.0, slots=2, duration_s=3.0)


def test_an_empty_file_says_what_it_needs():
    assert "line 1: the file is empty; it needs a header with the columns job_id, submit_s" in refusal()


def test_a_header_alone_has_no_jobs():
    assert "no jobs follow the header" in refusal(HEADER)


def test_missing_columns_are_named():
    text = refusal("job_id,submitted,gpus", "a,0,1")
    assert "line 1: no column submit_s, duration_s among job_id, submitted, gpus" in text


def test_two_columns_of_one_name_are_refused():
    assert "two columns are called gpus" in refusal(f"{HEADER},gpus", "a,0,1,1,2")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,-1,8,60", "submit_s is '-1'; it must be a number of seconds from 0 on"),
        ("a,0,8,-60", "duration_s is '-60'; it must be a number of seconds from 0 on"),
        ("a,0,8,nan", "duration_s is 'nan'"),
        ("a,inf,8,1", "submit_s is 'inf'"),
        ("a,0,-8,60", "gpus is '-8'; it must be a whole number from 0 to 1000000"),
        ("a,0,1.5,60", "gpus is '1.5'; it must be a whole number"),
        ("a,0,1_0,60", "gpus is '1_0'"),
        ("a,0,eight,60", "gpus is 'eight'"),
        ("a,0,,60", "gpus is missing"),
        ("a,0,8", "duration_s is missing"),
        (",0,8,60", "job_id is missing"),
        ("a,0,8,60,9,9", "has 2 more values than the header has columns"),
        ('a,0,8,"6"0', "is not valid CSV"),
    ],
)
def test_a_mistake_is_named_with_its_line(line: str, message: str):
    text = refusal(HEADER, "z,0,1,1", line)
    assert text.startswith("jobs.csv: ")
    assert "line 3: " in text
    assert message in text


@pytest.mark.parametrize("priority", ["0", "100", "high"])
def test_a_priority_is_a_whole_number_from_1_to_99(priority: str):
    assert "from 1 to 99" in refusal(f"{HEADER},priority", f"a,0,1,1,{priority}")


def test_two_jobs_of_one_name_are_refused_with_both_lines():
    assert "line 4: job_id 'a' is also in line 2" in refusal(HEADER, "a,0,1,1", "b,0,1,1", "a,5,1,1")


def test_all_mistakes_come_at_once_up_to_twenty():
    text = refusal(HEADER, *(f"j{number},x,1,1" for number in range(25)))
    assert "line 2:" in text
    assert "line 21:" in text
    assert "line 22:" not in text
    assert "and 5 more" in text


def test_a_part_of_the_trace_is_chosen_by_submission():
    assert [job.job_id for job in between(jobs(10), 3, 7, None)] == ["3", "4", "5", "6"]
    assert [job.job_id for job in between(jobs(10)[::-1], None, None, 2)] == ["0", "1"]
    assert between(jobs(3), 5, None, None) == []


def test_the_jobs_that_cannot_be_stopped_depend_on_share_and_seed_alone():
    some = [job.job_id for job in with_not_preemptible(jobs(4000), 0.25, 1) if not job.is_preemptible]
    assert 900 < len(some) < 1100
    assert some == [job.job_id for job in with_not_preemptible(jobs(4000), 0.25, 1) if not job.is_preemptible]
    assert some != [job.job_id for job in with_not_preemptible(jobs(4000), 0.25, 2) if not job.is_preemptible]
    more = {job.job_id for job in with_not_preemptible(jobs(4000), 0.5, 1) if not job.is_preemptible}
    assert more > set(some)


def test_a_share_of_nothing_and_of_everything():
    assert all(job.is_preemptible for job in with_not_preemptible(jobs(100), 0, 0))
    assert not any(job.is_preemptible for job in with_not_preemptible(jobs(100), 1, 0))
