"""Own models in simulations: what is reported, and that nothing sent or written has a silo's own part."""

from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import together
from support.scenarios import BASE

import fedsim
from fedsim.common.errors import InputError
from fedsim.data.federation import Hosted
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation.host import SiloHost
from fedsim.simulation.trial import read, trial_of

ALGORITHM = {"name": "mean_regularised", "num_rounds": 4, "step_size": 0.5, "clip_norm": 1.0}
SCENARIO: dict[str, Any] = BASE | {
    "algorithm": ALGORITHM | {"own_step_size": 0.3, "pull": 0.5, "averaging": 0.4},
    "trials": 1,
    "report": {"own_models": True},
}


def finished(tree: dict[str, Any]) -> tuple[Any, Any]:
    resolved = resolve(parse(tree))
    trial = trial_of(resolved, 0)
    while not trial.finished:
        trial.advance(10)
    return resolved, trial


def test_own_models_are_tested_on_their_own_silos_records() -> None:
    resolved, trial = finished(SCENARIO)
    model, own = trial.result().models["private"], trial._hosts.own("private")
    assert own.shape == (3, 4)
    run = fedsim.simulate(SCENARIO)
    rows = {
        (row["variant"], row["silo"]): row["loss"]
        for row in run.silos.to_pylist()
        if row["variant"] in ("own", "private")
    }
    for i, silo in enumerate(read(resolved, 0).silos):
        x, y = torch.as_tensor(silo.test.features), torch.as_tensor(silo.test.target)
        for variant, w in (("own", model + own[i]), ("private", model)):
            scores = x @ w
            loss = (torch.log1p(scores.exp()) - y * scores).mean()
            assert rows[variant, silo.name] == pytest.approx(float(loss), abs=1e-12)


@pytest.mark.parametrize("metric", ["loss", "auc"])
def test_the_summary_has_means_over_silos_and_where_the_worst_tenth_begins(metric: str) -> None:
    more = {"data": BASE["data"] | {"rows": 300}, "report": {"own_models": True, "metric": metric}}
    run = fedsim.simulate(SCENARIO | more | {"trials": 3})
    part = run.summary.own_models
    assert part is not None
    assert [one.name for one in part.models] == ["own", "one", "alone", "silo_alone"]
    rows = run.silos.to_pylist()
    for one in part.models[:3]:
        errors = np.array([row[metric] for row in rows if row["variant"] == one.name]).reshape(3, 3)
        assert one.mean == pytest.approx(errors.mean())
        worst = np.quantile(errors, 0.1 if metric == "auc" else 0.9, axis=1)
        assert one.worst_tenth == pytest.approx(worst.mean())
        assert one.mean_interval90 == pytest.approx((errors.mean(1).min(), errors.mean(1).max()))


def test_what_they_are_compared_with_has_noise_of_its_own() -> None:
    """Runs on the same records add up only if their noise is independent."""
    same = SCENARIO | {"algorithm": ALGORITHM | {"own_step_size": 0.0, "pull": 0.5}}
    _, trial = finished(same)
    assert not torch.equal(trial._own["own"], trial._own["one"])
    exact = same | {"privacy": {"mechanism": "none"}}
    _, trial = finished(exact)
    assert torch.equal(trial._own["own"], trial._own["one"])


def test_own_parts_are_the_same_on_several_hosts_and_zero_before_a_reply() -> None:
    resolved = resolve(parse(SCENARIO))
    data = read(resolved, 0)
    everyone = SiloHost(resolved, 0, data)
    apart = [SiloHost(resolved, 0, Hosted(together([silo]), data.digest)) for silo in data.silos]
    w = {"w": torch.zeros(4, dtype=torch.float64)}
    everyone.open("private", [range(4)] * 3)
    assert not everyone.own("private").any()
    everyone.answer("private", 0, w, [0, 2])
    for host in apart:
        host.open("private", [range(4)])
    for i in (0, 2):
        apart[i].answer("private", 0, w, None)
    found = torch.cat([host.own("private") for host in apart])
    assert torch.allclose(everyone.own("private"), found, atol=1e-14)
    assert found.any(dim=1).tolist() == [True, False, True]


@pytest.mark.slow
def test_on_ray_they_come_from_silo_hosts() -> None:
    on_ray = fedsim.simulate(SCENARIO | {"runtime": {"name": "ray", "silo_hosts": 2}}).summary.own_models
    here = fedsim.simulate(SCENARIO).summary.own_models
    assert on_ray is not None
    assert here is not None
    for one, other in zip(on_ray.models, here.models, strict=True):
        assert one.mean == pytest.approx(other.mean, rel=1e-9)


def test_no_message_broadcast_or_file_has_an_own_part(tmp_path) -> None:
    resolved = resolve(parse(SCENARIO))
    data = read(resolved, 0)
    sent: list[torch.Tensor] = []
    parts: list[torch.Tensor] = []

    class Listening(SiloHost):
        def answer(self, variant: Any, round_index: int, broadcast: Any, members: Any) -> Any:
            reply = super().answer(variant, round_index, broadcast, members)
            sent.extend([*broadcast.values(), *(row for value in reply.values() for row in value)])
            parts.extend(self.own(variant))
            return reply

    from fedsim.simulation import trial

    hosts = Listening(resolved, 0, data)
    run = trial.Trial(resolved, 0, hosts, trial.evaluator(resolved, data, 0), data)
    while not run.finished:
        run.advance(10)
    parts = [part for part in parts if part.any()]
    assert len(parts) >= 12  # of three silos in four rounds
    assert not any(torch.allclose(part, other, rtol=1e-6) for part in parts for other in sent if other.any())
    fedsim.simulate(SCENARIO, out=tmp_path / "run")
    kept = b"".join(file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file())
    own, model = hosts.own("private"), run.result().models["private"]
    assert model.numpy().tobytes() in kept
    for row in own:
        assert row.numpy().tobytes() not in kept
        assert (model + row).numpy().tobytes() not in kept


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": BASE["algorithm"]},
        {"prepare": [{"name": "standardise", "share": 0.2}]},
    ],
    ids=["an algorithm without them", "private stages"],
)
def test_own_models_are_for_algorithms_that_have_them(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="own models") as refused:
        resolve(parse(SCENARIO | changes))
    assert refused.value.field == "scenario.report.own_models"
