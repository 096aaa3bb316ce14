"""From a scenario to a folder for every party: what only it would have if the parties were organisations.

    server/     scenario.yaml, federation.yaml, test.csv or .npz, and the server's certificate and keys
    NAME/       silo.yaml, records.csv or .npz, the node's key; the silo's daemon adds state/ with its ledger
    shuffler/   with secure aggregation: shuffler.yaml; the shuffler adds state/, and all get roster.yaml
    run/        the run directory
    authority/  the key that signed the server's certificate

One machine holds all of it, so nothing is secret here from its user: it shows how a deployment works.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedsim.common.durable import atomic_file
from fedsim.common.errors import InputError
from fedsim.common.plugins import digest, file_of, short, source
from fedsim.data.csv_table import Csv
from fedsim.data.federation import Federation, divided, load
from fedsim.data.schema import read_schema
from fedsim.deployment import certs
from fedsim.deployment.federation_file import load_federation
from fedsim.deployment.offers import check_offer, deployable
from fedsim.protocol.dryrun import F1
from fedsim.protocol.rows import Rows
from fedsim.protocol.unit import PersonAccount, Record, stated
from fedsim.report.resume import state_of
from fedsim.scenario.load import code_of, relative
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved
from fedsim.secagg.envelopes import KEY_FILE

RUNS = 3  # runs of the scenario that a silo's lifetime budget pays for
_EXACT = 20.0  # lifetime epsilon up to which exact noise has room in it (`silos.front.enrolment`)
MOST_SILOS = 32  # each is two processes of this machine
DAYS = 365
ROSTER = "roster.yaml"
PLUG_INS = "plug_ins"  # a silo's folder of the files that the scenario's algorithm and problem are classes of
# what says how all silos' table is
_WHOLE = {"path", "encoding", "silo_column", "person_column", "origin", "test_fraction", "reserve"}
MOST_SOCKET = 100  # characters in a Unix socket's path; the operating system's limit is 107


class Topology:
    """Where everything is, in an absolute `directory`: the parties' folders, and the files in them.

    `scenario` is what the server offers. The run directory is there when the run has ended, the shuffler's
    folder with secure aggregation only.
    """

    def __init__(self, directory: Path, silos: tuple[str, ...]) -> None:
        self.directory, self.silos = directory, silos
        self.server, self.run, self.shuffler = (directory / name for name in ("server", "run", "shuffler"))
        self.federation, self.scenario = self.server / "federation.yaml", self.server / "scenario.yaml"
        self.shuffler_socket = self.shuffler / "run.sock"

    @property
    def sums(self) -> bool:
        """Whether there is a shuffler."""
        return (self.shuffler / "shuffler.yaml").exists()

    @property
    def shuffler_command(self) -> list[str]:
        """What runs the shuffler, or with another word enrols it."""
        return [sys.executable, "-m", "shuffler", "--config", str(self.shuffler / "shuffler.yaml")]

    def silo(self, name: str) -> Path:
        """A silo's folder."""
        return self.directory / certs.folder_of(name)

    def config(self, name: str) -> Path:
        """A silo's configuration."""
        return self.silo(name) / "silo.yaml"

    def socket(self, name: str) -> Path:
        """Where a silo's daemon listens."""
        return self.silo(name) / "silo.sock"


def check(resolved: Resolved, directory: Path) -> None:
    """Check that this machine can run a scenario's silos. InputError if it needs what only a simulation has,
    or more of this machine than it should.
    """
    deployable(resolved.scenario)
    check_offer(resolved)
    if len(resolved.names) > MOST_SILOS:
        hint = f"at most {MOST_SILOS} on one machine, each being two processes; simulate more"
        raise InputError("silos", len(resolved.names), hint)
    certs.check_names(resolved.names, "scenario.partition")
    if len(str(directory)) + max(map(len, (*resolved.names, "shuffler"))) + len("//silo.sock") > MOST_SOCKET:
        hint = "too long a path for Unix sockets in it; name a shorter one"
        raise InputError("--out", str(directory), hint)


def prepare(
    resolved: Resolved, directory: Path, policies: Mapping[str, Mapping[str, Any]] | None = None
) -> Topology:
    """Write every party's folder into `directory`; each silo has its own of the `policies`, by default as
    `policy` has it. InputError as `check`, or if the data cannot be read.
    """
    check(resolved, directory)
    topology = Topology(directory, resolved.names)
    certs.make(directory, topology.silos)
    scenario = resolved.scenario
    data = load(scenario.data, scenario.partition, scenario.seed, 0, scenario.privacy.unit)
    published = _published(resolved)
    write = _table_writer(scenario) or partial(_write_prepared, data, resolved.outline.num_classes)
    for name in topology.silos:
        records = write(topology.silo(name) / "records", [name], 0)
        tree = silo_file(resolved, name, records, policies and policies[name])
        if published and records["name"] == "csv":
            (topology.silo(name) / f"public-{published.name}").write_bytes(published.read_bytes())
            tree["public"] = f"public-{published.name}"
        write_yaml(topology.config(name), tree)
        for file in set(code_of(scenario).values()):
            copy = topology.silo(name) / PLUG_INS / Path(file).name
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(source(file, "scenario"))
        topology.silo(name).chmod(0o700)
    test = write(topology.server / "test", topology.silos, 1)
    if resolved.sums is not None:
        topology.shuffler.mkdir(mode=0o700)
        told = {"state": "state", "listen": {"socket": topology.shuffler_socket.name}, "rosters": [ROSTER]}
        write_yaml(topology.shuffler / "shuffler.yaml", told)
        privacy = scenario.privacy.model_copy(update={"min_silos": resolved.sums.pool.min_silos})
        scenario = scenario.model_copy(update={"privacy": privacy})  # with all of its roster's terms
    write_yaml(topology.federation, _federation(topology, test))
    tree = scenario.model_dump(mode="json", exclude_none=True, exclude={"files"})
    write_yaml(topology.scenario, relative(tree, topology.server))
    return topology


def made(directory: Path, field: str) -> Topology:
    """What `prepare` wrote there; InputError on `field` if there is nothing."""
    topology = Topology(directory, ())
    if not topology.federation.is_file():
        raise InputError(field, str(directory), "a directory that `fedsim up` has made")
    return Topology(directory, tuple(sorted(load_federation(topology.federation).silos)))


def opened(directory: Path) -> Topology:
    """`made`, to be resumed; InputError if its run has ended."""
    topology = made(directory, "--out")
    if state_of(topology.run) in ("ended", "over"):
        raise InputError("--out", str(directory), "its run has ended; there is nothing to resume")
    return topology


def write_records(file: Path, rows: Rows, groups: Sequence[str] = ()) -> None:
    """Records as they are prepared, intercept included: nothing is left to scale or to add."""
    more: dict[str, Any] = {} if rows.owners is None else {"person": rows.owners}
    if rows.groups is not None:
        more["group"] = np.array([*groups, ""])[rows.groups]
    with atomic_file(file) as draft:
        np.savez(draft, features=rows.features, target=rows.target, **more)


Writer = Callable[[Path, Sequence[str], int], dict[str, Any]]
"""Writes the training (0) or test (1) records of some silos to a file of this stem; how it is to be read."""


def _table_writer(scenario: Scenario) -> Writer | None:
    """Of records as they are in a CSV file, which silos read by its schema; None where there is none."""
    import pyarrow as pa
    from pyarrow import csv

    data = scenario.data
    if not isinstance(data, Csv):
        return None
    schema = read_schema(data.columns)
    ids = [data.person_column] if data.person_column else []
    found = data.opened().read([*schema, *ids])
    if not all(pa.types.is_string(values.type) for values in found.values()):
        return None  # a Parquet file's types say more than a text
    table = pa.table(found)
    splits = divided(data, scenario.partition, scenario.seed, 0, scenario.privacy.unit)
    kept = data.model_dump(mode="json", exclude_unset=True, exclude={"columns", *_WHOLE})
    columns = {name: column.model_dump(mode="json", exclude_unset=True) for name, column in schema.items()}

    def write(stem: Path, silos: Sequence[str], part: int) -> dict[str, Any]:
        rows = np.concatenate([splits[silo][part] for silo in silos])
        whose = {"person_column": ids[0]} if ids and part == 0 else {}  # ids stay in the silos
        with atomic_file(stem.with_suffix(".csv")) as draft:
            csv.write_csv(table.take(rows).select([*schema, *whose.values()]), draft)
        told = {**kept, "name": "csv", "path": f"{stem.name}.csv", "delimiter": ",", "schema": columns}
        return told | whose

    return write


def _write_prepared(
    data: Federation, classes: int, stem: Path, silos: Sequence[str], part: int
) -> dict[str, Any]:
    """As a `Writer`: records as numbers, intercept included."""
    rows = Rows.joined((each.train, each.test)[part] for each in data.silos if each.name in silos)
    write_records(stem.with_suffix(".npz"), rows._replace(owners=None) if part else rows, data.groups)
    told = {"name": "npz", "path": f"{stem.name}.npz", "intercept": False}
    told |= {} if rows.groups is None else {"groups": list(data.groups)}
    return told | ({"classes": classes} if classes else {})


def write_yaml(file: Path, tree: Mapping[str, Any]) -> None:
    """Write a party's file, fields in their order."""
    with atomic_file(file) as draft:
        draft.write_text(yaml.safe_dump(dict(tree), sort_keys=False), encoding="utf-8")


def silo_file(
    resolved: Resolved, name: str, records: Mapping[str, Any], agreed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A silo's configuration: this scenario's algorithm and problem, with a policy, by default `policy`."""
    scenario, files = resolved.scenario, _code(resolved)
    return {
        "name": name,
        "records": records,
        "state": "state",
        "listen": {"socket": "silo.sock"},
        "policy": dict(agreed or policy(resolved, name)),
        **({} if scenario.evaluate is None else {"holdout": scenario.data.test_fraction}),
        **account(resolved, name),
        **({"plug_in_folder": PLUG_INS, "plug_in_files": files} if files else {}),
        **({} if resolved.sums is None else {"rosters": [ROSTER]}),
    }


def _published(resolved: Resolved) -> Path | None:
    """The table of public records that steps of the silos need."""
    public, asked = resolved.scenario.public, resolved.trace.asked[1]
    return public.path if isinstance(public, Csv) and isinstance(public.path, Path) and asked & F1 else None


def policy(resolved: Resolved, name: str) -> dict[str, Any]:
    """A silo's policy: what this scenario's run needs, `RUNS` times."""
    scenario, plan, at = resolved.scenario, resolved.trace.plan, resolved.names.index(name)
    epsilon, delta = resolved.epsilons[at], resolved.deltas[at]
    names = [scenario.algorithm.name, scenario.problem.name]
    listed = {"plug_ins": [short(each) for each in names if file_of(each)]} if _code(resolved) else {}
    # An account adds the prices of whole runs where their squares do not add.
    sampled = any(release.batch.random for release, _ in plan.census())
    one_by_one = sampled or not resolved.mechanism.squares_add
    return {
        "lifetime": lifetime(epsilon, delta, one_by_one),
        "per_run": {"epsilon": epsilon, "delta": delta},
        "algorithms": [short(names[0])],
        "problems": [short(names[1])],
        **listed,
        **({"label_dp": True} if plan.protects_labels_alone else {}),
        # of an algorithm with stages a plan may have fewer than are given
        "max_rounds": max(len(plan.rounds), getattr(scenario.algorithm, "num_rounds", 0) or 0),
    }


def _code(resolved: Resolved) -> dict[str, str]:
    """SHA-256 of the files that the scenario's parts are classes of, by name."""
    return {Path(file).name: digest(file, "scenario") for file in code_of(resolved.scenario).values()}


def account(resolved: Resolved, name: str) -> dict[str, Any]:
    """The silo's `unit`, where it is persons."""
    privacy, names = resolved.scenario.privacy, resolved.names
    if isinstance(privacy.unit, Record):
        return {}
    each = privacy.stated(names)
    expected = None if each is None else each[names.index(name)]
    return {"unit": stated(PersonAccount(privacy.unit.relation, expected, privacy.unit.silos_per_person))}


def lifetime(epsilon: float, delta: float, sampled: bool) -> dict[str, Any]:
    """What `RUNS` runs of (epsilon, delta) cost together, and as much delta again for the noise's grid.

    Plans that are not sampled get no more epsilon than exact noise has room in, but for one run's.
    By basic composition (Dwork et al. 2006) epsilons and deltas add; the account composes Gaussian runs more
    tightly, so it has room for more of those.
    """
    most = RUNS * epsilon if sampled else min(RUNS * epsilon, max(epsilon, _EXACT))
    together = {"epsilon": most, "delta": RUNS * delta}
    expires = (datetime.now(UTC) + timedelta(days=DAYS)).date()
    share = together if sampled else {"epsilon": 0.0, "delta": 0.0}
    return {"epsilon": most, "delta": min(2 * RUNS * delta, 0.5), "expires": expires, "sampled": share}


def _federation(topology: Topology, test: Mapping[str, Any]) -> dict[str, Any]:
    folders = {name: f"../{certs.folder_of(name)}" for name in topology.silos}
    told = {
        "silos": {
            name: {"identity": f"{folder}/state/identity.pub", "node": f"{folder}/node.pub"}
            for name, folder in folders.items()
        },
        "test": test if test["name"] == "csv" or "groups" in test else test["path"],
        "heads": "heads.json",
        "root_certificates": "ca.crt",
    }
    if not topology.sums:
        return told
    socket = f"../{topology.shuffler.name}/{topology.shuffler_socket.name}"
    return told | {"shuffler": {"roster": ROSTER, "key": KEY_FILE, "socket": socket}}
