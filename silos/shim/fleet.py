"""The Fleet API of a SuperLink, as far as a node needs it to carry frames.

It uses internals of flwr, of version `FLWR_VERSION` and no other: the messages' protobuf, the client that
signs requests with the node's key, and how a message is cut into objects. What it leaves out is the point: it
never asks for a bundle of code, and of what it receives it reads the bytes of one array and nothing else.
"""

from __future__ import annotations

import json
import logging
import math
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Array, ConfigRecord, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL as INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable import inflatable_object as inflatable
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedsim.wire import flower as carried

FLWR_VERSION = "1.41.0"
BEAT = INTERVAL * 0.6
"""Seconds between two heartbeats; a SuperLink waits for two times `INTERVAL`."""
MAX_RESPONSE = 32 * 2**20  # bytes of one answer of the SuperLink at most; a frame comes in pieces of 5 MiB
MAX_OBJECTS = 16 + carried.MAX_FRAME // (4 * 2**20)
FIRST_WAIT, LAST_WAIT = 0.5, 5.0  # seconds between two attempts
_SAY_AGAIN = 60.0  # seconds between two lines on what lasts
_UPLOAD = 180.0  # seconds after which the SuperLink forgets an upload that stands still
_log = logging.getLogger("fedsim.node")

T = TypeVar("T")


class Rejected(Exception):
    """The SuperLink does not take this key, or takes its node for online elsewhere."""


class Unreadable(Exception):
    """What came is not what was to come."""


@dataclass(frozen=True)
class Endpoint:
    """How a node reaches its SuperLink."""

    superlink: str  # HOST:PORT
    root_certificates: str  # PEM of the authority that signed the SuperLink's certificate
    key: EllipticCurvePrivateKey  # the node's, on a NIST curve; the SuperLink has its public half


def trust(root_certificates: str) -> ssl.SSLContext:
    """Certificates of this authority (PEM), for the host that is called, by their subjectAltName."""
    context = ssl.create_default_context(cadata=root_certificates)
    context.hostname_checks_common_name = False  # RFC 9525, 6.3: OpenSSL would take the common name instead
    return context


class Fleet:
    """One node's requests to its SuperLink; each waits as long as the SuperLink is away.

    From all but `deactivate` and `beat`: Rejected if the SuperLink does not take this node;
    httpx.HTTPStatusError if it says no; Unreadable if its answer is not one.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._public = public_key_to_bytes(endpoint.key.public_key())
        versions = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        signs = NodeAuthHttpInterceptor(endpoint.key, endpoint.key.public_key())
        self._client = FleetHttpClient(
            f"https://{endpoint.superlink}",
            interceptors=[versions, signs],
            verify=trust(endpoint.root_certificates),
        )
        self._client._client.headers["accept-encoding"] = "identity"
        self._client._client.event_hooks["response"] = [_check_size]

    def activate(self) -> int:
        """Come online; the node's number."""
        request = fleet_pb2.ActivateNodeRequest(public_key=self._public, heartbeat_interval=INTERVAL)
        return int(retried(self._client.ActivateNode, request).node_id)

    def deactivate(self, node: int) -> None:
        """Go offline, if the SuperLink hears it."""
        _once(self._client.DeactivateNode, fleet_pb2.DeactivateNodeRequest(node_id=node))

    def beat(self, node: int) -> None:
        """Say that the node is alive, if the SuperLink hears it."""
        request = SendNodeHeartbeatRequest(node=Node(node_id=node), heartbeat_interval=INTERVAL)
        _once(self._client.SendNodeHeartbeat, request)

    def deliveries(self, node: int) -> list[Delivery]:
        """The messages that are there for the node; each is handed out once."""
        at = Node(node_id=node)
        response = retried(self._client.PullMessages, fleet_pb2.PullMessagesRequest(node=at))
        pairs = zip(response.messages_list, response.message_object_trees, strict=True)
        return [Delivery(self._client, at, message_from_proto(proto), tree) for proto, tree in pairs]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


def _check_size(response: httpx.Response) -> None:
    """Before the body is read; a connection gives no more than the length it announced."""
    length = response.headers.get("content-length", "")
    if "content-encoding" in response.headers or not length.isdecimal() or int(length) > MAX_RESPONSE:
        response.close()
        raise Unreadable("an answer of no length, compressed, or too long")


class Waiting:
    """Waits between attempts, and says why: at once, and then once a minute."""

    def __init__(self) -> None:
        self._wait, self._told = FIRST_WAIT, -math.inf

    def wait(self, why: str) -> None:
        """Until the next attempt."""
        if (now := time.monotonic()) >= self._told + _SAY_AGAIN:
            _log.warning("%s; trying again", why)
            self._told = now
        time.sleep(self._wait)
        self._wait = min(2 * self._wait, LAST_WAIT)


def retried(call: Callable[[Any], T], request: object) -> T:
    """The answer, however long the SuperLink is away; errors as of `Fleet`."""
    waiting = Waiting()
    while True:
        try:
            return call(request)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status in (401, 412):
                raise Rejected(f"status {status}") from error
            if status not in (502, 503, 504):
                raise
            why = f"the SuperLink answers {status}"
        except httpx.TransportError as error:
            why = f"no SuperLink ({error})"
        waiting.wait(why)


def _once(call: Callable[[Any], object], request: object) -> None:
    try:
        call(request)
    except (httpx.HTTPError, Unreadable) as error:
        _log.debug("not heard: %s", error)


class Delivery:
    """One message to the node: a frame to fetch, and a reply to give."""

    def __init__(
        self, client: FleetHttpClient, node: Node, message: Message, tree: message_pb2.ObjectTree
    ) -> None:
        self._client, self._node, self._message, self._tree = client, node, message, tree
        self._run, self._begin = message.metadata.run_id, time.monotonic()

    def frame(self) -> bytes:
        """The frame's bytes; the SuperLink forgets them. Unreadable if the message is of another type, or
        carries no frame.
        """
        if self._message.metadata.message_type != carried.MESSAGE_TYPE:
            raise Unreadable(f"a message of type {self._message.metadata.message_type!r:.40}")
        objects = self._objects()
        confirm = message_pb2.ConfirmMessageReceivedRequest(
            node=self._node, run_id=self._run, message_object_id=self._tree.object_id
        )
        retried(self._client.ConfirmMessageReceived, confirm)
        return frame_of(objects)

    def answer(self, frame: bytes) -> None:
        """Reply with a frame; one that the SuperLink no longer wants is dropped."""
        self._send(Message(RecordDict({carried.RECORD: carried.record_of(frame)}), reply_to=self._message))

    def refuse(self, code: int) -> None:
        """Reply with an error of a fixed text."""
        self._send(Message(Error(code, carried.REASONS[code]), reply_to=self._message))

    def _objects(self) -> dict[str, bytes]:
        """What the message is made of, {id: content}."""
        objects: dict[str, bytes] = {}
        size = 0
        for part in inflatable.iterate_object_tree(self._tree):
            if part.object_id not in objects:
                objects[part.object_id] = self._pull(part.object_id)
                size += len(objects[part.object_id])
            if len(objects) > MAX_OBJECTS or size > carried.MAX_FRAME + MAX_RESPONSE:
                raise Unreadable("too long a message")
        return objects

    def _pull(self, object_id: str) -> bytes:
        """One object; it may still be on its way up."""
        request = message_pb2.PullObjectRequest(node=self._node, run_id=self._run, object_id=object_id)
        deadline, wait = time.monotonic() + _UPLOAD, 0.02
        while time.monotonic() < deadline:
            response = retried(self._client.PullObject, request)
            if not response.object_found:
                break
            if response.object_available:
                return bytes(response.object_content)
            time.sleep(wait)
            wait = min(2 * wait, 0.5)
        raise Unreadable("an object is missing")

    def _send(self, reply: Message) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with inflatable.no_object_id_recompute():
            head = fleet_pb2.PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[inflatable.get_object_tree(reply)],
                clientapp_runtime_list=[time.monotonic() - self._begin],
            )
            response = retried(self._client.PushMessages, head)
            objects = inflatable.get_all_nested_objects(reply)
            for i in response.objects_to_push:
                self._push(response.session_id, i, objects[i].deflate())

    def _push(self, session: str, object_id: str, content: bytes) -> None:
        request = message_pb2.PushObjectRequest(
            node=self._node, run_id=self._run, session_id=session, object_id=object_id, object_content=content
        )
        if not retried(self._client.PushObject, request).stored:
            raise Unreadable("the SuperLink takes this reply no more")


def frame_of(objects: dict[str, bytes]) -> bytes:
    """The bytes of the one array among a message's objects. Unreadable if there is not exactly one, or it is
    too long.
    """
    try:
        heads = {i: inflatable.get_object_head_values_from_object_content(o) for i, o in objects.items()}
        (array,) = (i for i, (kind, _, _) in heads.items() if kind in ("Array", "ConfigRecord"))
        if heads[array][0] == "ConfigRecord":
            frame = ConfigRecord.inflate(objects[array])[carried.RECORD]
            if not isinstance(frame, bytes):
                raise TypeError
            return frame
        ids = heads[array][1]
        pieces = {i: inflatable.get_object_body(objects[i], ArrayChunk) for i in set(ids)}
        order = json.loads(inflatable.get_object_body(objects[array], Array))["arraychunk_ids"]
        parts = [pieces[ids[index]] for index in order]
    except Exception as error:  # others' parsers, on whatever a server sends
        raise Unreadable(f"no frame ({type(error).__name__})") from error
    if sum(map(len, parts)) > carried.MAX_FRAME:  # one piece may be named many times
        raise Unreadable("too long a frame")
    return b"".join(parts)
