"""Who gets which task, told by workers that are played by the test."""

import socket
import weakref

import numpy as np
import pytest

from feeder.plan.chunks import PlannedChunk
from feeder.produce.crew import Crew
from feeder.produce.dispatch import Dispatcher
from feeder.produce.failures import Failure
from feeder.produce.handle import WorkerHandle
from feeder.produce.jobs import Inbox, Job
from feeder.produce.messages import MAX_PACKET, Kind, decode, encode
from feeder.produce.slots import Slab
from feeder.produce.supervise import Limits, Supervisor

PACKED = Failure.of(ValueError("played"), "read", None).packed()


class Played:
    """A worker that begins a task, and answers it, when the test says so."""

    def __init__(self, handle: WorkerHandle) -> None:
        self.handle = handle
        self._at = -1

    def begin(self) -> int:
        """Takes the next task, and returns its step."""
        _, (self._at, step, *_) = decode(self.handle.far.recv(MAX_PACKET, socket.MSG_DONTWAIT))
        return step

    def answer(self) -> None:
        self.handle.far.send(encode(int(Kind.FAILED), self._at, PACKED))


@pytest.fixture
def team(monkeypatch):
    """A dispatcher and the workers that it has."""
    slab, crew = Slab(1 << 20), Crew(0, -1, -1)
    monkeypatch.setattr(crew, "start", lambda: None)
    slab.slot_bytes = 4096  # as if the size of a batch were known
    dispatcher = Dispatcher(crew, slab, Supervisor(Limits(1 << 20)))

    def made(num_workers):
        handles = [WorkerHandle(serial, serial) for serial in range(num_workers)]
        for handle in handles:
            handle.pid = 1
            crew.adopt(handle)
        return dispatcher, [Played(handle) for handle in handles]

    yield made
    dispatcher.end()
    slab.close()


def submit(dispatcher, count):
    inbox = Inbox()
    rows = np.arange(1)
    for step in range(count):
        chunk = PlannedChunk(step, rows, rows, None)
        dispatcher.submitted.append(Job(step, chunk, weakref.ref(inbox)))
    return inbox


@pytest.mark.parametrize("num_workers", [2, 3, 5])
def test_what_waits_behind_a_slow_task_is_never_far_behind_what_others_begin(team, num_workers):
    dispatcher, (*slow, free) = team(num_workers)
    inbox = submit(dispatcher, 100)
    dispatcher.step(0)
    done = {worker.begin() for worker in slow}  # and they never answer
    while len(done) < 100:
        step = free.begin()
        free.answer()
        done.add(step)
        dispatcher.step(0)
        oldest = min(set(range(101)) - done)
        assert step - oldest <= 3 * num_workers + 1
    assert len(inbox.arrived) == 100 - len(slow)


def test_workers_that_keep_pace_keep_their_tasks(team, monkeypatch):
    dispatcher, workers = team(3)
    submit(dispatcher, 60)
    dispatcher.step(0)
    dealt = [[task.ticket for task in worker.handle.tasks] for worker in workers]
    for worker in workers:
        monkeypatch.setattr(worker.handle, "take_back", lambda: pytest.fail("taken back"))
    for begun in zip(*dealt, strict=True):
        assert [worker.begin() for worker in workers] == list(begun)
        for worker in reversed(workers):
            worker.answer()
            dispatcher.step(0)
