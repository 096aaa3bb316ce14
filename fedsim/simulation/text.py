"""A value in full, as text: what makes two runs differ."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel

from fedsim.common.errors import InputError


def text_of(value: object) -> str:
    """A value in full: equal in every process for equal values, and for no others.

    Raises:
        InputError: it is or holds something of which that cannot be said.
    """
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    if isinstance(value, Enum | type | PurePath | torch.dtype | np.generic):
        return f"{_name(type(value))}({_simple(value)!r})"
    if isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and not value.dtype.hasobject):
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
        content = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
        return f"{_name(type(value))}({array.dtype.str!r}, {array.shape}, {content})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{text_of(k)}: {text_of(v)}' for k, v in value.items()))}}}"
    if isinstance(value, list | tuple | range):
        return f"[{', '.join(map(text_of, value))}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(text_of, value)))}}}"
    if isinstance(value, BaseModel) or is_dataclass(value):
        return described(value)
    kinds = "numbers, texts, lists, mappings, arrays or dataclasses of these, so that noise can be repeated"
    raise InputError(f"a number of a run ({_name(type(value))})", value, f"must be made of {kinds}")


def described(value: Any, without: Collection[str] = ()) -> str:
    """A dataclass or model: its class and all its fields, shown by `repr` or not."""
    names = type(value).model_fields if isinstance(value, BaseModel) else [f.name for f in fields(value)]
    held = {name: getattr(value, name) for name in names if name not in without}
    return f"{_name(type(value))}({text_of(held)})"


def _simple(value: object) -> object:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, type):
        return _name(value)
    return value.item() if isinstance(value, np.generic) else str(value)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
