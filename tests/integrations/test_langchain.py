"""LangChain's retriever and chat history, with the real langchain-core."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip(
    "langchain_core", reason="langchain-core is absent: pip install 'rsm-fast[langchain]'"
)

from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables.history import RunnableWithMessageHistory

from rsm_fast import Memory, sample
from rsm_fast.integrations.langchain import RSMChatMessageHistory, RSMRetriever


@pytest.fixture
def memory() -> Iterator[Memory]:
    with Memory(embedder="hashing") as made:
        yield made


@pytest.fixture
def filled(memory: Memory) -> Memory:
    memory.add_many(sample.turns())
    return memory


# --- retriever -------------------------------------------------------------------------------


def test_retriever_gives_the_hits_of_search(filled: Memory) -> None:
    documents = RSMRetriever(memory=filled, k=3).invoke("adrenaline pens")
    hits = filled.search("adrenaline pens", k=3)
    assert [d.page_content for d in documents] == [hit.text for hit in hits]
    assert documents[0].id == hits[0].id
    assert documents[0].metadata == {
        "turn_ids": list(hits[0].turn_ids),
        "score": hits[0].score,
        "role": hits[0].role,
        "session": hits[0].session,
        "timestamp": hits[0].timestamp,
    }


def test_retriever_with_a_budget_gives_the_chunks_of_the_pack(filled: Memory) -> None:
    retriever = RSMRetriever(memory=filled, budget=300, where={"role": "user"})
    documents = retriever.invoke("Where do I live?")
    pack = filled.pack("Where do I live?", budget=300, where={"role": "user"})
    assert [d.id for d in documents] == [chunk.id for chunk in pack.chunks]
    assert len(documents) > 1


@pytest.mark.parametrize("budget", [None, 300])
def test_async_retriever_gives_the_same(filled: Memory, budget: int | None) -> None:
    retriever = RSMRetriever(memory=filled, k=3, budget=budget)
    assert asyncio.run(retriever.ainvoke("rent")) == retriever.invoke("rent")


# --- history ---------------------------------------------------------------------------------

MESSAGES: list[BaseMessage] = [
    SystemMessage("Be brief."),
    HumanMessage("What is the weather?", id="h1"),
    AIMessage("", tool_calls=[{"name": "weather", "args": {"place": "here"}, "id": "c1"}], id="a1"),
    ToolMessage("rain", tool_call_id="c1"),
    AIMessage("It rains.", response_metadata={"model": "m"}),
    HumanMessage([{"type": "text", "text": "And "}, {"type": "text", "text": "tomorrow?"}]),
    AIMessage(""),
]


def test_messages_come_back_as_they_went_in(memory: Memory) -> None:
    history = RSMChatMessageHistory(memory, "s1")
    assert history.messages == []
    history.add_messages(MESSAGES)
    assert history.messages == MESSAGES
    history.add_user_message("Thanks.")
    assert history.messages[-1] == HumanMessage("Thanks.")
    assert RSMChatMessageHistory(memory, "s1", last=2).messages == history.messages[-2:]


def test_sessions_are_apart_and_clear_empties_one(memory: Memory) -> None:
    one, two = RSMChatMessageHistory(memory, "one"), RSMChatMessageHistory(memory, "two")
    one.add_user_message("I keep bees.")
    two.add_user_message("I keep ants.")
    one.clear()
    assert one.messages == []
    assert [message.content for message in two.messages] == ["I keep ants."]
    one.add_user_message("I keep bees again.")
    assert len(one.messages) == 1


def test_history_persists_and_async_twins_work(tmp_path: Path) -> None:
    path = tmp_path / "a.rsm"

    async def scenario() -> None:
        with Memory.open(path, embedder="hashing") as memory:
            await RSMChatMessageHistory(memory, "s1").aadd_messages(MESSAGES)
        with Memory.open(path) as memory:
            history = RSMChatMessageHistory(memory, "s1")
            assert await history.aget_messages() == MESSAGES
            await history.aclear()
            assert await history.aget_messages() == []

    asyncio.run(scenario())


def test_turns_that_came_in_another_way_are_messages_too(filled: Memory) -> None:
    messages = RSMChatMessageHistory(filled, "s01").messages
    assert isinstance(messages[0], HumanMessage) and isinstance(messages[1], AIMessage)
    assert messages[0].content == sample.turns()[0].text


def test_speaker_that_langchain_does_not_know_is_a_chat_message(memory: Memory) -> None:
    memory.add("Bread?", role="the baker", session="s1")
    (message,) = RSMChatMessageHistory(memory, "s1").messages
    assert message == ChatMessage("Bread?", role="the baker")


@pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated")
def test_history_in_a_chain_and_the_retriever_finds_it(memory: Memory) -> None:
    prompt = ChatPromptTemplate.from_messages(
        [MessagesPlaceholder("history"), ("human", "{question}")]
    )
    chain = RunnableWithMessageHistory(
        prompt | FakeListChatModel(responses=["Noted.", "Bees."]),
        lambda session_id: RSMChatMessageHistory(memory, session_id),
        input_messages_key="question",
        history_messages_key="history",
    )
    config = {"configurable": {"session_id": "s1"}}
    chain.invoke({"question": "I keep bees."}, config=config)
    assert chain.invoke({"question": "What do I keep?"}, config=config).content == "Bees."
    assert len(RSMChatMessageHistory(memory, "s1").messages) == 4
    documents = RSMRetriever(memory=memory, k=2).invoke("bees that I keep")
    assert "I keep bees." in {document.page_content for document in documents}
