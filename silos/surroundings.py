"""Settings of torch under which a sum over records would not be what its guarantee states.

An author may have switched them on for another purpose. Autocast and reduced precision round a sum by more
than its bound allows for; under a transform of torch.func one ask would stand for many; anomaly detection
raises where one record's gradient is not finite.
"""

from __future__ import annotations

import torch

from fedsim.common.errors import Refused

_FULL_PRECISION = ("none", "ieee")


def check_surroundings(dtype: torch.dtype) -> None:
    """Refuse to compute in `dtype` under such a setting.

    Raises:
        Refused: names what is switched on.
    """
    if found := _switched_on(dtype):
        raise Refused(f"torch has {found} switched on, which would change what is computed from records")


def _switched_on(dtype: torch.dtype) -> str:
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func"
    if torch.is_inference_mode_enabled():
        return "inference mode"
    if torch.is_anomaly_enabled():
        return "anomaly detection"
    if torch.is_autocast_enabled("cpu"):
        return "autocast"
    precision = torch._C._get_fp32_precision_getter("mkldnn", "matmul")
    if dtype is torch.float32 and precision not in _FULL_PRECISION:
        return "float32 products of less than float32's precision"
    return ""
