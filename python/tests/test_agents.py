import asyncio
import json
from typing import Any

import pytest
from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.memory import SessionSettings
from agents.models.interface import Model
from agents.usage import Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

import turnstonedb
from turnstonedb import AsyncClient, AsyncSession, ConflictError
from turnstonedb.agents import TurnstoneSession

set_tracing_disabled(True)


def item(text: str) -> Any:
    return {"role": "user", "content": text}


def test_items_are_added_popped_and_cleared(store: str) -> None:
    async def main() -> None:
        async with await turnstonedb.AsyncClient.open(store, idle=2) as db:
            s, other = TurnstoneSession("a/b", db), TurnstoneSession("a/b", db)
            assert await s.get_items() == []
            assert await s.pop_item() is None
            assert (await db.list()).sessions == ()  # Reading makes no session.
            await s.add_items([item(str(i)) for i in range(5)])
            assert await other.get_items(2) == [item("3"), item("4")]
            assert await TurnstoneSession("a/b", db, session_settings=SessionSettings(limit=1)).get_items() == [item("4")]
            popped = await asyncio.gather(*(x.pop_item() for x in (s, other, s)))
            assert sorted(p["content"] for p in popped) == ["2", "3", "4"]  # type: ignore[index,typeddict-item]
            await s.add_items([{"type": "function_call", "name": "f", "call_id": "1", "arguments": "{}"}])
            assert [i.get("content") for i in await other.get_items()] == ["0", "1", None]
            await s.clear_session()
            assert await other.get_items() == []
            await other.add_items([item("new")])
            assert await s.get_items() == [item("new")]

    asyncio.run(main())


def test_an_item_is_popped_once_though_the_answer_is_lost(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = AsyncSession.commit

    async def lost(self: AsyncSession, *args: Any, **kw: Any) -> Any:
        await commit(self, *args, **kw)
        raise ConflictError("somebody was faster, or this call", {"matches": ["conflict", "unknown-outcome"]})

    async def run() -> None:
        async with await AsyncClient.open(store, idle=2) as db:
            s = TurnstoneSession("a", db)
            await s.add_items([item("0"), item("1"), item("2")])
            with monkeypatch.context() as m:
                m.setattr(AsyncSession, "commit", lost)
                with pytest.raises(ConflictError):
                    await s.pop_item()
            assert await s.get_items() == [item("0"), item("1")]

    asyncio.run(run())


def test_a_session_that_others_clear_and_make_again_goes_on(store: str) -> None:
    async def main() -> None:
        async with await turnstonedb.AsyncClient.open(store, idle=2) as db:
            s, other = TurnstoneSession("a/b", db, group="team"), TurnstoneSession("a/b", db, group="team")
            odd: Any = [item("\ud800 é"), {"role": "é" * 100, "content": "x"}, item("secret")]
            await s.add_items(odd)
            info = await (await db.session("a/b")).info()
            assert (info.group, info.revision) == ("team", 1)  # All items are one turn.
            assert (await other.get_items(), await other.get_items(0)) == (odd, [])
            assert await other.pop_item() == item("secret")
            assert [json.loads(n.payload) async for n in (await db.session("a/b")).nodes(full=True)] == odd[:2]
            for do, want in ((other.get_items, [item("new")]), (other.pop_item, item("new")), (other.clear_session, None)):
                await other.get_items()
                await s.clear_session()
                await s.add_items([item("new")])
                assert await do() == want
            await other.add_items([item("old")])
            await s.clear_session()
            await other.add_items([item("last")])
            assert await s.get_items() == [item("last")]
            await s.clear_session()
            await other.clear_session()
            assert (await db.list()).sessions == ()

    asyncio.run(main())


class Scripted(Model):
    """A model that says what it is told to."""

    def __init__(self, *outputs: list[Any]) -> None:
        self.outputs = list(outputs)
        self.inputs: list[Any] = []

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        self.inputs.append(input)
        return ModelResponse(output=self.outputs.pop(0), usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def message(text: str) -> Any:
    content = [ResponseOutputText(text=text, type="output_text", annotations=[])]
    return ResponseOutputMessage(id="m", content=content, role="assistant", status="completed", type="message")


def test_the_runner_goes_on_in_another_process_of_the_store(store: str) -> None:
    @function_tool
    def weather(city: str) -> str:
        return f"sunny in {city}"

    async def turn(model: Scripted, text: str) -> str:
        async with await turnstonedb.AsyncClient.open(store, idle=2) as db:
            agent = Agent(name="a", model=model, tools=[weather])
            return str((await Runner.run(agent, text, session=TurnstoneSession("user-1", db))).final_output)

    call = ResponseFunctionToolCall(name="weather", arguments='{"city":"Oslo"}', call_id="c1", type="function_call")
    assert asyncio.run(turn(Scripted([call], [message("It is sunny.")]), "Weather?")) == "It is sunny."
    second = Scripted([message("You asked for the weather.")])
    assert asyncio.run(turn(second, "What did I ask?")) == "You asked for the weather."
    kinds = [i.get("role") or i["type"] for i in second.inputs[0]]
    assert kinds == ["user", "function_call", "function_call_output", "assistant", "user"]


if __name__ == "__main__":
    pytest.main([__file__])
