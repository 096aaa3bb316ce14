"""A finished trial as one file: its tensors, and everything else as text; no code is in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedsim.common.errors import InputError
from fedsim.common.files import whole_file
from fedsim.results.outcome import Measurement, TrialResult
from fedsim.results.plain_tree import Tensors, from_tree, to_tree

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
        expected = "is damaged or of another version; remove it, and the trial is run again"
        raise InputError("--resume", str(path), expected) from None
    return kept
