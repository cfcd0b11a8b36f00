"""What processes tell each other while they make a loader, told by threads over a dict."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder import ProcessMismatchError
from feeder.place.agreement import Agreement, listed
from feeder.place.replicas import ReplicaCheck
from feeder.place.service import Service


class Store:
    """JAX's service, as far as it is used."""

    def __init__(self):
        self.changed = threading.Condition()
        self.values = {}

    def key_value_increment(self, key, by):
        with self.changed:
            self.values[key] = self.values.get(key, 0) + by
            return self.values[key]

    def key_value_set(self, key, value, allow_overwrite):
        with self.changed:
            assert allow_overwrite or key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, key, timeout_ms):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, timeout_ms / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED: the key did not come")
            return self.values[key]

    def key_value_delete(self, key):
        with self.changed:
            del self.values[key]


def told(processes, run, patience_s=30.0):
    """What ``run(agreement, process)`` does in each process: what it returns or raises."""
    store = Store()

    def one(process):
        try:
            with Agreement(Service(store, processes, process), patience_s) as agreement:
                return run(agreement, process)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(processes)) as pool:
        return dict(zip(processes, pool.map(one, processes), strict=True))


@given(
    st.lists(st.integers(0, 2000), min_size=2, max_size=6, unique=True),
    st.data(),
)
def test_all_processes_get_the_same_verdict(processes, data):
    processes = tuple(sorted(processes))
    values = {each: data.draw(st.sampled_from([1, 2, None, [1], "1"])) for each in processes}
    found = told(processes, lambda agreement, each: agreement.settle({"a": values[each], "b": 0}))
    first = values[processes[0]]
    if all(value == first for value in values.values()):
        assert set(found.values()) == {None}
        return
    expected = {each: values[each] for each in processes if values[each] != first}
    for error in found.values():
        assert isinstance(error, ProcessMismatchError)
        assert error.differences == {"a": {processes[0]: first, **expected}}
        assert str(error) == str(found[processes[0]])


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_process_that_fails_is_an_error_on_the_others(broken):
    def run(agreement, process):
        if process == broken:
            raise TypeError("no such thing")
        agreement.settle({"a": 1})

    found = told((0, 1, 2), run)
    for process, error in found.items():
        if process == broken:
            assert isinstance(error, TypeError)
        else:
            assert error.failed == {broken: "TypeError: no such thing"}
            assert f"process {broken} could not make its loader: TypeError: no" in str(error)


@pytest.mark.parametrize("absent", [0, 1])
def test_a_process_that_never_comes_is_an_error_on_the_others(absent):
    def run(agreement, process):
        if process != absent:
            agreement.settle({"a": 1})

    error = told((0, 1), run, patience_s=0.1)[1 - absent]
    assert error.missing == [absent]
    assert f"process {absent} made none within 0.1 s\n" in str(error)


def test_a_loader_is_compared_with_that_of_the_same_number():
    store = Store()

    def run(process):
        for number in range(5):
            with Agreement(Service(store, (3, 8), process)) as agreement:
                agreement.settle({"number": number})

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, (3, 8))) == [None, None]


@pytest.mark.parametrize(
    ("processes", "text"),
    [
        ([4], "process 4"),
        ([0, 1], "processes 0 and 1"),
        ([0, 1, 2], "processes 0, 1 and 2"),
        (list(range(100)), "processes 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"),
    ],
)
def test_processes_are_listed_in_few_words(processes, text):
    assert listed(processes) == text


def test_alone_there_is_nothing_to_compare():
    assert Service.of((0,)) is None
    with Agreement(None) as agreement:
        agreement.settle({"a": 1})


def checks(rows_of, run, patience_s=30.0, every=True):
    """What ``run(check, process)`` does in each process."""
    store, processes = Store(), tuple(rows_of)

    def one(process):
        check = ReplicaCheck(
            Service(store, processes, process), lambda _: rows_of, every, patience_s=patience_s
        )
        try:
            return run(check, process)
        except ProcessMismatchError as error:
            return error

    with ThreadPoolExecutor(len(processes)) as pool:
        found = dict(zip(processes, pool.map(one, processes), strict=True))
    return found, store


OVERLAPPING = {0: np.arange(0, 6), 1: np.arange(4, 10), 2: np.arange(8, 12)}


def test_only_shared_rows_are_compared_and_old_messages_are_taken_back():
    whole = np.arange(12 * 3, dtype=np.float32).reshape(12, 3)

    def run(check, process):
        for step in range(5):
            batch = {"x": whole[OVERLAPPING[process]], "name": ["not compared"]}
            check.compare(step, check.fingerprint(batch, 12))

    found, store = checks(OVERLAPPING, run)
    assert set(found.values()) == {None}
    assert len([key for key in store.values if "/run0/" in key]) == 3


def test_a_difference_is_an_error_on_all_processes_also_on_those_that_do_not_hold_the_row():
    def run(check, process):
        batch = {"x": OVERLAPPING[process].copy(), "same": OVERLAPPING[process]}
        batch["x"][batch["x"] == 9] += 10 * process
        check.compare(7, check.fingerprint(batch, 12))

    found, _ = checks(OVERLAPPING, run)
    for process in (0, 1, 2):  # else one of them would enter a collective alone
        assert found[process].step == 7
        assert found[process].differences == {"batch['x']": {1: [9], 2: [9]}}


def test_objects_and_structures_are_compared_too():
    both = {0: np.arange(2), 1: np.arange(2)}

    def run(check, process):
        batch = {"name": np.array(["a", "b" if process else "c"], object)}
        check.compare(0, check.fingerprint(batch, 2))

    found, _ = checks(both, run)
    assert found[0].differences == found[1].differences == {"batch['name']": {0: [1], 1: [1]}}

    def other(check, process):
        batch = np.arange(2, dtype=np.int32 if process else np.int64)
        check.compare(0, check.fingerprint(batch, 2))

    found, _ = checks(both, other)
    kinds = {0: {"batch": "int64[rows]"}, 1: {"batch": "int32[rows]"}}
    assert found[0].differences == found[1].differences == {"leaves": kinds}


def test_leaves_without_rows_are_compared_by_their_type():
    def run(check, process):
        batch = {"x": np.arange(2), "word": np.array("abc"), "none": None, "one": np.float32(3)}
        check.compare(0, check.fingerprint(batch, 2))

    found, _ = checks({0: np.arange(2), 1: np.arange(2)}, run)
    assert set(found.values()) == {None}


def test_what_a_process_raises_in_place_of_a_batch_is_told_to_the_others_and_all_can_go_on():
    def run(check, process):
        told = []
        for step in range(3):
            try:
                if process == 1 and step == 1:
                    check.fail(OSError("disk gone"))
                else:
                    check.compare(step, check.fingerprint(np.arange(2) + step, 2))
            except ProcessMismatchError as error:
                told.append((step, str(error), error.failed))
        return told

    found, _ = checks({0: np.arange(2), 1: np.arange(2)}, run)
    message = "every process must build step 1, got errors:\n  process 1: OSError: disk gone"
    assert found == {0: [(1, message, {1: "OSError: disk gone"})], 1: []}


def test_an_interrupted_leader_tells_the_others_at_once():
    store = Store()
    arrived = threading.Event()

    class Interrupted(Store):
        def blocking_key_value_get(self, key, timeout_ms):
            arrived.set()
            raise KeyboardInterrupt

    client = Interrupted()
    client.values, client.changed = store.values, store.changed
    with pytest.raises(KeyboardInterrupt):
        with Agreement(Service(client, (0, 1), 0)) as agreement:
            agreement.settle({"a": 1})
    with pytest.raises(
        ProcessMismatchError, match=r"process 0 could not make .* KeyboardInterrupt"
    ):
        with Agreement(Service(store, (0, 1), 1)) as agreement:
            agreement.settle({"a": 1})


def test_long_values_show_where_they_differ_and_any_seed_can_be_told():
    names = [f"t{number}" for number in range(40)]

    def run(agreement, process):
        agreement.settle({"transforms": [*names, f"last{process}"], "seed": 10**5000 + process})

    error = told((0, 1), run)[1]
    assert "'last0'] on process 0" in str(error)
    assert "'last1'] on process 1" in str(error)
    assert set(error.differences) == {"transforms", "seed"}


def test_a_process_that_stays_behind_is_an_error_not_a_hang():
    def run(check, process):
        if process:
            check.compare(3, check.fingerprint(np.arange(2), 2))

    found, _ = checks({0: np.arange(2), 1: np.arange(2)}, run, patience_s=0.1)
    assert found[1].missing == [0]
    assert str(found[1]) == (
        "every process must come to step 3, got nothing of process 0 within 0.1 s, of iterator "
        "number 1 of this loader; take the same batches on all of them"
    )


def test_an_interrupted_comparison_goes_on_where_it_was():
    store, interrupted = Store(), queue.Queue()

    class Interrupted(Store):
        def blocking_key_value_get(self, key, timeout_ms):
            if interrupted.empty():
                interrupted.put(key)
                raise KeyboardInterrupt
            return store.blocking_key_value_get(key, timeout_ms)

    client = Interrupted()
    client.values, client.changed = store.values, store.changed
    both = {0: np.arange(2), 1: np.arange(2)}
    first = ReplicaCheck(Service(client, (0, 1), 0), lambda _: both, True)
    second = ReplicaCheck(Service(store, (0, 1), 1), lambda _: both, True)
    batch = first.fingerprint(np.arange(2), 2)
    with pytest.raises(KeyboardInterrupt):
        first.compare(0, batch)
    second.compare(0, batch)
    first.compare(0, batch)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(second.compare, 1, batch)
        first.compare(1, batch)
        assert other.result() is None


def test_the_first_batch_and_the_first_after_a_restore_are_always_compared():
    both = {0: np.arange(2), 1: np.arange(2)}

    def run(check, process):
        told = []
        # Rows are not compared, nor are steps in between: one process is ahead there.
        for step in (0, 1 + process, 5 + process):
            if step >= 5:
                check.restored()
            batch = np.arange(2) + process
            if (print_of := check.fingerprint(batch, 2)) is not None:
                try:
                    check.compare(step, print_of)
                except ProcessMismatchError as error:
                    told.append((error.step, error.differences))
        return told

    found, _ = checks(both, run, every=False)
    assert found == {each: [(5 + each, {"step": {0: 5, 1: 6}})] for each in both}
