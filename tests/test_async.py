"""AsyncMemory: Memory's methods, awaited."""

import asyncio
import inspect
import threading

import pytest
from memorykit import CALLS, BagOfWords, texts

from edgemem import AsyncMemory, Chat, Memory
from edgemem.errors import InputError, StoreError


def test_it_adds_searches_and_closes(tmp_path):
    async def story():
        async with AsyncMemory(tmp_path / "a.db", embedder=BagOfWords()) as memory:
            added = await memory.add("I live in Oslo", user_id="ana", infer=False)
            found = await memory.search("Oslo", user_id="ana", top_k=3, explain=True)
            assert texts(added) == texts(found) == ["I live in Oslo"]
            await memory.update(added[0].id, "I live in Bergen")
            assert (await memory.get(added[0].id)).memory == "I live in Bergen"
            with pytest.raises(InputError):
                await memory.add("")
            return memory

    memory = asyncio.run(story())
    with pytest.raises(StoreError, match="closed"):
        memory.memory.get_all()
    with Memory(tmp_path / "a.db", embedder=BagOfWords()) as again:
        assert texts(again.get_all()) == ["I live in Bergen"]


def test_many_calls_at_once_are_all_done():
    async def story():
        async with AsyncMemory(":memory:", embedder=BagOfWords()) as memory:
            names = [f"word{n}" for n in range(40)]
            await asyncio.gather(*(memory.add(name, infer=False) for name in names))
            found = await asyncio.gather(*(memory.search(name, top_k=1) for name in names))
            assert [texts(f) for f in found] == [[name] for name in names]

    asyncio.run(story())


def test_the_event_loop_is_not_held_up():
    class Slow(BagOfWords):
        def embed_query(self, text):
            assert threading.current_thread() is not threading.main_thread()
            go_on.wait(30)
            return super().embed_query(text)

    go_on = threading.Event()

    async def story():
        async with AsyncMemory(":memory:", embedder=Slow()) as memory:
            searching = asyncio.create_task(memory.search("x"))
            await asyncio.sleep(0)
            go_on.set()  # only reached because the search does not block
            assert len(await searching) == 0

    asyncio.run(story())


@pytest.mark.models
def test_leaving_with_an_answer_half_read_ends_it(tmp_path):
    async def story():
        async with AsyncMemory(tmp_path / "a.db", embedder=BagOfWords()) as memory:
            reply = Chat(memory.memory).send("Tell me a long story.", remember=False)
            return next(piece for piece in reply if piece)

    assert asyncio.run(asyncio.wait_for(story(), 60))


def test_every_method_is_there_and_parts_are_not(monkeypatch):
    memory = AsyncMemory(":memory:", embedder=BagOfWords())
    for name in (*CALLS, "close"):
        method = getattr(memory, name)
        assert inspect.iscoroutinefunction(method) and method.__doc__ and name in dir(memory)
    for name in ("engine", "embedder", "_work_lock", "nonsense"):
        with pytest.raises(AttributeError, match=name):
            getattr(memory, name)
    assert memory.memory._parts._engine is None  # asking loaded nothing
    asyncio.run(memory.close())
    asyncio.run(memory.close())


def test_arguments_and_docstrings_are_memorys_own():
    for name in CALLS:
        method, own = getattr(AsyncMemory, name), getattr(Memory, name)
        assert inspect.signature(method) == inspect.signature(own), name
        assert method.__doc__ == own.__doc__ and name in vars(AsyncMemory)
    assert inspect.signature(AsyncMemory.__init__) == inspect.signature(Memory.__init__)


def test_whether_it_is_closed_is_told_without_awaiting():
    memory = AsyncMemory(":memory:", embedder=BagOfWords())
    assert memory.closed is False
    asyncio.run(memory.close())
    assert memory.closed is True


def test_one_that_could_not_be_opened_is_harmless(tmp_path):
    (tmp_path / "a.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError):
        AsyncMemory(tmp_path / "a.db")
    assert not hasattr(AsyncMemory.__new__(AsyncMemory), "memory")
