"""The cause of a rank's failure in its log."""

from __future__ import annotations

from airflow_provider_dtrain.supervisor.run.ranks import find_traceback

PLAIN = """begin
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: bad data in shard 7
"""


def test_the_last_line_of_a_traceback_is_the_message() -> None:
    found = find_traceback(PLAIN)
    assert found is not None
    assert found["message"] == "ValueError: bad data in shard 7"


def test_the_rank_that_pytorch_puts_before_each_line_is_none_of_it() -> None:
    lines = PLAIN.splitlines()
    marked = "\n".join([lines[0], *(f"[rank3]: {line}" for line in lines[1:])])
    assert find_traceback(marked) == find_traceback(PLAIN)
