"""Which deaths are outlived, and what is said of the others."""

import numpy as np
import pytest

from feeder import WorkerTimeoutError
from feeder.plan.chunks import PlannedChunk
from feeder.produce.deaths import Deaths, of_chunk


def test_three_deaths_in_a_row_while_starting_are_an_error():
    deaths = Deaths()
    assert deaths.at_start(1) is None
    assert deaths.at_start(-9) is None
    error = deaths.at_start(-64)
    assert "with exit code 1, SIGKILL, SIGRTMAX (SIGKILL:" in str(error)
    assert error.exit_codes == [1, -9, -64]
    assert deaths.at_start(1) is None


def test_work_that_goes_on_is_never_given_up():
    deaths = Deaths()
    for _ in range(10):
        assert deaths.at_start(1) is None
        assert deaths.at_start(1) is None
        assert deaths.of_zygote() is None
        assert deaths.of_zygote() is None
        deaths.forget()


@pytest.mark.parametrize(
    ("count", "shown"), [(4, "0, 1, 2, 3"), (9, "0, 1, 2, 3, 4, 5, 6, 7, ...")]
)
def test_a_chunk_that_cost_three_workers_names_its_records(count, shown):
    rows = np.arange(count)
    chunk = PlannedChunk(7, rows, rows, None)
    assert of_chunk(chunk, [0, 0]) is None
    error = of_chunk(chunk, [-50, -11, 3])
    assert str(error) == (
        "3 worker processes ended while they built step 7, with signal 50, SIGSEGV, exit code 3; "
        f"one of its records is at fault: {shown}"
    )
    assert error.indices == list(range(count))


def test_a_chunk_among_others_that_lose_workers_too_is_given_more_time():
    rows = np.arange(4)
    chunk = PlannedChunk(7, rows, rows, None)
    assert of_chunk(chunk, [-9] * 3, others=1) is None
    assert of_chunk(chunk, [-9] * 4, others=1) is not None
    assert of_chunk(chunk, [-9] * 11, others=1000) is None
    assert of_chunk(chunk, [-9] * 12, others=1000) is not None


def test_a_chunk_that_hangs_three_times_is_an_error_whatever_becomes_of_others():
    rows = np.arange(4)
    error = of_chunk(PlannedChunk(7, rows, rows, None), [-9] * 3, 3, 0.5, others=10)
    assert isinstance(error, WorkerTimeoutError)
