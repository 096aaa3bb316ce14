"""What a sweep section stands for."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.refusals import lacking, refused
from support.scenarios import BASE

from fedsim.common.errors import InputError
from fedsim.report.sweep_summary import read_summary
from fedsim.scenario.load import load_tree
from fedsim.simulation.failures import Failure, WorkerLost
from fedsim.simulation.sweeps.combinations import combinations
from fedsim.simulation.sweeps.engine import Event
from fedsim.simulation.sweeps.job import Job, job_of
from fedsim.simulation.sweeps.pool import Batch, Finished, Local, Work
from fedsim.simulation.sweeps.run import Watch, of_trial, run
from fedsim.simulation.sweeps.run_cells import run_batch

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
    baselines = [c for c in found if not c.private]
    assert [c.varied for c in baselines] == [{"algorithm": "local_sgd"}, {"algorithm": "noisy_minibatch_sgd"}]
    assert {c.candidates[0].scenario.privacy.mechanism for c in baselines} == {"none"}


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
    base["report"] = {"nonprivate_baseline": False}
    assert len(swept(base, grid={"privacy.epsilon": [1, 2, 4]})) == 3


def test_no_run_without_noise_has_a_clip_that_follows_from_it(base: dict[str, Any]) -> None:
    base["algorithm"] = base["algorithm"] | {"clip_norm": "theorem"}
    with refused("scenario.report.nonprivate_baseline", True, "clip_norm theorem"):
        swept(base, grid={"privacy.epsilon": [1, 2]})


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
    ways = {"name": "csv", "tune": {"path": ["a.csv"]}, "one_of": [{"schema": "s.yaml"}]}
    sweep = {"grid": {"data.path": ["a.csv", "b.csv"], "data": [ways]}, "cells": [{"data.schema": "t.yaml"}]}
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(base | {"data": data, "sweep": sweep}))
    tree = load_tree(file)
    assert tree["data"]["path"] == str(tmp_path / "c.csv")
    assert tree["sweep"]["grid"]["data.path"] == [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    assert tree["sweep"]["cells"] == [{"data.schema": str(tmp_path / "t.yaml")}]
    (found,) = tree["sweep"]["grid"]["data"]
    assert found["one_of"] == [{"schema": str(tmp_path / "s.yaml")}]
    assert found["tune"] == {"path": [str(tmp_path / "a.csv")]}


SPIDER = {
    "label": "SPIDER",
    "num_rounds": 4,
    "clip_norm": 1.0,
    "tune": {"step_size": [0.1, 0.3]},
    "one_of": [{"name": "spider_alternate"}, {"name": "prox_spider", "tune": {"period": [1, 2, 3]}}],
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
    private, baselines = found[:4], found[4:]
    assert [baseline.varied for baseline in baselines] == [{"algorithm": "MB"}, {"algorithm": "SPIDER"}]
    for baseline, one in zip(baselines, private[::2], strict=True):
        assert [c.chosen for c in baseline.candidates] == [c.chosen for c in one.candidates]
        assert {c.scenario.privacy.mechanism for c in baseline.candidates} == {"none"}


def test_a_twin_is_of_its_unit(base: dict[str, Any]) -> None:
    base |= {"data": {"name": "visits"}, "partition": "natural_id"}
    units = ["record", {"name": "person", "bound": "mean"}, {"name": "person", "bound": "limit", "h": 2}]
    found = swept(base, grid={"privacy.unit": units, "privacy.epsilon": [1, 2]})
    private, baselines = found[:6], found[6:]
    assert [each.scenario.privacy.unit for each in baselines] == [
        each.scenario.privacy.unit for each in private[::2]
    ]
    assert [set(each.varied) for each in baselines] == [{"privacy.unit"}] * 3


def test_what_is_not_named_is_called_by_its_alternatives(base: dict[str, Any]) -> None:
    bare = {key: value for key, value in SPIDER.items() if key != "label"}
    (found, _) = swept(base, grid={"algorithm": [bare]})
    assert found.varied == {"algorithm": "spider_alternate or prox_spider"}


BAD = {
    "{grid: {algorithm.step_sise: [1]}}": "scenario.sweep.grid.algorithm.step_sise | 'step_size'",
    "{grid: {privcy.epsilon: [1]}}": "scenario.sweep.grid.privcy.epsilon | 'privacy'",
    "{tune: {grid: {algorithm.clip: [1, 2]}}}": "scenario.sweep.tune.grid.algorithm.clip | 'clip_norm'",
    "{cells: [{privacy.epsilom: 1}]}": "scenario.sweep.cells.privacy.epsilom | 'epsilon'",
    "{grid: {privacy.epsilon: [1, -2]}}": "scenario.sweep.grid.privacy.epsilon | -2 | greater than 0",
    "{gird: {}}": "scenario.sweep.gird | 'grid'",
    "{grid: {privacy.epsilon: []}}": "scenario.sweep.grid.privacy.epsilon | [] | empty",
    "{grid: {privacy.epsilon: 3}}": "privacy.epsilon | 3 | list",
    "{}": "scenario.sweep | grid, cells or tune",
    "{grid: {}}": "scenario.sweep | varies nothing",
    "{cells: [{}]}": "scenario.sweep.cells.0 | empty",
    "{tune: {repetitions: 2}}": "scenario.sweep.tune.grid | candidate values",
    "{tune: {grid: {}}}": "scenario.sweep.tune.grid | candidate values",
    "{tune: {grid: {algorithm.step_size: [1]}, criterion: best}}": (
        "scenario.sweep.tune.criterion | 'best' | final_train_loss"
    ),
    "{grid: {privacy.epsilon: [1, 2, 1.0]}}": "privacy.epsilon | 1 | twice",
    "{cells: [{privacy.epsilon: 1}, {privacy.epsilon: 1.0}]}": "scenario.sweep.cells | duplicate",
    "{grid: {algorithm.step_size: [1]}, tune: {grid: {algorithm.step_size: [1, 2]}}}": (
        "scenario.sweep.tune.grid.algorithm.step_size | two places"
    ),
    "{grid: {runtime.name: [ray]}}": "scenario.sweep.grid.runtime.name | cannot be varied",
    "{grid: {algorithm: [{one_of: {name: prox_spider}}]}}": "scenario.sweep.grid.algorithm.one_of | list",
    "{grid: {privacy: [{epsilon: 1, tune: {delta: [0.01, 0.1]}}]}, tune: {private: {fraction: 0.2}}}": (
        "scenario.sweep.grid.privacy | private tuning cannot choose"
    ),
}


def own(**tune: Any) -> dict[str, Any]:
    return MINIBATCH | {"tune": tune}


BAD_ALGORITHMS: list[tuple[list[Any], str]] = [
    ([own(step_sise=[1])], "algorithm.tune.step_sise | 'step_size'"),
    ([own(clip_norm=[1, -1])], "algorithm.tune.clip_norm | -1 | greater than 0"),
    ([own(step_size=1)], "algorithm.tune.step_size | 1 | list"),
    ([own(step_size=[])], "algorithm.tune.step_size | empty"),
    ([{"one_of": [SPIDER]}], "algorithm.one_of.0.one_of | in one list"),
    ([{"one_of": [MINIBATCH, MINIBATCH]}], "algorithm.one_of | twice"),
    (
        [{"one_of": [MINIBATCH | {"label": "a"}, LOCAL | {"label": "a"}]}],
        "algorithm.one_of | a label of its own",
    ),
    ([{"tune": {"step_size": [1]}, "one_of": [TUNED]}], "algorithm.one_of.0.tune.step_size | two places"),
    ([LOCAL | {"label": "x"}, MINIBATCH | {"label": "x"}], "algorithm | label"),
]
COMMON = {"grid": {"algorithm.step_size": [1]}}
BAD_SECTIONS: list[tuple[dict[str, Any], str]] = [
    *((yaml.safe_load(section), words) for section, words in BAD.items()),
    *(({"grid": {"algorithm": given}}, f"scenario.sweep.grid.{words}") for given, words in BAD_ALGORITHMS),
    ({"grid": {"algorithm": [TUNED]}, "tune": COMMON}, "sweep.grid.algorithm.tune.step_size | two places"),
    ({"cells": [{"algorithm": own(period=[1])}]}, "sweep.cells.algorithm.tune.period | unknown key"),
    ({"grid": {"seed": [*range(400)], "privacy.epsilon": [*range(1, 400)]}}, "sweep | 319200 runs | 100000"),
    # (2 + 6 + 3) 3 to tune and 2 x 2 to report, each 4000 times
    ({"grid": {"algorithm": [SPIDER, TUNED], "seed": [*range(4000)]}}, "sweep | 148000 runs | 100000"),
]


@pytest.mark.parametrize(("section", "expected"), BAD_SECTIONS, ids=lambda each: str(each)[:60])
def test_a_bad_section_is_named_with_field_value_and_remedy(
    section: dict[str, Any], expected: str, base: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as error:
        swept(base, **section)
    assert lacking(error.value, expected) == []


# A sweep without the command line: in memory, watched, interrupted.

TUNE = {"grid": {"algorithm.step_size": [0.01, 1.0]}, "repetitions": 2}
TREE: dict[str, Any] = BASE | {"sweep": {"grid": {"privacy.epsilon": [0.5, 8]}, "tune": TUNE}}
TUNING, ALL = 12, 18


def ended_after(cells: int, error: BaseException) -> Watch:
    @contextmanager
    def watch(job: Job) -> Iterator[Callable[[Event], None]]:
        seen: list[Event] = []

        def observe(event: Event) -> None:
            seen.append(event)
            if len(seen) == cells:
                raise error

        yield observe

    return watch


def test_without_a_directory_nothing_is_written_and_the_results_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    job = job_of(TREE)
    kept, written = run(job), run(job, tmp_path / "out")
    assert list((tmp_path / "here").iterdir()) == []
    assert kept.files == ()
    assert set(written.files) == {file.name for file in (tmp_path / "out").iterdir()}
    assert read_summary(tmp_path / "out") == written.summary
    rows = [[row.model_dump(exclude={"seconds_per_run"}) for row in one.summary.combinations]
            for one in (kept, written)]  # fmt: skip
    assert rows[0] == rows[1]
    assert kept.summary.privacy == written.summary.privacy
    assert kept.summary.status == "finished"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), WorkerLost("Ray was ended")], ids=str)
@pytest.mark.parametrize("cells", [5, TUNING + 3])
def test_an_interrupt_returns_what_there_is_and_the_same_call_goes_on(
    cells: int, error: BaseException, tmp_path: Path
) -> None:
    sweep = run(job_of(TREE), tmp_path / "out", watch=ended_after(cells, error))
    assert sweep.interrupted
    assert sweep.lost == str(error)
    assert sweep.summary.status == "interrupted"
    assert len(sweep.results.scores) == min(cells, TUNING)
    assert (
        len(sweep.results.rows) == max(0, cells - TUNING) == sum(r.trials for r in sweep.summary.combinations)
    )
    assert not (tmp_path / "out" / "summary.json").exists()
    again = run(job_of(TREE), tmp_path / "out")
    assert cells <= again.results.cached <= ALL
    assert again.results.cached + again.results.ran == ALL
    assert again.summary.combinations == read_summary(tmp_path / "out").combinations


class LostOverBaselines(Local):
    def run(self, batches: Sequence[Batch], work: Work = run_batch) -> Iterator[Finished]:
        lost = ((batch[0], Failure("worker died", "Ray was ended")) for batch in batches)
        yield from lost if work is of_trial else super().run(batches, work)


def test_a_worker_lost_over_a_baseline_ends_the_sweep_and_keeps_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsim.simulation.sweeps.run.Local", LostOverBaselines)
    sweep = run(job_of(TREE), tmp_path / "out")
    assert (sweep.interrupted, sweep.lost, len(sweep.results.scores)) == (True, "Ray was ended", TUNING)
    assert sweep.results.cached + sweep.results.ran == ALL
