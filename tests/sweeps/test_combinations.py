"""What a sweep section stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedsim.common.errors import InputError
from fedsim.scenario.load import load_tree
from fedsim.sweeps.combinations import combinations

LOCAL = {"name": "local_sgd", "num_rounds": 2, "local_steps": 3, "step_size": 0.5, "clip_norm": 1.0}
FULL = {"sampler": "full"}
MINIBATCH = {"name": "noisy_minibatch_sgd", "num_rounds": 4, "step_size": 0.5, "clip_norm": 1.0}


def swept(base: dict[str, Any], **section: Any) -> list[Any]:
    return combinations(base | {"sweep": section})


def test_a_grid_is_the_product_and_a_twin_is_there_once_per_algorithm(base: dict[str, Any]) -> None:
    found = swept(base, grid={"algorithm": [LOCAL, MINIBATCH], "privacy.epsilon": [1, 2, 4]})
    private = [c for c in found if c.private]
    assert [(c.varied["algorithm"], c.varied["privacy.epsilon"]) for c in private] == [
        (name, epsilon) for name in ("local_sgd", "noisy_minibatch_sgd") for epsilon in (1, 2, 4)
    ]
    for combination in private:
        (candidate,) = combination.candidates
        assert candidate.scenario.algorithm.name == combination.varied["algorithm"]
        assert candidate.scenario.privacy.epsilon == combination.varied["privacy.epsilon"]
    twins = [c for c in found if not c.private]
    assert [c.varied for c in twins] == [{"algorithm": "local_sgd"}, {"algorithm": "noisy_minibatch_sgd"}]
    assert {c.candidates[0].scenario.privacy.mechanism for c in twins} == {"none"}


def test_a_number_in_powers_of_ten_is_a_number_with_and_without_a_dot(
    base: dict[str, Any], tmp_path: Path
) -> None:
    """YAML 1.1 takes 1e-3 for text: lines of a sweep would become names, and 0.001 another value."""
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(base) + "sweep: {grid: {algorithm.step_size: [1e-3, 1.0e-2, '1e-1']}}\n")
    tree = load_tree(file, ["sweep.tune.grid={privacy.epsilon: [1e0, 2E+1]}", "seed=1e3"])
    assert tree["sweep"]["grid"]["algorithm.step_size"] == [0.001, 0.01, "1e-1"]
    assert tree["sweep"]["tune"]["grid"]["privacy.epsilon"] == [1.0, 20.0]
    assert {one.candidates[0].scenario.seed for one in combinations(tree)} == {1000}


def test_no_twins_where_none_are_asked_for(base: dict[str, Any]) -> None:
    base["report"] = {"nonprivate_twin": False}
    assert len(swept(base, grid={"privacy.epsilon": [1, 2, 4]})) == 3


def test_listed_cells_are_combined_with_the_grid(base: dict[str, Any]) -> None:
    cells = [{"algorithm.step_size": 0.1, "algorithm.num_rounds": 9}, {"algorithm.step_size": 0.2}]
    found = [c for c in swept(base, cells=cells, grid={"privacy.epsilon": [1, 2]}) if c.private]
    numbers = [(c.candidates[0].scenario.algorithm, c.candidates[0].scenario.privacy.epsilon) for c in found]
    assert [(a.step_size, a.num_rounds, e) for a, e in numbers] == [
        (0.1, 9, 1), (0.1, 9, 2), (0.2, 4, 1), (0.2, 4, 2),
    ]  # fmt: skip


def test_a_swept_field_completes_a_base_without_it(base: dict[str, Any]) -> None:
    del base["algorithm"]
    bare = {key: value for key, value in MINIBATCH.items() if key != "step_size"}
    found = swept(base, grid={"algorithm": [bare]}, tune={"grid": {"algorithm.step_size": [0.1, 0.3]}})
    assert [[c.scenario.algorithm.step_size for c in one.candidates] for one in found] == [[0.1, 0.3]] * 2


def test_runs_without_noise_that_differ_in_budget_only_are_one(base: dict[str, Any]) -> None:
    found = swept(base, grid={"privacy.mechanism": ["gaussian", "none"], "privacy.epsilon": [1, 2]})
    assert [c.private for c in found] == [True, True, False]


def test_namesakes_are_told_apart_by_what_differs_or_by_a_label(base: dict[str, Any]) -> None:
    longer = LOCAL | {"local_steps": 9}
    found = swept(base, grid={"algorithm": [LOCAL, longer, MINIBATCH | {"label": "MB"}]})
    names = [c.varied["algorithm"] for c in found if c.private]
    assert names == ["local_sgd local_steps=3", "local_sgd local_steps=9", "MB"]


def test_a_swept_file_name_is_relative_to_the_scenario(base: dict[str, Any], tmp_path: Path) -> None:
    data = {"name": "csv", "path": "c.csv", "target": "y", "schema": "s.yaml"}
    sweep = {"grid": {"data.path": ["a.csv", "b.csv"]}, "cells": [{"data.schema": "t.yaml"}]}
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(base | {"data": data, "sweep": sweep}))
    tree = load_tree(file)
    assert tree["data"]["path"] == str(tmp_path / "c.csv")
    assert tree["sweep"]["grid"]["data.path"] == [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    assert tree["sweep"]["cells"] == [{"data.schema": str(tmp_path / "t.yaml")}]


SPIDER = {
    "label": "SPIDER",
    "num_rounds": 4,
    "clip_norm": 1.0,
    "tune": {"step_size": [0.1, 0.3]},
    "one_of": [
        {"name": "spider_alternate"},
        {"name": "prox_spider", "tune": {"period": [1, 2, 3]}},
    ],
}
TUNED = MINIBATCH | {"label": "MB", "tune": {"step_size": [0.5, 1.0, 2.0]}}


def test_a_section_brings_candidates_of_its_own_and_is_the_best_of_alternatives(base: dict[str, Any]) -> None:
    common = {"grid": {"algorithm.batch": [FULL, {"sampler": "subsample", "fraction": 0.5}]}}
    found = swept(base, grid={"algorithm": [TUNED, SPIDER], "privacy.epsilon": [1, 2]}, tune=common)
    private = [one for one in found if one.private]
    assert [(one.varied["algorithm"], len(one.candidates)) for one in private] == [
        ("MB", 6), ("MB", 6), ("SPIDER", 16), ("SPIDER", 16),
    ]  # fmt: skip
    numbers = [
        (a.name, a.step_size, getattr(a, "period", None), a.batch.sampler)
        for a in (candidate.scenario.algorithm for candidate in private[2].candidates)
    ]
    samplers = ("full", "subsample")
    expected = [("spider_alternate", step, None, by) for step in (0.1, 0.3) for by in samplers]
    expected += [
        ("prox_spider", step, period, by) for step in (0.1, 0.3) for period in (1, 2, 3) for by in samplers
    ]
    assert sorted(map(str, numbers)) == sorted(map(str, expected))
    last = private[2].candidates[-1]
    assert last.chosen["algorithm.one_of"] == "prox_spider" == last.scenario.algorithm.name
    assert private[2].title(15).startswith("SPIDER, epsilon=1, prox_spider, ")
    assert set(last.chosen) == {
        "algorithm.one_of", "algorithm.step_size", "algorithm.period", "algorithm.batch",
    }  # fmt: skip


def test_a_twin_has_the_candidates_of_its_algorithm(base: dict[str, Any]) -> None:
    found = swept(base, grid={"algorithm": [TUNED, SPIDER], "privacy.epsilon": [1, 2]})
    private, twins = found[:4], found[4:]
    assert [twin.varied for twin in twins] == [{"algorithm": "MB"}, {"algorithm": "SPIDER"}]
    for twin, one in zip(twins, private[::2], strict=True):
        assert [c.chosen for c in twin.candidates] == [c.chosen for c in one.candidates]
        assert {c.scenario.privacy.mechanism for c in twin.candidates} == {"none"}


def test_what_is_not_named_is_called_by_its_alternatives(base: dict[str, Any]) -> None:
    bare = {key: value for key, value in SPIDER.items() if key != "label"}
    (found, _) = swept(base, grid={"algorithm": [bare]})
    assert found.varied == {"algorithm": "spider_alternate or prox_spider"}


def test_alternatives_name_files_relative_to_the_scenario_too(base: dict[str, Any], tmp_path: Path) -> None:
    data = {"name": "csv", "target": "y", "tune": {"path": ["a.csv"]}, "one_of": [{"schema": "s.yaml"}]}
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(base | {"sweep": {"grid": {"data": [data]}}}))
    (found,) = load_tree(file)["sweep"]["grid"]["data"]
    assert found["one_of"] == [{"schema": str(tmp_path / "s.yaml")}]
    assert found["tune"] == {"path": [str(tmp_path / "a.csv")]}


BAD = {
    "a field that does not exist": (
        {"grid": {"algorithm.step_sise": [1]}},
        ["scenario.sweep.grid.algorithm.step_sise", "'step_size'"],
    ),
    "a section that does not exist": (
        {"grid": {"privcy.epsilon": [1]}},
        ["scenario.sweep.grid.privcy.epsilon", "'privacy'"],
    ),
    "a tuned field that does not exist": (
        {"tune": {"grid": {"algorithm.clip": [1, 2]}}},
        ["scenario.sweep.tune.grid.algorithm.clip", "'clip_norm'"],
    ),
    "a field of a cell that does not exist": (
        {"cells": [{"privacy.epsilom": 1}]},
        ["scenario.sweep.cells.privacy.epsilom", "'epsilon'"],
    ),
    "a value out of range": (
        {"grid": {"privacy.epsilon": [1, -2]}},
        ["scenario.sweep.grid.privacy.epsilon", "-2", "greater than 0"],
    ),
    "an unknown key in the section": ({"gird": {}}, ["scenario.sweep.gird", "'grid'"]),
    "an empty grid": (
        {"grid": {"privacy.epsilon": []}},
        ["scenario.sweep.grid.privacy.epsilon", "[]", "empty"],
    ),
    "a value that is no list": ({"grid": {"privacy.epsilon": 3}}, ["privacy.epsilon", "3", "list"]),
    "nothing": ({}, ["scenario.sweep", "grid, cells or tune"]),
    "nothing varied": ({"grid": {}}, ["scenario.sweep", "varies nothing"]),
    "an empty cell": ({"cells": [{}]}, ["scenario.sweep.cells.0", "empty"]),
    "tune without grid": ({"tune": {"repetitions": 2}}, ["scenario.sweep.tune.grid", "candidate values"]),
    "tune with an empty grid": ({"tune": {"grid": {}}}, ["scenario.sweep.tune.grid", "candidate values"]),
    "a criterion that does not exist": (
        {"tune": {"grid": {"algorithm.step_size": [1]}, "criterion": "best"}},
        ["scenario.sweep.tune.criterion", "'best'", "final_train_loss"],
    ),
    "a value twice": ({"grid": {"privacy.epsilon": [1, 2, 1.0]}}, ["privacy.epsilon", "1", "twice"]),
    "duplicate cells": (
        {"cells": [{"privacy.epsilon": 1}, {"privacy.epsilon": 1.0}]},
        ["scenario.sweep.cells", "duplicate"],
    ),
    "a field varied in two places": (
        {"grid": {"algorithm.step_size": [1]}, "tune": {"grid": {"algorithm.step_size": [1, 2]}}},
        ["scenario.sweep.tune.grid.algorithm.step_size", "two places"],
    ),
    "a field that changes no result": (
        {"grid": {"runtime.name": ["ray"]}},
        ["scenario.sweep.grid.runtime.name", "cannot be varied"],
    ),
    "too many runs": (
        {"grid": {"seed": list(range(400)), "privacy.epsilon": list(range(1, 400))}},
        ["scenario.sweep", "319200 runs", "100000"],
    ),
    "too many runs of candidates": (
        {"grid": {"algorithm": [SPIDER, TUNED], "seed": list(range(4000))}},
        [
            "scenario.sweep",
            "148000 runs",
            "100000",
        ],  # (2 + 6 + 3) 3 to tune and 2 x 2 to report, each 4000 times
    ),
    "an own candidate that does not exist": (
        {"grid": {"algorithm": [MINIBATCH | {"tune": {"step_sise": [1]}}]}},
        ["scenario.sweep.grid.algorithm.tune.step_sise", "'step_size'"],
    ),
    "an own candidate out of range": (
        {"grid": {"algorithm": [MINIBATCH | {"tune": {"clip_norm": [1, -1]}}]}},
        ["scenario.sweep.grid.algorithm.tune.clip_norm", "-1", "greater than 0"],
    ),
    "an own candidate that a cell's section lacks": (
        {"cells": [{"algorithm": MINIBATCH | {"tune": {"period": [1]}}}]},
        ["scenario.sweep.cells.algorithm.tune.period", "unknown key"],
    ),
    "own candidates that are no lists": (
        {"grid": {"algorithm": [MINIBATCH | {"tune": {"step_size": 1}}]}},
        ["scenario.sweep.grid.algorithm.tune.step_size", "1", "list"],
    ),
    "own candidates that are none": (
        {"grid": {"algorithm": [MINIBATCH | {"tune": {"step_size": []}}]}},
        ["scenario.sweep.grid.algorithm.tune.step_size", "empty"],
    ),
    "alternatives that are no list": (
        {"grid": {"algorithm": [{"one_of": {"name": "prox_spider"}}]}},
        ["scenario.sweep.grid.algorithm.one_of", "list"],
    ),
    "alternatives within alternatives": (
        {"grid": {"algorithm": [{"one_of": [SPIDER]}]}},
        ["scenario.sweep.grid.algorithm.one_of.0.one_of", "in one list"],
    ),
    "an alternative twice": (
        {"grid": {"algorithm": [{"one_of": [MINIBATCH, MINIBATCH]}]}},
        ["scenario.sweep.grid.algorithm.one_of", "twice"],
    ),
    "alternatives of one label": (
        {"grid": {"algorithm": [{"one_of": [MINIBATCH | {"label": "a"}, LOCAL | {"label": "a"}]}]}},
        ["scenario.sweep.grid.algorithm.one_of", "a label of its own"],
    ),
    "a field tuned by a section and its alternative": (
        {"grid": {"algorithm": [{"tune": {"step_size": [1]}, "one_of": [TUNED]}]}},
        ["scenario.sweep.grid.algorithm.one_of.0.tune.step_size", "two places"],
    ),
    "a field tuned by a section and for all": (
        {"grid": {"algorithm": [TUNED]}, "tune": {"grid": {"algorithm.step_size": [1]}}},
        ["scenario.sweep.grid.algorithm.tune.step_size", "two places"],
    ),
    "own candidates that private tuning cannot choose": (
        {
            "grid": {"privacy": [{"epsilon": 1, "tune": {"delta": [0.01, 0.1]}}]},
            "tune": {"private": {"fraction": 0.2}},
        },
        ["scenario.sweep.grid.privacy", "private tuning cannot choose"],
    ),
    "equal labels": (
        {"grid": {"algorithm": [LOCAL | {"label": "x"}, MINIBATCH | {"label": "x"}]}},
        ["scenario.sweep.grid.algorithm", "label"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_section_is_named_with_field_value_and_remedy(case: str, base: dict[str, Any]) -> None:
    section, expected = BAD[case]
    with pytest.raises(InputError) as error:
        swept(base, **section)
    for text in expected:
        assert text in str(error.value)
