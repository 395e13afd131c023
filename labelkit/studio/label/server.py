"""Server of ``labelkit label --serve``; only this module imports Starlette and uvicorn.

It accepts only requests whose Host is this server (to prevent DNS rebinding), whose Origin, if any, is this server, and
that carry the token from the link. Images are requested by row number, never by path. There are no cookies.
"""

import contextlib
import hmac
import ipaddress
import json
import secrets
import signal
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable, Iterator
from functools import lru_cache
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelkit.errors import Interrupted, LabelkitError, ResourceError
from labelkit.progress import current_progress
from labelkit.store.results import Result
from labelkit.studio.label.actions import InvalidStepError
from labelkit.studio.label.asking import BackgroundPredictor
from labelkit.studio.label.browser import LARGE, THUMBNAIL, BrowsedStore
from labelkit.studio.label.session import EditConflictError, LabelingSession
from labelkit.studio.report.page import render_label_page

#: Maximum size of a request in bytes, sufficient for 100,000 row numbers.
MAX_BYTES = 2 << 20
_LONGEST_PATH = 200
_KEPT_PICTURES = 4096
_LONGEST = 100
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


SETTINGS: dict[str, Any] = {
    "log_level": "warning",
    "lifespan": "off",
    "ws": "none",
    "server_header": False,
    "http": "h11",
}


class RequestGuard:
    """ASGI middleware that rejects requests unless they come from a page of this server.

    Args:
        app: application that handles accepted requests.
        host: address on which the server listens; if it listens on all, any IP address with the port is accepted.
        port: port on which the server listens.
        token: token that requests to ``/api/`` must carry.
    """

    def __init__(self, app: ASGIApp, host: str, port: int, token: str) -> None:
        self._app, self._any, self._port, self._token = app, host in ("0.0.0.0", "::"), port, token.encode()
        shown = f"[{host}]" if ":" in host else host
        self._names = {f"{shown}:{port}", f"127.0.0.1:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or reject it."""
        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, _limit_body_size(receive), send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.getlist("host")
        if len(host) != 1 or not self._is_allowed_host(host[0]):
            return _refuse(421, "the Host header does not match this server")
        is_foreign = any(origin != f"http://{host[0]}" for origin in headers.getlist("origin"))
        if is_foreign or any(site not in ("same-origin", "none") for site in headers.getlist("sec-fetch-site")):
            return _refuse(403, "requests from other sites are rejected")
        if scope["path"].startswith("/api/"):
            given = headers.getlist("authorization")
            if len(given) != 1 or not hmac.compare_digest(given[0].encode("latin-1"), b"Bearer " + self._token):
                return _refuse(401, "the link is incomplete: open the link that the command printed")
        if len(scope["path"]) > _LONGEST_PATH:  # Python refuses to parse numbers with very many digits
            return _refuse(404, "not found")
        return None

    def _is_allowed_host(self, host: str) -> bool:
        if host in self._names:
            return True
        address, _, port = host.rpartition(":")
        if self._any and port == str(self._port):
            with contextlib.suppress(ValueError):
                return bool(ipaddress.ip_address(address.strip("[]")))
        return False


def _limit_body_size(receive: Receive) -> Callable[[], Awaitable[Message]]:
    total = 0

    async def read() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        return {"type": "http.disconnect"} if total > MAX_BYTES else message

    return read


def _refuse(status: int, problem: str) -> JSONResponse:
    return JSONResponse({"problem": problem}, status, headers=_HEADERS)


class LabelServer:
    """HTTP server for the pages of one labeling session.

    Args:
        session: session to which actions are committed.
        browsed: the store shown on the pages.
        by: name of the annotator.
        predict: see :class:`~labelkit.studio.label.asking.BackgroundPredictor`.
    """

    def __init__(
        self,
        session: LabelingSession,
        browsed: BrowsedStore,
        *,
        by: str = "",
        predict: Callable[[BackgroundPredictor], Result] | None = None,
    ) -> None:
        self.session, self.browsed, self.by = session, browsed, by
        self.asking = BackgroundPredictor(session, browsed, predict)
        self._page, self._policy = render_label_page(browsed.store.path.name)
        self._thumbnail = lru_cache(_KEPT_PICTURES)(lambda row: browsed.encode_picture(row, THUMBNAIL))
        self._data = threading.Lock()

    def app(self) -> Starlette:
        """Return the Starlette application, without the guard that checks requests."""
        return Starlette(
            routes=[
                Route("/", self.page),
                Route("/api/session", self.data),
                Route("/api/changes", self.changes),
                Route("/api/suggested", self.suggested),
                Route("/api/act", self.commit_action, methods=["POST"]),
                Route("/api/undo", self.undo, methods=["POST"]),
                Route("/api/ask", self.ask, methods=["POST"]),
                Route("/api/thumbnails/{row:int}", self.thumbnail),
                Route("/api/images/{row:int}", self.large_image),
                Route("/api/like/{row:int}", self.similar_images),
                Route("/api/parts/{group:int}", self.split_group),
            ],
            exception_handlers={404: _missing, 405: _missing},
        )

    # Starlette runs synchronous handlers in a thread pool

    def page(self, request: Request) -> Response:
        """Return the HTML of the labeling page, which contains no data from the store except its name."""
        return HTMLResponse(self._page, headers={**_HEADERS, "Content-Security-Policy": self._policy})

    def data(self, request: Request) -> Response:
        """Return all data that the labeling page shows, as JSON."""
        with self._data:
            found = self.browsed.to_page_data(self.session)
            found["work"]["asked"] = self.asking.asked
            content = json.dumps(found, allow_nan=False)
        return Response(content, media_type="application/json", headers=_HEADERS)

    def suggested(self, request: Request) -> Response:
        """Return the images to label next, given the labels so far and the skipped rows in the query."""
        rows = request.query_params.get("skip", "").split(",")
        skipped = {int(row) for row in rows if row.isdecimal() and len(row) <= 12}
        return JSONResponse({"suggested": self.browsed.list_suggested(self.session, skipped)}, headers=_HEADERS)

    def changes(self, request: Request) -> Response:
        """Return the labeling actions committed after the round in the query."""
        since = request.query_params.get("since", "")
        if not since.isdecimal() or len(since) > 12:
            return _refuse(400, "since must be a round number")
        return self._told(int(since))

    async def commit_action(self, request: Request) -> Response:
        """Commit the labeling action in the request."""
        commit, keys = self.session.commit_action, ("kind", "steps")
        return await self._do(
            request, keys, lambda told, who: commit(_text(told["kind"], "kind"), told["steps"], **who)
        )

    async def undo(self, request: Request) -> Response:
        """Undo the labeling action with the round number in the request."""
        undo = self.session.undo
        return await self._do(request, ("round",), lambda told, who: undo(_number(told["round"], "round"), **who))

    async def _do(
        self, request: Request, keys: tuple[str, ...], do: Callable[[dict[str, Any], dict[str, Any]], object]
    ) -> Response:
        try:
            told = await _body(request, (*keys, "client", "seen"))
            seen = _number(told["seen"], "seen")
            who = {"user": self.by, "client": _text(told["client"], "client"), "seen_round": seen}
            await run_in_threadpool(do, told, who)
        except InvalidStepError as error:
            return _refuse(413 if isinstance(error.__cause__, ClientDisconnect) else 400, str(error))
        except EditConflictError as conflict:
            return self._told(seen, 409, theirs=conflict.theirs, rows=conflict.rows, groups=conflict.groups)
        except LabelkitError as error:
            return _refuse(507 if isinstance(error, ResourceError) else 500, f"Nothing was changed: {error}")
        return self._told(seen)

    async def ask(self, request: Request) -> Response:
        """Start predicting again from the labels so far, in the background."""
        return await self._do(request, (), lambda told, who: self.asking.start(user=who["user"], client=who["client"]))

    def _told(self, since: int, status: int = 200, **more: Any) -> JSONResponse:
        """Return the changes since a round: the actions, and the state of the last prediction request."""
        actions = [done.to_json() for done in self.session.actions_since(since)]
        return JSONResponse({"actions": actions, "asked": self.asking.asked, **more}, status, headers=_HEADERS)

    def thumbnail(self, request: Request) -> Response:
        """Return the thumbnail of an image."""
        return self._of_row(request, self._thumbnail)

    def large_image(self, request: Request) -> Response:
        """Return an image in large size."""
        return self._of_row(request, lambda row: self.browsed.encode_picture(row, LARGE))

    def similar_images(self, request: Request) -> Response:
        """Return the images most similar to an image."""
        return self._of_row(request, lambda row: {"images": self.browsed.find_similar_images(row)})

    def _of_row(self, request: Request, read: Callable[[int], bytes | str | dict[str, Any]]) -> Response:
        """Return an image or JSON for the row in the request; a string returned by ``read`` explains a 404."""
        row = request.path_params["row"]
        if row >= self.session.store.n:
            return _refuse(404, f"rows must be from 0 to {self.session.store.n - 1}")
        found = read(row)
        if isinstance(found, str):
            return _refuse(404, found)
        if isinstance(found, dict):
            return JSONResponse(found, headers=_HEADERS)
        headers = {**_HEADERS, "Cache-Control": "private, max-age=3600"}
        return Response(found, media_type="image/webp", headers=headers)

    def split_group(self, request: Request) -> Response:
        """Split a group in two, and return the rows of both parts."""
        group = request.path_params["group"]
        if group >= len(self.session.work.named):
            return _refuse(404, f"there is no group {group}")
        return JSONResponse({"parts": self.browsed.split_group(self.session, group)}, headers=_HEADERS)


async def _missing(request: Request, error: Exception) -> Response:
    return _refuse(getattr(error, "status_code", 404), "not found")


async def _body(request: Request, keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON object in a request, which must have exactly these keys."""
    try:
        told = json.loads(await request.body())
    except ClientDisconnect as error:
        raise InvalidStepError(f"a request may have at most {MAX_BYTES:,} bytes") from error
    except (ValueError, RecursionError) as error:
        raise InvalidStepError(str(error)) from error
    if not isinstance(told, dict) or set(told) != set(keys):
        raise InvalidStepError(f"a request must be an object with the keys {', '.join(keys)}")
    return told


def _text(value: object, key: str) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST or not value.isprintable():
        raise InvalidStepError(f"{key} must be a string of at most {_LONGEST} characters")
    return value


def _number(value: object, key: str) -> int:
    if type(value) is not int or value < 0:
        raise InvalidStepError(f"{key} must be a round number")
    return value


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Open a TCP socket that listens on a host and port.

    Raises:
        ResourceError: the address does not belong to this machine, or the port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=host == "::")
    except OSError as error:
        reason = str(error.strerror or error).partition(" (while")[0]  # create_server repeats the address
        problem = f"cannot listen on this address ({reason})"
        raise ResourceError(f"{host}:{port}", problem, "Pass a different --host or --port.") from error


class _Server(uvicorn.Server):
    """Server that does not re-raise the signal that stopped it, because a second signal would kill the command."""

    ended_by: int | None = None  # the last signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.ended_by = sig
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(server: LabelServer, host: str, port: int, *, open_browser: bool) -> None:
    """Show the link, and serve the labeling pages until the process is interrupted.

    Args:
        server: server of the labeling session.
        host: address to listen on.
        port: port to listen on; 0: any free port.
        open_browser: whether to open the page in the browser.

    Raises:
        ResourceError: the server cannot listen on the address.
        Interrupted: a signal other than Ctrl-C stopped the server.
    """
    listening = open_listening_socket(host, port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    link = f"http://{shown}:{port}/#{token}"
    progress = current_progress()
    progress.message(f"label in the browser: {link}")
    progress.message(f"every action is immediately saved in {server.session.name}; press Ctrl-C to stop the server")
    if open_browser:
        webbrowser.open(link)
    running = _Server(uvicorn.Config(RequestGuard(server.app(), host, port, token), **SETTINGS))
    running.run(sockets=[listening])
    if running.ended_by not in (None, signal.SIGINT):
        raise Interrupted(running.ended_by)
