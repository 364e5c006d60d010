"""LlamaIndex: a memory block that keeps every message and gives back what a question needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rsm_fast import Memory, Turn
from rsm_fast.integrations import missing_extra

try:
    from llama_index.core.base.llms.types import ChatMessage, MessageRole
    from llama_index.core.bridge.pydantic import Field, PrivateAttr
    from llama_index.core.memory import BaseMemoryBlock
except ImportError as error:
    raise missing_extra("llamaindex", "llama-index-core") from error

__all__ = ["RSMMemoryBlock"]


class RSMMemoryBlock(BaseMemoryBlock[str]):
    """A block for LlamaIndex's `Memory` that rests on an rsm_fast `Memory`.

    Messages that leave the short-term queue are stored word by word. Each time the block is
    read, it gives the pack for the newest user message, within ``token_limit``.

    Attributes
    ----------
    memory : rsm_fast.Memory
    token_limit : int
        Most tokens of the block's text, in the unit of the memory's own counter.
    """

    name: str = Field(default="long_term_memory")
    memory: Memory
    token_limit: int = Field(default=1000, ge=0)
    _last: tuple[str, str] | None = PrivateAttr(default=None)

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        question = _question(messages or [])
        if not question:
            return ""
        pack = await self.memory.apack(question, budget=self.token_limit)
        self._last = (pack.text, question)
        return pack.text

    async def _aput(self, messages: list[ChatMessage]) -> None:
        turns = [
            Turn(
                message.content,
                role=str(message.role.value),
                session=message.additional_kwargs.get("session_id"),
            )
            for message in messages
            if message.content and message.content.strip()
        ]
        await self.memory.aadd_many(turns)

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Pack anew for the same question with a smaller budget; None if nothing is left."""
        if self._last is None or self._last[0] != content:
            return None
        question = self._last[1]
        full = await self.memory.apack(question, budget=self.token_limit)
        left = full.tokens - tokens_to_truncate
        if left <= 0:
            return None
        smaller = await self.memory.apack(question, budget=left)
        self._last = (smaller.text, question)
        return smaller.text or None


def _question(messages: Sequence[ChatMessage]) -> str:
    """The newest message of the user."""
    asked = [message.content or "" for message in messages if message.role == MessageRole.USER]
    return asked[-1].strip() if asked else ""
