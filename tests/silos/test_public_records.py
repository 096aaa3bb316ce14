"""Public records in a deployed silo: steps of its own need its operator's copy, steps of the server none."""

import hashlib
from contextlib import ExitStack, closing

import numpy as np
import pytest
import torch
import yaml
from support.deployed import (
    Caller,
    SilosLink,
    calling,
    enrolled,
    offer_of,
    resolved_of,
    simulated,
    write_silos,
)

from fedsim.common.errors import InputError
from server.aggregate import weighted
from server.loop import run
from silos.front.silo import Silo

LOCAL = {"name": "local_sgd", "num_rounds": 2, "local_steps": 2, "step_size": 0.5, "clip_norm": 1.0}
POLICY = {"min_noise_multiplier": 0.1}


def written(path, rows, seed):
    rng = np.random.default_rng(seed)
    x = np.hstack([rng.uniform(-1, 1, (rows, 4)), np.ones((rows, 1))])
    np.savez(path, features=x, target=(rng.uniform(size=rows) < 1 / (1 + np.exp(-x[:, 0]))).astype(int))
    return str(path)


@pytest.fixture
def sections(tmp_path):
    own = {"name": "npz", "intercept": False, "scaling": "none", "classes": 2}
    return {
        "data": {**own, "path": written(tmp_path / "private.npz", 120, 0)},
        "public": {**own, "path": written(tmp_path / "public.npz", 30, 1)},
        "problem": {"name": "logistic_regression", "public": {"weight": 0.5}},
    }


def silos(folder, resolved, *, public=None):
    """Configurations whose files name the public records."""
    paths = write_silos(folder, resolved, seeded=True)
    for path in paths:
        tree = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump(tree | ({"public": public} if public else {})))
    return enrolled(paths)


def test_an_offer_names_the_file_by_its_sha256(sections, tmp_path):
    resolved = resolved_of(**sections)
    digest = hashlib.sha256((tmp_path / "public.npz").read_bytes()).hexdigest()
    assert offer_of(resolved, "silo-00")["problem"]["public"]["sha256"] == digest


def test_a_servers_steps_need_no_public_records_in_a_silo(sections, tmp_path):
    resolved = resolved_of(**sections)
    config = silos(tmp_path / "silos", resolved)[0]
    with calling(config.model_copy(update={"insecure_simulation": None})) as caller:
        caller.admitted(offer_of(resolved, "silo-00"))


@pytest.mark.parametrize("copy", ["none", "other"])
def test_a_silo_without_the_very_file_refuses_steps_of_its_own(sections, tmp_path, copy):
    resolved = resolved_of(**sections, algorithm=LOCAL)
    public = written(tmp_path / "other.npz", 30, 2) if copy == "other" else None
    config = silos(tmp_path / "silos", resolved, public=public)[0]
    with calling(config.model_copy(update={"insecure_simulation": None})) as caller:
        reason = caller.refused("offer", **offer_of(resolved, "silo-00"))
    assert offer_of(resolved, "silo-00")["problem"]["public"]["sha256"] in reason
    assert "`public` in the silo's file" in reason


def test_a_silo_with_the_file_takes_the_steps_of_the_simulation(sections, tmp_path):
    resolved = resolved_of(**sections, algorithm=LOCAL)
    public = sections["public"]["path"]
    configs = silos(tmp_path / "silos", resolved, public=public)
    with ExitStack() as stack:
        callers = [Caller(stack.enter_context(closing(Silo.open(each, True)))) for each in configs]
        admissions = [
            caller.admitted(offer_of(resolved, name))
            for caller, name in zip(callers, resolved.names, strict=True)
        ]
        link = SilosLink(callers, [said["run"] for said in admissions])
        numbers = resolved.public([said["noise_multiplier"] for said in admissions])
        everyone = [[0, 1, 2]] * 2
        asked = resolved.algorithm, resolved.problem, numbers, resolved.scenario.seed
        *_, last = run(*asked, link, everyone, weighted)
    assert torch.allclose(last.answer, simulated(resolved).models["private"], rtol=1e-9, atol=1e-12)


def test_a_file_of_other_columns_is_refused_at_the_start(sections, tmp_path):
    wide = tmp_path / "wide.npz"
    np.savez(wide, features=np.zeros((30, 7)), target=np.arange(30) % 2)
    config = silos(tmp_path / "silos", resolved_of(**sections), public=str(wide))[0]
    with pytest.raises(InputError, match=r"silo\.public: \(7, 2\): \(5, 2\)"):
        Silo.open(config, True)


def test_no_offer_preconditions_or_weighs_a_silos_own_steps(sections, tmp_path):
    resolved = resolved_of(**sections, algorithm=LOCAL)
    config = silos(tmp_path / "silos", resolved, public=sections["public"]["path"])[0]
    with calling(config.model_copy(update={"insecure_simulation": None})) as caller:
        for more in ({"weight": "optimal"}, {"precondition": True}):
            offer = offer_of(resolved, "silo-00")
            offer["problem"]["public"] |= more
            assert "are for the server's steps" in caller.refused("offer", **offer)
