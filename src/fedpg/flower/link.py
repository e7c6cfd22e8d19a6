"""Flower's SuperLink in this process: its Fleet API and nothing else, for registered sites only.

`flower-superlink` serves three APIs on one port: Fleet (nodes), Control (who may start runs and register nodes) and
Runtime (ServerApps). Without an account service, the last two take orders from whoever reaches the port. Here the
ServerApp is this process, so only the first is served. It runs Flower's own routes, authentication and state of nodes;
only messages, which Flower hands over in parts, go whole here.
"""

import asyncio
import contextlib
import logging
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, HTTPException, Request, Response
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID, TIMESTAMP_HEADER, Status
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesResponse
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    FLWR_IN_MEMORY_DB_NAME,
    NOOP_FEDERATION_ID,
    TaskType,
)
from flwr.supercore.error import FlowerError, http_error_translator
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router as fleet_router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from fedpg.flower.exchange import code_of
from fedpg.flower.warm import HEARTBEAT
from fedpg.sites.ledger import REMOVED, Ledger

HOLD = 5.0
"""Seconds that an idle site's request for work is held open, instead of the site asking again and again."""
OVERHEAD = 4096
"""Bytes of a request beyond the message that it carries: ids and names."""
REMEMBERED = 10_000
"""Messages of rounds that are over, by which a late reply is recognised."""

Next = Callable[[Request], Awaitable[Response]]


class Link:
    """A SuperLink whose only run is this process."""

    def __init__(self, keys: Sequence[bytes | None], largest: int, ledger: Ledger) -> None:
        """`keys` are the sites' public keys, by the rows of the run; `largest` the bytes of a message."""
        for name in ("flwr", "uvicorn.error"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters is in the ledger
        self.ledger = ledger
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        state = factory.state()
        assert isinstance(state, InMemoryLinkState)
        self.state = state
        self.agents: dict[int, int] = {}  # node -> the row of its site
        self.by_key: dict[bytes, int] = {}  # public key -> node
        self.later: set[bytes] = set()  # keys of sites that this run began without
        self.removed: set[int] = set()  # rows
        self.look: Callable[[], None] = lambda: None  # whether other keys are to be admitted by now
        self.received: dict[int, int] = {}  # node -> bytes of its requests
        self.sent: dict[int, int] = {}  # node -> bytes of the responses
        self.admit(keys)
        self.run_id = self._start_run()
        self.largest = largest + OVERHEAD
        self.open: dict[str, int] = {}  # message -> the node that is to reply
        self.outbox: dict[int, ProtoMessage] = {}  # node -> the message that waits for it
        self.replies: dict[str, ProtoMessage] = {}  # message -> its reply, as it came
        self.oversized: set[int] = set()  # nodes
        self.over: dict[str, tuple[int, bool]] = {}  # message -> its round, which is over, and whether it had a reply
        self._round, self._closing = 0, False
        self._work: dict[int, asyncio.Event] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.app = self._make_app(factory)

    def admit(self, keys: Sequence[bytes | None], later: Iterable[bytes] = ()) -> None:
        """Let in whoever has one of these keys, by the rows of the run, and nobody else from now on."""
        self.later = set(later)
        wanted = {key: row for row, key in enumerate(keys) if key is not None}
        for key, node in list(self.by_key.items()):
            if key not in wanted:
                del self.by_key[key]
                row = self.agents.pop(node)
                self.state.delete_node(NOOP_FLWR_AID, node)
                self.ledger.shut_out(row, removed=keys[row] is None)
        self.removed = {row for row, key in enumerate(keys) if key is None}
        for key, row in wanted.items():
            if key not in self.by_key:
                try:
                    node = self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)
                except ValueError:  # Flower does not take a key again that was shut out
                    self.ledger.note(row, "refused", "a key that was shut out: start the server again to let it in")
                    continue
                self.agents[node], self.by_key[key] = row, node
                self.received[node] = self.sent[node] = 0
        for row in self.removed:
            self.ledger.rows[row].state = REMOVED

    def _start_run(self) -> int:
        run_id = self.state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        # As if a ServerApp had claimed it; but this one needs no token, and cannot outlive its SuperLink.
        task_id = int(self.state.get_run_info(run_ids=[run_id])[0].primary_task_id or 0)
        self.state.task_store[task_id].status.status = Status.RUNNING
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run_id, task_id, SUPERLINK_NODE_ID
        return run_id

    def _make_app(self, factory: LinkStateFactory) -> FastAPI:
        app = FastAPI(
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
            middleware=[
                Middleware(Limit, link=self),
                Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
                Middleware(ProtobufTranslationMiddleware),
                Middleware(NodeAuthMiddleware),
                Middleware(BaseHTTPMiddleware, dispatch=self._at_the_door),
            ],
        )
        app.state.linkstate_factory = factory
        app.state.enable_supernode_auth = True  # only keys that were registered here
        app.include_router(fleet_router)
        return app

    # The grid of this SuperLink.

    def nodes(self) -> dict[int, int]:
        """The sites that are connected: agent -> node."""
        online = self.state.get_nodes(self.run_id)
        agents = dict(self.agents)
        for node, agent in agents.items():
            if node not in online:
                self.ledger.lost(agent)
        return dict(sorted((agent, node) for node, agent in agents.items() if node in online))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Hand a round's messages to the sites; what is left of the round before is withdrawn."""
        self._forget(self.open)
        self.oversized.clear()
        ids = []
        for message in messages:
            self._round = int(message.metadata.group_id)
            node = message.metadata.dst_node_id
            known = node in self.agents
            id_ = message.metadata.__dict__["_message_id"] = uuid4().hex
            if known:
                self.open[id_] = node
                self.outbox[node] = message_to_proto(message)
            ids.append(id_ if known else "")
        self._wake(set(self.open.values()))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that came, by now."""
        found = []
        online = self.state.get_nodes(self.run_id)
        for id_ in set(message_ids) & set(self.open):
            reply = self._reply(id_, online)
            if reply is not None:
                reply.metadata.__dict__["_reply_to_message_id"] = id_
                found.append(reply)
                self._forget([id_])
        return found

    def _reply(self, id_: str, online: set[int]) -> Message | None:
        node, reply = self.open[id_], self.replies.get(id_)
        if reply is None and node in online and node not in self.oversized:
            return None
        message = Message(RecordDict(), dst_node_id=node, message_type="train")
        if node in self.oversized:
            return Message(
                Error(code_of("too large"), f"a request of more than {self.largest} bytes"), reply_to=message
            )
        if node not in self.agents or reply is None:  # what came before its site left counts, unless that was shut out
            return Message(Error(code_of("no answer"), "the site went away"), reply_to=message)
        try:
            return message_from_proto(reply)
        except Exception as error:  # whatever a site may have made up
            return Message(Error(code_of("wrong type"), f"{type(error).__name__}: {error}"), reply_to=message)

    def _forget(self, ids: Iterable[str]) -> None:
        for id_ in list(ids):
            node = self.open.pop(id_)  # first: what is pushed from now on is not taken
            self.outbox.pop(node, None)
            self.over[id_] = self._round, self.replies.pop(id_, None) is not None
        while len(self.over) > REMEMBERED:
            self.over.pop(next(iter(self.over)))

    # What happens at the door, in the threads and the loop of the web server.

    async def _at_the_door(self, request: Request, call_next: Next) -> Response:
        """Between Flower's authentication and its handlers: `request` is of a known key, or it is to be activated."""
        message = getattr(request.state, "protobuf_request", None)
        what = request.url.path.rpartition("/")[2]
        if message is None:
            return await call_next(request)
        if what == "activate-node":
            return await self._activate(message.public_key, request, call_next)
        if what == "register-node":  # sites are registered by `fedpg federation create` alone
            self.ledger.stranger()
            raise HTTPException(403, "this federation has all its sites")
        node = message.node.node_id if hasattr(message, "node") else message.node_id
        agent = self._agent(node)
        self.ledger.seen(agent)
        if what in ("pull-messages", "push-messages"):  # as good as a heartbeat
            self.state.acknowledge_node_heartbeat(node, HEARTBEAT)
            if not self.ledger.rows[agent].connected:
                self.ledger.connected(agent)
        if what == "pull-messages" and not await self._has_work(node, request):
            self._gone(node)
        self._agent(node)  # a request may have been held while its site was shut out
        # Messages and replies go whole, in one request each. Flower's handlers would store them in parts, each of which
        # takes a request of its own: three times the work of a server with many sites.
        if what == "pull-messages":
            work = self.outbox.pop(node, None)
            request.state.protobuf_response = PullMessagesResponse(messages_list=[] if work is None else [work])
            response = Response()
        elif what == "push-messages":
            self._take_push(node, agent, message)
            request.state.protobuf_response = PushMessagesResponse()
            response = Response()
        elif what in ("deactivate-node", "send-node-heartbeat"):
            response = await call_next(request)
        else:
            self.ledger.note(agent, "refused", f"a request that no site of fedpg makes: {what}")
            raise HTTPException(403, "this is not served here")
        self.received[node] += message.ByteSize()
        answer = getattr(request.state, "protobuf_response", None)
        self.sent[node] += answer.ByteSize() if answer is not None else 0
        if what == "deactivate-node":
            self.ledger.lost(agent)
        if what == "send-node-heartbeat" and not self.ledger.rows[agent].connected:
            self.ledger.connected(agent)  # it was only stopped, or cut off
        return response

    def _agent(self, node: int) -> int:
        agent = self.agents.get(node)
        if agent is None:
            raise HTTPException(401, "this site was shut out")
        return agent

    async def _activate(self, key: bytes, request: Request, call_next: Next) -> Response:
        if key not in self.by_key and key not in self.later:
            self.look()  # it may have become a member a moment ago
        node = self.by_key.get(key)
        if key in self.later:
            raise HTTPException(503, "this run began without this site: it is asked from the next run on")
        if node is not None:
            self._note_twice(node)
            self.state.deactivate_node(node)  # a site that was killed and starts again need not wait for its past
        try:
            response = await call_next(request)
        except FlowerError as error:
            if node is not None:  # a member that asked twice, as when its first request took longer than it waited
                raise HTTPException(409, "this site is being activated: try again") from error
            self.ledger.stranger()
            raise
        if node is not None:
            self.ledger.connected(self._agent(node))  # it may have been shut out meanwhile
        return response

    def _note_twice(self, node: int) -> None:
        seen = self.ledger.rows[self.agents[node]].seen
        if node in self.state.get_nodes(self.run_id) and seen and time.monotonic() - seen < HEARTBEAT:
            text = "two processes with one key, or a quick restart?"
            self.ledger.note(self.agents[node], "connected twice", text)

    def _take_push(self, node: int, agent: int, request: Any) -> None:
        """One reply of this site, its first, to a message that is open."""
        if len(request.messages_list) != 1:
            self.ledger.note(agent, "refused", f"{len(request.messages_list)} replies at once")
            raise HTTPException(400, "a request holds one reply")
        reply = request.messages_list[0].metadata
        id_ = reply.reply_to_message_id
        if reply.src_node_id != node or self.open.get(id_, node) != node:
            self.ledger.note(agent, "refused", "a reply in the name of another site")
            raise HTTPException(403, "a site replies for itself only")
        if id_ in self.over:
            round_, answered = self.over[id_]
            text = f"a reply to round {round_} in round {self._round}"
            self.ledger.note(agent, "second reply" if answered else "stale reply", text)
        elif id_ in self.replies:
            self.ledger.note(agent, "second reply", f"in round {self._round}: the first counts")
        if id_ not in self.open or id_ in self.replies:
            raise HTTPException(409, "nobody waits for this reply")
        self.replies[id_] = request.messages_list[0]

    async def _has_work(self, node: int, request: Request) -> bool:
        """Hold a request for work until there is some, or for a while; False if the site went away meanwhile."""
        if self._closing or node in self.outbox:
            return True
        event = self._work.setdefault(node, asyncio.Event())
        working = asyncio.ensure_future(event.wait())
        leaving = asyncio.ensure_future(_disconnected(request))
        await asyncio.wait({working, leaving}, timeout=HOLD, return_when=asyncio.FIRST_COMPLETED)
        event.clear()
        left = leaving.done()
        for task in (working, leaving):
            task.cancel()
        return not left

    def _gone(self, node: int) -> None:
        self.state.deactivate_node(node)
        if node in self.agents:
            self.ledger.lost(self.agents[node])

    def answer_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop of the web server: the requests that are held open wait in it."""
        self._loop = loop

    def release(self) -> None:
        """Answer all requests that are held open, and hold no more of them: the server ends."""
        self._closing = True
        self._wake(list(self.agents))

    def _wake(self, nodes: Iterable[int]) -> None:
        def wake() -> None:
            for node in nodes:
                self._work.setdefault(node, asyncio.Event()).set()

        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(wake)

    def identify(self, headers: Mapping[str, str]) -> int | None:
        """The node that signed a request, before anything else of it is read."""
        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            stamp = headers[TIMESTAMP_HEADER].encode("ascii")
            return self.by_key[key] if verify_signature(bytes_to_public_key(key), stamp, signature) else None
        except (KeyError, ValueError, TypeError):
            return None


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Limit:
    """Refuses requests that no honest site sends, before they are read."""

    def __init__(self, app: ASGIApp, link: Link) -> None:
        self.app, self.link = app, link

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/fleet/"):
            await Response(status_code=404)(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        length = headers.get("content-length", "")
        # Without a length, as nobody here sends it: refused.
        size = int(length) if length.isdecimal() and len(length) < 20 else None
        if size is None or size > self.link.largest:
            node = self.link.identify(headers)
            if node is not None:
                self.link.oversized.add(node)
                self.link.ledger.note(self.link.agents[node], "too large", f"a request of {size or 'unknown'} bytes")
            await Response(status_code=413)(scope, receive, send)
            return
        await self.app(scope, receive, send)
