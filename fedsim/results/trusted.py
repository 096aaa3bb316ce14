"""What a reader is asked to trust: the code of each silo's own installation, and whose else ran."""

from __future__ import annotations

from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported
from fedsim.scenario.resolve import Resolved

OWN = "code of the silo's own installation, with its records: nothing keeps it from a file or the network"
_OURS = "fedsim."


def trusted(resolved: Resolved) -> list[str]:
    """The code that a silo trusts with its records, and the parts of others that ran in it."""
    others = plug_ins(resolved)
    if not others:
        return [OWN]
    ran = f"code of others that ran: {', '.join(others)}"
    return [OWN, f"{ran}; of modules and losses only graphs of one record's operations met records"]


def plug_ins(resolved: Resolved) -> list[str]:
    """Algorithm, problem, network and data set that are not fedsim's, as `kind package.module:name`."""
    problem = resolved.problem
    parts = [("algorithm", resolved.algorithm), ("problem", problem), ("data set", resolved.scenario.data)]
    found = [
        f"{kind} {type(part).__module__}:{type(part).__qualname__}"
        for kind, part in parts
        if not type(part).__module__.startswith(_OURS)
    ]
    if isinstance(problem, NeuralNetwork) and isinstance(problem.model, Imported):
        found.append(f"module {problem.model.path}")
    return found
