"""Sessions, artifacts and memory of Google's Agent Development Kit.

    from google.adk.runners import Runner
    from turnstonedb import AsyncClient
    from turnstonedb.adk import TurnstoneArtifacts, TurnstoneMemory, TurnstoneSessions

    async with await AsyncClient.open("./data") as db:
        runner = Runner(app_name="trips", agent=agent, session_service=TurnstoneSessions(db), artifact_service=TurnstoneArtifacts(db), memory_service=TurnstoneMemory(db))

The adapter for Go reads these sessions and artifacts, and this one reads its. A session is ADK/APP/USER/ID in the store, and an event is a commit with one node. The
state of a session is a part of its checkpoint, which each revision and each fork has as it was then. The state of users and apps changes in the batch of the event
that changes it.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import secrets
import time
import unicodedata
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from google.adk.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService, ensure_part
from google.adk.errors import StaleSessionError, already_exists_error, session_not_found_error
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from google.adk.sessions.state import State
from google.genai import types
from pydantic_core import to_jsonable_python

from . import adapter
from ._async import AsyncClient, AsyncSession
from .errors import ConflictError, NotFoundError, RecordConflictError, TurnConflictError
from .types import Commit, NewNode, Record, RecordChange, Usage
from .types import State as LoadedState

_ROOT, _ARTIFACTS, _MEMORY, _STATES = "adk", "adk-artifacts", "adk-memory", "adk-state"
_STATE = "state"  # the part with a session's own state
_LATE = "late"  # the part that says that an event has a later time than its commit
_SKEW = 3600.0  # by how many seconds clocks may differ
_DELETED = "deleted/"  # and the id of an event: the key of a record of a memory


class TurnstoneSessions(BaseSessionService):
    """A session service on a store. Tasks of one event loop may share it, and processes the store.

    An event that is appended to a session that others have appended to is refused with a StaleSessionError. One of an id that is there is not stored again.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._states = adapter.States(client, _STATES)

    async def create_session(self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None) -> Session:
        """Makes a session, or raises an AlreadyExistsError."""
        id = (session_id or "").strip() or str(uuid.uuid4())
        app, user, own, _ = _deltas(state or {})
        first = self._client.first_turn(
            adapter.join(_ROOT, app_name, user_id, id),
            Commit(0, turn=secrets.token_hex(16), checkpoint={_STATE: _object(own)}),
            group=adapter.join(_ROOT, app_name, user_id),
        )
        try:
            results = await self._states.commit(_shared(app_name, user_id, app, user), first)
        except ConflictError as e:
            if e.outcome_unknown:
                raise
            raise already_exists_error.AlreadyExistsError(f"Session with id {id} already exists.") from e
        out = Session(app_name=app_name, user_id=user_id, id=id, last_update_time=time.time())
        handle = await self._client.session(adapter.join(_ROOT, app_name, user_id, id))
        out._storage_update_marker = _marker(handle, results[0].revision)
        out.state = await self._shown(app_name, user_id, own)
        return out

    async def get_session(self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None) -> Session | None:
        """Returns a session with its events, or None."""
        for id in dict.fromkeys((session_id, session_id.strip())):
            try:
                handle = await self._client.session(adapter.join(_ROOT, app_name, user_id, id))
                return await self._read(handle, app_name, user_id, id, config)
            except NotFoundError as e:
                if not adapter.gone(e):
                    raise
        return None

    async def _read(self, handle: AsyncSession, app: str, user: str, id: str, config: GetSessionConfig | None, shared: dict[str, Any] | None = None) -> Session:
        last = config.num_recent_events if config else None
        since = config.after_timestamp if config else None
        state = await handle.load(parts=[_STATE, _LATE], last=1 if last == 0 or since else last or 0)
        nodes = list(state.nodes)
        if since and nodes:
            nodes = []
            async for n in handle.nodes(at=state.revision, reverse=True):
                nodes.append(n)
                if _LATE not in state.contents and _seconds(n.time) < since - _SKEW:
                    break
            nodes.reverse()
        events = [event_of(n.payload) for n in nodes]
        updated = events[-1].timestamp if events else _seconds(state.time) if state.time else 0.0
        if since:
            events = [e for e in events if e.timestamp >= since]
        if last is not None:
            events = events[len(events) - min(last, len(events)) :]
        own = {k: adapter.unmarshal(json.dumps(v)) for k, v in _own(state).items()}
        out = Session(app_name=app, user_id=user, id=id, events=events, last_update_time=updated)
        out._storage_update_marker = _marker(handle, state.revision)
        out.state = await self._shown(app, user, own, shared)
        return out

    async def _shown(self, app: str, user: str, own: Mapping[str, Any], read: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns what a session shows of its own state, and of that of its user and app."""
        out = dict(own)
        read = {} if read is None else read
        for prefix, id in ((State.APP_PREFIX, adapter.join(_ROOT, app)), (State.USER_PREFIX, adapter.join(_ROOT, app, user))):
            if id not in read:
                read[id] = {k: adapter.unmarshal(v) for k, v in (await self._states.read(id)).items()}
            out.update((prefix + k, v) for k, v in read[id].items())
        return out

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Returns the sessions of a user, or of all users, the least recently updated first, with their state and without events."""
        group = adapter.join(_ROOT, app_name) if user_id is None else adapter.join(_ROOT, app_name, user_id)
        out: list[Session] = []
        shared: dict[str, Any] = {}
        for i in await adapter.listed(self._client, group=group):
            of = adapter.names(i.id)
            if len(of) != 3 or of[0] != app_name or (user_id is not None and of[1] != user_id):
                continue  # Somebody else has put it into the group.
            try:
                one = await self._read(await self._client.session(i.id), of[0], of[1], of[2], GetSessionConfig(num_recent_events=0), shared)
            except NotFoundError as e:
                if adapter.gone(e):
                    continue  # It was deleted since it was listed.
                raise
            out.append(one)
        return ListSessionsResponse(sessions=sorted(out, key=lambda s: (s.last_update_time, s.user_id, s.id)))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Deletes a session and its artifacts. The state and the artifacts of its user stay."""
        for id in dict.fromkeys((session_id, session_id.strip())):  # As in get_session, the first that is there.
            try:
                await self._client.session(adapter.join(_ROOT, app_name, user_id, id))
            except NotFoundError as e:
                if not adapter.gone(e):
                    raise
                if id != session_id.strip():
                    continue
            for root in (_ARTIFACTS, _ROOT):  # The session is deleted last, so that it is in lists as long as anything is left of it.
                await self._client.delete(adapter.join(root, app_name, user_id, id))
            return

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Returns the state of a user, without prefixes."""
        return {k: adapter.unmarshal(v) for k, v in (await self._states.read(adapter.join(_ROOT, app_name, user_id))).items()}

    async def append_event(self, session: Session, event: Event) -> Event:
        """Stores an event and its changes to the state of the session, the user and the app: all of this, or nothing."""
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        app, user, own, stored = _deltas(event.actions.state_delta if event.actions else {})
        handle, revision, before = await self._standing(session, bool(own))
        checkpoint = {_STATE: _object(own, before)} if own else {}
        if event.timestamp > time.time() + _SKEW / 2:
            checkpoint[_LATE] = b""
        node = NewNode(_kind(event), payload_of(event, stored))
        commit = handle.turn(Commit(revision, [node], event.id, checkpoint=checkpoint, usage=_usage(event)))
        try:
            results = await self._states.commit(_shared(session.app_name, session.user_id, app, user), commit)
        except ConflictError as e:
            if e.outcome_unknown:
                raise
            raise StaleSessionError(f"Somebody else has appended to session {session.id} since it was read: read it again.") from e
        except TurnConflictError as e:
            # It was stored before, and others have changed the state beside it since.
            state = await handle.load(at=e.revision, last=1)
            if [n.payload for n in state.nodes] != [node.payload]:
                raise
            await _check_shown(handle, state.nodes[0].id, event.id)
            return event
        except NotFoundError as e:
            if adapter.gone(e):
                raise session_not_found_error.SessionNotFoundError(f"Session {session.id} not found.") from e
            raise
        if results[0].replayed:  # It was appended before.
            await _check_shown(handle, results[0].nodes[0], event.id)
            if results[0].revision != revision + 1:
                return event
        session._storage_update_marker = _marker(handle, results[0].revision)
        session.last_update_time = event.timestamp
        return self._commit_event_to_session(session, event)

    async def _standing(self, session: Session, with_state: bool) -> tuple[AsyncSession, int, dict[str, Any]]:
        """Returns the handle and the revision of a session, and its own state as it is stored, if that is wanted."""
        try:
            handle = await self._client.session(adapter.join(_ROOT, session.app_name, session.user_id, session.id))
            marker, read = session._storage_update_marker, 0
            if marker:
                read = int(marker.rpartition(" ")[2])
                if marker != _marker(handle, read):
                    raise StaleSessionError(f"Session {session.id} was deleted since it was read, and there is another of that id: read it again.")
                if not with_state:
                    return handle, read, {}
            state = await handle.load(last=1, parts=[_STATE])
        except NotFoundError as e:
            if adapter.gone(e):
                raise session_not_found_error.SessionNotFoundError(f"Session {session.id} not found.") from e
            raise
        return handle, read if marker else state.revision, _own(state)


async def _check_shown(handle: AsyncSession, node: str, event: str) -> None:
    """Fails if a session does not show the node of an event that was stored before: a rewind has taken it away."""
    async for n in handle.nodes(reverse=True):
        if n.id == node:
            return
    raise TurnConflictError(f"Event {event} was appended before, and a rewind has taken it away: give it another id.", {"type": "#turn-conflict"})


def _own(state: LoadedState) -> dict[str, Any]:
    """Returns the state of a session itself, as it is stored."""
    return dict(json.loads(state.contents.get(_STATE, b"{}")))


def _marker(handle: AsyncSession, revision: int) -> str:
    """Returns what says of a session that was read which one it is, and its revision."""
    return f"{handle._target['incarnation']} {revision}"


def _deltas(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Returns what is changed of the states of the app, the user and the session, without prefixes, and all of it with them. Temporary values are left out."""
    app: dict[str, Any] = {}
    user: dict[str, Any] = {}
    own: dict[str, Any] = {}
    every: dict[str, Any] = {}
    for key, v in given.items():
        if key.startswith(State.TEMP_PREFIX):
            continue
        value = every[key] = to_jsonable_python(v)
        adapter.marshal(value)  # What can't be stored is refused before any effect.
        if key.startswith(State.APP_PREFIX):
            app[key[len(State.APP_PREFIX) :]] = value
        elif key.startswith(State.USER_PREFIX):
            user[key[len(State.USER_PREFIX) :]] = value
        else:
            own[key] = value
    return app, user, own, every


def _shared(app_name: str, user_id: str, app: Mapping[str, Any], user: Mapping[str, Any]) -> dict[str, dict[str, bytes | None]]:
    return {
        adapter.join(_ROOT, app_name): {k: adapter.marshal(v) for k, v in app.items()},
        adapter.join(_ROOT, app_name, user_id): {k: adapter.marshal(v) for k, v in user.items()},
    }


def _object(values: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> bytes:
    """Returns a JSON object of values as they are stored, with others that are kept as they were stored before."""
    stored = {**(before or {}), **{k: json.loads(adapter.marshal(v)) for k, v in values.items()}}
    return json.dumps(stored, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


# Events. In Go a time is text and bytes are in base64 with "+" and "/"; in Python a time is a number, and bytes have "-" and "_".


def payload_of(event: Event, delta: Mapping[str, Any]) -> bytes:
    """Returns an event as it is stored, with a state delta."""
    o = _plain(event.model_dump(mode="python", by_alias=True, exclude_none=True))
    o["timestamp"] = _moment(event.timestamp)
    if "stateDelta" in o.get("actions", {}):
        o["actions"]["stateDelta"] = {k: json.loads(adapter.marshal(v)) for k, v in delta.items()}
    return json.dumps(o, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def event_of(payload: bytes) -> Event:
    """Returns an event that this adapter or the one for Go has stored."""
    o = json.loads(payload)
    if isinstance(o.get("timestamp"), str):
        o["timestamp"] = _seconds(o["timestamp"])
    actions = o.get("actions")
    if isinstance(actions, dict) and actions.get("stateDelta"):
        actions["stateDelta"] = adapter.unmarshal(json.dumps(actions["stateDelta"]))
    if isinstance(o.get("content"), dict):
        for part in o["content"].get("parts") or ():
            _from_base64(part)
    return Event.model_validate({k: v for k, v in o.items() if k not in ("routes", "sessionResumptionHandle")})


def _from_base64(part: dict[str, Any]) -> None:
    for holder, name in ((part, "thoughtSignature"), (part.get("inlineData"), "data")):
        if isinstance(holder, dict) and isinstance(holder.get(name), str):
            holder[name] = base64.b64decode(holder[name].replace("-", "+").replace("_", "/"))
    response = part.get("functionResponse")
    for inner in (response.get("parts") or ()) if isinstance(response, dict) else ():
        _from_base64(inner)


def _plain(value: Any) -> Any:
    """Returns a value of a model with what JSON has."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    return value if value is None or isinstance(value, bool | int | float | str) else to_jsonable_python(value)


def _moment(seconds: float) -> str:
    """Returns a time as text (RFC 3339), with all digits that the number has."""
    whole, _, fraction = f"{seconds:.9f}".rstrip("0").partition(".")
    return datetime.fromtimestamp(int(whole), timezone.utc).strftime("%Y-%m-%dT%H:%M:%S") + (f".{fraction}" if fraction else "") + "Z"


def _seconds(text: str) -> float:
    m = re.fullmatch(r"([^.Z+]+)(\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    if not m:
        raise ValueError(f"{text!r} is no time")
    whole = int(datetime.fromisoformat(m[1] + m[3].replace("Z", "+00:00")).timestamp())
    return float(f"{whole}{m[2] or ''}")


def _kind(event: Event) -> str:
    if event.author == "user":
        return "user"
    parts = (event.content.parts if event.content else None) or ()
    return "tool" if any(p.function_response for p in parts) else "model"


def _usage(event: Event) -> list[Usage]:
    u = event.usage_metadata
    if u is None:
        return []
    counts = (u.prompt_token_count, u.candidates_token_count, u.thoughts_token_count, u.cached_content_token_count, u.tool_use_prompt_token_count)
    n = [max(0, v or 0) for v in counts]
    model = event.model_version or ""
    return [Usage(model if model and len(model.encode()) <= 128 else "unknown", n[0] + n[4], n[1] + n[2], n[3], 0, n[2])]


# Artifacts


class TurnstoneArtifacts(BaseArtifactService):
    """An artifact service on a store. The versions of an artifact are numbered from 0; the adapter for Go has the same ones from 1.

    The content of a version is an attachment, so the store has equal contents once. Deleting a session deletes its artifacts.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    def _place(self, app: str, user: str, session: str | None, filename: str) -> str:
        if session is None or filename.startswith("user:"):
            return adapter.join(_ARTIFACTS, app, user)
        return adapter.join(_ARTIFACTS, app, user, session)

    async def save_artifact(
        self, *, app_name: str, user_id: str, filename: str, artifact: types.Part | dict[str, Any], session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:  # fmt: skip
        """Stores the next version of an artifact, and returns its number."""
        part = ensure_part(artifact)
        if session_id is None and not filename.startswith("user:"):
            raise InputValidationError(f"Artifact {filename!r} belongs to a session, and no session was given.")
        place = self._place(app_name, user_id, session_id, filename)
        # Reading an artifact changes nothing in this session: otherwise a prune could take it for inactive.
        handle, _ = await self._client.create(place, group=adapter.join(_ARTIFACTS, app_name, user_id), retention="all")
        rest = _plain(part.model_dump(mode="python", by_alias=True, exclude_none=True))
        text = part.inline_data is None
        content, media = ((part.text or "").encode(), "text/plain") if text else (part.inline_data.data or b"", part.inline_data.mime_type or "")  # type: ignore[union-attr]
        rest.pop("text", None)
        rest.get("inlineData", {}).pop("data", None)
        stored = await handle.put_attachment(content, media_type=media, name=filename)
        node = secrets.token_hex(16)
        while True:
            record = await handle.record("name/" + filename)
            n = int(record.value) + 1 if record else 1
            about = {"part": rest, **({"text": True} if text else {}), **({"customMetadata": custom_metadata} if custom_metadata else {})}
            version = {"version": n, "created": _moment(time.time()), "node": node, "content": stored._wire(), "about": about}
            try:
                await handle.commit(
                    [NewNode("artifact", key=node, parent="none", attachments=[stored])],
                    expected="any",
                    turn=f"{node} {n}",
                    records=[
                        RecordChange.set("name/" + filename, str(n).encode(), record.version if record else "none"),
                        RecordChange.set(_version_key(filename, n), json.dumps(version, ensure_ascii=False).encode()),
                    ],
                )
            except RecordConflictError as e:
                if e.outcome_unknown:
                    raise
                continue  # Somebody else has saved or deleted a version.
            return n - 1

    async def _find(self, app: str, user: str, session: str | None, filename: str, version: int | None) -> tuple[AsyncSession, dict[str, Any]] | None:
        try:
            handle = await self._client.session(self._place(app, user, session, filename))
            if version is not None:
                record = await handle.record(_version_key(filename, version + 1)) if version >= 0 else None
            else:
                found = (await handle.records(_prefix(filename), limit=1)).records
                record = found[0] if found else None
        except NotFoundError as e:
            if adapter.gone(e):
                return None
            raise
        return (handle, json.loads(record.value)) if record else None

    async def load_artifact(self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None) -> types.Part | None:
        """Returns a version of an artifact, or the last one; None if there is none."""
        while True:
            found = await self._find(app_name, user_id, session_id, filename, version)
            if found is None:
                return None
            handle, v = found
            try:
                content = b"".join([piece async for piece in handle.read_attachment(v["content"]["id"])])
            except NotFoundError:
                continue  # It was deleted meanwhile.
            part = v["about"]["part"]
            _from_base64(part)
            if v["about"].get("text"):
                part["text"] = content.decode()
            else:
                part["inlineData"] = {**part.get("inlineData", {}), "data": content}
            return types.Part.model_validate(part)

    async def _versions(self, app: str, user: str, session: str | None, filename: str) -> list[dict[str, Any]]:
        """Returns the versions of an artifact, the first one first."""
        try:
            handle = await self._client.session(self._place(app, user, session, filename))
            records = await adapter.records(handle, _prefix(filename))
        except NotFoundError as e:
            if adapter.gone(e):
                return []
            raise
        return [json.loads(r.value) for r in reversed(records)]

    async def list_versions(self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None) -> list[int]:
        """Returns the numbers of the versions of an artifact."""
        return [v["version"] - 1 for v in await self._versions(app_name, user_id, session_id, filename)]

    async def list_artifact_versions(self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None) -> list[ArtifactVersion]:
        """Returns what is known of the versions of an artifact."""
        place = self._place(app_name, user_id, session_id, filename)
        return [_described(place, filename, v) for v in await self._versions(app_name, user_id, session_id, filename)]

    async def get_artifact_version(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> ArtifactVersion | None:
        """Returns what is known of a version of an artifact, or of the last one."""
        found = await self._find(app_name, user_id, session_id, filename, version)
        return _described(found[0].id, filename, found[1]) if found else None

    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """Returns the names of the artifacts of a session and of its user, or of the user alone."""
        names: set[str] = set()
        places = [adapter.join(_ARTIFACTS, app_name, user_id), *([adapter.join(_ARTIFACTS, app_name, user_id, session_id)] if session_id is not None else [])]
        for place in places:
            try:
                names.update(r.key[len("name/") :] for r in await adapter.records(await self._client.session(place), "name/"))
            except NotFoundError as e:
                if not adapter.gone(e):
                    raise
        return sorted(names)

    async def delete_artifact(self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None) -> None:
        """Deletes all versions of an artifact."""
        while True:
            try:
                handle = await self._client.session(self._place(app_name, user_id, session_id, filename))
                records = await adapter.records(handle, _prefix(filename))
                name = await handle.record("name/" + filename)
            except NotFoundError as e:
                if adapter.gone(e):
                    return
                raise
            if name is None and not records:
                return
            some = records[:200]
            last = len(some) == len(records)
            changes = [RecordChange.delete(r.key) for r in some]
            if name is not None:
                changes.append(RecordChange.delete(name.key, name.version) if last else RecordChange.check(name.key, name.version))
            try:
                await handle.commit(expected="any", turn=secrets.token_hex(16), records=changes, tombstone=await _nodes(handle, some))
            except (RecordConflictError, NotFoundError) as e:
                if isinstance(e, RecordConflictError) or adapter.gone(e):
                    continue  # Somebody else has saved or deleted a version.
                raise
            if last:
                return


def _version_key(filename: str, n: int) -> str:
    """Returns the key of a version's record. A later version has a lesser key, so a list begins with the last version."""
    return f"{_prefix(filename)}{(1 << 63) - 1 - n:016x}"


def _prefix(filename: str) -> str:
    """Returns what the keys of the records of a file's versions begin with, and no others."""
    return "version/" + filename.replace("%", "%25").replace("/", "%2F") + "/"


async def _nodes(handle: AsyncSession, records: Sequence[Record]) -> list[str]:
    """Returns the nodes that refer to the contents of versions."""
    found = await handle.nodes_by_key(*(json.loads(r.value)["node"] for r in records)) if records else {}
    return [n.id for n in found.values()]


def _described(place: str, filename: str, v: Mapping[str, Any]) -> ArtifactVersion:
    about = v["about"]
    part = about.get("part") or {}
    media = "text/plain" if about.get("text") and not part.get("fileData") else (part.get("inlineData") or part.get("fileData") or {}).get("mimeType")
    uri = (part.get("fileData") or {}).get("fileUri") or f"turnstone:{place}/{filename}/versions/{v['version'] - 1}"
    return ArtifactVersion(
        version=v["version"] - 1, canonical_uri=uri, custom_metadata=about.get("customMetadata") or {}, create_time=_seconds(v["created"]), mime_type=media
    )


# Memory


class TurnstoneMemory(BaseMemoryService):
    """A memory service on a store: it finds what a user and the agents have said in all sessions that were added, by words.

    An event that is added again is not stored again, nor one that was deleted. A search reads all events of the user.
    """

    def __init__(self, client: AsyncClient, *, most: int = 10) -> None:
        """A search returns `most` events at most, those that share the most words with the query."""
        self._client = client
        self._most = most

    async def add_session_to_memory(self, session: Session) -> None:
        """Adds the events of a session that have content."""
        await self.add_events_to_memory(app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id)

    async def add_events_to_memory(
        self, *, app_name: str, user_id: str, events: Sequence[Event], session_id: str | None = None, custom_metadata: Mapping[str, object] | None = None
    ) -> None:
        """Adds events that have content."""
        of = {adapter.short(adapter.join("event", session_id or "", e.id)): e for e in events if e.content and e.content.parts}
        if not of:
            return
        wanted = {k: payload_of(e, {}) for k, e in of.items()}
        handle, _ = await self._client.create(adapter.join(_MEMORY, app_name, user_id), group=adapter.join(_MEMORY, app_name), retention="all")
        for keys in adapter.in_commits(wanted, lambda k: len(wanted[k])):
            while True:
                info = await handle.info()
                there = await handle.nodes_by_key(*keys)
                deleted = {r.key for r in await adapter.records(handle, _DELETED)}
                nodes = [NewNode("memory", wanted[k], k) for k in keys if k not in there and _forgotten(of[k].id) not in deleted]
                if not nodes:
                    break
                try:
                    await handle.commit(nodes, expected=info.revision, turn=secrets.token_hex(16))
                except ConflictError as e:
                    if e.outcome_unknown:
                        raise
                    continue
                break

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Returns events that share a word with a query, those that share the most first."""
        asked = _words(query)
        found: list[tuple[int, Event]] = []
        try:
            handle = await self._client.session(adapter.join(_MEMORY, app_name, user_id))
            async for n in handle.nodes():
                event = event_of(n.payload)
                shared = _matching(asked, " ".join(p.text for p in (event.content.parts if event.content else None) or () if p.text))
                if shared:
                    found.append((shared, event))
        except NotFoundError as e:
            if not adapter.gone(e):
                raise
        found.sort(key=lambda f: -f[0])
        memories = [
            MemoryEntry(id=e.id, content=e.content, author=e.author, timestamp=datetime.fromtimestamp(e.timestamp, timezone.utc).isoformat())
            for _, e in found[: self._most]
            if e.content
        ]
        return SearchMemoryResponse(memories=memories)

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Deletes an event, by its id. It is not added again. `AsyncClient.vacuum` removes what it said from the store's files."""
        if not memory_id:
            return
        try:
            handle = await self._client.session(adapter.join(_MEMORY, app_name, user_id))
            nodes = [n.id async for n in handle.nodes() if event_of(n.payload).id == memory_id]
            if nodes:
                await handle.commit(expected="any", turn=secrets.token_hex(16), tombstone=nodes, records=[RecordChange.set(_forgotten(memory_id), b"")])
        except NotFoundError as e:
            if not adapter.gone(e):
                raise


def _words(text: str) -> set[str]:
    """Returns the words of a text in small letters."""
    return {w.lower() for w in re.findall(r"\w+", unicodedata.normalize("NFC", text))}


def _matching(asked: Collection[str], text: str) -> int:
    """Returns how many words of a query a text has. Some scripts have no spaces: there a word may be anywhere, and Latin words between them are words of their own."""
    words = _words(text)
    words |= {"".join(run) for w in words if not w.isascii() for _, run in itertools.groupby(w, _is_latin)}
    whole = unicodedata.normalize("NFC", text).lower()
    return sum(w in words or (not w.isascii() and w in whole) for w in asked)


def _is_latin(c: str) -> bool:
    return c.isascii() or unicodedata.name(c, "").startswith("LATIN")


def _forgotten(event_id: str) -> str:
    """Returns the key of the record that says that an event was deleted."""
    return _DELETED + adapter.short(adapter.join("", event_id)[1:], 400)
