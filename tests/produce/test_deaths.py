"""Which deaths are outlived, and what is said of the others."""

import numpy as np
import pytest

from feeder.plan.batches import Chunk
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
    chunk = Chunk(7, rows, rows, None)
    assert of_chunk(chunk, [0, 0]) is None
    error = of_chunk(chunk, [-50, -11, 3])
    assert str(error) == (
        "3 worker processes ended while they built step 7, with signal 50, SIGSEGV, exit code 3; "
        f"one of its records is at fault: {shown}"
    )
    assert error.indices == list(range(count))
