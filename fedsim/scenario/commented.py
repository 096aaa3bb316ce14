"""A scenario as text that explains itself: every field with its description, by the scenario's own schema.

Fields that are not given stand there as comments with their defaults: `#trials: 1`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

import yaml

from fedsim.common.section import Node, names, nodes
from fedsim.scenario.model import Scenario

_WIDTH = 100
_TOP = """\
# A scenario of fedsim. A line like  #key: value  is a field that is left out, with its default: remove the #
# to set it, and those above it that it is part of. Another name of a part, such as another algorithm, has
# other fields; `fedsim list` shows the names, `fedsim schema` all fields. Try the file:
#     fedsim privacy FILE      # what it would cost each silo, and the noise it needs
#     fedsim simulate FILE
"""

STARTING: dict[str, Any] = {
    "name": "my scenario",
    "description": "logistic regression on breast cancer data, five silos that see different patients",
    "seed": 1,
    "trials": 3,
    "data": {"name": "breast_cancer"},
    "partition": {"name": "sorted", "num_partitions": 5, "by": "mean radius"},
    "problem": {"name": "logistic_regression"},
    "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 30, "step_size": 1.0, "clip_norm": 1.0},
    "privacy": {"epsilon": 2.0},
    "runtime": {"name": "inprocess"},
}
"""A scenario that runs in a second."""


def commented(tree: Mapping[str, Any] = STARTING) -> str:
    """The scenario as YAML; where there is a choice, with the fields of the kind that is chosen.

    Args:
        tree: a valid scenario whose choices are mappings with a name, not shorthands.
    """
    return _TOP + "\n".join(_section((), tree, given=True)) + "\n"


def _section(path: tuple[str, ...], tree: Mapping[str, Any], given: bool) -> Iterator[str]:
    """The lines of the mapping at `path` of the tree; not `given`, all of them are comments."""
    indent, present = "  " * len(path), _at(tree, path)
    for key, node in nodes(path, tree, Scenario).items():
        here, there = (*path, key), given and key in present
        value = present.get(key, node.get("default"))
        if not path:
            yield ""
        yield from (f"{indent}# {line}" for line in wrap(_about(here, tree, node), _WIDTH - len(indent)))
        begin = f"{indent}{'' if there else '#'}{key}:"
        if isinstance(value, Mapping):
            yield begin
            yield from _section(here, _with(tree, here, value), there)
        else:
            yield f"{begin} {_plain(value)}"


def _about(path: tuple[str, ...], tree: Mapping[str, Any], node: Node) -> str:
    """The description, and the words that may stand there, if there are several."""
    *above, key = path
    words = node.get("enum", [])
    if "const" in node:
        words = names(above, key, _with(tree, above, {}), Scenario)
    text = node.get("description", "").rstrip(".")
    named = len(words) < 2 or all(word in text for word in words)
    one_of = "" if named else f"one of {', '.join(words)}"
    return "; ".join(filter(None, (text, one_of)))


def _plain(value: Any) -> str:
    """The value as one line of YAML."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()


def _at(tree: Any, path: Sequence[str]) -> Any:
    return _at(tree[path[0]], path[1:]) if path else tree


def _with(tree: Mapping[str, Any], path: Sequence[str], value: Any) -> Any:
    """The tree with another value at `path`."""
    if not path:
        return value
    return {**tree, path[0]: _with(tree.get(path[0], {}), path[1:], value)}
