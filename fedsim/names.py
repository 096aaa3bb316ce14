"""Public names, by the module that has them."""

from __future__ import annotations

from importlib import import_module

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
ALL = sorted([*_HOME_OF, "__version__"])


def value_of(name: str) -> object:
    """What `fedsim` has under this name; AttributeError if it is none of `ALL`."""
    if name == "__all__":
        return ALL
    if name == "__version__":
        return import_module("fedsim.common.installed").version()
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedsim' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME_OF[name]), name)
    return value
