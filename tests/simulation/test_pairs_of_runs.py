"""Runs whose code does not do the same share no noise, wherever the code has the difference from."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from scipy.stats import chi2
from support.run_keys import TREE, changed

import fedsim
from fedsim.api.given import resolved_of
from fedsim.common.errors import InputError
from fedsim.results.outcome import Results
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import Resolved, resolve, with_nonce
from fedsim.simulation import trial as in_process
from fedsim.simulation.host import SiloHost
from fedsim.simulation.run_digest import run_digest
from fedsim.simulation.trial import read
from fedsim.sweeps.job import job_of

ALGORITHM = """
    import ctypes, functools, math, os, random, sys, threading, time, types, json
    from dataclasses import dataclass
    from pathlib import Path
    import numpy as np
    import fedsim
    {before}

    @dataclass(frozen=True)
    class Mine:
        linear = True
        batch: fedsim.Batch = fedsim.FULL

        def server(self, w, problem, public, rng):
            mean = yield fedsim.Round({{"w": w}}, answer=w)
            return w - 0.5 * mean["g"]

        def silo(self, problem, broadcast, ask, memory):
            return {{"g": ask(fedsim.Query("gradient", (broadcast["w"],), float({clip}), self.batch))}}
"""
PAIRS = {
    "file": ("Path({path!r}).write_text('{n}')", "Path({path!r}).read_text()"),
    "array in a file": ("np.save({path!r} + '.npy', [{n}.0])", "np.load({path!r} + '.npy')[0]"),
    "helper module": ("helper = types.ModuleType('helper'); helper.clip = {n}.0", "helper.clip"),
    "module in sys.modules": (
        "sys.modules['helped'] = types.SimpleNamespace(c={n})",
        "sys.modules['helped'].c",
    ),
    "environment": ("os.environ['CLIP_OF_PAIRS'] = '{n}'", "os.environ['CLIP_OF_PAIRS']"),
    "global": ("CLIP = {n}.0", "CLIP"),
    "global by name": ("CLIP = {n}.0", "globals()['CL' + 'IP']"),
    "patched built-in": ("abs = lambda x: {n} * x", "abs(1.0)"),
    "patched module": ("np.clip_of_pairs = {n}.0", "np.clip_of_pairs"),
    "frompyfunc": ("SCALE = np.frompyfunc(lambda x: {n} * x, 1, 1)", "SCALE(1.0)"),
    "vectorize": ("SCALE = np.vectorize(lambda x: {n} * x)", "SCALE(1.0)"),
    "partial": ("SCALE = functools.partial(lambda c, x: c * x, {n})", "SCALE(1.0)"),
    "closure": ("def outer(c): return lambda: c\n    SCALE = outer({n})", "SCALE()"),
    "default": ("def scale(x, c={n}): return c * x", "scale(1.0)"),
    "thread-local": ("HELD = threading.local(); HELD.clip = {n}", "HELD.clip"),
    "C memory": ("HELD = ctypes.c_double({n})", "HELD.value"),
    "generator": ("def each():\n        while True: yield {n}\n    HELD = each()", "next(HELD)"),
    "evaluated text": ("TEXT = json.dumps({n})", "eval(TEXT)"),
    "random state": ("HELD = random.Random({n})", "1 + HELD.random()"),
}


def mine(before: str, clip: str, number: int, path: Path) -> Any:
    """An algorithm of one round, whose clip is `clip` once the line `before` has run with the number."""
    given = {"n": number, "path": str(path)}
    source = textwrap.dedent(ALGORITHM.format(before=before.format(**given), clip=clip.format(**given)))
    names: dict[str, Any] = {"__name__": "fedsim.algorithms.mine"}  # what a module is called says nothing
    exec(source, names)
    return names["Mine"]()


def digest(resolved: Resolved) -> str:
    return run_digest(resolved, "data", "private")


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_two_runs_of_code_that_differs_share_no_noise(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIP_OF_PAIRS", "0")
    monkeypatch.setattr(np, "clip_of_pairs", 0.0, raising=False)
    first, second = (resolved_of(parse(TREE), mine(*pair, n, tmp_path / "held")) for n in (1, 2))
    assert first.trace.plan == second.trace.plan
    assert digest(first) != digest(second)
    assert digest(resolve(first.scenario)) == digest(first)  # its scenario repeats it


def test_one_nonce_does_not_make_one_run_of_two_schedules(tmp_path: Path) -> None:
    scenario = parse(TREE | {"nonce": "0" * 32})
    runs = []
    for schedule in ((1.0, (2.0,)), (1.0, (3.0,)), (1.0, (3.0,))):
        algorithm = mine("HELD = 1", "1", 1, tmp_path)
        object.__setattr__(algorithm, "schedule", schedule)
        runs.append(digest(resolved_of(scenario, algorithm)))
    assert runs[0] != runs[1] == runs[2]


def test_a_run_of_shipped_parts_draws_no_nonce_and_one_of_others_keeps_its_own() -> None:
    assert with_nonce(parse(TREE)).nonce is None
    model = {"name": "module", "path": "torch.nn:Linear"}
    tree = changed(TREE, {"problem": {"name": "neural_network", "model": model}})
    first, second = (resolve(parse(tree)) for _ in range(2))
    assert first.scenario.nonce is not None
    assert len({digest(first), digest(second)}) == 2
    again = resolve(parse(first.scenario.model_dump(mode="json", exclude_none=True)))
    assert digest(again) == digest(first)
    with pytest.raises(InputError, match="nonce"):
        parse(tree | {"nonce": "short"})


def test_a_network_that_an_edit_changed_shares_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = changed(TREE, {"problem": {"name": "neural_network", "model": {"name": "mlp", "hidden": [3]}}})
    before = digest(resolve(parse(tree)))
    assert digest(resolve(parse(tree))) == before
    monkeypatch.setattr(torch.nn, "ReLU", torch.nn.Tanh)
    assert digest(resolve(parse(tree))) != before


WIDE = 400
FALSE_ALARM = 1e-6


def test_with_equal_seeds_twice_one_model_minus_the_other_is_no_gradient_without_noise(
    tmp_path: Path,
) -> None:
    """w = -0.5 (g + sigma xi), and sigma doubles with a clip that a global holds and that binds nothing."""
    scenario = parse(
        changed(TREE, {"data": {"name": "synthetic", "rows": 120, "features": WIDE - 1}, "seed": 5})
    )
    models, z = [], [1.0]
    for clip in (100, 200):
        resolved = resolved_of(scenario, mine(*PAIRS["global"], clip, tmp_path))
        results = Results()
        in_process.execute(resolved, results, lambda _: None)
        models.append(results.trials[0].models)
        opened = SiloHost(resolved, 0, read(resolved, 0)).open("private", [range(1)] * 3)
        z = [said.noise_multiplier for said in opened]
    gradient = models[0]["nonprivate"]
    assert torch.equal(gradient, models[1]["nonprivate"])
    parts = zip(resolved.weights, z, resolved.sizes, strict=True)
    sigma = 0.5 * math.sqrt(sum((p * m * 2 * 100.0 / n) ** 2 for p, m, n in parts))
    left = 2 * models[0]["private"] - models[1]["private"] - gradient
    low, high = chi2.ppf(FALSE_ALARM / 2, WIDE), chi2.isf(FALSE_ALARM / 2, WIDE)
    assert low < float(left.square().sum()) / (8 * sigma**2) < high  # of 2 xi - 2 xi', independent
    assert not low < float(left.square().sum()) / (8 * (2 * sigma) ** 2) < high  # a wrong scale is seen


def test_a_simulation_without_a_seed_draws_one_and_its_scenario_repeats_it(tmp_path: Path) -> None:
    tree = {key: value for key, value in TREE.items() if key != "seed"}
    first, second = (fedsim.simulate(tree, out=tmp_path / name) for name in "ab")
    again = fedsim.simulate(tmp_path / "a" / "scenario.yaml")
    assert not np.array_equal(first.model, second.model)
    assert np.array_equal(first.model, again.model)
    assert "can draw the noise again" in (tmp_path / "a" / "scenario.yaml").read_text()
    job = job_of(tree | {"sweep": {"grid": {"algorithm.step_size": [0.1, 0.2]}}})
    assert {one.scenario.seed for one in job.combinations} == {job.tree["seed"]}


def test_a_run_of_an_object_repeats_by_its_file_and_not_without(tmp_path: Path) -> None:
    kind = mine(*PAIRS["global"], 1, tmp_path)
    first = fedsim.simulate(TREE, algorithm=kind, out=tmp_path / "run")
    written = yaml.safe_load((tmp_path / "run" / "scenario.yaml").read_text())
    again = fedsim.simulate(TREE, algorithm=kind, seed=written["seed"], nonce=written["nonce"])
    assert np.array_equal(first.model, again.model)
    assert not np.array_equal(first.model, fedsim.simulate(TREE, algorithm=kind).model)
