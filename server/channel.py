"""What carries frames between the server and silos: sockets, Flower, or a test's dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Channel(Protocol):
    """A way to silos, by name. Nothing rests on it: replies are signed, and every frame may be sent twice."""

    def exchange(self, frames: Mapping[str, bytes], deadline: float) -> Mapping[str, bytes]:
        """Send each silo its frame, all at once, and wait for the replies.

        Args:
            frames: by name of the silo (`fedsim.wire.frames`).
            deadline: seconds from now after which replies count as not given. A silo that cannot be reached
                is tried again until then, since its process may be being restarted.

        Returns:
            The replies of those that answered in time, by name; they may be any bytes.
        """
        ...
