"""Do all processes of a job make the same batches? Asked once, while a loader is made.

Guarantees:
    * A difference is an error on every process, naming field and values; so is a process that
      could not make its loader, and one that has not made it in time. Nobody hangs.
    * One message from each process and one answer to all: it takes as long for a thousand hosts
      as reading a thousand short messages.

Owner:
    The messages are the service's, and go with it.
"""

from __future__ import annotations

import json
import reprlib
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from feeder.errors import ProcessMismatchError
from feeder.place.service import Service

PATIENCE_S = 300.0
"""Seconds that processes wait for each other, as long as `jax.distributed.initialize` does."""

_MOST_BITS = 1024

_SHOWN = 8
"""Processes listed in a message before "and so many more"."""


class Agreement:
    """A context in which a loader is made; what is raised in it is told to the other processes.

    Args:
        service: Of the processes that share the loader's batches; None: there is but this one.
        patience_s: Seconds to wait for the others.
    """

    def __init__(self, service: Service | None, patience_s: float = PATIENCE_S) -> None:
        self.service = service
        self._patience_s = patience_s
        self._told = self._decided = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or self.service is None:
            return
        told = f"{type(error).__name__}: {error}"
        if not self._told:
            self._tell({"failed": told})
        if self.service.own == self.service.processes[0] and not self._decided:
            self._decide({"failed": {str(self.service.own): told}})  # nobody need wait for it

    def settle(self, fields: Mapping[str, Any]) -> None:
        """Compares what every process is about to do.

        Args:
            fields: Names and JSON-able values that must be the same on all.

        Raises:
            ProcessMismatchError: They are not, or some process has not come to this point.
        """
        service = self.service
        if service is None:
            return
        deadline = time.monotonic() + self._patience_s
        own = json.loads(json.dumps({name: _plain(value) for name, value in fields.items()}))
        self._tell({"fields": own})
        leader = service.processes[0]
        if service.own == leader:
            verdict = _verdict(own, leader, service.processes, self._getter(deadline))
            self._decide(verdict)
        else:
            # The leader may have come last, and still wait for others as long as it may.
            found = service.get("verdict", deadline + self._patience_s)
            verdict = json.loads(found or json.dumps({"missing": [leader]}))
        if any(verdict.values()):
            raise _error(verdict, self._patience_s, service.number)

    def _tell(self, message: Mapping[str, Any]) -> None:
        assert self.service is not None
        self._told = True
        self.service.put(f"config/{self.service.own}", json.dumps(message))

    def _decide(self, verdict: Mapping[str, Any]) -> None:
        assert self.service is not None
        self._decided = True
        self.service.put("verdict", json.dumps(verdict))

    def _getter(self, deadline: float) -> Callable[[int], Any]:
        def get(process: int) -> Any:
            assert self.service is not None
            found = self.service.get(f"config/{process}", deadline)
            return None if found is None else json.loads(found)

        return get


def _verdict(
    own: dict[str, Any], leader: int, processes: tuple[int, ...], get: Callable[[int], Any]
) -> dict[str, Any]:
    """What is wrong, for every process to raise: JSON-able."""
    missing: list[int] = []
    failed: dict[str, str] = {}
    differences: dict[str, dict[str, Any]] = {}
    for process in processes:
        message: Any = {"fields": own} if process == leader else get(process)
        if message is None:
            missing.append(process)
        elif "failed" in message:
            failed[str(process)] = message["failed"]
        else:
            theirs = message["fields"]
            for name in [*own, *(name for name in theirs if name not in own)]:
                if own.get(name) != theirs.get(name):
                    values = differences.setdefault(name, {str(leader): own.get(name)})
                    values[str(process)] = theirs.get(name)
    names = sorted(differences, key=[*own, *differences].index)  # as the arguments are
    ordered = {name: differences[name] for name in names}
    return {"differences": ordered, "failed": failed, "missing": missing}


def _plain(value: Any) -> Any:
    """What JSON can hold: Python turns no more than 4300 digits into decimals."""
    return hex(value) if isinstance(value, int) and value.bit_length() > _MOST_BITS else value


def _error(verdict: dict[str, Any], patience_s: float, number: int) -> ProcessMismatchError:
    differences = {
        name: {int(process): value for process, value in values.items()}
        for name, values in verdict.get("differences", {}).items()
    }
    failed = {int(process): told for process, told in verdict.get("failed", {}).items()}
    missing = verdict.get("missing", [])
    lines = [
        *(f"  `{name}`: {_by_value(values)}" for name, values in differences.items()),
        *(f"  {listed([process])} could not make its loader: {t}" for process, t in failed.items()),
    ]
    if missing:
        lines.append(f"  {listed(missing)} made none within {patience_s:g} s")
    return ProcessMismatchError(
        "the processes of a job must make the same loaders, in the same order, got for loader "
        f"number {number}:\n"
        + "\n".join(lines)
        + "\nGive every process the same arguments and the "
        "same data; a loader that is one process's own has a sharding over its own devices, or "
        "`process_index=0, process_count=1`.",
        differences=differences,
        failed=failed,
        missing=missing,
    )


def _by_value(values: Mapping[int, Any]) -> str:
    """``16 on process 0, 32 on processes 1 and 2``."""
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = brief.maxlong = 200
    brief.maxlist = brief.maxdict = 20
    groups: dict[str, list[int]] = {}
    for process, value in values.items():
        groups.setdefault(repr(value), []).append(process)
    shown = {text: brief.repr(values[group[0]]) for text, group in groups.items()}
    if len(set(shown.values())) < len(shown):  # brief is too brief
        shown = {text: text for text in shown}
    return ", ".join(f"{shown[text]} on {listed(group)}" for text, group in groups.items())


def listed(processes: list[int]) -> str:
    """``process 0``, ``processes 0 and 1``, ``processes 0, 1, 2 and 9 more``."""
    if len(processes) == 1:
        return f"process {processes[0]}"
    *names, last = map(str, processes)
    if len(processes) > _SHOWN:
        names, last = names[:_SHOWN], f"{len(processes) - _SHOWN} more"
    return f"processes {', '.join(names)} and {last}"
