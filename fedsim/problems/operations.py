"""The operations that a graph of one record may hold: each makes its result of its arguments alone.

Under `vmap` such an operation treats every record by itself, whatever the values are. What is not here may
not: operations that draw, since how much they draw can depend on a record; backward passes and look-ups that
trust their indices, and so reach into the next record; those that give memory nothing was written to; and
whatever somebody else registers under torch's name. Operations are compared by identity, with those that
torch itself had when this module was imported.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor
from torch.fx import Node

_POINTWISE = """
bitwise_and bitwise_or bitwise_xor bitwise_not __and__ __or__ __xor__ abs neg sign sgn exp exp2 expm1 log
log1p log2 log10 sqrt rsqrt square pow reciprocal sin cos tan asin acos atan atan2 sinh cosh tanh asinh
acosh atanh sigmoid log_sigmoid erf erfc relu relu6 leaky_relu elu selu celu gelu silu mish softplus
hardtanh hardsigmoid hardswish hardshrink softshrink threshold prelu glu add sub rsub mul div true_divide
floor ceil round trunc frac maximum minimum fmax fmin clamp clamp_min clamp_max where eq ne lt le gt ge
logical_and logical_or logical_not logical_xor isnan isinf isfinite nan_to_num lerp addcmul addcdiv
"""
_REDUCING = """
sum mean amax amin max min prod any all argmax argmin var std var_mean logsumexp cumsum cumprod norm
linalg_vector_norm softmax _softmax log_softmax _log_softmax sort argsort topk layer_norm
native_layer_norm group_norm native_group_norm rms_norm
"""
_PRODUCTS = """
linear matmul mm bmm addmm baddbmm mv dot outer einsum bilinear conv1d conv2d conv3d convolution
conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d
avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
adaptive_max_pool2d scaled_dot_product_attention
"""
_SHAPES = """
view reshape _unsafe_view unflatten flatten squeeze unsqueeze expand permute transpose t movedim select
slice narrow split split_with_sizes chunk unbind diagonal alias clone contiguous detach lift_fresh_copy
cat stack repeat flip roll pad constant_pad_nd tril triu select_scatter slice_scatter copy to _to_copy
type_as index_select index gather zeros ones full zeros_like ones_like full_like new_zeros new_ones
new_full arange eye scalar_tensor dropout _assert_tensor_metadata
"""

_ALLOWED = frozenset(
    overload
    for name in " ".join((_POINTWISE, _REDUCING, _PRODUCTS, _SHAPES)).split()
    for packet in [getattr(torch.ops.aten, name)]
    for overload in (getattr(packet, each) for each in packet.overloads())
    if not overload._schema.is_mutable
)


def objection(node: Node) -> str | None:
    """Why a record must not be given to the operation of a graph's node; None if it may."""
    if node.op in ("placeholder", "output") or node.target is operator.getitem:
        return None
    if node.op != "call_function" or node.target not in _ALLOWED:
        return f"its operation {node.target} is not on the list of those that act on one record alone"
    name, arguments = node.target._schema.name, _arguments(node)  # type: ignore[union-attr]
    if name == "aten::dropout" and arguments["train"]:
        return "it draws random numbers"
    if name == "aten::scaled_dot_product_attention" and arguments["dropout_p"]:
        return "it draws random numbers"
    value = node.meta.get("val")
    if name == "aten::div" and not (isinstance(value, Tensor) and value.dtype.is_floating_point):
        return "it divides whole numbers, which for some ends the process"
    return None


def _arguments(node: Node) -> dict[str, object]:
    """By name, with defaults."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip([argument.name for argument in schema], node.args, strict=False))
    return {argument.name: argument.default_value for argument in schema} | given | dict(node.kwargs)


def embedding(weight: Tensor, indices: Tensor, *_: object) -> Tensor:
    """`aten.embedding`, which reaches into the next record if a look-up table is made of a record."""
    return weight.index_select(0, indices.reshape(-1)).reshape(*indices.shape, weight.shape[1])
