"""The slow twin of an admission by kernel: chunk after chunk, in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from rsm_fast.kernels.offers import FOLDED
from rsm_fast.packing import Filled, Form, Frame, Piece
from rsm_fast.packing.admission import _Filler
from rsm_fast.packing.ledger import LEAST_ROOM
from rsm_fast.reading import ReadPath


def filled_one_by_one(
    pieces: Sequence[Piece],
    tokens: Sequence[int],
    texts: Sequence[int],
    frame: Frame,
    layout: Any,
    budget: int,
    *,
    fold: bool,
    parts: Sequence[int] = (),
) -> Filled:
    """Twin of `admission.admit_`, of `admission.insert_entry_` and of `admission.remove_entry_`."""
    filler = _Filler(frame, layout, budget, fold=fold, explain=False)
    offered = dict(zip([piece.row for piece in pieces], texts, strict=True))

    def offers() -> Iterator[Form]:
        for place, (piece, length, text) in enumerate(zip(pieces, tokens, texts, strict=True)):
            room = filler.room - filler.used
            most = FOLDED * room if fold and filler.believed else room
            if place in parts and place and most < LEAST_ROOM:
                return  # it does not pay to ask for the next part
            inside = {offered[entry.form.piece.row] for entry in filler.admitted}
            if length <= most or text in inside:
                yield Form(piece, frame)

    filler.admit(offers())
    return filler.result(*filler.write())


def spread(keys: Sequence[int], values: Sequence[int]) -> dict[int, int]:
    """Twin of `admission.spread_`: what a map holds."""
    return {key: value for key, value in zip(keys, values, strict=True) if value != -2}


@contextmanager
def reading_in_steps() -> Iterator[None]:
    """Twin of `read.read_`: rank, then offer chunks with what they cost, then admit."""
    rank = ReadPath._rank

    def alone(self: ReadPath, *args: Any, ledger: Any = None, **options: Any) -> Any:
        return rank(self, *args, **options)

    with patch.object(ReadPath, "_rank", alone):
        yield
