"""A server of one silo that keeps every byte it is sent, and asks again when the silo was killed."""

from __future__ import annotations

import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from support.daemons import CLASSES, FEATURES, PATIENCE
from torch import Tensor

from fedsim.common.identity import is_signed, public_key
from fedsim.wire.dial import dial
from fedsim.wire.frames import Frame, decode, opened, sealed
from fedsim.wire.messages import Ask, Close, Closed, Hello, Offer, Refusal, Shape

NO_ARRAYS: Mapping[str, Tensor] = MappingProxyType({})
_LENGTH = struct.Struct(">Q")


def offer(silo: str = "silo-1", session: int = 1, **changes: Any) -> Offer:
    """A run of noisy minibatch SGD on all records; `num_rounds`, `n` and `features` are the plan's."""
    rounds, n, features = (
        changes.pop(k, v) for k, v in {"num_rounds": 3, "n": 40, "features": FEATURES}.items()
    )
    algorithm = {"name": "noisy_minibatch_sgd", "num_rounds": rounds, "step_size": 0.1, "clip_norm": 1.0}
    return Offer(
        **{
            "session": f"{session:064x}",
            "silo": silo,
            "algorithm": algorithm,
            "problem": {"name": "logistic_regression"},
            "shape": Shape(sizes={silo: n}, num_features=features + 1, num_classes=CLASSES),
            "weights": (1.0,),
            "dtype": "float64",
            "seed": 0,
            "rounds": None,
            "epsilon": 2.0,
            "delta": 1e-6,
            "head": "",
            **changes,
        }
    )


def frame(message: Any, arrays: Mapping[str, Tensor] = NO_ARRAYS) -> bytes:
    return sealed(message.body(arrays))


def broadcast(round_index: int, features: int = FEATURES, value: float | None = None) -> dict[str, Tensor]:
    """A round's model; any will do."""
    return {
        "w": torch.full((features + 1,), 0.1 * round_index if value is None else value, dtype=torch.float64)
    }


class OneServer:
    """Speaks to one daemon's socket; `received` is its transcript, cut-off answers included.

    Args:
        path: of the socket.
        identity: the silo's public key; every whole answer must be signed by it.
        restart: called when the daemon died; brings it back.
    """

    def __init__(self, path: Path, identity: bytes, restart: Callable[[], None] | None = None) -> None:
        self._path, self._key, self._restart = path, public_key(identity.hex()), restart
        self._connection: socket.socket | None = None
        self.received: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.run, self.head = "", ""

    def __enter__(self) -> OneServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_connection()

    def hello(self) -> Frame:
        return self.said(frame(Hello(head=self.head)))

    def offer(self, given: Offer) -> Frame:
        answer = self.said(frame(given.model_copy(update={"head": self.head})))
        self.run = answer.head.get("run", self.run)
        return answer

    def ask(self, round_index: int, value: float | None = None, run: str | None = None) -> Frame:
        run = run or self.run
        asked = Ask(run=run, round=round_index, head=self.head)
        return self.said(frame(asked, broadcast(round_index, value=value)), (run, round_index))

    def close(self) -> Closed:
        return Closed.model_validate(self.said(frame(Close(run=self.run, head=self.head))).head)

    def said(self, request: bytes, asked: tuple[str, int] = ("", -1)) -> Frame:
        """The signed answer; what came of an answer is kept even where it was cut off."""
        while True:
            data = self.exchange(request)
            body = data[_LENGTH.size :]
            kept = self.received[asked]
            if len(data) < _LENGTH.size or len(body) < _LENGTH.unpack_from(data)[0]:
                kept.append(body)
                assert self._restart is not None, "the daemon hung up"
                self.close_connection()
                self._restart()
                continue
            inner, signature = opened(body)
            assert is_signed(self._key, inner, signature)
            answer = decode(inner)
            if answer.kind != Refusal.kind:
                kept.append(body)
                self.head = answer.head["head"]
            return answer

    def exchange(self, request: bytes) -> bytes:
        """What the daemon sends back: a length and an answer, or what came of them before it died."""
        data = b""
        try:
            if self._connection is None:
                self._connection = dial(self._path, PATIENCE)
            self._connection.sendall(_LENGTH.pack(len(request)) + request)
            while len(data) < _LENGTH.size or len(data) < _LENGTH.size + _LENGTH.unpack_from(data)[0]:
                part = self._connection.recv(1 << 20)
                if not part:
                    return data
                data += part
        except (ConnectionError, FileNotFoundError):
            pass
        return data

    def close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def check_transcript(
    received: Mapping[tuple[str, int], list[bytes]], debited: Mapping[str, list[int]]
) -> None:
    """Nothing left without a debit, and no round was answered with two different byte strings.

    Args:
        received: by run and round, all that came, in order; a cut-off answer begins the whole one.
        debited: rounds that the ledger has as paid for, by run.
    """
    for (run, round_index), answers in received.items():
        if round_index < 0 or not any(answers):
            continue
        assert round_index in debited[run], f"round {round_index} left and was not paid for"
        longest = max(answers, key=len)
        assert all(longest.startswith(each) for each in answers), f"round {round_index} was answered twice"
