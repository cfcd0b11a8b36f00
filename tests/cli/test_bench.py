"""`feeder bench`: what it measures, and which number of workers it recommends."""

import re

import pytest

from feeder.cli import bench, main
from feeder.cli.recommend import recommended
from feeder.cli.subject import Subject
from tests.cli import loaders

HERE = "tests/cli/loaders.py"
NUMBER = r"[\d.,e+-]+"


def test_it_measures_every_number_and_recommends_one(capsys):
    argv = ["bench", f"{HERE}:loader", "--seconds", "0.1", "--workers", "0,1"]
    assert main(argv) == 0
    out, errors = capsys.readouterr()
    assert errors == ""
    row = rf"{NUMBER} +{NUMBER} +{NUMBER} +{NUMBER}–{NUMBER}"
    assert re.fullmatch(
        rf"""{HERE}:loader, on \d+ CPUs?: 3 rounds of all in turns

  num_workers +batches/s +records/s +MiB/s +from–to
            0 +{row}  as it is
            1 +{row}

where the time goes, with num_workers=0

  stage +of a batch +share
(  [a-z_]+ +{NUMBER} [mµ]?s +\d+%
)+
num_workers=[01]: .+
""",
        out,
    )


def test_pieces_go_on_where_the_last_one_ended_and_runs_begin_anew(capsys):
    one = bench.Run(Subject("x", loaders.loader), 1, loaders.loader().arguments)
    one.measure(0.0)
    first = one._state["step"]
    one.measure(0.0)
    one.close()
    assert one._state["step"] == 2 * first > 0
    assert len(one.samples) == 2


def test_live_data_that_end_are_asked_anew_where_they_can_be(capsys):
    short = ["--seconds", "0.05", "--workers", "0"]
    assert main(["bench", f"{HERE}:live_anew", *short]) == 0
    assert capsys.readouterr().err == ""
    assert main(["bench", f"{HERE}:live", *short]) == 2
    assert capsys.readouterr().err == (
        f"feeder bench: error: `{HERE}:live` has come to its end, and its callable cannot begin "
        "anew; name a function that returns a new loader\n"
    )


def test_a_sharded_loader_is_measured_to_the_devices(capsys):
    argv = ["bench", f"{HERE}:sharded", "--seconds", "0.05", "--workers", "1", "--step-ms", "1e-6"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert re.search(r"\nnum_workers=1: a step of 1 ns takes 1,000,000,000 batches/s, and", out)


@pytest.mark.parametrize(
    ("cpus", "configured", "expected"),
    [
        (1, 0, [0, 1, 2]),
        (2, 2, [0, 1, 2]),
        (6, "auto", [0, 1, 2, 4, 6]),
        (16, 3, [0, 1, 2, 3, 4, 8, 16]),
        (96, 0, [0, 1, 2, 4, 8, 16, 32]),
    ],
)
def test_numbers_that_make_sense_are_tried(cpus, configured, expected):
    assert bench.numbers_for(cpus, configured) == expected


@pytest.mark.parametrize(
    ("rates", "cpus", "step_s", "expected"),
    [
        ({0: 5000}, 2, None, (0, "a batch takes 200 µs, no more than handing it over would")),
        (
            {0: 100, 1: 98, 2: 190},
            2,
            None,
            (2, "1.9 × the batches/s of 0; there are 2 CPUs"),
        ),
        (
            {0: 100, 1: 98, 2: 190, 4: 300, 8: 310},
            8,
            None,
            (4, "3.0 × the batches/s of 0; 8 give 1.03 × that"),
        ),
        (
            {0: 100, 1: 98, 2: 95},
            2,
            None,
            (
                1,
                "no more batches/s than with 0, but they are built while the step computes; with "
                "0, 10 ms would be added to each step; 2 give 0.97 × that",
            ),
        ),
        (
            {1: 98, 2: 190},
            8,
            None,
            (2, "190 batches/s; perhaps more would give more: try them with --workers"),
        ),
        (
            {0: 100, 1: 98, 2: 190},
            2,
            0.02,
            (1, "a step of 20 ms takes 50 batches/s, and they give 98"),
        ),
        (
            {0: 100, 1: 98, 2: 190},
            2,
            0.002,
            (
                2,
                "a step of 2 ms takes 500 batches/s, and they give only 190: it waits 62% of the "
                "time; there are 2 CPUs",
            ),
        ),
        ({0: 100}, 2, None, (0, "no other number was tried")),
    ],
)
def test_the_fewest_workers_that_are_as_good_are_recommended(rates, cpus, step_s, expected):
    assert recommended(rates, cpus, step_s) == expected
