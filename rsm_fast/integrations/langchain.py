"""LangChain: a retriever over a `Memory`, and a chat message history that lives in one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from rsm_fast import Hit, Memory, PackedChunk, Turn
from rsm_fast.integrations import missing_extra
from rsm_fast.integrations.stored import StoredTurn, session_turns

try:
    from langchain_core.callbacks import (
        AsyncCallbackManagerForRetrieverRun,
        CallbackManagerForRetrieverRun,
    )
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.documents import Document
    from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict
    from langchain_core.retrievers import BaseRetriever
    from pydantic import ConfigDict
except ImportError as error:
    raise missing_extra("langchain", "langchain-core") from error

__all__ = ["RSMChatMessageHistory", "RSMRetriever"]

_ROLES: Final = {"human": "user", "ai": "assistant"}
_TYPES: Final = {"user": "human", "assistant": "ai", "system": "system"}


class RSMRetriever(BaseRetriever):
    """Documents from a memory, for chains.

    Attributes
    ----------
    memory : Memory
    k : int
        Most documents, where ``budget`` is None: the best ones, best first.
    budget : int or None
        Give instead the chunks of a pack of so many tokens, in the order of time.
    where : dict or None
        As in `Memory.search`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    memory: Memory
    k: int = 8
    budget: int | None = None
    where: dict[str, Any] | None = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        if self.budget is not None:
            pack = self.memory.pack(query, budget=self.budget, where=self.where)
            return [_document(chunk) for chunk in pack.chunks]
        return [_document(hit) for hit in self.memory.search(query, k=self.k, where=self.where)]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        if self.budget is not None:
            pack = await self.memory.apack(query, budget=self.budget, where=self.where)
            return [_document(chunk) for chunk in pack.chunks]
        hits = await self.memory.asearch(query, k=self.k, where=self.where)
        return [_document(hit) for hit in hits]


def _document(found: Hit | PackedChunk) -> Document:
    return Document(
        id=found.id,
        page_content=found.text,
        metadata={
            "turn_ids": list(found.turn_ids),
            "score": found.score,
            "role": found.role,
            "session": found.session,
            "timestamp": found.timestamp,
        },
    )


class RSMChatMessageHistory(BaseChatMessageHistory):
    """The messages of one session, kept in a memory, where `RSMRetriever` finds them too.

    Messages come back as they went in, tool calls and all.

    Parameters
    ----------
    memory : Memory
    session : str
    last : int, optional
        Give back only so many of the newest messages.
    """

    def __init__(self, memory: Memory, session: str, *, last: int | None = None) -> None:
        self._memory = memory
        self._session = session
        self._last = last

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """The messages, oldest first."""
        turns = session_turns(self._memory, self._session, last=self._last)
        return [_message(turn) for turn in turns]

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Store messages; they are durable when this returns."""
        self._memory.add_many([_turn(message, self._session) for message in messages])

    def clear(self) -> None:
        """Delete the messages of this session."""
        self._memory.forget(where={"session": self._session})


def _turn(message: BaseMessage, session: str) -> Turn:
    stored = message_to_dict(message)
    text = _text(message)
    if stored["data"]["content"] == text:
        del stored["data"]["content"]  # it is the turn's text
    return Turn(
        text,
        role=_ROLES.get(message.type, message.type),
        session=session,
        metadata={"message": stored},
    )


def _text(message: BaseMessage) -> str:
    parts = [str(message.text)]
    for call in getattr(message, "tool_calls", ()):
        parts.append(f"{call['name']}({json.dumps(call['args'], ensure_ascii=False)})")
    text = "\n".join(part for part in parts if part.strip())
    return text or "(empty message)"


def _message(turn: StoredTurn) -> BaseMessage:
    """The message as it went in; of a turn that came in another way, one of its role."""
    stored = turn.metadata.get("message")
    if stored is None:
        kind = _TYPES.get(turn.role, "chat")
        stored = {"type": kind, "data": {"role": turn.role} if kind == "chat" else {}}
    data = {"content": turn.text, **stored["data"]}
    (message,) = messages_from_dict([{"type": stored["type"], "data": data}])
    return message
