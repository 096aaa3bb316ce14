"""Algorithms given as objects: by value to Ray's processes, with noise of their own."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.distribution import python

import fedsim
from fedsim.simulation.code import Code, is_installed

ALGORITHM = """
    from dataclasses import dataclass
    import fedsim

    FACTOR = 2.0

    def stretched(g):
        return FACTOR * g

    @dataclass(frozen=True)
    class Mine:
        linear = True
        num_rounds: int
        batch: fedsim.Batch = fedsim.FULL

        def server(self, w, problem, public, rng):
            for _ in range(self.num_rounds):
                mean = yield fedsim.Round({"w": w}, answer=w)
                w = problem.project(w - stretched(mean["g"]))
            return w

        def silo(self, problem, broadcast, ask, memory):
            return {"g": ask(fedsim.Query("gradient", (broadcast["w"],), 1.0, self.batch))}
"""
RUNS = """
    runs = [
        fedsim.simulate("quickstart", algorithm=Mine(3), trials=1, epsilon=2.0, runtime=runtime)
        for runtime in ("inprocess", {"name": "ray", "silo_hosts": 1})
    ]
    print((runs[0].model == runs[1].model).all(), runs[0].ledger.to_pylist() == runs[1].ledger.to_pylist())
    print(runs[1].summary.algorithm, "Mine" in runs[1].scenario)
"""


def dedent(*parts: str) -> str:
    return "".join(map(textwrap.dedent, parts))


@pytest.mark.slow
def test_a_class_of_a_script_from_standard_input_runs_on_ray_as_in_process(tmp_path: Path) -> None:
    done = python("-", paths=(), cwd=tmp_path, stdin=dedent(ALGORITHM, RUNS))
    assert done.stdout.split() == ["True", "True", "Mine", "True"], done.stderr


@pytest.mark.slow
def test_a_class_of_a_module_that_only_the_caller_finds_runs_on_ray(tmp_path: Path) -> None:
    """The module's folder is put on the path after the start, so no other process knows it."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "mine.py").write_text(dedent(ALGORITHM), encoding="utf-8")
    start = f"import sys; sys.path.insert(0, {str(folder)!r})\nimport fedsim\nfrom mine import Mine\n"
    done = python("-", paths=(), cwd=tmp_path, stdin=start + dedent(RUNS))
    assert done.stdout.split() == ["True", "True", "Mine", "True"], done.stderr


def made(source: str) -> type[Any]:
    """The class of a notebook's cell: no file, no module that could be imported."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(dedent(source), names)
    found = names["Mine"]
    assert isinstance(found, type)
    return found


def run(kind: type[Any], **changes: Any) -> fedsim.Run:
    fixed = {"trials": 1, "runtime": "inprocess", "epsilon": 2.0}
    return fedsim.simulate("quickstart", algorithm=kind(2), **{**fixed, **changes})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("w - stretched", "w + stretched"),  # in a method
        ("return FACTOR * g", "return g * FACTOR"),  # in a function that it calls
        ("FACTOR = 2.0", "FACTOR = 2.5"),  # a number that this function reads
        ("linear = True", "linear = False"),
    ],
)
def test_classes_of_one_name_that_do_not_do_the_same_are_told_apart(old: str, new: str) -> None:
    assert old in ALGORITHM
    assert Code(made(ALGORITHM)).text != Code(made(ALGORITHM.replace(old, new))).text


def holding(value: str) -> str:
    """The algorithm with its factor in an object of which `repr` says nothing."""
    return ALGORITHM.replace("FACTOR = 2.0", f"HOLDER = {value}").replace("FACTOR * g", "HOLDER.factor * g")


def test_numbers_in_an_object_that_the_code_reads_count() -> None:
    kinds = [made(holding(f"type('Holder', (), {{}})(); HOLDER.factor = {f}")) for f in (2.0, 2.5, 2.0)]
    first, other, again = (Code(kind).text for kind in kinds)
    assert first != other
    assert first == again


PARTS = {
    "partial": "import functools\nPART = functools.partial(lambda c, x: c * x, @@)",
    "cached": "import functools\n@functools.lru_cache\ndef PART(x): return @@ * x",
    "bound": "class Held:\n    def by(self, x): return @@ * x\nPART = Held().by",
    "constructor": "class PART:\n    def __init__(self, x): self.by = @@ * x",
    "dataclass": "@dataclass\nclass Held:\n    def __call__(self, x): return @@ * x\nPART = Held()",
    "default": "@dataclass\nclass Held:\n    def by(self): return @@\ndef PART(x, by=Held()): return by.by()",
    "nested": "class PART:\n    class By:\n        def by(self): return @@",
    "namespace": "import types\nPART = types.SimpleNamespace(by=lambda: @@)",
    "mapping": "PART = {'by': lambda: @@}",
    "classes": "class Held:\n    def by(self): return @@\nPART = (Held,)",
    "number": "class Held(float): pass\nPART = Held(@@)",
    "member": "import enum\nclass Held(enum.Enum):\n    BY = @@\nPART = Held.BY",
    "factory": "import dataclasses as d\n@dataclass\nclass PART:\n    by: list = d.field(default_factory=lambda: @@)",  # noqa: E501
    "body": "G = @@\ndef PART(x):\n    class Held:\n        by = G\n    return Held.by",
    "wrapped": "import numpy\nPART = numpy.vectorize(lambda x: @@ * x)",
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_whatever_holds_code_that_the_code_uses_counts(part: str) -> None:
    using = dedent(ALGORITHM.replace("FACTOR = 2.0", "@part").replace("FACTOR * g", "PART * g"))
    first, other, again = (
        Code(made(using.replace("@part", part.replace("@@", number)))).text
        for number in ("2.0", "2.5", "2.0")
    )
    assert first != other
    assert first == again


def test_names_of_arguments_count() -> None:
    def of(arguments: str, body: str) -> str:
        helper = f"def FACTOR({arguments}): return {body}"
        return Code(made(dedent(ALGORITHM).replace("FACTOR = 2.0", helper))).text

    assert of("a, b", "a - b") != of("b, a", "b - a")


def test_the_class_of_what_an_algorithm_holds_counts() -> None:
    """Two schedules of one name and number: equal noise at different points would hide nothing."""
    schedule = "@dataclass(frozen=True)\n    class Steps:\n        def at(self, r): return 1.0\n"
    held = (
        ALGORITHM.replace("FACTOR = 2.0", schedule)
        .replace("FACTOR * g", "g")
        .replace("fedsim.FULL", "fedsim.FULL\n        steps: object = None")
    )
    texts = []
    for source in (held, held.replace("return 1.0", "return 1.5"), held):
        kind = made(source)
        steps = kind.server.__globals__["Steps"]
        texts.append(Code(kind(2, steps=steps())).text)
    assert texts[0] != texts[1]
    assert texts[0] == texts[2]


def test_a_module_that_is_imported_where_it_is_used_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that was edited since: a notebook reloads it."""
    monkeypatch.syspath_prepend(tmp_path)
    used = ALGORITHM.replace("return FACTOR * g", "from factor_of_mine import F; return F * g")
    texts = []
    for number in (2.0, 2.25):
        (tmp_path / "factor_of_mine.py").write_text(f"F = {number}\n", encoding="utf-8")
        texts.append(Code(made(used)).text)
    assert texts[0] != texts[1]


def test_code_that_reads_what_nobody_can_look_into_is_refused() -> None:
    with pytest.raises(fedsim.InputError, match="nobody can tell what it holds"):
        Code(made(holding("__import__('threading').Lock()")))


def test_where_a_class_stands_and_what_is_said_of_it_does_not_count() -> None:
    moved = "\n\n\n# A remark.\n" + dedent(ALGORITHM).replace("FACTOR = 2.0", "FACTOR = 2.0  # why")
    assert Code(made(moved)).text == Code(made(ALGORITHM)).text


def test_two_classes_of_one_name_share_no_noise() -> None:
    """With equal noise, models of two rounds would differ by the factor alone."""
    first, again = run(made(ALGORITHM)), run(made(ALGORITHM))
    other = run(made(ALGORITHM.replace("FACTOR = 2.0", "FACTOR = 2.0 + 1e-12")))
    assert (first.model == again.model).all()
    assert abs(first.model - other.model).max() > 1e-3


def test_installed_modules_are_those_of_distributions() -> None:
    assert all(map(is_installed, ("torch.nn", "fedsim.algorithms", "dataclasses", "builtins", "numpy")))
    assert not any(map(is_installed, ("__main__", "support.helpers", "mine")))


def test_an_object_of_a_shipped_algorithm_is_named_as_in_scenarios() -> None:
    from fedsim.algorithms.prox_sgd import ProxSGD

    run = fedsim.simulate(
        "quickstart",
        {"report.nonprivate_twin": False},
        algorithm=ProxSGD(num_rounds=2, step_size=0.5, clip_norm=1.0, batch=fedsim.Subsample(0.5)),
        trials=1,
        runtime="inprocess",
    )
    assert run.summary.algorithm == "prox_sgd"
    assert "fraction: 0.5" in run.scenario


@dataclass(frozen=True)
class Silent:
    """No silo half."""

    linear = True

    def server(self) -> None: ...


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (made(ALGORITHM), "is a class: give an object of it"),
        (Silent(), "must be a dataclass's object with methods server and silo"),
        ("prox_sgd", "must be a dataclass's object with methods server and silo"),
        (make_dataclass("Nothing", [])(), "must be a dataclass's object"),
    ],
)
def test_what_is_no_algorithm_is_refused_by_name(thing: Any, words: str) -> None:
    with pytest.raises(fedsim.InputError, match=words):
        fedsim.price("quickstart", algorithm=thing)


def test_an_algorithm_whose_plan_is_refused_says_so() -> None:
    greedy = made(ALGORITHM.replace('"gradient", (broadcast', '"median", (broadcast'))
    with pytest.raises((fedsim.Refused, fedsim.InputError), match="median"):
        fedsim.price("quickstart", algorithm=greedy(2))


def test_torch_is_used_as_it_was() -> None:
    before = torch.get_num_threads()
    run(made(ALGORITHM))
    assert torch.get_num_threads() == before


def test_a_ray_of_the_callers_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "shutdown", None)
    for call in (fedsim.simulate, fedsim.sweep):
        with pytest.raises(
            fedsim.InputError, match=r"call ray.shutdown\(\) first, or take runtime inprocess"
        ):
            call(
                "quickstart", {} if call is fedsim.simulate else {"sweep.grid": {"seed": [1]}}, runtime="ray"
            )
