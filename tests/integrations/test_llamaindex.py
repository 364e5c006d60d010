"""LlamaIndex's memory block, with the real llama-index-core."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

pytest.importorskip(
    "llama_index.core", reason="llama-index-core is absent: pip install 'rsm-fast[llamaindex]'"
)

from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory as ChatMemory
from sqlalchemy.ext.asyncio import create_async_engine

from rsm_fast import Memory, sample
from rsm_fast.integrations.llamaindex import RSMMemoryBlock
from rsm_fast.tokens import as_token_counter


@pytest.fixture
def memory() -> Iterator[Memory]:
    with Memory(embedder="hashing") as made:
        yield made


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def test_block_keeps_messages_and_gives_the_pack_for_the_question(memory: Memory) -> None:
    async def scenario() -> None:
        block = RSMMemoryBlock(memory=memory, token_limit=200)
        assert await block.aget([user("anything?")]) == ""
        await block.aput(
            [user("I keep bees."), ChatMessage(role="assistant", content="How nice.")],
            session_id="s1",
        )
        text = await block.aget([user("old"), user("What do I keep?")])
        assert text == memory.pack("What do I keep?", budget=200).text
        assert "I keep bees." in text and "How nice." in text
        assert {hit.session for hit in memory.search("bees")} == {"s1"}
        assert await block.aget([]) == "" and await block.aget(None) == ""

    asyncio.run(scenario())


def test_messages_without_text_are_left_out(memory: Memory) -> None:
    asyncio.run(
        RSMMemoryBlock(memory=memory).aput([ChatMessage(role="assistant"), user("  "), user("a")])
    )
    assert memory.stats().turns == 1


def test_token_limit_and_truncation(memory: Memory) -> None:
    memory.add_many(sample.turns())
    count = as_token_counter(None)

    async def scenario() -> None:
        block = RSMMemoryBlock(memory=memory, token_limit=500)
        text = await block.aget([user("Where do I live?")])
        assert 300 < count(text) <= 500
        smaller = await block.atruncate(text, 300)
        assert smaller is not None and count(smaller) <= count(text) - 300
        assert await block.atruncate(smaller, 10_000) is None
        assert await block.atruncate("text of another time", 1) is None

    asyncio.run(scenario())


def test_block_in_a_memory_of_llamaindex(memory: Memory) -> None:
    """Old messages leave the queue, go into the block, and come back when they are asked for."""

    async def scenario() -> None:
        engine = create_async_engine("sqlite+aiosqlite:///:memory:")
        chat = ChatMemory.from_defaults(
            session_id="s1",
            token_limit=120,
            token_flush_size=40,
            chat_history_token_ratio=0.4,
            async_engine=engine,
            tokenizer_fn=lambda text: text.split(),
            memory_blocks=[RSMMemoryBlock(memory=memory, token_limit=60, priority=1)],
        )
        await chat.aput(user("My passport is in the blue tin."))
        for number in range(30):
            await chat.aput(user(f"Small talk number {number} about nothing much at all."))
        await chat.aput(user("Where is my passport?"))
        assert memory.stats().turns > 10
        messages = await chat.aget()
        assert "blue tin" in "\n".join(str(message.content) for message in messages)
        await engine.dispose()

    asyncio.run(scenario())
