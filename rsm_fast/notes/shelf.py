"""What making and reading notes share: the store, the vectors, the lock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rsm_fast.errors import StoreLockedError
from rsm_fast.notes.state import NoteState, space_of
from rsm_fast.store import Reader, Writer
from rsm_fast.store.notes import Description, NoteReader, NoteWriter
from rsm_fast.tokens import TokenCounter

if TYPE_CHECKING:
    from rsm_fast.core import Core
    from rsm_fast.embedding import Embedder

__all__ = ["Shelf", "details_text", "embedded_text"]

F32 = npt.NDArray[np.float32]


def details_text(description: Description) -> str:
    """A description as lines, for the prompt and for the embedder; empty parts left out."""
    parts = (
        description.context,
        f"keywords: {', '.join(description.keywords)}" if description.keywords else "",
        f"tags: {', '.join(description.tags)}" if description.tags else "",
    )
    return "\n".join(part for part in parts if part)


def embedded_text(text: str, description: Description) -> str:
    r"""What a note's vector is made of: its text, keywords, tags and context.

    >>> embedded_text("We meet at 7.", Description(("meeting",), (), "An appointment."))
    'We meet at 7.\nAn appointment.\nkeywords: meeting'
    """
    details = details_text(description)
    return f"{text}\n{details}" if details else text


class Shelf:
    """The notes of one memory's namespace.

    Parameters
    ----------
    core : Core
        Of the memory that the notes stand on.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._state: NoteState | None = None

    @property
    def counter(self) -> TokenCounter:
        """The memory's token counter."""
        return self._core.counter

    @property
    def namespace(self) -> str:
        """Key of the namespace."""
        return self._core.key

    @property
    def nbytes(self) -> int:
        """Resident bytes of the notes' vectors."""
        return 0 if self._state is None else self._state.nbytes

    def embedded(self, texts: Sequence[str]) -> tuple[int, F32]:
        """The embedder's mark, and unit vectors of note texts, shape (n, dim) float32.

        Of a text that is longer than the embedder's window its end is kept, where the
        description stands: the turn's own chunks hold vectors of all of it.
        """
        embedder = self._core.embedder
        if not texts:
            return space_of(embedder.fingerprint), np.zeros((0, embedder.dim), np.float32)
        fitting = [_fitting(text, embedder) for text in texts]
        return space_of(embedder.fingerprint), self._core.embed_passages(fitting)

    @contextmanager
    def reading(self) -> Iterator[tuple[Reader, int | None]]:
        """A snapshot of the store, and the namespace's number; None if there is none."""
        with self._core.store.read() as reader:
            record = reader.namespace(self._core.key)
            yield reader, None if record is None else record.id

    @contextmanager
    def writing(self) -> Iterator[tuple[Writer, int | None]]:
        """A transaction, under the memory's lock, and the namespace's number.

        None where there is no such namespace: never written, or purged meanwhile.
        """
        with self._core.lock, self._core.store.write() as writer:
            record = writer.namespace(self._core.key)
            yield writer, None if record is None else record.id

    @contextmanager
    def view(self) -> Iterator[tuple[Reader, NoteState | None]]:
        """A snapshot and the vectors at the same generation, under the memory's lock.

        There are no vectors, but None, where there is no such namespace: never written, or purged.
        """
        self._embed_stale()
        with self._core.lock, self._core.store.read() as reader:
            yield reader, self._caught_up(reader)

    def _caught_up(self, reader: Reader) -> NoteState | None:
        record = reader.namespace(self._core.key)
        if record is None:
            self._state = None
            return None
        embedder = self._core.embedder
        space = space_of(embedder.fingerprint)
        state = self._state
        if state is None or (state.ns, state.space) != (record.id, space):
            state = self._state = NoteState(record.id, embedder.dim, space)
        state.catch_up(reader)
        return state

    def _embed_stale(self) -> None:
        """Make the vectors that are missing: after an undo, a deletion, another embedder.

        They are kept if the store can be written now; else the next reader makes them again.
        """
        with self._core.lock:
            with self._core.store.read() as reader:
                state = self._caught_up(reader)
                if state is None or not state.stale:
                    return
                stale = sorted(state.stale)
                notes = NoteReader(reader).notes(state.ns, stale)
                texts = {turn.pk: turn.text for turn in reader.turns(state.ns, stale)}
            space, vectors = self.embedded(
                [embedded_text(texts[note.turn], note.description) for note in notes]
            )
            state.put_vectors([note.turn for note in notes], vectors)
            if self._core.store.read_only:
                return
            made = {
                note: vector.astype("<f4").tobytes()
                for note, vector in zip(notes, vectors, strict=True)
            }
            with contextlib.suppress(StoreLockedError), self.writing() as (writer, ns):
                if ns != state.ns:  # purged, perhaps made anew since
                    return
                table = NoteWriter(writer)
                standing = table.notes(ns, stale)
                table.set_vectors(ns, space, [(n.turn, made[n]) for n in standing if n in made])


def _fitting(text: str, embedder: Embedder) -> str:
    limit = embedder.max_tokens
    if limit is None or len(text.encode("utf-8", "replace")) <= limit:  # a token has a byte
        return text
    while (size := embedder.count_tokens(text)) > limit:
        text = text[-max(int(len(text) * limit / size * 0.95), 1) :]
    return text
