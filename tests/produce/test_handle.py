"""The parent's side of a worker's socket: full sockets, and tasks taken back."""

import itertools
import weakref

import numpy as np
import pytest

from feeder.plan.chunks import PlannedChunk
from feeder.produce.crew import Crew
from feeder.produce.handle import WorkerHandle
from feeder.produce.jobs import Inbox, Job
from feeder.produce.messages import Kind, asked, encode


@pytest.fixture
def worker():
    worker = WorkerHandle(0)
    yield worker
    worker.close_sockets()


def filled(worker):
    """Sends tasks until the socket takes no more."""
    inbox = Inbox()
    for ticket in range(10_000):
        rows = np.arange(256)
        job = Job(ticket, PlannedChunk(ticket, rows, rows, None), weakref.ref(inbox))
        if not worker.send(encode(int(Kind.TASK), asked(ticket, job.chunk, None, None))):
            return
        worker.begin(job.begin(itertools.count(ticket)))
    raise AssertionError("the socket never fills")


def test_a_grant_that_finds_the_socket_full_is_sent_as_soon_as_there_is_room(worker):
    filled(worker)
    crew = Crew(1, -1, -1)
    crew.adopt(worker)
    grant = encode(int(Kind.GRANT), 4096)
    crew.grant(worker, grant)
    assert list(worker.outbox) == [grant]
    assert list(crew.events(crew.poll(0))) == []
    for _ in worker.tasks:
        worker.far.recv(65536)
    assert list(crew.events(crew.poll(1))) == []
    assert not worker.outbox
    assert worker.far.recv(65536) == grant
    crew.end()


def test_tasks_that_were_not_begun_are_taken_back_in_order(worker):
    filled(worker)
    begun, *waiting = list(worker.tasks)
    worker.far.recv(65536)  # the worker takes the first
    taken = []
    while (back := worker.take_back()) is not None:
        taken += back[0]
    assert taken == waiting
    assert list(worker.tasks) == [begun]


def test_a_grant_is_not_taken_back(worker):
    worker.send(encode(int(Kind.GRANT), 4096))
    assert worker.take_back() is None
    assert worker.far.recv(65536) == encode(int(Kind.GRANT), 4096)
