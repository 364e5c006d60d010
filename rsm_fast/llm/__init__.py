"""Asking language models: one verb, `chat`, and a client for OpenAI-compatible endpoints.

Standard library only. Nothing here is imported, and no connection made, unless it is asked for.
"""

from rsm_fast.llm.answers import (
    Answer,
    LanguageModel,
    Message,
    Schema,
    Usage,
    ask,
    extract_json,
)
from rsm_fast.llm.cache import AnswerCache
from rsm_fast.llm.endpoint import ChatEndpoint
from rsm_fast.llm.shapes import misfit

__all__ = [
    "Answer",
    "AnswerCache",
    "ChatEndpoint",
    "LanguageModel",
    "Message",
    "Schema",
    "Usage",
    "ask",
    "extract_json",
    "misfit",
]
