"""Compares a store of ours with a framework's own, by random calls: a helper for tests of adapters.

async def save(service, r):
    return await service.save_artifact(app_name="a", user_id=r.choice(["u", "v/w"]), filename="f", artifact=part)

await alike([TurnstoneArtifacts(db), InMemoryArtifactService()], [save, load, listed])
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Call = Callable[[Any, random.Random], Awaitable[Any]]
"""Makes one call of a store, with arguments that it chooses by the numbers, and returns what is to be the same for all stores."""


async def alike(stores: Sequence[Any], calls: Sequence[Call], *, steps: int = 200, seed: int = 0) -> None:
    """Makes random calls of several stores, and raises an AssertionError at the first one of which they don't return the same.

    Each store gets the same arguments. Errors are the same if they are of the same class, by its name. A call that is to be made more often than others is given more
    than once.
    """
    for step in range(steps):
        call = random.Random(f"{seed} {step}").choice(calls)
        results: list[Any] = []
        for store in stores:
            try:
                results.append(await call(store, random.Random(f"{seed} {step} arguments")))
            except Exception as e:
                results.append(f"raises {type(e).__name__}")
        name = getattr(call, "__name__", call)
        for store, result in zip(stores[1:], results[1:], strict=True):
            of = f"seed {seed}, step {step}: {name} of {type(stores[0]).__name__} and {type(store).__name__}"
            assert results[0] == result, f"{of} returns\n{results[0]!r}\nand\n{result!r}"
