"""From a scenario to what each party would have."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import yaml
from support.refusals import refused
from support.ups import scenario_of, write_table

from fedsim.data.csv_table import Csv
from fedsim.data.federation import load as load_records
from fedsim.data.prepare import prepare as prepared
from fedsim.data.source import numbered
from fedsim.deployment.federation_file import load_federation
from fedsim.deployment.offers import offers_of
from fedsim.deployment.topology import MOST_SILOS, RUNS, Topology, lifetime, prepare
from fedsim.isolated.confine import unavailable
from fedsim.protocol.unit import Person
from fedsim.scenario.load import load, parse
from fedsim.scenario.resolve import Resolved, resolve
from fedsim.wire.connections import AtSocket
from shuffler.config import load_config as load_shuffler
from silos.front.config import Config, load_config
from silos.front.own_records import read_published, read_records

EXAMPLES = Path(__file__).parents[2] / "examples" / "tables"


@pytest.fixture(scope="module")
def place():
    with TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def resolved():
    return _resolved()


@pytest.fixture(scope="module")
def topology(resolved, place):
    return prepare(resolved, place)


def _resolved(*overrides: str) -> Resolved:
    return resolve(load(Path("breast_cancer"), overrides))


def _configs(topology: Topology) -> dict[str, Config]:
    return {name: load_config(topology.config(name)) for name in topology.silos}


def test_every_silo_has_its_own_training_records_as_the_simulation_has_them(resolved, topology):
    told = resolved.scenario
    data = load_records(told.data, told.partition, told.seed, trial=0)
    for silo, config in zip(data.silos, _configs(topology).values(), strict=True):
        source = config.records.open()
        design = source.design(np.arange(source.num_rows))
        assert np.array_equal(design.features, silo.train.features)
        assert np.array_equal(design.target, silo.train.target)
        assert (config.records.intercept, config.records.scaling) == (False, "none")
        assert source.num_classes == data.num_classes


def test_the_server_has_test_records_only(resolved, topology):
    told = resolved.scenario
    data = load_records(told.data, told.partition, told.seed, trial=0)
    with np.load(topology.server / "test.npz") as file:
        assert len(file["target"]) == sum(len(silo.test.target) for silo in data.silos)
        assert np.array_equal(file["features"], np.concatenate([silo.test.features for silo in data.silos]))


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_every_silo_lists_the_file_of_the_algorithm_by_its_contents(place, tmp_path, monkeypatch):
    """And is offered it by its name alone: a server's paths are none of a silo's."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(_OWN)
    resolved = _resolved("algorithm.name=own.py:Own")
    topology = prepare(resolved, place / "file")
    for config in _configs(topology).values():
        assert config.policy.plug_ins == config.policy.algorithms == ("own.py:Own",)
        assert config.plug_in_files == {"own.py": sha256(_OWN.encode()).hexdigest()}
        assert (config.plug_in_folder / "own.py").read_text() == _OWN
    offers = offers_of(resolved, "0" * 64, [list(range(5))] * len(resolved.trace.plan.rounds))
    assert {offer.algorithm["name"] for offer in offers.values()} == {"own.py:Own"}


_OWN = """
from dataclasses import dataclass
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD

@dataclass(frozen=True)
class Own(NoisyMinibatchSGD):
    pass
"""


def test_a_policy_allows_this_scenario_a_few_times(resolved, topology):
    for config, epsilon, delta in zip(
        _configs(topology).values(), resolved.epsilons, resolved.deltas, strict=True
    ):
        policy = config.policy
        assert (policy.per_run.epsilon, policy.per_run.delta) == (epsilon, delta)
        assert policy.lifetime.epsilon == RUNS * epsilon
        assert [lifetime(e, delta, False)["epsilon"] for e in (12.0, 22.0)] == [20.0, 22.0]
        assert policy.lifetime.delta >= RUNS * delta
        assert policy.lifetime.sampled.epsilon == 0
        assert policy.algorithms == ("noisy_minibatch_sgd",)
        assert policy.problems == ("logistic_regression",)


def test_sampled_rounds_come_out_of_the_sampled_share(place):
    topology = prepare(_resolved("algorithm.batch={sampler: poisson, fraction: 0.5}"), place / "sampled")
    share = load_config(topology.config(topology.silos[0])).policy.lifetime.sampled
    assert share.epsilon == RUNS * 1.0


def test_no_other_user_looks_into_a_silo(topology):
    for name in topology.silos:
        assert topology.silo(name).stat().st_mode & 0o077 == 0
        assert (topology.silo(name) / "node.key").stat().st_mode & 0o077 == 0


def test_the_server_knows_its_silos_by_their_keys(topology):
    tree = yaml.safe_load(topology.federation.read_text())
    assert set(tree["silos"]) == set(topology.silos)
    for entry in tree["silos"].values():
        assert (topology.server / entry["node"]).is_file()


@pytest.mark.parametrize(
    ("field", "override"),
    [("scenario.data.pca", "data.pca=3"), ("silos", f"partition.num_partitions={MOST_SILOS + 1}")],
)
def test_what_only_a_simulation_can_do_is_refused(override, field, place):
    more = ("partition.proportions=null", "privacy.epsilon=1", "data.preprocessing_cost=ignored")
    with refused(field):
        prepare(_resolved(override, *more), place / "refused")
    assert not (place / "refused").exists()


def test_a_precision_that_silos_refuse_is_refused_before_they_are_asked(place):
    def offered(resolved):
        return offers_of(resolved, "0" * 64, [list(range(5))] * len(resolved.trace.plan.rounds))

    single, sampled = "runtime.dtype=float32", "algorithm.batch={sampler: poisson, fraction: 0.5}"
    both = _resolved(single, sampled)
    for ask in (offered, lambda resolved: prepare(resolved, place / "float32")):
        with refused("scenario.runtime.dtype", "float32", "float64", "sampled batches"):
            ask(both)
    assert offered(_resolved(single))
    assert offered(_resolved(sampled))


def test_a_path_too_long_for_sockets_is_refused(resolved, place):
    with refused("--out"):
        prepare(resolved, place / ("long" * 25))


def _named(resolved, *names):
    return replace(resolved, premises=replace(resolved.premises, names=names))


@pytest.mark.parametrize("name", ["run", "server", "a/hospital", " hospital", "-a"])
def test_a_silo_whose_name_is_no_folder_is_refused(resolved, place, name):
    named = _named(resolved, name)
    with refused("scenario.partition"):
        prepare(named, place / "refused")
    assert not (place / "refused").exists()


def test_two_silos_of_one_folder_are_refused(resolved, place):
    named = _named(resolved, "VA Long Beach", "VA-Long-Beach")
    with refused(
        "scenario.partition", "VA-Long-Beach", "its folder VA-Long-Beach is that of 'VA Long Beach'"
    ):
        prepare(named, place / "refused")


def test_a_table_is_read_by_its_schema_as_a_hospital_reads_its_own(place):
    """Its records are a CSV file, as they stand in the table, missing values included."""
    hearts = resolve(load(EXAMPLES / "heart.yaml", ()))
    topology, told = prepare(hearts, place / "heart"), hearts.scenario
    data = load_records(told.data, told.partition, told.seed, trial=0)
    assert topology.silos == ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
    for silo, (name, config) in zip(data.silos, _configs(topology).items(), strict=True):
        assert config.name == silo.name == name
        assert config.records.files["path"] == topology.directory / name.replace(" ", "-") / "records.csv"
        records = read_records(config)
        assert np.array_equal(records.rows.features, silo.train.features)
        assert np.array_equal(records.rows.target, silo.train.target)
    assert b'"NA"' in (topology.silo("VA Long Beach") / "records.csv").read_bytes()
    known = load_federation(topology.federation)
    assert set(known.silos) == set(topology.silos)
    assert isinstance(known.test, Csv)
    tests, rows = known.test.open(), np.arange(known.test.open().num_rows)
    found, _ = prepared(known.test, tests.design(rows), rows, rows)
    assert np.array_equal(found.features, np.concatenate([silo.test.features for silo in data.silos]))


def test_silos_whose_steps_need_public_records_have_the_very_file(place, tmp_path):
    tree = scenario_of(write_table(tmp_path / "visits.csv"), {"public": True})
    tree["problem"] = {"name": "logistic_regression", "public": {"weight": 0.5}}
    for name, needed in (("noisy_minibatch_sgd", False), ("local_sgd", True)):
        own = {"name": name} | ({"local_steps": 2} if needed else {})
        resolved = resolve(parse(tree | {"algorithm": tree["algorithm"] | own}))
        for config in _configs(prepare(resolved, place / name)).values():
            found = read_published(config, read_records(config))
            assert (found and found.digest) == (resolved.problem.composite.records.digest if needed else None)


def test_sums_have_a_shuffler_that_everybody_knows_by_one_roster(place):
    sums = ["privacy.mechanism=summed_gaussian", "privacy.honest_fraction=1", "privacy.epsilon=1"]
    topology = prepare(_resolved(*sums), place / "sums")
    assert topology.sums
    assert topology.shuffler.stat().st_mode & 0o077 == 0
    told = load_shuffler(topology.shuffler / "shuffler.yaml")
    assert isinstance(told.listen, AtSocket)
    known = load_federation(topology.federation).shuffler
    assert known is not None
    assert known.socket is not None
    assert known.socket.resolve() == told.listen.socket == topology.shuffler_socket
    assert known.key.is_file()
    wanted = {topology.silo(name) / "roster.yaml" for name in topology.silos}
    assert {config.rosters[0] for config in _configs(topology).values()} == wanted
    assert load(topology.scenario, ()).privacy.min_silos == len(topology.silos)


def test_where_each_silo_answers_for_itself_there_is_no_shuffler(topology):
    assert not topology.sums
    assert load_federation(topology.federation).shuffler is None


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_silos_have_ids_of_their_own_and_the_server_has_none(kind: str, tmp_path: Path) -> None:
    """Each silo has whole persons, those that train there in the simulation."""
    ids = [f"Secret{k % 40}" for k in range(120)]
    lines = [f"{each},{k / 120},{('no', 'yes')[k % 2]}" for k, each in enumerate(ids)]
    (tmp_path / "visits.csv").write_text("\n".join(["pid,x,y", *lines, ""]))
    x, y = {"kind": "number", "lower": 0, "upper": 1}, {"kind": "category", "categories": ["no", "yes"]}
    own = {"name": "csv", "path": str(tmp_path / "visits.csv"), "target": "y", "person_column": "pid"}
    data = own | {"schema": {"x": x, "y": y}}
    if kind == "npz":
        np.savez(tmp_path / "own.npz", features=np.zeros((120, 1)), target=[0, 1] * 60, person=ids)
        data = {"name": "npz", "path": str(tmp_path / "own.npz")}
    tree = {"name": "v", "data": data, "partition": {"name": "iid", "num_partitions": 2}, "seed": 1}
    tree |= {"problem": "logistic_regression", "privacy": {"unit": "person", "epsilon": 1}}
    step = {"name": "noisy_minibatch_sgd", "num_rounds": 2, "step_size": 1, "clip_norm": 1}
    told = resolve(parse(tree | {"algorithm": step}))
    made = prepare(told, tmp_path / "all")
    data_ = told.scenario.data, told.scenario.partition, told.scenario.seed, 0, told.scenario.privacy.unit
    for silo, config in zip(load_records(*data_).silos, _configs(made).values(), strict=True):
        records = read_records(config)
        assert records.rows.owners.tolist() == numbered(silo.train.owners.tolist()).tolist()
        assert records.units(Person()) == told.outline.sizes[silo.name] == 16
    for file in made.server.rglob("*"):
        assert not file.is_file() or b"Secret" not in file.read_bytes()
    (test,) = [load_federation(made.federation).test]
    assert test.open().person_column is None
