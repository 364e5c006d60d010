"""Notes: a memory that a language model describes, links and keeps rewriting.

After *A-MEM: Agentic Memory for LLM Agents* (Xu et al., arXiv 2502.12110), on the store,
embedder, exact top-k and packer of `rsm_fast`. ``docs/notes.md`` says when it is worth its cost.
"""

from rsm_fast.notes.memory import NoteMemory
from rsm_fast.notes.types import (
    CompletionReport,
    Estimate,
    Evolution,
    Note,
    NoteHit,
    NoteStats,
)

__all__ = [
    "CompletionReport",
    "Estimate",
    "Evolution",
    "Note",
    "NoteHit",
    "NoteMemory",
    "NoteStats",
]
