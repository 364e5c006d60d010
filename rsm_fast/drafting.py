"""Turns to chunks that are ready to be embedded: checks, grouping, splitting, counting.

Nothing here touches the store or the derived state, so it all happens before any lock is taken.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np

from rsm_fast.analysis import ANALYSER_VERSION, chunk_terms, pack_terms, step_label
from rsm_fast.chunking import chunk_text, embedded_text, split_text, text_hash
from rsm_fast.errors import InvalidInputError
from rsm_fast.instants import Instant, parse_duration, parse_instant
from rsm_fast.store import ChunkRecord, PiecePart, PieceRecord, TurnRecord, why_not_findable
from rsm_fast.tokens import WordPieceCounter
from rsm_fast.types import TurnLike, as_turn

if TYPE_CHECKING:
    import numpy.typing as npt

    from rsm_fast.core import Limits
    from rsm_fast.embedding import Embedder
    from rsm_fast.settings import NamespaceSettings
    from rsm_fast.tokens import TokenCounter

__all__ = [
    "Draft",
    "Drafter",
    "Part",
    "checked_metadata",
    "checked_name",
    "checked_text",
    "checked_turn",
]

_STORED = np.dtype("<f4")
_ROLE_TOKENS = 16
"""Tokens of the embedder's window that are left for the name before the text."""


def checked_text(text: object, *, limits: Limits, where: str) -> str:
    """A text as it will be stored.

    Lone surrogates and NUL characters, which no UTF-8 text may hold, become U+FFFD.

    Raises
    ------
    InvalidInputError
        If it is no string, empty, white space only, or too long.
    """
    if not isinstance(text, str):
        raise InvalidInputError(f"{where}: expected a string, got {type(text).__name__}")
    if not text or text.isspace():
        raise InvalidInputError(
            f"{where}: expected some text, got {'white space only' if text else 'an empty string'}"
        )
    if len(text) > limits.text_chars:
        raise InvalidInputError(
            f"{where}: expected at most {limits.text_chars:,} characters, got {len(text):,}; "
            "split it into several turns, or raise Limits.text_chars"
        )
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    return text


def checked_name(name: object, *, limits: Limits, where: str) -> str:
    """An id, a role or a session name.

    Raises
    ------
    InvalidInputError
        If it is no string, empty, too long, or holds NUL or a lone surrogate.
    """
    if not isinstance(name, str):
        raise InvalidInputError(f"{where}: expected a string, got {type(name).__name__}")
    if not 1 <= len(name) <= limits.name_chars:
        raise InvalidInputError(
            f"{where}: expected 1 to {limits.name_chars} characters, got {len(name)}"
        )
    if not name.isascii() or "\0" in name:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidInputError(f"{where}: {name!r} holds a lone surrogate") from None
        if "\0" in name:
            raise InvalidInputError(f"{where}: {name!r} holds a NUL character")
    return name


def checked_turn(turn: TurnLike, *, limits: Limits, now: Instant, where: str) -> TurnRecord:
    """A turn as it will be stored, without key; an empty id stands for an automatic one.

    Raises
    ------
    InvalidInputError
        If anything in it cannot be stored; ``where`` names the turn.
    """
    given = as_turn(turn, where=where)
    instant = now
    if given.timestamp is not None:
        instant = parse_instant(given.timestamp, where=f"{where}.timestamp")
    return TurnRecord(
        pk=0,
        id="" if given.id is None else checked_name(given.id, limits=limits, where=f"{where}.id"),
        role=checked_name(given.role, limits=limits, where=f"{where}.role"),
        text=checked_text(given.text, limits=limits, where=f"{where}.text"),
        micros=instant.micros,
        offset_minutes=instant.offset_minutes,
        time_given=given.timestamp is not None,
        session=None
        if given.session is None
        else checked_name(given.session, limits=limits, where=f"{where}.session"),
        metadata=checked_metadata(given.metadata, limits=limits, where=f"{where}.metadata"),
        expires_at=None
        if given.ttl is None
        else instant.micros + parse_duration(given.ttl, where=f"{where}.ttl"),
    )


def checked_metadata(metadata: object, *, limits: Limits, where: str) -> str | None:
    """Metadata as JSON text, None for none.

    Raises
    ------
    InvalidInputError
        If it is no mapping with string keys and JSON values, too large, too deep, or holds
        NUL, which filters could not find again.
    """
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise InvalidInputError(f"{where}: expected a mapping, got {type(metadata).__name__}")
    if not metadata:
        return None
    for key in metadata:
        if not isinstance(key, str):
            raise InvalidInputError(f"{where}: expected string keys, got {key!r}")
    try:
        dumped = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False)
        size = len(dumped.encode())
    except (TypeError, ValueError, RecursionError) as error:  # a lone surrogate is a ValueError
        raise InvalidInputError(f"{where}: expected JSON values: {error}") from None
    if size > limits.metadata_bytes:
        raise InvalidInputError(
            f"{where}: expected at most {limits.metadata_bytes:,} bytes as JSON, got {size:,}"
        )
    if reason := why_not_findable(metadata, dumped):
        raise InvalidInputError(f"{where}: {reason}")
    return dumped


@dataclass(slots=True)
class Part:
    """A turn, or a slice of one, inside a chunk.

    ``turn.pk`` is 0 for a turn that is not stored yet; ``index`` then is its place among the new
    turns. ``lines`` are the tokens of each of its lines, empty before they are counted; then
    ``words`` is each line cut at white space, if the counter did that.
    """

    turn: TurnRecord
    start: int
    stop: int
    index: int = -1
    lines: list[int] = field(default_factory=list)
    words: list[list[str]] | None = None

    @property
    def text(self) -> str:
        """The slice of the turn's text."""
        return self.turn.text[self.start : self.stop]


@dataclass(slots=True)
class Draft:
    """A chunk on its way into the store.

    Attributes
    ----------
    parts : list of Part
    part_number : int
        Number of the chunk among those that begin with the same turn.
    complete : bool
        Whether it is to be embedded; an unfinished chunk is not.
    pk : int
        Key of the stored chunk that it replaces; 0 for a new one.
    """

    parts: list[Part]
    part_number: int
    complete: bool
    pk: int = 0
    text: str = ""
    to_embed: str = ""
    tokens: int = 0
    line_tokens: bytes = b""
    terms: list[str] = field(default_factory=list)
    text_hash: int = 0
    step: int | None = None
    truncated: bool = False
    vector: npt.NDArray[np.float32] | None = None

    def record(self, turn_ids: Sequence[tuple[int, str]], atom: int | None) -> ChunkRecord:
        """The chunk as the store takes it.

        Parameters
        ----------
        turn_ids : sequence of (int, str)
            Key and id of each new turn.
        atom : int or None
        """
        first = self.parts[0].turn
        keys = [
            turn_ids[part.index] if part.index >= 0 else (part.turn.pk, part.turn.id)
            for part in self.parts
        ]
        spans = [
            (key[0], part.start, part.stop) for key, part in zip(keys, self.parts, strict=True)
        ]
        vector = self.vector
        return ChunkRecord(
            self.pk,
            f"{keys[0][1]}#{self.part_number}",
            tuple(spans),
            first.session,
            first.micros,
            first.offset_minutes,
            self.tokens,
            self.line_tokens,
            pack_terms(self.terms),
            ANALYSER_VERSION,
            self.text_hash,
            self.step,
            self.truncated,
            atom,
            None if vector is None else vector.astype(_STORED, copy=False).tobytes(),
        )

    def piece(self, turn_ids: Sequence[tuple[int, str]], record: ChunkRecord) -> PieceRecord:
        """The chunk with its texts, as the store will give it back."""
        parts = []
        for part in self.parts:
            pk, id_ = turn_ids[part.index] if part.index >= 0 else part.turn[:2]
            parts.append(PiecePart(id_, part.turn.role, part.text, pk))
        return PieceRecord(
            record.pk,
            record.id,
            record.session,
            record.micros,
            record.offset_minutes,
            record.tokens,
            record.line_tokens,
            record.step,
            record.truncated,
            record.atom,
            tuple(parts),
        )


class Drafter:
    """Makes drafts of chunks with one namespace's settings.

    Parameters
    ----------
    settings : NamespaceSettings
    counter : TokenCounter
        Counts what packs are charged for.
    embedder : Embedder
        Its window decides where long texts are split; without a window nothing is.
    """

    def __init__(
        self, settings: NamespaceSettings, *, counter: TokenCounter, embedder: Embedder
    ) -> None:
        self.settings = settings
        self._chunk_turns = settings.chunk_turns
        self._counter = counter
        window = embedder.max_tokens
        self._window = None if window is None else max(1, window - _ROLE_TOKENS)
        self._split_long = settings.split_long
        self._window_tokens: Callable[[str], int] = getattr(embedder, "count_tokens", counter)
        # Where the embedder counts as the packs do, a turn is counted once for both.
        self._one_counter = counter.additive and getattr(embedder, "counter", None) is counter

    @property
    def alone(self) -> bool:
        """Whether each turn makes chunks of its own, whatever is stored."""
        return self._chunk_turns == 1

    def drafts(
        self, turns: Sequence[TurnRecord], unfinished: Mapping[str | None, Draft]
    ) -> list[Draft]:
        """Chunks of new turns, in order of arrival.

        Parameters
        ----------
        turns : sequence of TurnRecord
            New turns, without keys.
        unfinished : mapping
            Each session's stored chunk that is not full yet.

        Returns
        -------
        list of Draft
            Complete and unfinished ones; a continued chunk comes with its ``pk``.
        """
        parts = [Part(turn, 0, len(turn.text), index) for index, turn in enumerate(turns)]
        if self._one_counter:
            self._count(parts)
        if self._chunk_turns == 1:
            return self._described([draft for part in parts for draft in self._cut([part])])
        growing = dict(unfinished)
        begun: dict[int, Draft] = {}  # in the order of their first turns
        drafts = []
        for part in parts:
            session = part.turn.session
            draft = growing.get(session)
            if draft is None:
                draft = growing[session] = Draft([], 0, complete=False)
            begun[id(draft)] = draft
            draft.parts.append(part)
            if len(draft.parts) >= self._chunk_turns:
                draft.complete = True
                del growing[session]
        for draft in begun.values():
            drafts.extend(self._cut(draft.parts, pk=draft.pk) if draft.complete else [draft])
        return self._described(drafts)

    def unfinished(self, parts: list[Part], *, pk: int, part_number: int) -> Draft:
        """A stored chunk that is not full yet, with other parts."""
        return self._described([Draft(parts, part_number, complete=False, pk=pk)])[0]

    def finished(self, parts: list[Part], *, pk: int = 0, part_number: int = 0) -> list[Draft]:
        """Complete chunks of these parts: one, or several where the window is too small.

        The first of them takes ``pk`` and ``part_number``.
        """
        return self._described(self._cut(parts, pk=pk, part_number=part_number))

    def _cut(self, parts: list[Part], *, pk: int = 0, part_number: int = 0) -> list[Draft]:
        if self._window is None or not self._split_long:
            return [Draft(parts, part_number, True, pk)]
        if self._one_counter and len(parts) == 1 and 0 < sum(parts[0].lines) <= self._window:
            return [Draft(parts, part_number, True, pk)]  # as mostly
        groups = self._within_window(parts)
        drafts: list[Draft] = []
        numbers: dict[tuple[int, int], int] = {}
        for group in groups:
            first = group[0]
            key = (first.index, first.turn.pk)
            number = numbers[key] = numbers.get(key, part_number - 1) + 1
            drafts.append(Draft(group, number, complete=True, pk=0 if drafts else pk))
        return drafts

    def _within_window(self, parts: list[Part]) -> Iterable[list[Part]]:
        """Groups of parts that fit the embedder's window, cut at sentence ends where need be."""
        assert self._window is not None
        group: list[Part] = []
        used = 0
        for part in parts:
            text = part.text
            if self._one_counter and not part.lines:  # it was stored before
                self._count([part])
            size = sum(part.lines) if self._one_counter else self._window_tokens(text)
            if group and used + size > self._window:
                yield group
                group, used = [], 0
            if size <= self._window:
                group.append(part)
                used += size
                continue
            start = part.start
            for piece in split_text(text, window=self._window, count_tokens=self._window_tokens):
                yield [Part(part.turn, start, start + len(piece), part.index)]
                start += len(piece)
        if group:
            yield group

    def _described(self, drafts: list[Draft]) -> list[Draft]:
        """The drafts, with all filled in that follows from their parts."""
        self._count([part for draft in drafts for part in draft.parts])
        for draft in drafts:
            parts = draft.parts
            of_lines = parts[0].lines
            if len(parts) > 1:
                of_lines = [count for part in parts for count in part.lines]
            draft.line_tokens = array("I", of_lines).tobytes()
            self._analyse(draft)
            if len(parts) == 1 and self._counter.additive:
                draft.tokens = sum(of_lines)
            else:
                draft.tokens = self._counter(draft.text)
        return drafts

    def _count(self, parts: Iterable[Part]) -> None:
        """Count the tokens of the lines of parts that are not counted yet, in one go."""
        new = [part for part in parts if not part.lines]
        if not new:
            return
        counter = self._counter
        split = [part.text.split("\n") for part in new]
        if len(new) == 1 and isinstance(counter, WordPieceCounter):
            new[0].words = counter.split(split[0])
            new[0].lines = counter.count_words(new[0].words)
            return  # those of many parts would fill the caches before they are wanted again
        counts = iter(counter.count_lines(list(chain.from_iterable(split))))
        for part, lines in zip(new, split, strict=True):
            part.lines = list(islice(counts, len(lines)))

    def _analyse(self, draft: Draft) -> None:
        first = draft.parts[0].turn
        spoken = [(part.turn.role, part.text) for part in draft.parts]
        draft.text = chunk_text(spoken)
        draft.text_hash = text_hash(draft.text)
        draft.to_embed = embedded_text(spoken)
        instant = Instant(first.micros, first.offset_minutes) if first.time_given else None
        words = None
        if draft.parts[0].words is not None and draft.to_embed is spoken[0][1]:
            words = chain.from_iterable(draft.parts[0].words)
        draft.terms = chunk_terms(draft.to_embed, instant, [role for role, _ in spoken], words)
        draft.step = _step(draft.parts)
        draft.truncated = (
            self._window is not None
            and not self._split_long
            and self._window_tokens(draft.to_embed) > self._window
        )


def _step(parts: Iterable[Part]) -> int | None:
    """The first step label of some parts, None if they have none."""
    for part in parts:
        metadata = part.turn.metadata
        label = step_label(part.text, json.loads(metadata) if metadata else None)
        if label >= 0:
            return label
    return None
