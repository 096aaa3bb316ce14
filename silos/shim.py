"""A silo's Flower side: one resident process that carries frames between a SuperLink and the silo's daemon.

It takes the place of Flower's own SuperNode, SuperExec and ClientApp processes, which fetch and run whatever
bundle of code the server side ships. This one speaks the Fleet API (TLS, the node's key, heartbeats), never asks
for a bundle, reads nothing of a message but the bytes of one array, and hands these to the daemon's local socket.
It holds no records, and a frame that it changed would not carry the silo's signature.

It uses internals of flwr, of version `FLWR_VERSION` and no other.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedsim.protocol import carried
from silos.caller import Caller, DaemonAway
from silos.node_file import NodeFile

FLWR_VERSION = "1.41.0"
MAX_RESPONSE = 32 * 2**20
"""Bytes of one answer of the SuperLink at most; a frame comes in pieces of 5 MiB."""
MAX_OBJECTS = 16 + carried.MAX_FRAME // (4 * 2**20)
_BUSY, _IDLE = 0.1, 1.0  # seconds between two looks for a message: after one, and after a long time without
_FIRST_WAIT, _LAST_WAIT = 0.5, 15.0
_BEAT = HEARTBEAT_DEFAULT_INTERVAL * 0.6
_PULL_SECONDS = 180.0  # the SuperLink forgets an upload that stands still for longer
_log = logging.getLogger("fedsim.node")

T = TypeVar("T")


class Unwelcome(Exception):
    """The SuperLink does not know this node now, or takes it for online elsewhere."""


class Unreadable(Exception):
    """A message that is no frame."""


@dataclass(frozen=True)
class Way:
    """How a node reaches its SuperLink.

    Args:
        superlink: HOST:PORT.
        root_certificates: PEM of the authority that signed the SuperLink's certificate.
        key: the node's, on a NIST curve; the SuperLink has its public half.
    """

    superlink: str
    root_certificates: str
    key: EllipticCurvePrivateKey


def serve(way: Way, daemon: Caller, memory: NodeFile) -> None:
    """Carry frames until interrupted (SystemExit, KeyboardInterrupt); then the node is deactivated."""
    with _client(way) as client:
        while True:
            with _active(client, way, memory) as node:
                _carry(client, node, daemon)


def _client(way: Way) -> FleetHttpClient:
    verify = ssl.create_default_context(cadata=way.root_certificates)
    sign = NodeAuthHttpInterceptor(way.key, way.key.public_key())
    version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
    client = FleetHttpClient(f"https://{way.superlink}", interceptors=[version, sign], verify=verify)
    client._client.headers["accept-encoding"] = "identity"
    client._client.event_hooks["response"] = [_check_size]
    return client


def _check_size(response: httpx.Response) -> None:
    """Before the body is read; a connection gives no more than the length it announced."""
    length = response.headers.get("content-length", "")
    if "content-encoding" in response.headers or not length.isdecimal() or int(length) > MAX_RESPONSE:
        response.close()
        raise Unreadable("an answer without a length, compressed, or too long")


def _patiently(call: Callable[[Any], T], request: object) -> T:
    """The SuperLink's answer, however long it is away.

    Raises:
        Unwelcome: it does not take this node's key or number.
        httpx.HTTPStatusError: it says no.
    """
    wait = _FIRST_WAIT
    while True:
        try:
            return call(request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in (401, 412):
                raise Unwelcome(f"{error.response.status_code} {error.response.text[:200]}") from error
            if error.response.status_code not in (502, 503, 504):
                raise
            _log.warning("the SuperLink answers %d; trying again", error.response.status_code)
        except httpx.TransportError as error:
            _log.warning("no SuperLink (%s); trying again in %.1f s", error, wait)
        time.sleep(wait)
        wait = min(2 * wait, _LAST_WAIT)


@contextmanager
def _active(client: FleetHttpClient, way: Way, memory: NodeFile) -> Iterator[Node]:
    """This node online, with heartbeats, until the block ends."""
    node = _activate(client, way, memory)
    end = threading.Event()
    beats = threading.Thread(target=_beat, args=(client, node, end), daemon=True)
    beats.start()
    try:
        yield node
    finally:
        end.set()
        _deactivate(client, node.node_id)


def _activate(client: FleetHttpClient, way: Way, memory: NodeFile) -> Node:
    public = public_key_to_bytes(way.key.public_key())
    request = ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
    wait = _FIRST_WAIT
    while True:
        if (earlier := memory.read()) is not None:
            _deactivate(client, earlier)  # ours, and dead: this process holds its file
        try:
            node = Node(node_id=_patiently(client.ActivateNode, request).node_id)
            memory.write(node.node_id)
            _log.info("node %d is online at %s", node.node_id, way.superlink)
            return node
        except Unwelcome as error:
            _log.warning("not let in: its key is not registered, or still online (%s)", error)
        time.sleep(wait)
        wait = min(2 * wait, _LAST_WAIT)


def _deactivate(client: FleetHttpClient, node: int) -> None:
    try:
        client.DeactivateNode(DeactivateNodeRequest(node_id=node))
    except (httpx.HTTPError, Unreadable) as error:
        _log.debug("not deactivated: %s", error)


def _beat(client: FleetHttpClient, node: Node, end: threading.Event) -> None:
    request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
    while not end.wait(_BEAT):
        try:
            client.SendNodeHeartbeat(request)
        except (httpx.HTTPError, Unreadable) as error:  # looking for messages will say the same, and wait
            _log.debug("no heartbeat: %s", error)


def _carry(client: FleetHttpClient, node: Node, daemon: Caller) -> None:
    """Messages in, replies out, until the SuperLink no longer knows the node."""
    idle = _BUSY
    while True:
        try:
            response = _patiently(client.PullMessages, PullMessagesRequest(node=node))
            for proto, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                _answer(_Post(client, node, proto.metadata.run_id), message_from_proto(proto), tree, daemon)
                idle = _BUSY
        except Unwelcome as error:
            _log.warning("the SuperLink does not know this node any more (%s)", error)
            return
        except Exception as error:  # whatever a server says, this process stays
            _log.warning("a message was dropped: %s: %s", type(error).__name__, error)
        time.sleep(idle)
        idle = min(1.1 * idle, _IDLE)


def _answer(post: _Post, message: Message, tree: ObjectTree, daemon: Caller) -> None:
    begin = time.monotonic()
    try:
        if message.metadata.message_type != carried.MESSAGE_TYPE:
            raise Unreadable(f"a message of type {message.metadata.message_type}")
        reply = packed(daemon.ask(frame_of(post.fetch(tree))))
    except DaemonAway as error:
        _log.warning("the daemon is away: %s", error)
        reply = _error(carried.AWAY)
    except Unreadable as error:
        _log.warning("not a frame: %s", error)
        reply = _error(carried.UNREADABLE)
    post.send(Message(reply, reply_to=message), time.monotonic() - begin)


def packed(frame: bytes) -> RecordDict:
    """A frame as the content of a message."""
    array = Array("uint8", (len(frame),), carried.STYPE, frame)
    return RecordDict({carried.RECORD: ArrayRecord({carried.RECORD: array})})


def _error(code: int) -> Error:
    return Error(code, carried.REASONS[code])


def frame_of(objects: dict[str, bytes]) -> bytes:
    """The bytes of the one array among a message's objects; nothing else of them is read.

    Raises:
        Unreadable: there is not exactly one, or it is too long.
    """
    try:
        kinds = {i: get_object_head_values_from_object_content(data) for i, data in objects.items()}
        (array,) = (i for i, (kind, _, _) in kinds.items() if kind == Array.__qualname__)
        ids = kinds[array][1]
        pieces = {i: get_object_body(objects[i], ArrayChunk) for i in ids}
        order = json.loads(get_object_body(objects[array], Array))["arraychunk_ids"]
        parts = [pieces[ids[index]] for index in order]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Unreadable(f"{type(error).__name__}") from error
    if sum(map(len, parts)) > carried.MAX_FRAME:  # one piece may be named many times
        raise Unreadable("too long")
    return b"".join(parts)


class _Post:
    """One run's objects, to and fro."""

    def __init__(self, client: FleetHttpClient, node: Node, run: int) -> None:
        self._client, self._node, self._run = client, node, run

    def fetch(self, tree: ObjectTree) -> dict[str, bytes]:
        """A message's objects, {id: content}; the SuperLink forgets them."""
        ids = []
        for part in iterate_object_tree(tree):
            ids.append(part.object_id)
            if len(ids) > MAX_OBJECTS:
                raise Unreadable("too many objects")
        objects, size = {}, 0
        for i in dict.fromkeys(ids):
            objects[i] = self._pull(i)
            size += len(objects[i])
            if size > carried.MAX_FRAME + 2**20:
                raise Unreadable("too long")
        confirm = ConfirmMessageReceivedRequest(
            node=self._node, run_id=self._run, message_object_id=tree.object_id
        )
        _patiently(self._client.ConfirmMessageReceived, confirm)
        return objects

    def _pull(self, object_id: str) -> bytes:
        """One object; it may still be on its way up."""
        request = PullObjectRequest(node=self._node, run_id=self._run, object_id=object_id)
        deadline, wait = time.monotonic() + _PULL_SECONDS, 0.02
        while time.monotonic() < deadline:
            response = _patiently(self._client.PullObject, request)
            if not response.object_found:
                break
            if response.object_available:
                content: bytes = response.object_content
                return content
            time.sleep(wait)
            wait = min(2 * wait, 0.5)
        raise Unreadable("an object is missing")

    def send(self, reply: Message, seconds: float) -> None:
        """A reply; one that the SuperLink no longer wants is dropped."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            response = _patiently(
                self._client.PushMessages,
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[seconds],
                ),
            )
            objects = get_all_nested_objects(reply)
            for i in response.objects_to_push:
                request = PushObjectRequest(
                    node=self._node,
                    run_id=self._run,
                    session_id=response.session_id,
                    object_id=i,
                    object_content=objects[i].deflate(),
                )
                if not _patiently(self._client.PushObject, request).stored:
                    raise Unreadable("the SuperLink took the reply no more")
