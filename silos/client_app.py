"""The other way into a silo: a ClientApp for Flower's own SuperNode, in place of `python -m silos.shim`.

It carries frames to the same daemon, which holds the records and its own counsel. What it costs is trust: a
SuperNode installs and runs the bundle that the server side sends, as the user that it runs as, so that a
server which lies can put other code in this one's place. That code cannot read the records or the ledger if
these belong to another user, but can do all else that this user can. And a round takes six seconds, most of
it waiting.

The node's configuration says where the daemon is:

    flower-supernode ... --node-config 'socket="/run/silo/silo.sock"'
    flower-supernode ... --node-config 'port=7000 token="/run/silo/token.txt"'
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Array, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsim.wire import carried
from fedsim.wire.dial import Caller, dialler
from silos.fleet import record_of

app = ClientApp()


@app.train("frame")
def answer(message: Message, context: Context) -> Message:
    """The daemon's reply; an error of a fixed text where there is none, whatever happened."""
    try:
        frame = _frame(message)
        if frame is None or len(frame) > carried.MAX_FRAME:
            return _refusal(carried.UNREADABLE, message)
        reply = _daemon(context).ask(frame)
        return Message(RecordDict({carried.RECORD: record_of(reply)}), reply_to=message)
    except Exception as error:  # an exception's text would travel to the server word for word
        print(f"no reply from the daemon: {type(error).__name__}")
        return _refusal(carried.AWAY, message)


def _frame(message: Message) -> bytes | None:
    try:
        found = message.content[carried.RECORD][carried.RECORD]
    except KeyError:
        return None
    frame = found.data if isinstance(found, Array) else found
    return frame if isinstance(frame, bytes) else None


def _daemon(context: Context) -> Caller:
    """As the node's configuration says."""
    config = context.node_config
    port, socket, token = config.get("port"), config.get("socket"), config.get("token")
    dial = dialler(
        None if socket is None else Path(str(socket)),
        port if isinstance(port, int) else None,
        None if token is None else Path(str(token)),
    )
    return Caller(dial, carried.MAX_FRAME)


def _refusal(code: int, message: Message) -> Message:
    return Message(Error(code, carried.REASONS[code]), reply_to=message)
