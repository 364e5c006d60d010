"""What the notes give back. All results are frozen."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rsm_fast.llm import Usage

__all__ = ["CompletionReport", "Estimate", "Evolution", "Note", "NoteHit", "NoteStats"]


class _Result:
    """Conversions that all results share."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars, ready for JSON."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True, slots=True)
class Note(_Result):
    """One turn with what is known of it.

    Attributes
    ----------
    id, text, role, session, timestamp
        The turn's own; the text is verbatim and never changes.
    keywords, tags : tuple of str
    context : str
        One sentence.
    links : tuple of str
        Ids of the notes that belong together with this one.
    pending : bool
        Whether something is missing that `NoteMemory.complete` would add.
    problem : str
        What went wrong, if it is pending after an attempt.
    model, prompts : str
        Which model described it, by which version of the prompts.
    """

    id: str
    text: str
    role: str
    session: str | None
    timestamp: str
    keywords: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    context: str = ""
    links: tuple[str, ...] = ()
    pending: bool = True
    problem: str = ""
    model: str = ""
    prompts: str = ""


@dataclass(frozen=True, slots=True)
class NoteHit(_Result):
    """One note that a question found.

    Attributes
    ----------
    note : Note
    score : float
        Cosine of the note's vector with the question's.
    via : str or None
        Id of the hit whose link brought it along; None for one of the k nearest.
    """

    note: Note
    score: float
    via: str | None = None


@dataclass(frozen=True, slots=True)
class Evolution(_Result):
    """One rewriting of a note's description.

    Attributes
    ----------
    id, cause : str
        The note, and the newer one that led to it.
    timestamp : str
    before, after : mapping
        ``keywords``, ``tags`` and ``context``.
    undone : bool
    """

    id: str
    cause: str
    timestamp: str
    before: dict[str, Any]
    after: dict[str, Any]
    undone: bool


@dataclass(frozen=True, slots=True)
class NoteStats(_Result):
    """Counts of a namespace: ``pending`` are turns without a finished note."""

    notes: int
    pending: int
    links: int
    evolutions: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Estimate(_Result):
    """What completing the pending notes would take, before anything is asked.

    Attributes
    ----------
    notes, calls : int
        Pending turns; questions to the model, if every answer can be used at once.
    prompt_tokens, completion_tokens : int
        In the unit of ``counter``; prompts are counted, answers assumed.
    counter : str
    """

    notes: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    counter: str


@dataclass(frozen=True, slots=True)
class CompletionReport(_Result):
    """What completing did.

    Attributes
    ----------
    asked, finished : int
        Turns that were gone through; those that have a finished note now.
    links, evolutions : int
        Made on the way.
    problems : mapping
        By note id, what went wrong; those stay pending.
    stopped : str
        Why it ended early: the model gave no answers several times in a row. Empty otherwise.
    usage : Usage
        What the model's answers cost.
    """

    asked: int
    finished: int
    links: int
    evolutions: int
    problems: dict[str, str] = field(default_factory=dict)
    stopped: str = ""
    usage: Usage = field(default_factory=Usage)
