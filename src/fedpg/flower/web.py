"""The web server before a link, in a thread of its own."""

import asyncio
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Self

import uvicorn

from fedpg.errors import ConfigError
from fedpg.flower.link import Link


class Server:
    """Serves a link until it is left."""

    def __init__(self, link: Link, host: str, port: int, certificate: Path | None = None, key: Path | None = None):
        self.link, self.certificate, self.key = link, certificate, key
        if certificate is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            except OSError as error:  # of ssl as well
                raise ConfigError(
                    f"the server's certificate {certificate} cannot be used with the key {key}: "
                    f"{error.strerror or error}. Both are from `fedpg federation create`"
                ) from error
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind((host, port))
        except OSError as error:
            self.socket.close()
            raise ConfigError(
                f"cannot listen at {host}:{port}: {error.strerror or error}. Is a server running there already? "
                "Another address can be set as listen in federation.toml"
            ) from error
        self.port = self.socket.getsockname()[1]
        self.server = uvicorn.Server(
            uvicorn.Config(
                link.app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                timeout_keep_alive=120,
                timeout_graceful_shutdown=1,
                ssl_certfile=certificate,
                ssl_keyfile=key,
            )
        )
        self.thread = threading.Thread(target=self._run, daemon=True)

    def renew(self) -> None:
        """Take the certificate from its file again: connections from now on are shown that one."""
        context = self.server.config.ssl
        if context is not None and self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except OSError as error:
                raise ConfigError(f"the new certificate {self.certificate} cannot be used: {error}") from error

    def _run(self) -> None:
        async def serve() -> None:
            self.link.answer_in(asyncio.get_running_loop())
            await self.server.serve(sockets=[self.socket])

        asyncio.run(serve())

    def __enter__(self) -> Self:
        self.thread.start()
        while not self.server.started:
            if not self.thread.is_alive():
                raise ConfigError("the server did not start: are its certificate and key in order?")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.link.release()
        self.thread.join(timeout=5)
        self.socket.close()
