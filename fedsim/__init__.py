"""Federated learning between organisations that do not trust the server.

>>> import fedsim
>>> cost = fedsim.price("quickstart", epsilon=2.0)
>>> [round(z, 1) for z in cost.silos["noise_multiplier"][:2]]
[5.2, 5.2]

A name is imported when it is first used, so that `import fedsim` takes no time.
"""

from __future__ import annotations

from fedsim.common.beside import pin

pin()


def __getattr__(name: str) -> object:
    if name.startswith("_") and name not in ("__all__", "__version__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedsim.names import value_of

    value = globals()[name] = value_of(name)
    return value


def __dir__() -> list[str]:
    from fedsim.names import ALL

    return ALL
