"""Stand-ins for plug-in code: an algorithm and a problem whose code runs in a confined child process.

The child is sent broadcasts and gets noisy answers: it holds no record, so whatever it sends back is
post-processing, and the gate answers it as any silo method. Of a problem come back only the operations on one
record, as data (`fedsim.problems.program`), which this process rebuilds by its own table.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar, cast

import torch
from numpy.random import Generator
from torch import Tensor

from fedsim.common.errors import InputError, Refused
from fedsim.isolated import data
from fedsim.isolated.confine import CHILD, Child, start
from fedsim.isolated.data import Pipes, prefixed, without
from fedsim.problems.given import given
from fedsim.problems.kinds import Problem
from fedsim.problems.registry import dtype_of, is_shipped
from fedsim.protocol.contract import Algorithm, Asker, Combined, Public, PublicProblem, Round, ServerHalf
from fedsim.protocol.copies import MAX_ARRAYS, CohortMemory
from fedsim.protocol.dryrun import Trace, dry_run
from fedsim.protocol.limits import Limits
from fedsim.protocol.passes import features_of
from fedsim.wire.frames import MAX_HEAD, Frame

T = TypeVar("T")

SECONDS = 120.0  # that a child may take for one frame; a dry run is one
ROUND_SECONDS = 60.0  # that a child may take for all of a round, beside the silo's own
_ARRAYS = 2 * MAX_ARRAYS  # of the largest size in a frame: a message, and memory
_PROBLEM = 1 << 28  # bytes of a problem's constants
_ENDED, _SLOW = "the plug-in's process has ended", "the plug-in's process takes too long"


class Isolated:
    """A child process that was asked to make an algorithm and a problem, and what stands for them here.

    An `Algorithm`: the gate, the server's loop and the dry run call it as any other.
    """

    def __init__(self, start: Callable[[], Child], recipe: Mapping[str, Any]) -> None:
        """Nothing is started before it is needed: then `start` starts a child that runs
        `fedsim.isolated.child`, and `recipe` is what it makes, the head of a frame "make".
        """
        self._start, self._recipe, self._seconds = start, dict(recipe), SECONDS
        self._child: Child | None = None
        self._lock, self._halves = threading.RLock(), 0

    def __reduce__(self) -> NoReturn:
        raise TypeError("a child process stays with the process that started it")

    @cached_property
    def made(self) -> Frame:
        """The child's description of what it made. InputError, Refused or PluginError if it cannot."""
        return self._call("make", self._recipe, {}, _PROBLEM, "made")

    def remake(self, recipe: Mapping[str, Any]) -> None:
        """Have the child make other parts; a server method that has begun keeps its own. Errors as `made`."""
        if recipe != self._recipe or self._child is None:
            self._recipe = dict(recipe)
            for name in ("made", "problem"):
                self.__dict__.pop(name, None)
            _ = self.made

    @property
    def linear(self) -> bool:
        """See `Algorithm`; a wrong word spoils a model, and no guarantee."""
        return bool(self.made.head.get("linear"))

    @cached_property
    def problem(self) -> Problem:
        """The problem's operations on one record, rebuilt by this process's own table. Its regulariser and
        its constraint are the child's, which alone uses them. InputError or Refused: a record must not be
        given to it.
        """
        head = self.made.head.get("problem")
        head = head if type(head) is dict else {}
        arrays = data.constants_in(head, self.made.arrays)
        return given(head.get("tree"), arrays, dtype_of(self._recipe["dtype"]))

    def dry_run(self, public: Public, seed: int, limits: Limits, problem: PublicProblem) -> Trace:
        """The plan that the algorithm follows, as `fedsim.protocol.dryrun.dry_run` finds it; Refused or
        PluginError if it has none.

        Whether the child tells the truth does not matter: this plan is priced, and the gate answers no other.
        """
        head, arrays = data.public_out(public)
        bounds = {name: value for name, value in asdict(limits).items() if value != float("inf")}
        asked, most = head | {"seed": seed, "limits": bounds}, MAX_HEAD + 8 * limits.max_rounds
        found = self._call("dry run", asked, arrays, most, "trace")
        trace = data.trace_in(found.head, found.arrays)
        limits.check_plan(trace.plan, problem.dimension, features_of(problem))
        return trace

    def server(self, w: Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """The server method, round by round; `problem` is the child's own."""
        head, arrays = data.public_out(public)
        state = rng.bit_generator.state["state"]  # of `fedsim.common.seeds.server_rng`, which is Philox
        self._halves += 1
        half, most = self._halves, MAX_HEAD + _ARRAYS * w.nbytes
        key = {"half": half, "key": [str(word) for word in state["key"]]}
        step = self._call("server", head | key, {"w": w, **arrays}, most, "step", "end")
        while step.kind == "step":
            answer, broadcast = step.arrays["answer"], without("b.", step.arrays)
            holds = "hold" if step.head.get("holds") else "resample"
            sent: Combined = yield Round(broadcast, answer, holds)  # type: ignore[arg-type]
            step = self._call("sent", {"half": half, "share": sent.share}, dict(sent), most, "step", "end")
        model: Tensor = step.arrays["w"]
        return model

    def silo(
        self, problem: PublicProblem, broadcast: Mapping[str, Tensor], ask: Asker, memory: CohortMemory
    ) -> Mapping[str, Tensor]:
        """One round of the silo method: its asks are answered here, by `ask`, until it has its message.
        Refused where `ask` refuses or the child sends something else; the round is over then.
        """
        arrays = prefixed("b.", broadcast) | prefixed("m.", memory)
        most = MAX_HEAD + _ARRAYS * 8 * memory.silos * problem.dimension
        with self._lock:
            until = time.monotonic() + min(self._seconds, ROUND_SECONDS)
            reply = self._call("silo", {"silos": memory.silos}, arrays, most, "ask", "message", until=until)
            while reply.kind == "ask":
                asked = time.monotonic()
                try:
                    found = ask(*data.queries_in(reply.head, reply.arrays))
                except BaseException:  # the silo method stands in the middle of its round
                    self.close()
                    raise
                answers = found if isinstance(found, tuple) else (found,)
                named = {str(i): answer for i, answer in enumerate(answers)}
                until += time.monotonic() - asked  # the silo's own time is not the child's
                reply = self._call("answers", {}, named, most, "ask", "message", until=until)
        memory.update(without("m.", reply.arrays))
        return without("g.", reply.arrays)

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.stdin.close()
            self._child.stdout.close()
            self._child = None

    def __del__(self) -> None:
        self.close()

    def _call(
        self,
        kind: str,
        head: Mapping[str, Any],
        arrays: Mapping[str, Tensor],
        most: int,
        *expected: str,
        until: float | None = None,
    ) -> Frame:
        """Send a frame and get one of the expected kinds, of `most` bytes; a child that fails is ended."""
        until = time.monotonic() + self._seconds if until is None else until
        with self._lock:
            try:
                return self._checked(self._exchange(Frame(kind, head, arrays), most, until), expected)
            except (TimeoutError, EOFError, OSError) as error:
                self.close()
                raise Refused(_SLOW if isinstance(error, TimeoutError) else _ENDED) from None
            except Refused:
                self.close()
                raise

    def _exchange(self, frame: Frame, most: int, until: float) -> Frame:
        if self._child is None:
            self._child = self._start()
            self._pipes = Pipes(self._child.stdout.fileno(), self._child.stdin.fileno())
            if frame.kind != "make":  # a child after one that was ended
                made = self._exchange(Frame("make", self._recipe), _PROBLEM, until)
                self._checked(made, ("made",))
        self._pipes.send(frame, until)
        return self._pipes.receive(most, until)

    def _checked(self, reply: Frame, expected: tuple[str, ...]) -> Frame:
        if reply.kind == "error":
            raise data.error_in(reply.head)
        if reply.kind not in expected:
            raise Refused(f"the plug-in's process sends {reply.kind[:40]!r}, not {' or '.join(expected)}")
        return reply


def recipe_of(algorithm: Algorithm, problem: Problem, dtype: str) -> str:
    """The recipe by which a simulation's child makes objects: pickled, with classes of no installed package.
    InputError if an object cannot be pickled.
    """
    import cloudpickle  # a simulation's alone

    for part in (algorithm, problem, getattr(problem, "model", None)):
        module = sys.modules.get(type(part).__module__)
        if module is not None and not _is_installed(module):
            cloudpickle.register_pickle_by_value(module)
    try:
        pickled = base64.b64encode(cloudpickle.dumps((algorithm, problem))).decode()
    except Exception as error:
        hint = f"needs parts that can be pickled: {error}"
        raise InputError("runtime.plug_ins", "isolated", hint) from None
    return json.dumps({"dtype": dtype, "pickled": pickled, "describe": not is_shipped(problem)})


def _is_installed(module: ModuleType) -> bool:
    """Whether a child finds the module: it lies in a folder of installed packages, or is fedsim's."""
    file = Path(getattr(module, "__file__", None) or "")
    return (file.parts and any(part in ("site-packages", "dist-packages") for part in file.parts)) or (
        module.__name__.partition(".")[0] in ("fedsim", "silos", "builtins")
    )


@lru_cache(maxsize=4)
def of_objects(recipe: str) -> Isolated:
    """This process's child for a recipe of `recipe_of`; the last few are kept."""
    return Isolated(partial(start, [CHILD], None), json.loads(recipe))


class Confined:
    """An algorithm whose methods run in a child process, on one problem after another."""

    def __init__(self, algorithm: Algorithm, child: Isolated) -> None:
        """`child` may be shared by several, of which one at a time is in the middle of a round."""
        self.linear = algorithm.linear
        self._algorithm, self._child = algorithm, child
        self._recipes: dict[tuple[int, str], tuple[PublicProblem, dict[str, Any]]] = {}

    def on(self, problem: PublicProblem, dtype: torch.dtype) -> Isolated:
        """The child, which has made the algorithm and this problem."""
        name = str(dtype).removeprefix("torch.")
        if (id(problem), name) not in self._recipes:
            recipe = json.loads(recipe_of(self._algorithm, cast(Problem, problem), name))
            # As long as the problem is kept, its id is its own.
            self._recipes[id(problem), name] = (problem, recipe)
        self._child.remake(self._recipes[id(problem), name][1])
        return self._child

    def server(self, w: Tensor, problem: PublicProblem, public: Public, rng: Generator) -> ServerHalf:
        """The server method, in the child."""
        return self.on(problem, w.dtype).server(w, problem, public, rng)

    def silo(
        self, problem: PublicProblem, broadcast: Mapping[str, Tensor], ask: Asker, memory: CohortMemory
    ) -> Mapping[str, Tensor]:
        """One round of the silo method, in the child."""
        return self.on(problem, next(iter(broadcast.values())).dtype).silo(problem, broadcast, ask, memory)


def confined(algorithms: Callable[[T], Algorithm], child: Isolated) -> Callable[[T], Algorithm]:
    """The same algorithms with both methods in a child process."""
    return lambda number: cast(Algorithm, Confined(algorithms(number), child))


def new_child() -> Isolated:
    """A child for `Confined`; it starts when it is first needed."""
    return Isolated(partial(start, [CHILD], None), {})


def trace_of(
    algorithm: Algorithm, problem: PublicProblem, public: Public, seed: int, limits: Limits
) -> Trace:
    """The plan, by a dry run where the algorithm's code runs; Refused or PluginError if it has none."""
    found = algorithm.on(problem, public.weights.dtype) if isinstance(algorithm, Confined) else algorithm
    if isinstance(found, Isolated):
        return found.dry_run(public, seed, limits, problem)
    return dry_run(algorithm, problem, public, seed, limits)
