"""What the stores of several frameworks share: ids that are joined of names, lists that miss nothing, and state that belongs to a user or an app.

docs/adapters.md tells how to write an adapter with it. Package adapter is the same for Go: both read what the other has written.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from ._async import AsyncClient
from .errors import Error, NotFoundError
from .types import Info

MAX_ID = 512
"""How many bytes the id of a session has at most."""

MAX_PAGE = 1000
"""How many sessions or records a page has at most."""


def join(root: str, *names: str) -> str:
    """Returns the id of a session or a group: a root, and names of any content. One that would be too long ends with a hash in place of what does not fit."""
    id = "/".join((root, *(n.replace("%", "%25").replace("/", "%2F") for n in names)))
    content = id.encode("utf-8", "surrogatepass")
    if len(content) <= MAX_ID:
        return id
    return content[: MAX_ID - 65].decode(errors="ignore") + "~" + hashlib.sha256(content).hexdigest()


def names(id: str) -> list[str]:
    """Returns the names that an id was joined of, without its root."""
    return [re.sub("%2F|%25", lambda m: {"%2F": "/", "%25": "%"}[m[0]], n) for n in id.split("/")[1:]]


def gone(error: BaseException) -> bool:
    """Reports whether an error says that there is no such session."""
    return isinstance(error, NotFoundError) and error.kind in ("session-not-found", "session-deleted")


async def listed(client: AsyncClient, **chosen: Any) -> list[Info]:
    """Returns the sessions of a group, of a parent or with labels, as `AsyncClient.list` chooses them, the most recently updated first.

    One that is updated meanwhile moves to the front of the store's list, so the list is read again until nothing is new.
    """
    seen: dict[str, Info] = {}
    more, first = True, True
    while more:
        more, after = False, ""
        while True:
            page = await client.list(after=after, limit=MAX_PAGE, **chosen)
            fresh = any(i.incarnation not in seen for i in page.sessions)
            seen.update((i.incarnation, i) for i in page.sessions)
            more = more or (fresh and page.next != "")
            after = page.next
            if not after or (not fresh and not first):
                break
        first = False
    return sorted(seen.values(), key=lambda i: (i.updated, i.id), reverse=True)


def outcome_unknown(error: BaseException) -> bool:
    """Reports whether what a call was to do may or may not stand after an error. Anything but an error of the store may have come while its answer was awaited."""
    return not isinstance(error, Error) or error.outcome_unknown
