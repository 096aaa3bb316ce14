"""Federated learning between organisations that do not trust the server.

>>> import fedsim
>>> cost = fedsim.price("quickstart", epsilon=2.0)
>>> [round(z, 1) for z in cost.silos["noise_multiplier"][:2]]
[5.2, 5.2]

A name is imported when it is first used, so that `import fedsim` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fedsim.common.plugins import pin

if TYPE_CHECKING:
    from fedsim.api.asked import Components as Components
    from fedsim.api.asked import Count as Count
    from fedsim.api.asked import Histogram as Histogram
    from fedsim.api.asked import Mean as Mean
    from fedsim.api.asked import Moments as Moments
    from fedsim.api.asked import Quantiles as Quantiles
    from fedsim.api.asked import Sum as Sum
    from fedsim.api.audit import Audit as Audit
    from fedsim.api.audit import audit as audit
    from fedsim.api.compare import compare as compare
    from fedsim.api.estimators import FederatedClassifier as FederatedClassifier
    from fedsim.api.estimators import FederatedRegressor as FederatedRegressor
    from fedsim.api.price import Price as Price
    from fedsim.api.price import price as price
    from fedsim.api.release import Released as Released
    from fedsim.api.release import release as release
    from fedsim.api.run import Run as Run
    from fedsim.api.run import load_run as load_run
    from fedsim.api.simulate import simulate as simulate
    from fedsim.api.sweep import sweep as sweep
    from fedsim.common.errors import InputError as InputError
    from fedsim.common.errors import Refused as Refused
    from fedsim.data.arrays import Arrays as Arrays
    from fedsim.data.frame import Frame as Frame
    from fedsim.protocol.batch import FULL as FULL
    from fedsim.protocol.batch import Batch as Batch
    from fedsim.protocol.batch import Fresh as Fresh
    from fedsim.protocol.batch import Full as Full
    from fedsim.protocol.batch import Part as Part
    from fedsim.protocol.batch import Poisson as Poisson
    from fedsim.protocol.batch import Subsample as Subsample
    from fedsim.protocol.batch import WithReplacement as WithReplacement
    from fedsim.protocol.contract import Algorithm as Algorithm
    from fedsim.protocol.contract import Asker as Asker
    from fedsim.protocol.contract import Memory as Memory
    from fedsim.protocol.contract import Message as Message
    from fedsim.protocol.contract import Public as Public
    from fedsim.protocol.contract import PublicProblem as PublicProblem
    from fedsim.protocol.contract import Query as Query
    from fedsim.protocol.contract import Round as Round
    from fedsim.protocol.contract import ServerHalf as ServerHalf
    from fedsim.report.comparison import Comparison as Comparison
    from fedsim.report.tables import Table as Table
    from fedsim.scenario.model import Scenario as Scenario
    from fedsim.simulation.sweeps.run import Sweep as Sweep

    __version__: str

pin()

_HOMES = {
    "fedsim.api.asked": ("Components", "Count", "Histogram", "Mean", "Moments", "Quantiles", "Sum"),
    "fedsim.api.audit": ("Audit", "audit"),
    "fedsim.api.compare": ("compare",),
    "fedsim.api.estimators": ("FederatedClassifier", "FederatedRegressor"),
    "fedsim.api.price": ("Price", "price"),
    "fedsim.api.release": ("Released", "release"),
    "fedsim.api.run": ("Run", "load_run"),
    "fedsim.api.simulate": ("simulate",),
    "fedsim.api.sweep": ("sweep",),
    "fedsim.common.errors": ("InputError", "Refused"),
    "fedsim.data.arrays": ("Arrays",),
    "fedsim.data.frame": ("Frame",),
    "fedsim.protocol.batch": (
        "FULL",
        "Batch",
        "Fresh",
        "Full",
        "Part",
        "Poisson",
        "Subsample",
        "WithReplacement",
    ),
    "fedsim.protocol.contract": (
        "Algorithm",
        "Asker",
        "Memory",
        "Message",
        "Public",
        "PublicProblem",
        "Query",
        "Round",
        "ServerHalf",
    ),
    "fedsim.report.comparison": ("Comparison",),
    "fedsim.report.tables": ("Table",),
    "fedsim.scenario.model": ("Scenario",),
    "fedsim.simulation.sweeps.run": ("Sweep",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, "__version__"])  # pyright: ignore


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        value: object = getattr(import_module(_HOME_OF[name]), name)
    elif name == "__version__":
        value = import_module("fedsim.common.installed").version()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
