"""A finished trial as one file: its tensors, and everything else as text; no code is in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedsim.common.errors import InputError
from fedsim.common.files import whole_file
from fedsim.results.outcome import Measurement, TrialResult

_TEXT = "trial"
_DAMAGED = (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, ImportError)


@dataclass(frozen=True)
class KeptTrial:
    """A trial that has ended, and what was measured on the way; whatever fields they have."""

    result: TrialResult
    measurements: list[Measurement]


def write_trial(trial: KeptTrial, path: Path) -> None:
    """Write a file that is whole or not there.

    Raises:
        OSError: it cannot be written.
    """
    tensors: Tensors = {"none": torch.zeros(0)}
    text = json.dumps(to_tree(trial, tensors))
    with whole_file(path) as draft:
        draft.write_bytes(save(tensors, {_TEXT: text}))  # its own `save_file` raises no OSError


def read_trial(path: Path) -> KeptTrial:
    """Read it back.

    Raises:
        InputError: it is damaged, or of another version.
    """
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            kept = from_tree(json.loads(file.metadata()[_TEXT]), tensors)
        if not isinstance(kept, KeptTrial):
            raise TypeError
    except _DAMAGED:
        hint = "is damaged or of another version; remove it, and the trial is run again"
        raise InputError("--resume", str(path), hint) from None
    return kept


Tensors = dict[str, Tensor]


def to_tree(value: Any, tensors: Tensors) -> Any:
    """A value of plain types, tensors, arrays, and fedsim's dataclasses, named tuples and sections.

    Args:
        value: what to write.
        tensors: where its tensors go, by the names that the tree has for them.

    Raises:
        TypeError: something else is in it.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor | np.ndarray):
        name = str(len(tensors))
        tensors[name] = torch.as_tensor(value).contiguous()
        return {"tensor" if isinstance(value, Tensor) else "array": name}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    inner = [to_tree(each, tensors) for each in _parts(value)]
    if isinstance(value, list):
        return inner
    return {"tuple": inner} if type(value) is tuple else {_name(value): inner}


def from_tree(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value again; ValueError, TypeError, KeyError or AttributeError if the tree is damaged."""
    if isinstance(tree, list):
        return [from_tree(each, tensors) for each in tree]
    if not isinstance(tree, dict):
        return tree
    ((name, inner),) = tree.items()
    if name in ("tensor", "array"):
        return tensors[inner] if name == "tensor" else tensors[inner].numpy()
    parts = [from_tree(each, tensors) for each in inner]
    makers: dict[str, Callable[[], Any]] = {
        "tuple": lambda: tuple(parts),
        "range": lambda: range(*parts),
        "dict": lambda: dict(parts),
    }
    if name in makers:
        return makers[name]()
    kind = _class(name)
    return kind.model_validate(*parts) if issubclass(kind, BaseModel) else kind(*parts)


def _parts(value: Any) -> list[Any]:
    """What it is made of, in the order in which `from_tree` makes it of them."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(value)
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value) if field.init]
    if isinstance(value, BaseModel):
        return [value.model_dump(mode="json")]
    raise TypeError(f"{type(value).__qualname__} cannot be kept")


def _name(value: Any) -> str:
    kind = type(value)
    return "dict" if isinstance(value, Mapping) else f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> Any:
    """A dataclass, named tuple or section of fedsim: nothing else is ever called."""
    module, _, kind = name.partition(":")
    if module.partition(".")[0] != "fedsim":
        raise ValueError(f"{name} is not of fedsim")
    found = getattr(import_module(module), kind)
    known = is_dataclass, lambda kind: hasattr(kind, "_fields"), lambda kind: issubclass(kind, BaseModel)
    if not (isinstance(found, type) and any(is_one(found) for is_one in known)):
        raise ValueError(f"{name} holds no plain values")
    return found
