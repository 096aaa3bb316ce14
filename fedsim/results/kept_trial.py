"""A finished trial as one file: its tensors, and everything else as text; no code is in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedsim.common.errors import InputError
from fedsim.common.files import whole_file
from fedsim.results.outcome import Measurement, TrialResult

_TENSOR, _ARRAY = "tensor of this file", "array of this file"
_CONFIG = ConfigDict(arbitrary_types_allowed=True)


@dataclass(frozen=True)
class KeptTrial:
    """A trial that has ended, and what was measured on the way; whatever fields they have."""

    __pydantic_config__ = _CONFIG

    result: TrialResult
    measurements: list[Measurement]


def write_trial(trial: KeptTrial, path: Path) -> None:
    """Write a file that is whole or not there.

    Raises:
        OSError: it cannot be written.
    """
    tensors: dict[str, Tensor] = {"none": torch.zeros(0)}
    text = json.dumps(_taken(_adapter().dump_python(trial), tensors))
    with whole_file(path) as draft:
        draft.write_bytes(save(tensors, {"trial": text}))  # its own `save_file` raises no OSError


def read_trial(path: Path) -> KeptTrial:
    """Read it back.

    Raises:
        InputError: it is damaged, or of another version.
    """
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            text = file.metadata()["trial"]
        kept: KeptTrial = _adapter().validate_python(_put_back(json.loads(text), tensors))
    except (OSError, SafetensorError, ValidationError, ValueError, KeyError, TypeError):
        expected = "is damaged or of another version; remove it, and the trial is run again"
        raise InputError("--resume", str(path), expected) from None
    return kept


def _adapter() -> TypeAdapter[KeptTrial]:
    return TypeAdapter(KeptTrial)


def _taken(value: Any, tensors: dict[str, Tensor]) -> Any:
    """As JSON holds it; tensors go into `tensors`."""
    if isinstance(value, Tensor | np.ndarray):
        name = str(len(tensors))
        tensors[name] = torch.as_tensor(value).contiguous()
        return {_TENSOR if isinstance(value, Tensor) else _ARRAY: name}
    if isinstance(value, Mapping):
        return {key: _taken(each, tensors) for key, each in value.items()}
    if isinstance(value, list | tuple | range):
        return [_taken(each, tensors) for each in value]
    return value


def _put_back(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_TENSOR}:
            return tensors[value[_TENSOR]]
        if set(value) == {_ARRAY}:
            return tensors[value[_ARRAY]].numpy()
        return {key: _put_back(each, tensors) for key, each in value.items()}
    return [_put_back(each, tensors) for each in value] if isinstance(value, list) else value
