"""What a caller of `ask` may have switched on in torch that would reach what is computed from records.

Modes, hooks and transforms are the caller's code, run inside every tensor operation or handed its tensors:
records, before any noise. Reduced precision rounds a sum by more than its bound allows for. Such a request is
refused; to switch them off instead would change, behind its back, what the caller goes on with.
"""

from __future__ import annotations

import torch

from fedsim.common.errors import Refused

_FULL_PRECISION = ("none", "ieee")


def check_surroundings(dtype: torch.dtype) -> None:
    """Refuse to compute in `dtype` under a mode, hook, transform or precision of the caller's.

    Raises:
        Refused: names what is switched on.
    """
    found = _switched_on() or _imprecise(dtype)
    if found:
        raise Refused(f"torch has {found} switched on, which would reach what is computed from records")


def _switched_on() -> str:
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return "a mode (TorchFunctionMode, TorchDispatchMode, or a default device)"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "hooks on saved tensors"
    if torch.is_inference_mode_enabled():
        return "inference mode"
    return "autocast" if torch.is_autocast_enabled("cpu") else ""


def _imprecise(dtype: torch.dtype) -> str:
    """Products of float32 numbers in fewer bits: a sum's bound allows for float32's own rounding."""
    precision = torch._C._get_fp32_precision_getter("mkldnn", "matmul")
    if dtype is torch.float32 and precision not in _FULL_PRECISION:
        return "float32 products of less than float32's precision"
    return ""
