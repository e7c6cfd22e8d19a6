"""The web server of a dashboard: read-only, on this machine unless told otherwise, with a token then."""

import contextlib
import hmac
import ipaddress
import re
import secrets
import socket
import sys
import threading
import time
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedpg.dashboard.metrics import metrics
from fedpg.dashboard.watch import Watch, as_json
from fedpg.errors import ConfigError

FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Nothing from elsewhere, nothing to elsewhere, nothing kept."""
BEAT = 5.0
"""Seconds after which a page is told that the server is still there."""
GUESTS = 64
"""Connections at a time."""
TOKEN = re.compile(r"[A-Za-z0-9._~-]{12,200}")
HERE = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def choose_token(host: str, token: str | None) -> str | None:
    """The token that a server at this host asks for: the one given; a new one if others can reach it; else none."""
    if token is None:
        return None if is_loopback(host) else secrets.token_urlsafe(24)
    if not TOKEN.fullmatch(token):
        raise ConfigError(
            "a token has 12 to 200 letters, digits and . _ ~ - : leave --token out where other machines can reach the "
            "page, and a good one is made"
        )
    return token


PORT = 8000


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens there, or an error that says what to do; without a port at 8000, or at a free one."""
    if port is None:
        with contextlib.suppress(ConfigError):
            return listen(host, PORT)
        port = 0
    if not 0 <= port <= 65535:
        raise ConfigError(f"a port is a number from 0 (any free one) to 65535, not {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{host!r} is no address of this machine: {error}") from None
    found = socket.socket(family, socket.SOCK_STREAM)
    if sys.platform != "win32":
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
        found.listen(GUESTS)
    except OSError as error:
        found.close()
        hint = "Ports below 1024 are the system's: take a higher one"
        if not isinstance(error, PermissionError):
            hint = "The host must be an address of this machine, and nobody else may listen there: take another port"
        raise ConfigError(f"the dashboard cannot listen at {host}:{port}: {error.strerror or error}. {hint}") from error
    return found


def address_of(host: str, port: int, token: str | None) -> str:
    """What to open in a browser."""
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/" + (f"?token={token}" if token else "")


class Web(ThreadingHTTPServer):
    """Serves a watch at a socket that listens already."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, host: str, watch: Watch, token: str | None = None) -> None:
        self.address_family = listening.family
        super().__init__(listening.getsockname()[:2], Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.host, self.port = host, int(listening.getsockname()[1])
        self.watch, self.token = watch, token
        self.cookie = f"fedpg-{self.port}"  # cookies do not know ports
        self.guests = threading.BoundedSemaphore(GUESTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread each, for so many; the rest is sent away."""
        if not self.guests.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.guests.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that was closed is no error; of others, one line."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            print(f"fedpg: dashboard: a request failed: {type(error).__name__}: {error}", file=sys.stderr)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Web
    server_version = "fedpg"
    sys_version = ""
    timeout = 30  # for a guest that says or takes nothing

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads a list of requests; and a token may be in it."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        try:
            parts = urlsplit(self.path)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "this is no address")
            return
        if not self._known_host():
            self._refuse(
                HTTPStatus.FORBIDDEN, "this page is for this machine: open it as http://127.0.0.1 or localhost"
            )
        elif not self._may_enter(parts.query):
            how = {"WWW-Authenticate": "Bearer"}
            self._refuse(HTTPStatus.UNAUTHORIZED, "this page needs its token: open the address that fedpg printed", how)
        elif self.server.token and "token" in parse_qs(parts.query) and parts.path == "/":
            self._enter()
        elif parts.path in FILES:
            name, kind = FILES[parts.path]
            self._send(resources.files("fedpg.dashboard").joinpath(name).read_bytes(), kind)
        elif parts.path == "/runs.json":
            self._send(as_json({"now": time.time(), "runs": self.server.watch.views()}).encode(), "application/json")
        elif parts.path == "/metrics":
            self._send(metrics(self.server.watch.views()).encode(), "text/plain; version=0.0.4; charset=utf-8")
        elif parts.path == "/events":
            self._events()
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is /, /runs.json, /events and /metrics")

    def do_POST(self) -> None:
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "this page can be read, and nothing else", {"Allow": "GET, HEAD"})

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What is no request, in one plain line."""
        self.close_connection = True
        self.command = self.command or "GET"
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def _known_host(self) -> bool:
        """Without a token, not for a name of somebody else's that was made to lead here."""
        if self.server.token:
            return True
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        except ValueError:
            return False
        return name in (*HERE, self.server.host) or is_loopback(name)

    def _may_enter(self, query: str) -> bool:
        if not self.server.token:
            return True
        shown = parse_qs(query).get("token", [])
        words = (self.headers.get("Authorization") or "").split()
        if len(words) == 2 and words[0].lower() == "bearer":
            shown.append(words[1])
        with contextlib.suppress(CookieError):
            jar = SimpleCookie(self.headers.get("Cookie") or "")
            if self.server.cookie in jar:
                shown.append(jar[self.server.cookie].value)
        return any([hmac.compare_digest(each.encode(), self.server.token.encode()) for each in shown])

    def _enter(self) -> None:
        """From now on by a cookie, so that the token is not in the address any more."""
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", "/")
        self.send_header("Set-Cookie", f"{self.server.cookie}={self.server.token}; Path=/; HttpOnly; SameSite=Lax")
        self._end(0)

    def _refuse(self, status: HTTPStatus, why: str, extra: dict[str, str] | None = None) -> None:
        self._send(f"{why}\n".encode(), "text/plain; charset=utf-8", status, extra)

    def _send(
        self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, extra: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in (extra or {}).items():
            self.send_header(name, value)
        self._end(len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _end(self, length: int | None) -> None:
        for name, value in SAFE.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _events(self) -> None:
        """Every run as it is, then each as it changes: server-sent events, until the page or the server is closed."""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self._end(None)
        if self.command == "HEAD":
            return
        self._event("begin", {"runs": len(self.server.watch.views())})
        version, wait = 0, 0.0
        while not self.server.watch.over:
            version, views = self.server.watch.since(version, wait)
            wait = BEAT
            for view in views:
                self._event("run", view)
            self._event("beat", {"now": time.time()})

    def _event(self, name: str, data: dict[str, Any]) -> None:
        self.wfile.write(f"event: {name}\ndata: {as_json(data)}\n\n".encode())
