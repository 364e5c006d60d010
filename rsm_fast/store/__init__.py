"""The store: one SQLite file that holds everything for good.

`Store.open` gives a store, `Store.read` a `Reader` on one consistent snapshot, and
`Store.write` a `Writer` in one transaction. What goes in and out are immutable records.
``docs/file-format.md`` describes the file.

>>> store = Store.open(None)
>>> with store.write() as writer:
...     ns = writer.create_namespace("demo", {"dim": 2}).id
...     turn = TurnRecord(0, "1", "user", "Hello.", 0, 0, True, None, None)
...     [turn_pk] = writer.insert_turns(ns, [turn])
...     chunk = ChunkRecord(0, "1#0", ((turn_pk, 0, 6),), None, 0, 0, 2, b"", b"", 1)
...     [chunk_pk] = writer.insert_chunks(ns, [chunk])
>>> with store.read() as reader:
...     reader.pieces(ns, [chunk_pk])[0].parts[0].text
'Hello.'
>>> store.close()
"""

from rsm_fast.store.checks import Finding
from rsm_fast.store.filters import compile_where, why_not_findable
from rsm_fast.store.reader import Reader
from rsm_fast.store.records import (
    STEP_NONE,
    Changes,
    ChunkColumns,
    ChunkRecord,
    NamespaceRecord,
    PiecePart,
    PieceRecord,
    Span,
    TurnRecord,
)
from rsm_fast.store.snapshots import Snapshot
from rsm_fast.store.store import Store
from rsm_fast.store.transfer import Section, read_sections
from rsm_fast.store.writer import Writer, check_namespace_key

__all__ = [
    "STEP_NONE",
    "Changes",
    "ChunkColumns",
    "ChunkRecord",
    "Finding",
    "NamespaceRecord",
    "PiecePart",
    "PieceRecord",
    "Reader",
    "Section",
    "Snapshot",
    "Span",
    "Store",
    "TurnRecord",
    "Writer",
    "check_namespace_key",
    "compile_where",
    "read_sections",
    "why_not_findable",
]
