"""Frames between a process and its plug-in child, over two pipes: queries, traces and errors.

The parent builds queries and plans anew, by the contract's own types: it trusts nothing that a child sends.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from fedsim.common.errors import InputError, PluginError, Refused
from fedsim.protocol.contract import Public, Query
from fedsim.protocol.copies import copied_queries
from fedsim.protocol.dryrun import Trace
from fedsim.protocol.plan import Arrays as Sent
from fedsim.protocol.plan import Ask, Plan
from fedsim.protocol.unit import Unit, stated
from fedsim.wire.frames import Frame, announced, awaited, decode, encode, framed

Arrays = dict[str, Tensor]
_ASK: TypeAdapter[Ask] = TypeAdapter(Ask)
Kind = tuple[tuple[Ask, ...], bool, Sent, Sent]  # a round's asks, hold, broadcast, message
_KINDS: TypeAdapter[list[Kind]] = TypeAdapter(list[Kind])
_UNIT: TypeAdapter[Unit] = TypeAdapter(Unit)
_LONGEST = 2_000  # characters of an error's text
_AT_ONCE = 1 << 16  # bytes, as many as a pipe holds


def prefixed(prefix: str, arrays: Mapping[str, Tensor]) -> Arrays:
    """Arrays of one kind among others in a frame: each name with a prefix."""
    return {prefix + name: value for name, value in arrays.items()}


def without(prefix: str, arrays: Mapping[str, Tensor]) -> Arrays:
    """The arrays of a frame whose names have the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def queries_out(queries: tuple[Query, ...]) -> tuple[dict[str, Any], Arrays]:
    """The queries of one ask, head and arrays of a frame; Refused as `copied_queries`."""
    ask, copies = copied_queries(queries)
    parts: dict[str, object] = {}
    for q, query in enumerate(copies):
        parts |= {f"{q}.{p}": point for p, point in enumerate(query.points)}
        parts |= {f"{q}.clip": query.clip, f"{q}.transform": query.transform}
    clips = [None if isinstance(query.clip, Tensor) else query.clip for query in copies]
    arrays = {name: value for name, value in parts.items() if isinstance(value, Tensor)}
    return {"ask": _ASK.dump_python(ask), "clips": clips}, arrays


def queries_in(head: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> tuple[Query, ...]:
    """The queries of a frame; Refused if it has none."""
    try:
        ask = _ASK.validate_python(head["ask"])
        return tuple(
            Query(
                shape.statistic,
                tuple(arrays[f"{q}.{p}"] for p in range(shape.points)),
                arrays[f"{q}.clip"] if clip is None else float(clip),
                ask.batch,
                shape.noise_ratio,
                shape.options,
                arrays[f"{q}.transform"] if shape.transform else None,
            )
            for q, (shape, clip) in enumerate(zip(ask.queries, head["clips"], strict=True))
        )
    except (LookupError, TypeError, ValueError):  # a ValidationError is a ValueError
        raise Refused("the plug-in's process sends queries that are malformed") from None


def trace_out(trace: Trace) -> tuple[dict[str, Any], Arrays]:
    """A dry run's result: its different rounds, and the order in which they come."""
    kinds: dict[Any, int] = {}
    rounds = zip(trace.plan.rounds, trace.holds, trace.broadcasts, trace.messages, strict=True)
    order = [kinds.setdefault(each, len(kinds)) for each in rounds]
    numbers = {"order": torch.tensor(order, dtype=torch.float64)}
    return {"kinds": _KINDS.dump_python(list(kinds)), "remembers": trace.remembers}, numbers


def trace_in(head: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> Trace:
    """A frame's result, Refused if it has none; limits and accountant say if its plan can be afforded."""
    try:
        kinds = _KINDS.validate_python(head["kinds"])
        asks, holds, sent, told = zip(*(kinds[int(i)] for i in arrays["order"].tolist()), strict=True)
        return Trace(Plan(asks), holds, sent, told, bool(head["remembers"]))
    except (LookupError, TypeError, ValueError, OverflowError):
        raise Refused("the plug-in's process sends a plan that is malformed") from None


def public_out(public: Public) -> tuple[dict[str, Any], Arrays]:
    """The federation's public numbers."""
    numbers = {"sizes": public.sizes.double(), "weights": public.weights, "noise": public.noise_multipliers}
    return {"names": list(public.names), "summed": public.summed, "unit": stated(public.unit)}, numbers


def public_in(head: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> Public:
    """The public numbers of a frame."""
    numbers = arrays["sizes"].long(), arrays["weights"], arrays["noise"]
    return Public(tuple(head["names"]), *numbers, bool(head["summed"]), _UNIT.validate_python(head["unit"]))


def constants_out(tree: dict[str, Any], arrays: Mapping[str, Tensor]) -> tuple[dict[str, Any], Arrays]:
    """A problem as floating-point numbers, as frames have them; InputError if a whole one is too large."""
    for value in arrays.values():
        whole = not value.is_floating_point() and value.dtype != torch.bool and value.numel() > 0
        if whole and int(value.abs().max()) > 2**53:
            raise InputError("scenario.problem", "a constant", "whole numbers up to 2^53")
    types = {name: str(value.dtype).removeprefix("torch.") for name, value in arrays.items()}
    floats = {name: v if v.is_floating_point() else v.double() for name, v in arrays.items()}
    return {"tree": tree, "types": types}, floats


def constants_in(head: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> Arrays:
    """The constants of a problem, in their types; Refused if they are none."""
    types = {"float64": torch.float64, "float32": torch.float32, "int64": torch.int64, "bool": torch.bool}
    try:
        return {name: value.to(types[head["types"][name]]) for name, value in arrays.items()}
    except (LookupError, TypeError):
        raise Refused("the plug-in's process sends a problem that is malformed") from None


def error_out(error: BaseException) -> dict[str, Any]:
    """An error as a frame's head."""
    if isinstance(error, InputError):
        return {"field": error.field, "value": repr(error.value), "hint": error.hint}
    kind = "refused" if isinstance(error, Refused) else "raised"
    return {kind: str(error) or type(error).__name__}


def error_in(head: Mapping[str, Any]) -> Exception:
    """The error of a frame: an `InputError`, `Refused` or `PluginError`."""
    texts = {key: str(value)[:_LONGEST] for key, value in head.items()}
    if {"field", "value", "hint"} <= set(texts):
        return InputError(texts["field"], texts["value"], texts["hint"])
    return Refused(texts["refused"]) if "refused" in texts else PluginError(texts.get("raised", "raised"))


class Pipes:
    """One end of the connection between a process and its child."""

    def __init__(self, read: int, write: int, patient: bool = False) -> None:
        """Descriptors to read from and to write to; `patient`: without deadlines, as in a child."""
        self._read, self._write, self._patient = read, write, patient
        self._kept = b""  # read already
        if not patient:  # a confined child may not change them
            os.set_blocking(read, False)
            os.set_blocking(write, False)

    def send(self, frame: Frame, until: float | None = None) -> None:
        """Write a frame, until a time of `time.monotonic`: TimeoutError; OSError if the other end is gone."""
        rest = memoryview(framed(encode(frame)))
        while rest:
            try:
                rest = rest[os.write(self._write, rest) :]
            except BlockingIOError:
                _wait(self._write, select.POLLOUT, until)

    def receive(self, limit: int, until: float | None = None) -> Frame:
        """Read the next frame. Refused if it is malformed, or longer than `limit` bytes; TimeoutError if it
        does not come in time; EOFError or ConnectionError if the other end is gone.
        """
        read = partial(self._some, until)
        length = announced(read, limit)
        if length is None:
            raise EOFError
        return decode(awaited(read, length))

    def _some(self, until: float | None, most: int) -> bytes:
        """Up to `most` bytes; a small frame takes one system call."""
        if not self._kept:
            if not self._patient:
                _wait(self._read, select.POLLIN, until)
            self._kept = os.read(self._read, max(most, _AT_ONCE))
        part, self._kept = self._kept[:most], self._kept[most:]
        return part


def _wait(descriptor: int, event: int, until: float | None) -> None:
    poll = select.poll()  # `select.select` knows descriptors below 1,024 alone
    poll.register(descriptor, event)
    if not poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1e3):
        raise TimeoutError
