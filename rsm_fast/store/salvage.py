"""Carry what can still be read of a damaged store into a new one.

`checks.put_right` mends rows; this is for a file whose structure is broken, so that whole
pages cannot be read. The damaged file itself is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from rsm_fast.errors import RSMError
from rsm_fast.store.checks import Finding
from rsm_fast.store.lines import (
    Line,
    array_lines,
    chunk_line,
    header_line,
    note_lines,
    tombstones_line,
    turn_line,
)
from rsm_fast.store.reader import (
    CHUNK_COLUMNS,
    NAMESPACE_COLUMNS,
    TURN_COLUMNS,
    Reader,
    namespace_from_row,
    tombstones_from_row,
)
from rsm_fast.store.records import (
    ChunkRecord,
    NamespaceRow,
    TurnRecord,
    chunk_from_row,
    features_crc,
    first_pk,
    turn_from_row,
)
from rsm_fast.store.tombstones import slots
from rsm_fast.store.transfer import Section

__all__ = ["Salvage"]

_RANGE: Final = 512  # rows asked for at once; halved where that fails
_MAX_NAMESPACES: Final = 1 << 20

Row = tuple[Any, ...]
T = TypeVar("T")


class Salvage:
    """Sections, as those of an export, made of what can be read.

    Attributes
    ----------
    lost : list of Finding
        What could not; filled while the sections are used up.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.lost: list[Finding] = []

    def sections(self) -> Iterator[Section]:
        """One section for each namespace whose own row can be read."""
        sql = f"SELECT {NAMESPACE_COLUMNS} FROM namespaces WHERE id BETWEEN ? AND ?"
        for row in self._rows("namespaces", sql, 1, self._newest_namespace()):
            namespace = self._try("namespaces", row[0], namespace_from_row, row)
            if namespace is not None:
                header = header_line(namespace.record(), namespace.salt, vectors=True)
                numbered = enumerate(self._lines(namespace), start=2)
                yield Section(namespace.key, header, numbered)

    def _newest_namespace(self) -> int:
        try:
            [(newest,)] = self._reader.rows("SELECT coalesce(max(seq), 0) FROM sqlite_sequence")
        except RSMError:
            return _RANGE
        return min(int(newest), _MAX_NAMESPACES)

    def _lines(self, namespace: NamespaceRow) -> Iterator[Line]:
        ns, reader = namespace.id, self._reader
        yield from self._try("arrays", ns, _all_arrays, reader, ns) or []
        # held as a whole: in a broken tree, a row that was seen once may not be found again
        kept: dict[int, TurnRecord] = {}
        sql = f"SELECT {TURN_COLUMNS} FROM turns t WHERE t.pk BETWEEN ? AND ?"
        for row in self._rows("turns", sql, *_pks(ns, namespace.next_turn)):
            turn = self._try("turns", row[0], turn_from_row, row)
            if turn is not None:
                kept[turn.pk] = turn
        for turn in kept.values():
            newer = kept.get(turn.superseded_by or 0)
            yield turn_line(turn, None if newer is None else newer.id)
        yield from self._chunk_lines(namespace, kept)
        sql = "SELECT slot, digests, crc FROM tombstones WHERE slot BETWEEN ? AND ?"
        for row in self._rows("tombstones", sql, *slots(ns)):
            digests = self._try("tombstones", row[0], tombstones_from_row, row)
            if digests is not None:
                yield tombstones_line(digests)
        names = {turn.id for turn in kept.values()}
        yield from self._try("notes", ns, self._note_lines, ns, names) or []

    def _chunk_lines(
        self, namespace: NamespaceRow, kept: Mapping[int, TurnRecord]
    ) -> Iterator[Line]:
        """Chunks of kept turns; features that cannot be read are left empty."""
        reader = self._reader
        sql = f"SELECT {CHUNK_COLUMNS} FROM chunks c WHERE c.pk BETWEEN ? AND ?"
        for row in self._rows("chunks", sql, *_pks(namespace.id, namespace.next_chunk)):
            pk = row[0]
            chunk = self._try("features", pk, _chunk_with_features, reader, row)
            if chunk is None:
                empty = (b"", 0, None, features_crc(pk, b"", 0, None))
                chunk = self._try("chunks", pk, chunk_from_row, (*row, *empty))
            if chunk is not None and all(turn in kept for turn, _, _ in chunk.spans):
                yield chunk_line(chunk, [kept[turn].id for turn, _, _ in chunk.spans])

    def _note_lines(self, ns: int, names: set[str]) -> list[Line]:
        """Notes, links and evolutions all of whose turns were kept."""
        return [
            line
            for line in note_lines(self._reader, ns, vectors=True)
            if names.issuperset(line[key] for key in ("id", "other", "cause") if key in line)
            and names.issuperset(line.get("sources", ()))
        ]

    # -- plumbing -----------------------------------------------------------------------

    def _rows(self, table: str, sql: str, low: int, high: int) -> Iterator[Row]:
        """Rows whose key lies in a range, ascending; a part that fails is halved."""
        starts = range(low, high + 1, _RANGE)
        waiting = [(start, min(start + _RANGE - 1, high)) for start in starts][::-1]
        while waiting:
            first, last = waiting.pop()
            try:
                yield from self._reader.rows(f"{sql} ORDER BY 1", (first, last))
            except RSMError as error:
                if first == last:
                    self._lose(table, first, error)
                else:
                    middle = (first + last) // 2
                    waiting += [(middle + 1, last), (first, middle)]

    def _try(self, table: str, key: int, make: Callable[..., T], *args: Any) -> T | None:
        try:
            return make(*args)
        except RSMError as error:
            self._lose(table, key, error)
            return None

    def _lose(self, table: str, key: int, error: RSMError) -> None:
        self.lost.append(Finding(table, key, str(error), ""))


def _all_arrays(reader: Reader, ns: int) -> list[Line]:
    return list(array_lines(reader, ns))


def _chunk_with_features(reader: Reader, row: Row) -> ChunkRecord:
    sql = "SELECT terms, analyser, vector, crc FROM features WHERE chunk = ?"
    found = reader.rows(sql, row[:1]) or [(None, None, None, None)]
    return chunk_from_row((*row, *found[0]))


def _pks(ns: int, following: int) -> tuple[int, int]:
    return first_pk(ns) + 1, first_pk(ns) + following - 1
