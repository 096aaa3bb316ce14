"""The program of a child process that runs plug-in code; `fedsim.isolated.parts` is its counterpart.

It serves one parent over its two pipes: it makes an algorithm and a problem, tries a plan out and plays both
halves. It is confined before any of this is imported (`fedsim.isolated.confined`), and holds no record.
"""

from __future__ import annotations

import base64
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedsim.algorithms.section import algorithm_of
from fedsim.common.errors import InputError, PluginError, Refused
from fedsim.common.plugins import file_of
from fedsim.common.process import keep_to_one_thread
from fedsim.isolated import data
from fedsim.isolated.data import Arrays, Pipes, prefixed, without
from fedsim.problems.given import described
from fedsim.problems.kinds import Problem
from fedsim.problems.registry import dtype_of
from fedsim.problems.section import problem_of, problem_section
from fedsim.protocol.blame import raised
from fedsim.protocol.contract import Algorithm, Combined, Query, Round, ServerHalf
from fedsim.protocol.copies import CohortMemory, copied_arrays, copied_tensor
from fedsim.protocol.dryrun import dry_run
from fedsim.protocol.limits import Limits
from fedsim.wire.frames import Frame

_LIMIT = 1 << 40  # the parent is believed

Answer = tuple[str, Mapping[str, Any], Arrays]


class Server:
    """Answers one frame after another."""

    def __init__(self, pipes: Pipes) -> None:
        self._pipes = pipes
        self._halves: dict[int, ServerHalf] = {}
        self._algorithm: Algorithm
        self._problem: Problem

    def serve(self) -> None:
        """Until the parent is gone."""
        kinds: dict[str, Callable[[Frame], Answer]] = {
            "make": self._make,
            "dry run": self._dry_run,
            "server": self._server,
            "sent": self._sent,
            "silo": self._silo,
        }
        while True:
            frame = self._pipes.receive(_LIMIT)
            try:
                self._say(*kinds[frame.kind](frame))
            except Exception as error:
                known = isinstance(error, InputError | Refused | PluginError)
                self._say("error", data.error_out(error if known else PluginError(raised(error))), {})

    def _say(self, kind: str, head: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> None:
        self._pipes.send(Frame(kind, head, arrays))

    def _make(self, frame: Frame) -> Answer:
        head = frame.head
        dtype = dtype_of(head["dtype"])
        if "pickled" in head:  # of a simulation, which has the objects
            self._algorithm, self._problem = pickle.loads(base64.b64decode(head["pickled"]))
        else:
            shape = head["shape"]
            self._algorithm = algorithm_of(_placed(head["algorithm"]))
            section = problem_section(_placed(head["problem"]))
            sizes = shape["num_features"], shape["num_classes"], dtype, shape.get("num_groups", 0)
            self._problem = problem_of(section, *sizes)
        linear = {"linear": bool(self._algorithm.linear)}
        if not head["describe"]:
            return "made", linear, {}
        told, arrays = data.constants_out(*described(self._problem, dtype))
        return "made", linear | {"problem": told}, arrays

    def _dry_run(self, frame: Frame) -> Answer:
        public, head = data.public_in(frame.head, frame.arrays), frame.head
        limits = Limits(**head["limits"])
        return "trace", *data.trace_out(dry_run(self._algorithm, self._problem, public, head["seed"], limits))

    def _server(self, frame: Frame) -> Answer:
        key = np.array(list(map(int, frame.head["key"])), dtype=np.uint64)
        rng = np.random.Generator(np.random.Philox(key=key))
        public = data.public_in(frame.head, frame.arrays)
        half = self._algorithm.server(frame.arrays["w"], self._problem, public, rng)
        self._halves[frame.head["half"]] = half
        return self._step(frame.head["half"], lambda: next(half))

    def _sent(self, frame: Frame) -> Answer:
        number = frame.head["half"]
        sent = Combined(frame.arrays, frame.head["share"])
        return self._step(number, lambda: self._halves[number].send(sent))

    def _step(self, number: int, advance: Callable[[], Round]) -> Answer:
        try:
            step = advance()
        except StopIteration as stop:
            del self._halves[number]
            return "end", {}, {"w": copied_tensor(stop.value, "the model that the server method returns")}
        arrays = prefixed("b.", copied_arrays(step.broadcast, "a broadcast"))
        holds = step.participants == "hold"
        return "step", {"holds": holds}, arrays | {"answer": copied_tensor(step.answer, "a round's answer")}

    def _silo(self, frame: Frame) -> Answer:
        broadcast = without("b.", frame.arrays)
        dtype = next(iter(frame.arrays.values())).dtype
        memory = CohortMemory(frame.head["silos"], self._problem.dimension, dtype)
        memory.update(without("m.", frame.arrays))
        message = self._algorithm.silo(self._problem, broadcast, self._ask, memory)  # type: ignore[arg-type]
        arrays = prefixed("g.", copied_arrays(message, "a message"))
        arrays |= prefixed("m.", copied_arrays(memory, "memory"))
        return "message", {}, arrays

    def _ask(self, *queries: Query) -> Tensor | tuple[Tensor, ...]:
        """The parent's answers; the queries are checked here first, so that a mistake is named."""
        self._say("ask", *data.queries_out(queries))
        arrays = self._pipes.receive(_LIMIT).arrays
        answers = tuple(arrays[str(i)] for i in range(len(queries)))
        return answers if len(answers) > 1 else answers[0]


def _placed(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """A section with a file's name as it lies in the folder of plug-ins, which is last on the path."""
    name = section["name"]
    return {**section, "name": str(Path(sys.path[-1], name))} if file_of(name) else section


def main() -> None:
    """Serve the parent; what plug-ins print goes nowhere."""
    out = os.dup(1)
    os.dup2(2, 1)
    keep_to_one_thread()
    tempfile.tempdir = "/"  # torch.export asks for one, and writes nothing
    with suppress(EOFError, ConnectionError):  # the parent is gone, or has no more to ask
        Server(Pipes(0, out, patient=True)).serve()


if __name__ == "__main__":
    main()
