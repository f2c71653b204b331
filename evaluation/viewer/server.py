"""Serving the page on this machine: three files, three questions, and nothing else.

What models wrote is data here and text in the page.  Should it get further all the same, the
headers stop it: no script but the page's own runs, nothing is fetched from anywhere else, and only
requests that name this machine are answered, so that no other web site can look in by pointing a
name of its own here.
"""

from __future__ import annotations

import ipaddress
import json
import sqlite3
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from evaluation.viewer.data import Transcripts
from evaluation.viewer.index import FACETS, Query
from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.serving import bind, url_of

__all__ = ["HEADERS", "Viewer"]

FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""What is served as it stands, with its type."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Sent with every answer."""

SILENT_S = 60.0
"""A connection that says nothing for so long is closed [s]."""


class Viewer(ThreadingHTTPServer):
    """The page of a run, listening.

    Parameters
    ----------
    transcripts
        What is shown.
    host, port
        Where to listen; port 0: a free one.

    Raises
    ------
    UserError
        Where the address is unknown or taken.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, transcripts: Transcripts, host: str = "127.0.0.1", port: int = 0) -> None:
        listener = bind(host, port)
        super().__init__(listener.getsockname(), _Answering, bind_and_activate=False)
        self.socket.close()  # the one that was made for any address of IPv4
        self.socket = listener
        self.transcripts, self.host = transcripts, host
        self.url = url_of(listener)
        self.local = _is_loopback(self.url)

    def answers_to(self, name: str) -> bool:
        """Whether requests may call this machine so: by its address, or as it was told to listen.

        Names that anyone can point anywhere are refused.
        """
        try:
            host = urlsplit(f"//{name}").hostname or ""
        except ValueError:
            return False
        if host in ("localhost", self.host.lower()):
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return address.is_loopback or not self.local

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over clients that went away."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Answering(BaseHTTPRequestHandler):
    server: Viewer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "exactlyonce", ""
    timeout = SILENT_S

    def do_GET(self) -> None:
        """Answer one question."""
        if not self.server.answers_to(self.headers.get("Host", "")):
            self._send_json(421, {"error": "this name is not one of this machine's"})
            return
        address = urlsplit(self.path)
        if address.path in FILES:
            name, kind = FILES[address.path]
            self._send(200, files(__package__).joinpath(name).read_bytes(), kind)
            return
        try:
            self._send_json(200, self._found(address.path, parse_qs(address.query)))
        except KeyError as error:
            self._send_json(404, {"error": str(error.args[0])})
        except UserError as error:
            self._send_json(400, {"error": str(error)})
        except sqlite3.Error as error:
            self._send_json(500, {"error": f"the transcripts cannot be read: {error}"})

    do_HEAD = do_GET  # noqa: N815 (named by the base class)

    def _found(self, path: str, asked: dict[str, list[str]]) -> Any:
        transcripts = self.server.transcripts
        place = asked.get("place", [""])[0]
        if path == "/api/state":
            return transcripts.state()
        if path == "/api/episodes":
            return transcripts.episodes(_query(asked))
        if path == "/api/episode":
            return transcripts.episode(place, _query(asked))
        if path == "/api/call":
            return transcripts.call(place, _whole(asked, "number"))
        raise KeyError("there is no such page")

    def _send_json(self, status: int, found: Any) -> None:
        try:
            text = json.dumps(found, allow_nan=False)
        except ValueError:  # numbers that JSON lacks, as a provider may send them
            text = json.dumps(json.loads(json.dumps(found), parse_constant=str))
        self._send(status, text.encode("ascii"), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end_headers(self) -> None:
        """Add what every answer carries."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal is the user's."""


def _query(asked: dict[str, list[str]]) -> Query:
    return Query(
        chosen={facet: asked[facet] for facet in FACETS if facet in asked},
        search=asked.get("q", [""])[0],
        sort=asked.get("sort", ["order"])[0],
        offset=_whole(asked, "offset"),
    )


def _whole(asked: dict[str, list[str]], name: str) -> int:
    text = asked.get(name, ["0"])[0]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UserError(f"{name} {text[:20]!r} is no number")
    return int(text)


def _is_loopback(url: str) -> bool:
    return ipaddress.ip_address(urlsplit(url).hostname or "").is_loopback
