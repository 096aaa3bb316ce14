"""silo.yaml: a silo's records, its state, where it listens, and its policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from fedsim.algorithms.registry import GROUP as ALGORITHMS
from fedsim.algorithms.registry import shipped_names
from fedsim.common.errors import InputError, suggest
from fedsim.common.plugins import file_of, listed
from fedsim.common.registry import OneOf, Registry
from fedsim.common.section import Section, settings
from fedsim.common.serialise import mapping
from fedsim.data.dataset import Dataset
from fedsim.problems.kinds import GROUP as PROBLEM_GROUP
from fedsim.problems.kinds import NAMES as PROBLEMS
from fedsim.protocol.limits import Limits
from fedsim.protocol.statistics import STATISTICS
from fedsim.protocol.unit import RECORD, AccountUnit
from fedsim.wire.connections import AtPort, AtSocket, MetricsAt
from fedsim.wire.messages import Hex32, SiloName
from silos.vault.considered import Rules

ROOT = "silo"  # the name of the file in errors

if TYPE_CHECKING:  # loaded where a plug-in is listed
    from fedsim.isolated.confine import Child

Records = Annotated[Dataset, OneOf(Registry.of("fedsim.data", {"csv": "csv_table:Csv", "npz": "arrays:Npz"}))]
"""A silo's records: a table by its schema (csv), or arrays in a file (npz)."""
Probability = Annotated[float, Field(ge=1e-100, lt=1)]
FileName = Annotated[str, Field(pattern=r"^[^/]+\.py$")]
Epsilon = Annotated[float, Field(gt=0, le=500)]
Count = Annotated[int, Field(ge=1)]


class Sampled(Section):
    """The part of a lifetime that plans with sampled batches may use; by default they are refused."""

    epsilon: float = Field(0.0, ge=0, description="sum of their epsilons")
    delta: float = Field(0.0, ge=0, lt=1, description="sum of their deltas")


class Lifetime(Section):
    """Privacy budget of everything that ever leaves the silo; fixed at enrolment (`silos.vault.account`)."""

    epsilon: Epsilon = Field(description="of all runs together")
    delta: Probability = Field(description="of all runs together")
    expires: date = Field(description="the last day, in UTC; nothing is released afterwards")
    sampled: Sampled = Field(Sampled(), description="of it, for plans with sampled batches")


class PerRun(Section):
    """The most that one run may cost, whatever it offers."""

    epsilon: Epsilon = Field(description="of one run")
    delta: Probability = Field(description="of one run")


def _list_of_plug_ins(value: Any) -> Any:
    """`false` is none of them; `true` would let a server choose any function of the installation."""
    if value is True:
        raise ValueError("list those that may run: names of entry points, module:attribute of networks")
    return () if value is False else value


PlugIns = Annotated[tuple[str, ...], BeforeValidator(_list_of_plug_ins)]


class Policy(Section):
    """Limits on everything that a server may ask a silo for."""

    lifetime: Lifetime = Field(description="over all runs")
    per_run: PerRun | None = Field(None, description="the most for one run; default: all of the lifetime's")
    algorithms: tuple[str, ...] | None = Field(None, description="those that may run; default: fedsim's own")
    problems: tuple[str, ...] | None = Field(None, description="those that may run; default: fedsim's own")
    statistics: tuple[str, ...] | None = Field(None, description="those that may be asked for; default: all")
    plug_ins: PlugIns = Field(
        (),
        description="code that fedsim does not ship and that may be started, in a confined process: names of "
        "entry points in plug_in_folder, module:attribute of networks; false: none",
    )
    min_noise_multiplier: float = Field(0.1, gt=0, le=1e4, description="least base noise multiplier")
    max_noise_multiplier: float = Field(1e4, gt=0, le=1e4, description="largest base noise multiplier")
    max_epsilon_colluding: float | None = Field(
        None,
        gt=0,
        description="the most that a run may cost if server and shuffler collude; default: infinity",
    )
    max_runs: Count = Field(
        1_000, description="runs that are open or had a round paid for, in the silo's whole life"
    )
    max_rounds: Count = Field(1_000, description="rounds of a plan")
    max_queries_per_round: Count = Field(1_000, description="noisy answers of a round")
    max_dimension: Count = Field(1_000_000, description="parameters of a model")
    max_planned_numbers: Count = Field(
        100_000_000,
        description="numbers in all answers of a plan, one of fewer than 5,000 counted as 5,000: bounds "
        "the time that trying a plan out takes",
    )
    max_records: Count = Field(
        100_000,
        description="with persons, whose number of records is private: a public number, not below it, that "
        "the 60 s of a round are counted for",
    )
    min_clip: float = Field(1e-6, ge=1e-6, description="least clip, but for 0")
    max_clip: float = Field(1e6, gt=0, le=1e6, description="largest clip")
    max_point: float = Field(1e6, gt=0, le=1e6, description="largest entry of a point")
    exact_noise_dimension: int = Field(
        100_000, ge=0, description="largest dimension with exact noise; above, it is drawn in floating point"
    )
    label_dp: bool = Field(
        False, description="whether plans protect labels alone, not features; of a whole account: enrol anew"
    )
    approve: Literal["policy", "ask"] = Field(
        "policy", description="who admits what the policy allows; ask: the operator, by `fedsim offers`"
    )
    approve_days: float = Field(
        7.0, gt=0, le=3650, description="days until an offer that waits for the operator lapses"
    )
    run_days: float = Field(7.0, gt=0, le=3650, description="days until a run that is not closed is closed")

    @property
    def limits(self) -> Limits:
        """Bounds on plans and queries."""
        return Limits(**self.model_dump(include={field.name for field in fields(Limits)}))

    @property
    def rules(self) -> Rules:
        """The part of the policy that the vault enforces."""
        bound = self.per_run or self.lifetime
        return Rules(
            self.limits,
            (bound.epsilon, bound.delta),
            self.min_noise_multiplier,
            self.exact_noise_dimension,
            self.statistics,
            self.max_runs,
            self.run_days,
        )

    @property
    def allowed_algorithms(self) -> tuple[str, ...]:
        """Names of the algorithms that may run."""
        return self.allowed(shipped_names()) if self.algorithms is None else self.algorithms

    @property
    def allowed_problems(self) -> tuple[str, ...]:
        """Names of the problems that may run."""
        return self.allowed(PROBLEMS) if self.problems is None else self.problems

    def allowed(self, known: Iterable[str]) -> tuple[str, ...]:
        """The parts that fedsim ships, and the plug-ins that are listed: these run in a confined process."""
        others = (name for name in self.plug_ins if ":" not in name or file_of(name))
        return tuple(dict.fromkeys((*known, *others)))

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        for field, low, high in (
            ("min_noise_multiplier", self.min_noise_multiplier, self.max_noise_multiplier),
            ("min_clip", self.min_clip, self.max_clip),
        ):
            if low > high:
                raise InputError(field, low, f"at most {field.replace('min', 'max', 1)}, {high:g}")
        for name in self.statistics or ():
            if name not in STATISTICS:
                raise InputError("statistics", name, suggest(name, STATISTICS))
        for field, known in (("algorithms", shipped_names()), ("problems", PROBLEMS)):
            for name in getattr(self, field) or ():
                if name not in self.allowed(known):
                    hint = f"not shipped; {suggest(name, known)}, or list the plug-in under plug_ins too"
                    raise InputError(field, name, hint)
        return self


class InsecureSimulation(Section):
    """Noise from a seed: for tests, without any privacy; only with --insecure-simulation."""

    seed: int = Field(ge=0, description="the scenario's")
    trial: int = Field(0, ge=0, description="which trial")
    run: Hex32 = Field(description="digest of the simulated run (`fedsim.simulation.run_digest`)")


class Config(Section):
    """One silo."""

    name: SiloName = Field(description="the silo, as the federation calls it")
    records: Records = Field(
        description="its records, all of them its own: a table (csv) or an npz file, as in a scenario's data "
        "section"
    )
    public: Path | None = Field(
        None,
        description="a file of public records, of the columns of `records`, for algorithms that need them in "
        "the silo; an offer names its SHA-256",
    )
    reader: tuple[str, ...] = Field(
        (),
        description="a command that writes the table at records.path to its standard output; it runs once, "
        "at enrolment, in that folder",
    )
    holdout: float | None = Field(
        None, gt=0, lt=1, description="share of its records that answer evaluations alone; fixed at enrolment"
    )
    unit: AccountUnit = Field(
        RECORD,
        description="what its account protects: record, or person (all records with one value of "
        "records.person_column), with {name: person, relation, expected_persons, silos_per_person}; fixed at "
        "enrolment",
    )
    public_silo: bool = Field(
        False,
        description="whether its records are public: neither clip nor noise, and no guarantee; fixed at "
        "enrolment",
    )
    state: Path = Field(description="folder of ledger, identity key and log")
    listen: AtSocket | AtPort = Field(description="{socket: path}, or {port: number, token: path}")
    policy: Policy = Field(description="what it agrees to")
    metrics: MetricsAt | None = Field(None, description="where Prometheus finds its public numbers")
    rosters: tuple[Path, ...] = Field(
        (), description="files of the rosters whose sums it takes part in; what its operator has agreed to"
    )
    plug_in_folder: Path | None = Field(
        None,
        description="where the code that policy.plug_ins lists is installed (pip install --target); only its "
        "confined process has it on its path",
    )
    plug_in_files: dict[FileName, Hex32] = Field(
        {},
        description="SHA-256 of each file in plug_in_folder that policy.plug_ins names a class of, as "
        "my.py:MyAlgorithm; with other contents it is not started",
    )
    insecure_simulation: InsecureSimulation | None = Field(None, description="for tests: noise from a seed")

    @property
    def ledger(self) -> Path:
        """File of the silo's ledger."""
        return self.state / "ledger.sqlite"

    @property
    def log(self) -> Path:
        """The daemon's log; there since its first start."""
        return self.state / "log"

    def start_child(self) -> Child:
        """A process for plug-in code that sees no records or state; Refused if it cannot be confined."""
        from fedsim.isolated.confine import CHILD, start

        self.check_files()
        return start([CHILD], self.plug_in_folder, hidden=self.hidden)

    def check_files(self) -> None:
        """InputError if a file of code has other contents than the operator has agreed to."""
        for name, agreed in self.plug_in_files.items():
            place = Path(self.plug_in_folder or "", name)
            if not place.is_file() or sha256(place.read_bytes()).hexdigest() != agreed:
                raise InputError(f"{ROOT}.plug_in_files.{name}", agreed, "must be the file's SHA-256")

    @property
    def hidden(self) -> list[Path]:
        """Files and folders that plug-in code must not see."""
        token = [self.listen.token] if isinstance(self.listen, AtPort) else []
        return [self.state, *self.records.files.values(), *self.rosters, *token]


_FILES = (
    *("state", "public", "rosters", "plug_in_folder", "listen.socket", "listen.token"),
    *("records.schema", "records.path", "records.path.*"),
)


def load_config(path: Path) -> Config:
    """A file's silo; names in it are relative to it. InputError if unreadable, or a field is wrong."""
    return parse_config(mapping(path, ROOT, "records:", _FILES))


def parse_config(tree: Any) -> Config:
    """Validate a silo given as plain mappings; file names are relative to the working directory."""
    config = settings(Config, tree, ROOT, lambda tree: tree | {"policy": tree["policy"] | {"plug_ins": ()}})
    config.records.check_alone(f"{ROOT}.records")
    for field in ("test_fraction", "reserve", "origin"):
        if field in config.records.model_fields_set:
            hint = "exists in simulation only: a silo holds records out by its own holdout"
            raise InputError(f"{ROOT}.records.{field}", getattr(config.records, field), hint)
    if config.unit != RECORD and getattr(config.records, "person_column", "") is None:
        hint = "is required with unit person: the column that says whose each record is"
        raise InputError(f"{ROOT}.records.person_column", None, hint)
    if config.reader and not isinstance(getattr(config.records, "path", None), Path):
        hint = "writes one table, so records.path must name one file"
        raise InputError(f"{ROOT}.reader", list(config.reader), hint)
    _check_plug_ins(config)
    return config


def _check_plug_ins(config: Config) -> None:
    """Check that listed plug-ins are installed, by their metadata alone, and can be confined here."""
    names, folder = config.policy.plug_ins, config.plug_in_folder
    if not names:
        return
    if folder is None:
        raise InputError(f"{ROOT}.plug_in_folder", None, "is required with policy.plug_ins")
    if not folder.is_dir():
        raise InputError(f"{ROOT}.plug_in_folder", str(folder), "must be a folder")
    groups = listed(folder)
    known = [name for group in (ALGORITHMS, PROBLEM_GROUP) for name in groups.get(group, {})]
    config.check_files()
    for name in names:
        if (file := file_of(name)) and file not in config.plug_in_files:
            raise InputError(f"{ROOT}.plug_in_files.{file}", None, "is required: the file's SHA-256")
        if ":" not in name and not file and name not in known:
            hint = f"no algorithm or problem in plug_in_folder; there are: {', '.join(known) or 'none'}"
            raise InputError(f"{ROOT}.policy.plug_ins", name, hint)
    from fedsim.isolated.confine import unavailable

    if reason := unavailable():
        raise InputError(f"{ROOT}.policy.plug_ins", list(names), reason)
    for path in config.hidden:
        if path.resolve().is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(path.resolve()):
            hint = f"must lie apart from {path}: plug-ins see all of it"
            raise InputError(f"{ROOT}.plug_in_folder", str(folder), hint)
