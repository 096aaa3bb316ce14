"""What a shuffler has been sent of a round, kept on the disk until the next one.

A shuffler answers one request a round, and the very same one again. So a server that was killed between its
request and the answer must be able to send it again byte for byte: silos' reports, and in their order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedsim.common.errors import InputError, Refused
from fedsim.common.files import whole_file
from fedsim.secagg.shuffling import Request


class Asked(NamedTuple):
    """A round's request.

    Args:
        broadcast: SHA-256 of what silos were asked, as hexadecimal.
        request: with their reports.
        members: positions of the silos whose reports are in it, in the same order.
        left_out: the others that were asked, each with the reason.
    """

    broadcast: str
    request: Request
    members: Sequence[int]
    left_out: Mapping[int, str]


@dataclass(frozen=True)
class AskedFile:
    """Holds the newest request of a run."""

    path: Path

    def keep(self, asked: Asked) -> None:
        """Write it for good, in the place of the one before.

        Raises:
            InputError: it cannot be written.
        """
        head = {
            "broadcast": asked.broadcast,
            "members": list(asked.members),
            "left_out": {str(member): reason for member, reason in asked.left_out.items()},
        }
        try:
            with whole_file(self.path) as draft:
                draft.write_bytes(json.dumps(head).encode() + b"\n" + asked.request.body())
        except OSError as error:
            raise InputError("checkpoint", str(self.path), f"cannot be written ({error.strerror})") from None

    def find(self, run: str, round_index: int, broadcast: str) -> Asked | None:
        """The request of this round, if it is the one that is kept.

        Raises:
            InputError: what is there is damaged.
        """
        if not self.path.exists():
            return None
        try:
            line, _, body = self.path.read_bytes().partition(b"\n")
            head, request = json.loads(line), Request.read(body)
            left_out = {int(member): str(reason) for member, reason in head["left_out"].items()}
            found = Asked(head["broadcast"], request, list(head["members"]), left_out)
        except (OSError, ValueError, LookupError, TypeError, Refused):
            raise InputError("checkpoint", str(self.path), "is damaged, or of another version") from None
        is_it = request.occasion.run, request.occasion.round, found.broadcast
        return found if is_it == (run, round_index, broadcast) else None

    def remove(self) -> None:
        """Forget it."""
        self.path.unlink(missing_ok=True)
