"""What a silo's process loads, for `benchmarks.structure`: `benchmarks.structure_loads FOLDER WHAT`.

Prints the product's files that it has loaded by the end, separated by tabs: of `opened` a plain silo, which
`enrolled` has made in the folder; of `linear` a vault that has answered a round of each sampler and
statistic, for records and persons, and closed the runs; of `networks` and `sums`, these and theirs; of
`daemon` a silo's before its settings are read, of `simulate` and `release` the commands, of quickstart.
"""

import json
import sys
from pathlib import Path
from typing import Any

_OPTIONS: dict[str, tuple[float, ...]] = {
    "second_moment": (1,),
    "sum": (0, -2, 3),
    "capped_sum": (0, 0, 9, 5),
    "presence": (0, -2, 2),
    "histogram": (1, 1, -1, 0, 1),
    "contributions": (1, 2, 4),
    "score_histogram": (10,),
    "log_loss": (0.01,),
    "quantile": (0, 0.25, -1, 0, 1),
    "minimiser": (0.5, 6, 2),
    "costed_gradient": (2, 2, 1, 100),
    "joint": (2, 2, 1, 0),
}


def answer(folder: Path, name: str, batch: Any, unit: Any, net: bool = False, sums: str = "") -> None:
    """One round of a vault over 40 records, of 20 persons, with a ledger in a new folder."""
    from types import SimpleNamespace

    import numpy as np
    import torch

    from fedsim.common.identity import Identity
    from fedsim.problems.glm import LinearRegression, LogisticRegression
    from fedsim.protocol.limits import LIMITS
    from fedsim.protocol.plan import Ask, Plan, Terms
    from fedsim.protocol.query import Query
    from fedsim.protocol.rows import Rows
    from fedsim.protocol.statistics import QueryShape, point_sizes, statistic
    from fedsim.protocol.unit import RECORD, PersonAccount
    from silos.vault.account import Caps
    from silos.vault.book import Enrolment
    from silos.vault.considered import Its, Rules, considered
    from silos.vault.ledger_file import LedgerFile
    from silos.vault.vault import Vault

    known, share, z, pooled = statistic(name), None, None, None
    labels = known.needs & {"classes", "probabilities", "two classes"}
    problem: Any = (LogisticRegression if labels else LinearRegression)(3)
    if net:
        from fedsim.problems.network import NeuralNetwork

        problem = NeuralNetwork(3, 2)
    options = tuple(map(float, _OPTIONS.get(name, ())))
    shape = QueryShape(name, known.points, 1.0, options)
    plan = Plan(((Ask(batch, (shape,)),),), unit)
    points = tuple(
        torch.full((size,), 0.1, dtype=torch.float64) for size in point_sizes(shape, problem.dimension, 3)
    )
    sealed = (lambda run: run) if sums else None
    if sums:
        import fedsim.secagg.reports  # noqa: F401  what seals them
        from fedsim.privacy.registry import sum_mechanism
        from fedsim.protocol.pool import Pool, Share

        pool, z = Pool((40,) * 1000, (1.0,) * 1000, 1000, 1.0), 10.0
        mechanism = sum_mechanism(sums, plan.extent(problem.dimension, 3), pool)
        share = Share(pool, 0, 1.0)
        pooled = SimpleNamespace(mechanism=mechanism, colluding_cost=lambda plan, admitted: 0.0)
    caps = Caps.of(8.0, 1e-4, 4.0, 5e-5)
    folder.mkdir()
    identity = Identity.create(folder)
    people, account = unit != RECORD, PersonAccount(unit.relation) if unit != RECORD else RECORD
    enrolment = Enrolment("silo", "00" * 32, identity.public, caps, 2**52, unit=account)
    LedgerFile.create(folder / "ledger", enrolment)
    its = Its("silo", 20 if people else 40, 3, 2, account, public=False)
    rules = Rules(LIMITS, (4.0, 1e-5), 1e-3, 100, None, 9, 1.0)
    codes = np.arange(40)
    rows = Rows(np.ones((40, 3)), codes % 2.0, codes % 2, codes // 2 if people else None)
    terms, asked = Terms("silo", its.n, 0.5, 1e-5, range(1), z, share), ((("w", problem.dimension),),)
    found = considered(
        plan, problem, torch.float64, terms, its, rules, broadcasts=asked, sums=pooled, sealed=sealed
    )
    vault = Vault({"training": rows}, rules, LedgerFile.open(folder / "ledger"), identity)
    run = vault.admit(found, "11" * 32, "{}", {})
    assert run is not None
    opened = vault.round(run, found, 0, {"w": torch.zeros(problem.dimension, dtype=torch.float64)})
    opened.keep({"g": opened.ask(Query(name, points, 1.0, batch, 1.0, options))})
    vault.close(run, found)
    vault.receipt(run)


def trusted(folder: Path, which: str) -> None:
    """The rounds of the trusted closure: `linear`, or those with `networks` or `sums` beside them."""
    from fedsim.protocol.batch import FULL, KINDS
    from fedsim.protocol.statistics import STATISTICS
    from fedsim.protocol.unit import RECORD, Person

    values, limit = {"fraction": 0.5, "start": 0.0, "stop": 0.5}, Person("limit", 2, "replace_values")
    asked: list[Any] = []
    for kind in KINDS:
        batch = kind(**{name: values[name] for name in getattr(kind, "__match_args__", ())})
        asked += [("gradient", batch, unit) for unit in (RECORD, Person(), Person("mean"), limit)]
    asked += [(name, FULL, limit) for name in STATISTICS]
    asked += [(name, FULL, RECORD) for name in STATISTICS if name != "contributions"]
    if which == "networks":
        asked += [(name, FULL, unit, True) for name in ("gradient", "longer") for unit in (RECORD, limit)]
    if which == "sums":
        from fedsim.privacy.registry import MECHANISMS

        sums = [name for name, mechanism in MECHANISMS.items() if mechanism.sums_only]
        asked += [("gradient", FULL, RECORD, False, name) for name in sums]
    for number, each in enumerate(asked):
        answer(folder / str(number), *each)


def enrolled(folder: Path) -> None:
    """A silo of 40 records in this folder."""
    import numpy as np

    from silos.front.config import load_config
    from silos.front.enrolment import enrol

    np.savez(folder / "records.npz", features=np.ones((40, 3)) / 2, target=np.arange(40) % 2)
    budget = {"epsilon": 8.0, "delta": 1e-4}
    tree = {
        "name": "silo",
        "records": {"name": "npz", "path": "records.npz", "intercept": False, "classes": 2},
        "state": "state",
        "listen": {"socket": "silo.sock"},
        "policy": {"lifetime": budget | {"expires": "2999-12-31"}, "per_run": budget},
    }
    (folder / "silo.yaml").write_text(json.dumps(tree), encoding="utf-8")
    enrol(load_config(folder / "silo.yaml"))


def opened(folder: Path) -> None:
    """What a silo's process loads before the first offer."""
    import silos.front.service  # noqa: F401
    from silos.front.config import load_config
    from silos.front.silo import Silo

    Silo.open(load_config(folder / "silo.yaml")).close()


COMMANDS = {
    "simulate": ("simulate", "quickstart", "--set", "trials=1"),
    "release": ("release", "quickstart", "age=mean", "--epsilon", "0.5"),
}


def commanded(folder: Path, what: str) -> None:
    """A command in this process, which writes its results."""
    from fedsim.cli.main import main

    sys.argv[1:] = [*COMMANDS[what], "--quiet", "--out", str(folder / "run")]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def load(folder: Path, what: str) -> None:
    """Load what this figure is of."""
    if what == "daemon":
        import silos.front.service  # noqa: F401
    elif what in COMMANDS:
        commanded(folder, what)
    else:
        {"enrolled": enrolled, "opened": opened}.get(what, lambda folder: trusted(folder, what))(folder)


if __name__ == "__main__":
    load(Path(sys.argv[1]), sys.argv[2])
    ours = {name for name in sys.modules if name.startswith(("fedsim", "silos", "server", "shuffler"))}
    print("\t".join(sorted({file for name in ours if (file := sys.modules[name].__file__)})))
