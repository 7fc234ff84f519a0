"""WatchServer: shows a run directory on a page of this machine, read-only."""

from __future__ import annotations

import errno
import json
import logging
import re
from collections.abc import Callable
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from synther_replay.watching.run_folder import HISTORY, REPORT, read_history

logger = logging.getLogger(__name__)

_ADDRESS = "127.0.0.1"
# This machine in the Host header. Any port: `ssh -L` may give the page another one, and only the name can be forged.
_THIS_MACHINE = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_INLINE = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
_PAGE_POLICY = f"{_INLINE}; script-src 'unsafe-inline'; connect-src 'self'; frame-src 'self'"
# The report is a file that anybody may have put there: its scripts get no access to this server.
_SANDBOX = "sandbox allow-scripts allow-downloads; frame-ancestors 'self'"
_REPORT_POLICY = f"{_INLINE}; script-src 'unsafe-inline' 'unsafe-eval'; {_SANDBOX}"
_JSON = "application/json"


class _Answer(NamedTuple):
    body: bytes
    kind: str
    policy: str = "default-src 'none'"
    tag: str = ""  # of this content; a browser that has it gets no body


class WatchServer(ThreadingHTTPServer):
    """Serves the history and the latest report of a run on this machine alone.

    There are three addresses, ``/``, ``/history`` and ``/report``; no other file can be asked for. Requests with the
    name of another host are refused, because a web page elsewhere could make them by a name of its own.

    ::

        with WatchServer("runs/a") as server:
            print(server.url)
            server.serve_forever()

    Args:
        folder: The run directory.
        port: Port; 0: any free one.

    Raises:
        FileNotFoundError: The directory does not exist.
        OSError: The port is in use.
    """

    daemon_threads = True

    def __init__(self, folder: str | Path, port: int = 0) -> None:
        """Open the port."""
        self.folder = Path(folder).resolve()
        if not self.folder.is_dir():
            raise FileNotFoundError(f"folder: there is no directory {folder}")
        self._latest = _Answer(b"", _JSON)  # of the history
        try:
            super().__init__((_ADDRESS, port), _Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise OSError(error.errno, f"port: {port} is in use; 0 takes any free one") from error

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{_ADDRESS}:{self.server_port}/"

    @cached_property
    def page(self) -> bytes:
        """The page."""
        return (Path(__file__).parent / "page.html").read_bytes()

    def answer(self, path: str, known: str | None = None) -> _Answer | None:
        """Return what is at an address; None: nothing. What has the tag `known` comes without its body."""
        made: dict[str, Callable[[], _Answer | None]] = {
            "/": lambda: _Answer(self.page, "text/html; charset=utf-8", _PAGE_POLICY),
            "/history": lambda: self._history(known),
            "/report": lambda: self._report(known),
        }
        return made[path]() if path in made else None

    def _history(self, known: str | None) -> _Answer:
        history, report = self._own_file(HISTORY), _state_of(self._own_file(REPORT))
        tag = f'"{_state_of(history)}-{report}"'
        if tag == known:
            return _Answer(b"", _JSON, tag=tag)
        latest = self._latest
        if latest.tag != tag:  # several pages may ask, and a long history takes seconds to read
            records = [] if history is None else read_history(self.folder)
            values = {
                "name": self.folder.name,
                "report": report,
                "refits": [{key: entry.get(key) for key in ("step", "time", "line", "scalars")} for entry in records],
                "latest": records[-1] if records else None,
            }
            self._latest = latest = _Answer(json.dumps(values, allow_nan=False).encode(), _JSON, tag=tag)
        return latest

    def _report(self, known: str | None) -> _Answer | None:
        path = self._own_file(REPORT)
        if path is None:
            return None
        tag = f'"{_state_of(path)}"'
        body = b"" if tag == known else path.read_bytes()
        return _Answer(body, "text/html; charset=utf-8", _REPORT_POLICY, tag)

    def _own_file(self, name: str) -> Path | None:
        """A regular file of the directory; None if there is none, or if it is a pipe or a link to somewhere else."""
        path = self.folder / name
        return path if path.is_file() and path.resolve().parent == self.folder else None


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; everything else is refused by the base class."""

    server: WatchServer
    server_version, sys_version = "synther", ""
    timeout = 30  # seconds that a connection may stay without a request

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if not self._is_local():
            self._send(HTTPStatus.FORBIDDEN, _Answer(b"only for this machine\n", "text/plain"))
            return
        known = self.headers.get("If-None-Match")
        try:
            found = self.server.answer(urlsplit(self.path).path, known)
        except (OSError, ValueError, RecursionError) as error:  # a file is being replaced, or address or file is bad
            logger.info("no answer for %r: %s", self.path, error)
            found = None
        if found is None:
            self._send(HTTPStatus.NOT_FOUND, _Answer(b"not found\n", "text/plain"))
        elif found.tag and found.tag == known:
            self._send(HTTPStatus.NOT_MODIFIED, found)
        else:
            self._send(HTTPStatus.OK, found)

    def _is_local(self) -> bool:
        hosts = self.headers.get_all("Host", [])
        return len(hosts) == 1 and _THIS_MACHINE.fullmatch(hosts[0]) is not None

    def _send(self, status: HTTPStatus, answer: _Answer) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": answer.kind,
            "Content-Length": str(len(answer.body)),
            "Cache-Control": "no-cache",
            "Content-Security-Policy": answer.policy,
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in (headers | ({"ETag": answer.tag} if answer.tag else {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)


def _state_of(path: Path | None) -> str | None:
    """Changes with the content of a file; None without a file."""
    if path is None or not path.exists():
        return None
    status = path.stat()
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"
