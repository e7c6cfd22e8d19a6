"""A dashboard for the tests, and who asks it."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedpg.dashboard.watch import Watch
from fedpg.dashboard.web import Web, listen

EVIL = '<img src=x onerror="document.title=1">"\\\n</script>'
"""What a site may be called."""
SITE_LINE = {"outcome": "turned away", "accepted": False, "how_far": 2.5, "reason": "", "seconds": 0.5, "return": 7.0}
"""What a ledger says of a site."""


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


class Client:
    """Asks a server, as a browser or a program would."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()

    def views(self) -> list[dict[str, Any]]:
        return json.loads(self.ask("/runs.json")[2])["runs"]

    @contextmanager
    def events(self) -> Iterator[Iterator[tuple[str, Any]]]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("GET", "/events")
            answer = connection.getresponse()
            assert answer.getheader("Content-Type") == "text/event-stream"

            def read() -> Iterator[tuple[str, Any]]:
                name = ""
                while line := answer.readline().decode():
                    if line.startswith("event: "):
                        name = line[7:].strip()
                    elif line.startswith("data: "):
                        yield name, json.loads(line[6:])

            yield read()


@contextmanager
def serving(*paths: Path, token: str | None = None, must_exist: bool = True) -> Iterator[Client]:
    with Watch(paths, must_exist) as watch:
        server = Web(listen("127.0.0.1", 0), "127.0.0.1", watch, token)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield Client(server.port)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
