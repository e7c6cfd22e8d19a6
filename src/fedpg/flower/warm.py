"""A warm site: a Flower node that keeps its environment and its compiled code from round to round.

Flower's own SuperNode starts a new process for every message, which imports and compiles everything again. This one
speaks the same Fleet API and answers in its own process.
"""

import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from google.protobuf.message import DecodeError

from fedpg.errors import ConfigError
from fedpg.federation.messages import MessageError
from fedpg.federation.site import Responder
from fedpg.flower.exchange import RECORD, code_of
from fedpg.problem import STATUSES
from fedpg.sites.certificates import WARNING

HEARTBEAT = 10.0
"""Seconds; the least that Flower allows. After two of them without a sign, a site counts as gone."""
PAUSE = 0.2
"""Seconds between requests for work, if the server does not hold them open by itself."""
LONGEST = 30.0
"""Seconds between two attempts to connect, at the most."""
SPARING = 600.0
"""Seconds after which the same trouble is said again, at the most."""
EXPIRED = (9, 10)
"""OpenSSL's numbers of a certificate that is not valid yet, or any more: somebody may yet mend that."""


MEND = "whoever runs the server renews it with fedpg federation renew"


class Address(NamedTuple):
    """Where the server is, and how it is known."""

    server: str  # host:port
    certificates: bytes | None  # of the federation's CA; None: without TLS
    key: ec.EllipticCurvePrivateKey


Over = Callable[[Mapping[str, Any]], str]
"""The last message of a run -> what to say about it; a MessageError if it cannot be used."""


class Voice(NamedTuple):
    """What a site says, and to whom."""

    say: Callable[[str], None]  # here: what it does
    warn: Callable[[str], None]  # here: what went wrong
    share_errors: bool  # whether the server is told the text of the task's errors, or their kind only
    over: Over = lambda values: "the run is over"


class Known(threading.Event):
    """Set once the server has taken this site."""

    useful = False
    """Whether this connection has been of use: the next one, if it breaks, need not wait long."""
    asked = 0.0
    """time.monotonic() of the last answer of the server, which knows then that this site is alive."""


def run_site(
    address: Address,
    respond: Responder,
    say: Callable[[str], None],
    stop: threading.Event,
    most: int,
    warn: Callable[[str], None] | None = None,
    share_errors: bool = False,
    over: Over = lambda values: "the run is over",
) -> None:
    """Answer the server until `stop`, if its messages have at most so many bytes; connects again by itself, sooner at
    first, later if it does not help. `over` is told when a run is over."""
    voice = Voice(say, Sparing(warn or say), share_errors, over)
    failures = 0
    known = Known()
    while not stop.is_set():
        known.useful = False
        try:
            with _client(address, voice.warn) as client:
                _serve(client, address, respond, voice, stop, most, known)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ConfigError(f"{address.server} is no address that can be reached: {error}") from error
        except (httpx.TransportError, httpx.HTTPStatusError, ValueError) as error:
            if isinstance(error, ValueError) and not isinstance(error.__cause__, DecodeError):
                raise  # Flower's client says so of a response that it cannot read
            explain(error, address, known.is_set())
            failures = 1 if known.useful else failures + 1
            wait = min(LONGEST, 0.5 * 2 ** min(failures - 1, 10)) * random.uniform(0.8, 1.2)
            voice.warn(f"no connection to {address.server} ({_short(error)}); trying again in {wait:.1f} s")
            stop.wait(wait)


def explain(error: Exception, address: Address, known: bool) -> None:
    """Raise what no waiting will mend; a server that is `known` has taken this site before."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code not in EXPIRED:
            raise ConfigError(
                f"the server at {address.server} cannot be trusted: its certificate is not one of this federation's "
                f"({cause.verify_message}). Is ca.crt from the same `fedpg federation create`, and the address right?"
            ) from error
        if isinstance(cause, ssl.SSLError) and "WRONG_VERSION_NUMBER" in str(cause):
            raise ConfigError(
                f"the server at {address.server} does not use TLS, and this site does: is it fedpg serve, without "
                "--insecure?"
            ) from error
        cause = cause.__cause__ or cause.__context__
    if address.certificates is None and not known and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        raise ConfigError(
            f"the server at {address.server} closed the connection: it uses TLS, and this site was started with "
            "--insecure. Start it without"
        ) from error


class Sparing:
    """Says the same again only after a while, and then a longer one."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.last, self.gap, self.until = say, "", 0.0, 0.0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if text == self.last and now < self.until:
            return
        self.gap = min(SPARING, 2 * self.gap) if text == self.last else 10.0
        self.last, self.until = text, now + self.gap
        self.say(text)


class Expiry:
    """Looks at the server's certificate once in a connection, and warns if it expires soon."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.warn, self.looked = warn, False

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        response: httpx.Response = call_next(context)
        stream = response.extensions.get("network_stream")
        tls = None if stream is None or self.looked else stream.get_extra_info("ssl_object")
        self.looked = True
        if tls is not None:
            end = str((tls.getpeercert() or {}).get("notAfter", ""))
            days = (ssl.cert_time_to_seconds(end) - time.time()) / 86_400 if end else WARNING + 1
            if days <= WARNING:
                self.warn(f"warning: the server's certificate expires in {max(0, int(days))} days: {MEND}")
        return response


def _client(address: Address, warn: Callable[[str], None] = lambda text: None) -> FleetHttpClient:
    return FleetHttpClient.from_server_address(
        address.server,
        address.certificates is None,
        address.certificates,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(address.key, address.key.public_key()),
            Expiry(warn),
        ],
    )


def _serve(
    client: FleetHttpClient,
    address: Address,
    respond: Responder,
    voice: Voice,
    stop: threading.Event,
    most: int,
    known: Known,
) -> None:
    """One connection, from its beginning to its end."""
    node = _activate(client, address)
    known.set()
    voice.say(f"connected to {address.server}; waiting for a round")
    over = threading.Event()
    heart = threading.Thread(target=_beat, args=(client, node, over, known), daemon=True)
    heart.start()
    try:
        while not stop.is_set():
            began = time.monotonic()
            work = client.PullMessages(PullMessagesRequest(node=node))
            known.useful, known.asked = True, time.monotonic()
            if work.messages_list:
                _answer(client, node, work, respond, voice, most)
            elif time.monotonic() - began < PAUSE:
                stop.wait(PAUSE)
        with suppress(httpx.HTTPError):
            client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))
    finally:
        over.set()
        heart.join()


def _activate(client: FleetHttpClient, address: Address) -> Node:
    key = public_key_to_bytes(address.key.public_key())
    try:
        response = client.ActivateNode(ActivateNodeRequest(public_key=key, heartbeat_interval=HEARTBEAT))
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.PRECONDITION_FAILED:
            raise ConfigError(
                f"the server at {address.server} does not know this site's key: the folder is from another "
                "federation, or the site was taken off it. Ask whoever runs the server"
            ) from error
        raise
    return Node(node_id=response.node_id)


def _beat(client: FleetHttpClient, node: Node, over: threading.Event, known: Known | None = None) -> None:
    """Tell the server every few seconds that this site is alive while it computes, and asks for nothing."""
    while not over.wait(HEARTBEAT * 0.3):
        if known is not None and time.monotonic() - known.asked < HEARTBEAT * 0.6:
            continue
        with suppress(httpx.HTTPError):  # the main loop meets the same trouble, and says so
            client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT))


def _answer(
    client: FleetHttpClient,
    node: Node,
    work: PullMessagesResponse,
    respond: Responder,
    voice: Voice,
    most: int,
) -> None:
    try:
        message, values = fetch(work)
    except MessageError as error:  # there is nothing that could be replied to
        voice.warn(f"the server's message cannot be used: {error}")
        time.sleep(PAUSE)
        return
    began = time.monotonic()
    content: RecordDict | Error
    said = ""
    try:
        if work.ByteSize() > most:
            raise MessageError("too large", f"a message of {work.ByteSize()} bytes, where {most} are enough")
        if "end" in values:
            said = voice.over(values)
            content = RecordDict({RECORD: ConfigRecord({"agent": values["agent"]})})
        else:
            content = RecordDict({RECORD: ConfigRecord(respond(values))})
            said = f"round {values['round']}: replied after {time.monotonic() - began:.2f} s"
    except MessageError as error:  # it quotes the server's message, and nothing of this site
        content = Error(code_of(STATUSES[error.status]), str(error))
        voice.warn(f"the server's message cannot be used: {error}")
    except Exception as error:  # of the task: the server is told, and the site stays
        kind = type(error).__name__[:80]
        try:
            text = f"{kind}: {error}"
        except Exception:  # it cannot even say what it is
            text = kind
        # The text may quote what the environment knows.
        content = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, text[:500] if voice.share_errors else kind)
        voice.warn(f"this round failed here: {text}")
    taken = send_reply(client, node, message, content, time.monotonic() - began)
    if said:
        voice.say(said if taken else f"{said}, too late: the round was over")


def fetch(work: PullMessagesResponse) -> tuple[Message, dict[str, Any]]:
    """(the message that waits, the values of its one record)."""
    try:
        message = message_from_proto(work.messages_list[0])
        (record,) = message.content.values()
        return message, dict(record)
    except Exception as error:  # whatever a server may have made up
        raise MessageError("wrong type", f"it is not made as agreed on ({type(error).__name__}: {error})") from error


def send_reply(
    client: FleetHttpClient, node: Node, message: Message, content: RecordDict | Error, seconds: float
) -> bool:
    """Send a reply; False if nobody waits for it any more."""
    reply: Any = Message(content, reply_to=message)
    reply.metadata.__dict__["_message_id"] = uuid4().hex
    push = PushMessagesRequest(node=node, messages_list=[message_to_proto(reply)], clientapp_runtime_list=[seconds])
    try:
        client.PushMessages(push)
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.CONFLICT:
            return False
        raise
    return True


def _short(error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = cause.verify_message
            return f"the server's certificate cannot be trusted now: {why}. Is the clock right? If so, {MEND}"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.HTTPStatusError):
        if error.response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return "this run began without this site, which is asked from the next one on"
        # Not final: a clock is set right, here or there, sooner or later.
        clock = ": it does not take this site's signature. Is this machine's clock right? It may be 5 s ahead of the "
        clock += "server's and 5 minutes behind"
        code = error.response.status_code
        return f"HTTP {code}{clock if code == httpx.codes.UNAUTHORIZED else ''}"
    return str(error) or type(error).__name__
