"""The synchronous client."""

from __future__ import annotations

import hashlib
import io
import secrets
from time import sleep
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from os import PathLike
from ssl import SSLContext
from types import TracebackType
from typing import Any, BinaryIO, TypeVar

from . import _bodies, _calls, _http, _push, _server, errors
from ._transport import Transport, BrokenError, Response, _Stream
from ._bodies import Body
from ._calls import Call, Progress
from ._steps import drive
from ._wire import Decoder, Object
from .types import (
    Attached,
    Attachment,
    Bundled,
    Change,
    Commit,
    Feed,
    History,
    Info,
    LogEntry,
    Message,
    Node,
    Page,
    PushReport,
    Record,
    RecordChange,
    RecordPage,
    RecordUpdate,
    Ref,
    Report,
    Result,
    Revision,
    Saved,
    Standing,
    State,
    Unbundled,
    Usage,
)  # fmt: skip

T = TypeVar("T")

_PIECE = 4 << 20


class Client:
    """A connection with a server of stores. Threads and forked processes may share it.

    Use `Client.open` for a store in a directory, and `Client(address)` for a server that runs.
    """

    def __init__(self, address: str, *, token: str = "", namespace: str = "", patience: float = 10.0, verify: bool | SSLContext = True, _restart: Any = None) -> None:
        """Connects with a server at "unix:PATH", "https://HOST:PORT" or "http://HOST:PORT".

        patience is for how many seconds a request is made again when it gets no answer. verify is a context of TLS, or False for a certificate that nobody vouches for.
        """
        self._o = _http.Options(address, token, namespace, patience, verify)
        self._o.check()
        self._restart = _restart
        self._server = ""
        self._bases = _bodies.Bases()
        self._differs = not self._o.socket  # On a local socket a difference takes longer to make than the bytes that it saves take to send.
        self._http = Transport(self._o.socket, self._o.base, self._o.headers(), verify)

    @classmethod
    def open(cls, store: str | PathLike[str], *, namespace: str = "", patience: float = 10.0, idle: float = 60.0) -> Client:
        """Opens a store: "DIR", "pebble:DIR" or "badger:DIR".

        Processes that open the same store share a server, which the first one starts. It ends when nobody has asked it anything for `idle` seconds,
        and the next call starts another one.
        """
        place = _server.absolute(store)

        def start() -> bool:
            return _server.start(place, idle)

        client = cls(_server.address(place), namespace=namespace, patience=patience, _restart=start)
        client._hello()
        return client

    def _hello(self) -> None:
        """Finds out which server serves: a write names the one that it is for."""
        try:
            self.list(limit=1)
        except errors.Error as e:
            if e.kind not in ("scope", "store-not-found"):
                raise

    def close(self) -> None:
        """Closes the connections. Calls that come later fail."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Requests

    def _run(self, call: Call[T]) -> T:
        body = _bodies.whole(call, self._differs)
        if not body.base:
            return self._send(call, body)
        last = self._bases.take(call.session)
        difference = _bodies.difference(last, body, secrets.token_hex(16)) if last else None
        try:
            result = self._send(call, difference or body)
        except errors.Error as e:
            if e.kind != "base-not-found":
                raise
            difference = None
            result = self._send(call, body)
        self._bases.put(call.session, difference or body)
        return result

    def _send(self, call: Call[T], body: Body) -> T:
        if call.id and not call.anywhere and not self._server:
            self._hello()
        attempts = _http.Attempts(self._o.patience, self._server, body.id, call.anywhere, body.base)
        content = body.content
        while True:
            try:
                if call.progress:
                    response = self._told(call.name, content, attempts.headers(), call.progress)
                else:
                    response = self._http.request("POST", "/v1/" + call.name, content=content, headers=attempts.headers())
            except BrokenError as e:
                if call.several and e.begun:
                    attempts.renew()  # It comes bit by bit, for as long as the work takes.
                self._pause(attempts, e)
                continue
            except errors.Error as e:  # The client is closed.
                raise attempts.last(e) from e
            self._server = response.headers.get("Turnstone-Server", self._server)
            try:
                _http.check(response)
                return _http.read(call, response.content)
            except (_http.Lost, _http.Busy) as e:
                self._pause(attempts, e)
            except errors.Error as e:
                sleep(attempts.refused(e, response.headers))

    def _told(self, name: str, content: bytes, headers: Mapping[str, str], progress: Progress) -> Response:
        """Makes a request whose answer tells of the progress of the work while it comes."""
        with self._http.stream("POST", "/v1/" + name, content=content, headers=headers) as response:
            decoder, chunks = Decoder(), []
            for chunk in response.iter_bytes():
                chunks.append(chunk)
                with suppress(ValueError):  # The answer of a problem is read when it is whole, and so is one that is none.
                    for d in decoder.feed(chunk):
                        if "progress" in d.value:
                            progress(d.value["progress"]["phase"], d.value["progress"]["done"])
            return Response(response.status, response.headers, b"".join(chunks))

    def _pause(self, attempts: _http.Attempts, error: Exception) -> None:
        sent = isinstance(error, _http.Lost) or (isinstance(error, BrokenError) and error.sent)
        pause = attempts.again(error, sent)
        try:
            started = bool(self._restart) and not sent and not isinstance(error, _http.Busy) and self._restart()
        except errors.Error as e:
            raise attempts.last(e) from e
        if not started:
            sleep(pause)

    @contextmanager
    def _stream(self, method: str, path: str, **kw: Any) -> Iterator[_Stream]:
        with self._http.stream(method, path, **kw) as response:
            self._server = response.headers.get("Turnstone-Server", self._server)
            if response.status // 100 != 2:
                _http.check(Response(response.status, response.headers, response.read()))
            yield response

    def _watch(self, path: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Yields events, and goes on after the last of them when the connection is cut. The caller sets query["after"], if events have ids."""
        attempts = _http.Attempts(self._o.patience)
        while True:
            alive = False
            try:
                with self._stream("GET", path, params=query) as response:
                    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                        raise _http.Lost("the answer has no events")
                    alive = True
                    events = _http.Events()
                    for line in response.iter_lines():
                        if (event := events.feed(line)) is not None:
                            yield event
                error: Exception = _http.Lost("the watch was cut off")
            except (BrokenError, _http.Lost, _http.Busy) as e:
                error = e
            if alive:
                attempts.renew()
            self._pause(attempts, error)

    # Bundles

    def standings(self, *sessions: str) -> list[Standing]:
        """Returns where sessions stand, to compare it with where they do in another store. Those that do not exist are left out."""
        return self._run(_calls.standings([(id, ()) for id in sessions]))

    def bundle(self, *sessions: str | Bundled) -> Generator[bytes, None, None]:
        """Yields sessions as one bundle, which `unbundle` of any store reads. When the connection is cut, it goes on where it was."""
        of = [s if isinstance(s, Bundled) else Bundled(s) for s in sessions]
        offset, before = 0, hashlib.sha256()
        attempts = _http.Attempts(self._o.patience)
        while True:
            begin = offset
            content = _bodies.whole(_calls.bundle(of, offset, before.hexdigest())).content
            try:
                with self._stream("POST", "/v1/bundle", content=content) as response, closing(response.iter_bytes()) as chunks:
                    for chunk in chunks:
                        offset += len(chunk)
                        before.update(chunk)
                        yield chunk
                return
            except (BrokenError, _http.Lost, _http.Busy) as e:
                if offset > begin:
                    attempts.renew()
                self._pause(attempts, e)

    def unbundle(self, content: bytes | bytearray | memoryview | BinaryIO | Iterator[bytes], *, as_id: str = "", branch: str = "") -> list[Unbundled]:
        """
        Makes the sessions of a bundle, or brings those that exist forward. The only one of a bundle gets the id `as_id`; if it has diverged, it becomes a branch
        of the one that is there, whose end is kept under the name `branch`. Otherwise it is a DivergedError.
        """
        query = {k: v for k, v in (("as", as_id), ("branch", branch)) if v}
        pieces = _read(content) if isinstance(content, bytes | bytearray | memoryview) or hasattr(content, "read") else _pieces(content)
        stored = self._upload("/v1/bundle", query, pieces)
        return [Unbundled._of(s) for s in stored["bundle"].get("sessions") or ()]

    def push(
        self, to: Client, *sessions: str, group: str = "", all: bool = False, changed_since: datetime | None = None, as_id: str = "", branch: str = "",
    ) -> PushReport:  # fmt: skip
        """
        Brings sessions to another store, which gets what it lacks of them: those that are named, those of a group and of the groups below it, or all, of these
        those that were updated at a time or later. A session only goes forward. What can't be pushed is in the PushError that comes when all others were:
        of one that has diverged, a DivergedError; of one that does not exist, a NotFoundError. `as_id` and `branch` are those of `unbundle`. A push that
        failed goes on when it is called again.
        """

        def make(step: _push.Step) -> Any:
            if isinstance(step, _push.Wait):
                return sleep(step.seconds)
            if isinstance(step, _push.Send):
                with closing(self.bundle(*step.of)) as content:
                    return to.unbundle(content, as_id=as_id, branch=step.branch)
            return (to if step.target else self)._run(step.call)

        return drive(make, _push.Push(sessions, group, all, changed_since, as_id, branch).steps())

    def _upload(self, path: str, query: Object, pieces: Generator[bytes, None, None]) -> Object:
        """Brings pieces to the server, and returns what it has made of all."""
        query = {**query, "upload": secrets.token_hex(16)}
        offset, piece = 0, b""
        try:
            with closing(pieces):
                for following in pieces:
                    if piece:
                        self._put(path, query, piece, offset, False)
                    offset += len(piece)
                    piece = following
            return self._put(path, query, piece, offset, True)
        except BaseException:
            # It is given up, so that it does not take a place on the server until it expires.
            with suppress(BrokenError, errors.Error):
                self._http.request("DELETE", "/v1/upload", params={"upload": query["upload"]})
            raise

    def _put(self, path: str, query: Object, piece: bytes, begin: int, last: bool) -> Object:
        """Brings one piece to the server. After the last one it returns what the server has made of all."""
        offset, end = begin, begin + len(piece)
        attempts = _http.Attempts(self._o.patience)
        asks = False
        while True:
            try:
                # A server that has a part of the piece, or all of it, answers before it has read the rest, and closes the connection. So after an
                # attempt without an answer it is asked what it has.
                if asks:
                    response = self._http.request("GET", "/v1/upload", params={"upload": query["upload"]})
                else:
                    params = {**query, "offset": str(offset), **({} if last else {"more": "1"})}
                    response = self._http.request("PUT", path, params=params, content=piece[offset - begin :])
                _http.check(response)
                stored = _http.read(Call("upload", {}, _calls.progress), response.content)
                at = stored["offset"]
                if stored.get("attachment") or stored.get("bundle") or (at == end and not last):
                    return stored
                asks, offset = False, max(begin, min(at, end))  # Of the last piece it waits for what comes of all.
            except (BrokenError, _http.Lost, _http.Busy) as e:
                self._pause(attempts, e)
                asks = attempts.sent
            except errors.Error as e:
                if e.kind == "upload-not-found" and asks and begin == 0:
                    asks, offset = False, 0  # Nothing of it has come.
                    continue
                if e.kind == "upload-not-found" and last and attempts.sent:
                    raise errors.unknown_outcome(str(e)) from e
                at = e.problem.get("offset", -1)
                if e.kind != "upload-offset" or not begin <= at <= end:
                    raise
                # An earlier attempt has brought a part of the piece, or all of it.
                if at == end and not last:
                    return {}
                asks, offset = at == end, at

    # Sessions

    def create(
        self, id: str, *, name: str = "", model: str = "", cwd: str = "", group: str = "", labels: Mapping[str, str] | None = None,
        retention: int | str = 0, custom: Any = None, host_created: datetime | str = "", host_updated: datetime | str = "", summary: bool = False,
        parent: str = "", fork_node: str = "", fork_at: Revision = 0, no_checkpoint: bool = False, detached: bool = False,
    ) -> tuple[Session, bool]:  # fmt: skip
        """Makes a session, or returns the one that exists, and whether it was made."""
        meta = _calls.metadata(name, model, cwd, group, labels, retention, custom, host_created, host_updated)
        options = _calls.request(meta, parent, fork_node, fork_at, no_checkpoint, detached, summary)
        info, created = self._run(_calls.create(id, options))
        return Session(self, info.id, info.incarnation), created

    def save(
        self, id: str, messages: Sequence[Message], *, state: Mapping[str, bytes | str] | None = None, base: Revision = 0, touch: bool = False,
        usage: Sequence[Usage] = (), turn: str = "",
        name: str = "", model: str = "", cwd: str = "", group: str = "", labels: Mapping[str, str] | None = None,
        retention: int | str = 0, custom: Any = None, host_created: datetime | str = "", host_updated: datetime | str = "", empty: Sequence[str] = (),
        parent: str = "", fork_node: str = "", fork_at: Revision = 0, no_checkpoint: bool = False, detached: bool = False, summary: bool = False,
    ) -> Saved:  # fmt: skip
        """
        Makes messages the history of a session, and stores the difference. It makes the session if there is none, as `create` does. What is edited or
        left out stays in the graph, as a branch. `state` is all of the host's settings; without it, they stay. Metadata are merged, after those in `empty`
        were emptied. With a `base` the session must have that revision; without one, the last save wins. A `turn` makes the `usage` count once.
        """
        meta = _calls.metadata(name, model, cwd, group, labels, retention, custom, host_created, host_updated)
        new = _calls.request({}, parent, fork_node, fork_at, no_checkpoint, detached, summary)
        return self._run(_calls.save(id, messages, state, meta, empty, new, touch, usage, turn, base))

    def history(self, id: str) -> History | None:
        """Returns the whole history of a session, or None if there is none."""
        while True:
            try:
                session = self.session(id)
                state = session.load()
                parts = session.checkpoint(state.revision) if state.parts else {}
                info = session.info()
            except errors.NotFoundError as e:
                if e.kind in ("session-not-found", "session-deleted"):
                    return None
                if e.kind == "revision-pruned":
                    continue
                raise
            if info.commit == state.commit:  # otherwise somebody committed between these reads
                messages = (Message(n.kind, n.payload, n.attachments, n.id) for n in state.nodes)
                return History(info, tuple(messages), parts)

    def session(self, id: str) -> Session:
        """Returns an existing session, or raises NotFoundError."""
        info = self._run(_calls.info({"session": id}))
        return Session(self, info.id, info.incarnation)

    def list(
        self,
        *,
        after: str = "",
        limit: int = 0,
        parent: str = "",
        group: str = "",
        labels: Mapping[str, str] | None = None,
        summary: bool | None = None,
    ) -> Page:
        """Lists sessions, the most recently updated first: a page of them."""
        return self._run(_calls.list_sessions(after, limit, parent, group, labels, summary))

    def commit_all(self, *commits: Object) -> Sequence[Result]:
        """Stores a turn in each of several sessions, all or none. See `Session.turn` and `Client.first_turn`."""
        return self._run(_calls.commit_all(commits))

    def first_turn(
        self, id: str, commit: Commit, *, name: str = "", model: str = "", cwd: str = "", group: str = "", labels: Mapping[str, str] | None = None,
        retention: int | str = 0, custom: Any = None, host_created: datetime | str = "", host_updated: datetime | str = "", summary: bool = False,
        parent: str = "", fork_node: str = "", fork_at: Revision = 0, no_checkpoint: bool = False, detached: bool = False,
        records_only: bool = False,
    ) -> Object:  # fmt: skip
        """Returns a commit for `commit_all` that makes its session, as `create` does, if there is none of the id.

        With records_only it stores records and makes no commit.
        """
        meta = _calls.metadata(name, model, cwd, group, labels, retention, custom, host_created, host_updated)
        options = _calls.request(meta, parent, fork_node, fork_at, no_checkpoint, detached, summary)
        create = {"id": id, **options}
        return _calls.session_commit({}, create, commit, records_only)

    def records(self, prefix: str = "", *, after: str = "", limit: int = 0) -> RecordPage:
        """Lists records of all sessions, in the order of their keys."""
        return self._run(_calls.records({}, prefix, after, limit))

    def watch_records(self, prefix: str = "") -> Iterator[RecordUpdate]:
        """Yields records of all sessions, and the changes of them that come. It begins anew when the connection is cut."""
        for event in self._watch("/v1/watch-records", {"prefix": prefix}):
            yield RecordUpdate._of(event)

    def delete(self, id: str, children: str = "keep") -> None:
        """Removes the session that has an id now. children is "keep", "refuse" or "cascade"."""
        self._run(_calls.delete({"session": id}, children))

    def start_feed(self, keep_seconds: float, *, records: bool = False) -> None:
        """Turns the feed of changes on. It keeps changes for so long; those of records are in it if asked for."""
        self._run(_calls.start_feed(keep_seconds, records))

    def stop_feed(self) -> None:
        """Turns the feed of changes off."""
        self._run(_calls.stop_feed())

    def feed(self) -> Feed:
        """Returns what the feed has."""
        return self._run(_calls.feed())

    def changes(self, after: str) -> Iterator[Change]:
        """Yields the changes of all sessions after a cursor, and those that come."""
        query = {"after": after}
        for event in self._watch("/v1/changes", query):
            change = Change._of(event)
            query["after"] = change.cursor
            yield change

    def gc(self, *, dry_run: bool = False, full: bool = False, progress: Progress | None = None) -> Report:
        """Deletes the blobs that nothing refers to."""
        return self._run(_calls.gc({}, dry_run, full, progress))

    def vacuum(self, *, no_compaction: bool = False, progress: Progress | None = None) -> Report:
        """Removes what is detached, and gives the space back."""
        return self._run(_calls.vacuum({}, no_compaction, progress))

    def prune(self, *, group: str = "", revisions: int = 0, age: float = 0, inactive: float = 0, bytes: int = 0, dry_run: bool = False) -> Report:
        """Applies retention to all sessions, or to those of a group. age and inactive are seconds."""
        return self._run(_calls.prune({}, group, revisions, age, inactive, bytes, dry_run))

    def erase(self, id: str, children: str = "keep", *, progress: Progress | None = None) -> Report:
        """Deletes the session that has an id now, and removes what it alone had from the store's files."""
        return self._run(_calls.erase(id, children, progress))

    def seal(self) -> None:
        """Makes segments of loose commits."""
        self._run(_calls.seal({}))

    def verify(self, *, progress: Progress | None = None) -> Report:
        """Checks every hash, link, checksum and reference. Nothing is wrong if the report has no "problems"."""
        return self._run(_calls.verify(progress))

    def stats(self) -> Report:
        """Says what the namespace holds, and what that takes."""
        return self._run(_calls.stats())

    def upgrade(self) -> Report:
        """Raises the format of the store to the newest one: "from" and "to"."""
        return self._run(_calls.upgrade())


def _read(content: Any) -> Generator[bytes, None, None]:
    """Yields pieces of bytes, or of a file."""
    stream = content if hasattr(content, "read") else io.BytesIO(content)
    while piece := stream.read(_PIECE):
        yield piece


def _pieces(chunks: Any) -> Generator[bytes, None, None]:
    """Yields pieces of what comes in chunks."""
    piece = bytearray()
    for chunk in chunks:
        piece += chunk
        while len(piece) >= _PIECE:
            yield bytes(piece[:_PIECE])
            del piece[:_PIECE]
    if piece:
        yield bytes(piece)


class Session:
    """A session. Its methods raise SessionDeletedError when it was deleted or renamed."""

    def __init__(self, client: Client, id: str, incarnation: str) -> None:
        self.client = client
        self.id = id
        self._target: Object = {"session": id, "incarnation": incarnation}

    def info(self) -> Info:
        """Returns metadata, head and totals."""
        return self.client._run(_calls.info(self._target))

    def load(
        self, *, at: Revision = 0, leaf: str = "", full: bool = False, last: int = 0, after: int = 0, reverse: bool = False,
        parts: Sequence[str] = (), records: Sequence[str] = (),
    ) -> State:  # fmt: skip
        """Reads history: the active path, or what the arguments say."""
        return self.client._run(_calls.load(self._target, at, leaf, full, last, after, reverse, parts, records))

    def nodes(self, *, at: Revision = 0, leaf: str = "", full: bool = False, last: int = 0, after: int = 0, reverse: bool = False) -> Iterator[Node]:
        """Yields the nodes that `load` returns, one at a time. When the connection is cut, it goes on where it was."""
        message = _calls.scope(self._target, at, leaf, full, last, after, reverse)
        attempts = _http.Attempts(self.client._o.patience)
        while True:
            alive = False
            try:
                content = _bodies.whole(Call("nodes", message, lambda _: None)).content
                with self.client._stream("POST", "/v1/nodes", content=content) as response:
                    decoder = Decoder()
                    for chunk in response.iter_bytes():
                        for d in decoder.feed(chunk):
                            alive = True
                            if "node" in d.value:
                                message["behind"] = d.value["node"]["id"]
                                yield Node._of(d.value["node"], d)
                            elif "at" in d.value:
                                message["at"] = d.value["at"]
                            else:
                                _http.finish([d])
                                return
                error: Exception = _http.Lost("the answer is cut off")
            except (BrokenError, _http.Lost, _http.Busy) as e:
                error = e
            if alive:
                attempts.renew()
            self.client._pause(attempts, error)

    def node(self, id: str = "", *, key: str = "") -> Node:
        """Returns one node, by its id or by the caller's key."""
        return self.client._run(_calls.node(self._target, id, key))

    def nodes_by_key(self, *keys: str) -> dict[str, Node]:
        """Returns those nodes that have one of the caller's keys."""
        return self.client._run(_calls.nodes_by_key(self._target, keys))

    def leaves(self) -> list[Node]:
        """Returns the ends of branches, without payloads."""
        return self.client._run(_calls.leaves(self._target))

    def log(self, after: int = 0) -> list[LogEntry]:
        """Returns the commits after a revision, up to the head."""
        return self.client._run(_calls.log(self._target, after))

    def kept(self) -> dict[str, int]:
        """Returns the revisions that are kept by name."""
        return self.client._run(_calls.kept(self._target))

    def checkpoint(self, at: Revision = 0) -> dict[str, bytes]:
        """Returns the contents of the checkpoint parts at a revision; 0 is the head's."""
        return self.client._run(_calls.checkpoint(self._target, at))

    def commit(
        self, nodes: Sequence[Any] = (), *, expected: Revision = 0, turn: str = "", on_path: str = "", leaf: str | int | None = None,
        checkpoint: Mapping[str, bytes] | None = None, drop: Sequence[str] = (), usage: Sequence[Any] = (), labels: Mapping[str, str] | None = None,
        tombstone: Sequence[str] = (), keep: str = "", records: Sequence[RecordChange] = (), stored: Mapping[str, str] | None = None,
    ) -> Result:  # fmt: skip
        """Stores one turn, whole or not at all. expected is the revision that the caller loaded, or "any"."""
        c = Commit(expected, nodes, turn, on_path, leaf, checkpoint or {}, drop, usage, labels or {}, tombstone, keep, records, stored or {})
        return self.client._run(_calls.commit(self._target, c))

    def turn(self, commit: Commit, *, records_only: bool = False) -> Object:
        """Returns a commit to this session for `Client.commit_all`."""
        return _calls.session_commit(self._target, None, commit, records_only)

    def refs(self, wanted: Sequence[tuple[str, str]]) -> list[Ref]:
        """Returns the records of some keys whose values are JSON objects with a revision, each with the checkpoint of that, and the records whose keys begin with
        what the object has in "beside". After a key comes the version of the record whose parts the caller has, which are left out, or "none". Those that are
        gone are left out, too."""
        return self.client._run(_calls.refs(self._target, wanted))

    def record(self, key: str) -> Record | None:
        """Returns the record of a key, or None."""
        try:
            return self.client._run(_calls.record(self._target, key))
        except errors.NotFoundError as e:
            if e.kind == "record-not-found":
                return None
            raise

    def records(self, prefix: str = "", *, after: str = "", limit: int = 0) -> RecordPage:
        """Lists records in the order of their keys: a page of them."""
        return self.client._run(_calls.records(self._target, prefix, after, limit))

    def change_records(self, *changes: RecordChange) -> list[str]:
        """Sets, deletes and checks records, all or none, without a commit. Returns their versions."""
        return self.client._run(_calls.change_records(self._target, changes))

    def save_metadata(
        self, *, name: str = "", model: str = "", cwd: str = "", group: str = "", labels: Mapping[str, str] | None = None,
        retention: int | str = 0, custom: Any = None, host_created: datetime | str = "", host_updated: datetime | str = "", empty: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Empties fields (with "all", every one), and merges others. Without both, it says that the session was used."""
        meta = _calls.metadata(name, model, cwd, group, labels, retention, custom, host_created, host_updated)
        self.client._run(_calls.save_metadata(self._target, meta, empty))

    def tombstone(self, *nodes: str) -> None:
        """Soft-deletes nodes."""
        self.client._run(_calls.tombstone(self._target, nodes))

    def keep(self, name: str, revision: Revision) -> None:
        """Keeps a revision under a name."""
        self.client._run(_calls.keep(self._target, name, revision))

    def release(self, name: str) -> None:
        """Ends the keeping of a revision."""
        self.client._run(_calls.release(self._target, name))

    def rename(self, to: str) -> None:
        """Gives the session another id. Handles of the session, this one included, raise SessionDeletedError then."""
        self.client._run(_calls.rename(self._target, to))

    def delete(self, children: str = "keep", *, expected: Revision = "any") -> None:
        """Removes this session, also if it was renamed since, and never another one that has its id by now. children is "keep", "refuse" or "cascade".

        If expected is a revision and the head is at another one, the session stays, and the error is ConflictError.
        """
        self.client._run(_calls.delete(self._target, children, expected))

    def watch(self, after: Revision = 0) -> Iterator[LogEntry]:
        """Yields the commits after a revision, and those that come."""
        query = {**self._target, "after": str(after)}
        for event in self.client._watch("/v1/watch", query):
            entry = LogEntry._of(event)
            query["after"] = str(entry.revision)
            yield entry

    def watch_records(self, prefix: str = "") -> Iterator[RecordUpdate]:
        """Yields the records whose keys begin with prefix, and the changes of them that come. It begins anew when the connection is cut."""
        for event in self.client._watch("/v1/watch-records", {**self._target, "prefix": prefix}):
            yield RecordUpdate._of(event)

    def attachment(self, id: str) -> Attached:
        """Returns what is known of an attachment, without its bytes."""
        return self.client._run(_calls.attachment(self._target, id))

    def attachments(self) -> Sequence[Attached]:
        """Returns the attachments of the session's nodes, in the order of time."""
        return self.client._run(_calls.attachments(self._target))

    def link_attachment(self, source: str, id: str) -> Attachment:
        """Makes an attachment of another session, whose id is source, one that commits of this one may refer to."""
        return self.client._run(_calls.link_attachment(self._target, source, id))

    def put_attachment(self, content: bytes | BinaryIO, *, media_type: str = "", name: str = "") -> Attachment:
        """Stores bytes for a commit to refer to. When the connection is cut, it goes on where the server is."""
        query = {**self._target, "mediaType": media_type, "name": name}
        stored = self.client._upload("/v1/attachment", query, _read(content))
        return Attachment._of(stored["attachment"])

    def read_attachment(self, id: str) -> Iterator[bytes]:
        """Yields the bytes of an attachment. When the connection is cut, it goes on where it was."""
        offset = 0
        attempts = _http.Attempts(self.client._o.patience)
        while True:
            begin = offset
            try:
                with self.client._stream("GET", "/v1/attachment", params={**self._target, "id": id, "offset": str(offset)}) as response:
                    for chunk in response.iter_bytes():
                        offset += len(chunk)
                        yield chunk
                return
            except (BrokenError, _http.Lost, _http.Busy) as e:
                if offset > begin:
                    attempts.renew()
                self.client._pause(attempts, e)

    def gc(self, *, dry_run: bool = False, full: bool = False, progress: Progress | None = None) -> Report:
        """Deletes blobs that this session let go of and nothing refers to."""
        return self.client._run(_calls.gc(self._target, dry_run, full, progress))

    def vacuum(self, *, no_compaction: bool = False, progress: Progress | None = None) -> Report:
        """Removes the content of tombstoned nodes from the store's files."""
        return self.client._run(_calls.vacuum(self._target, no_compaction, progress))

    def prune(self, revisions: int) -> bool:
        """Retains the last revisions, and those that are kept by name. Returns whether the floor has moved."""
        report = self.client._run(_calls.prune(self._target, "", revisions, 0, 0, 0, False))
        return bool(report.counts["sessions"])

    def erase(self, *nodes: str, progress: Progress | None = None) -> Report:
        """Tombstones nodes, and removes their content from the store's files."""
        return self.client._run(_calls.erase_nodes(self._target, nodes, progress))

    def seal(self) -> None:
        """Makes segments of loose commits."""
        self.client._run(_calls.seal(self._target))
