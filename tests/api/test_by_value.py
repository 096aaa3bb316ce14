"""Algorithms given as objects: by value to Ray's processes, with noise of their own."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from support.distribution import python

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
        fedsim.simulate(
            "quickstart", algorithm=Mine(3), trials=1, epsilon=2.0, runtime=runtime, nonce="0" * 32
        )
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
