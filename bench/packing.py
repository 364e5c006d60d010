"""What packing costs and saves: folding, frames, time.

``python -m bench.packing [DATA] [--write docs/packing.md]`` prints the tables of that page, or
writes them between its markers.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from bench.datasets.ama import read_ama
from bench.datasets.locomo import read_locomo
from bench.datasets.realmem import read_realmem
from bench.datasets.records import Stream
from rsm_fast import Memory
from rsm_fast.embedding import HashingEmbedder
from rsm_fast.instants import Instant, parse_instant
from rsm_fast.packing import (
    TEMPLATES,
    Filled,
    Form,
    Frame,
    Offers,
    Piece,
    PriceTable,
    Source,
    Span,
    fill,
    get_template,
)
from rsm_fast.tokens import as_token_counter
from rsm_fast.types import Turn

COUNTER = as_token_counter()
BUDGET = 4000


def pieces_of(stream: Stream) -> list[Piece]:
    """One chunk per turn, in the order of the stream."""
    pieces = []
    for row, turn in enumerate(stream.turns):
        lines = turn.text.split("\n")
        when = Instant(row) if turn.timestamp is None else parse_instant(turn.timestamp)
        step = (turn.metadata or {}).get("step")
        span = Span(turn.role, turn.text, str(row), tuple(COUNTER.count_lines(lines)))
        pieces.append(
            Piece(
                row=row,
                id=str(row),
                spans=(span,),
                atom=None,
                session=turn.session,
                instant=when,
                score=0.0,
                step=step if isinstance(step, int) else None,
            )
        )
    return pieces


def streams(data: Path) -> dict[str, list[list[Piece]]]:
    """Pieces of every stream, by data set."""
    ama = read_ama(data / "ama").streams
    found: dict[str, list[list[Piece]]] = {}
    for stream in ama:
        domain = stream.group.partition("/")[0]
        found.setdefault(f"AMA-Bench, {domain}", []).append(pieces_of(stream))
    found["RealMem"] = [pieces_of(s) for s in read_realmem(data / "realmem").streams]
    found["LoCoMo"] = [pieces_of(s) for s in read_locomo(data / "locomo").streams]
    return found


def packed(pieces: Iterable[Piece], budget: int, *, fold: bool, template: str) -> Filled:
    """A pack whose tokens have been counted once more, as a whole."""
    filled = fill(pieces, budget=budget, counter=COUNTER, fold=fold, template=template)
    if COUNTER(filled.text) != filled.tokens:
        raise AssertionError(f"{filled.tokens} tokens were {COUNTER(filled.text)}")
    return filled


def best_of(run: Callable[[], object], repeats: int = 7) -> float:
    """Seconds of the fastest of some runs."""
    times = []
    for _ in range(repeats):
        started = time.thread_time()
        run()
        times.append(time.thread_time() - started)
    return min(times)


def saving_table(found: dict[str, list[list[Piece]]]) -> Iterator[str]:
    """Tokens of whole streams, written out and folded."""
    yield "| whole streams | streams | tokens written out | folded | saved |"
    yield "|---|---|---|---|---|"
    for name, many in found.items():
        out, in_ = (
            sum(packed(pieces, 10**9, fold=fold, template="markdown").tokens for pieces in many)
            for fold in (False, True)
        )
        yield f"| {name} | {len(many)} | {out:,} | {in_:,} | {100 * (1 - in_ / out):.0f} % |"


def frame_table(found: dict[str, list[list[Piece]]]) -> Iterator[str]:
    """Tokens of frame per chunk, by template, in packs of the last chunks."""
    yield f"| frame, tokens a chunk at {BUDGET:,} | " + " | ".join(TEMPLATES) + " |"
    yield "|---|" + "---|" * len(TEMPLATES)
    for name, many in found.items():
        cells = []
        for template in TEMPLATES:
            frame = chunks = 0
            for pieces in many:
                filled = packed(pieces[::-1], BUDGET, fold=False, template=template)
                own = sum(sum(p.piece.spans[0].line_tokens) for p in filled.packed)
                frame += filled.tokens - own
                chunks += len(filled.packed)
            cells.append(f"{frame / chunks:.1f}")
        yield f"| {name} | " + " | ".join(cells) + " |"


def time_table(found: dict[str, list[list[Piece]]]) -> Iterator[str]:
    """Microseconds of admission, layout and writing, and chunks packed."""
    yield (
        f"| filling {BUDGET:,} tokens | chunks, written out | microseconds | chunks, folded "
        "| microseconds | per chunk, ratio |"
    )
    yield "|---|---|---|---|---|---|"
    frame = Frame(get_template("markdown"), COUNTER)
    for name, many in found.items():
        times, chunks = [], []
        for fold in (False, True):
            runs = [
                lambda source=source, fold=fold: fill(
                    source, budget=BUDGET, counter=COUNTER, fold=fold, frame=frame
                )
                for source in [_Read(pieces[::-1], frame) for pieces in many]
            ]
            times.append(1e6 * sum(best_of(run) for run in runs) / len(many))
            chunks.append(sum(len(run().packed) for run in runs) / len(many))
        ratio = times[1] / chunks[1] / (times[0] / chunks[0])
        yield (
            f"| {name} | {chunks[0]:.0f} | {times[0]:,.0f} | {chunks[1]:.0f} | {times[1]:,.0f} "
            f"| {ratio:.2f} |"
        )


class _Read(Source):
    """Chunks that were read before, as a memory that is in use has them."""

    def __init__(self, pieces: Sequence[Piece], frame: Frame) -> None:
        self._forms = [Form(piece, frame) for piece in pieces]
        self._prices = PriceTable(frame)
        sessions: dict[str | None, int] = {}
        rows = [
            (
                piece.row,
                0,
                piece.instant.micros,
                sessions.setdefault(piece.session, len(sessions)),
                -1,
                form.least,
                hash(piece.spans[0].text),
            )
            for piece, form in zip(pieces, self._forms, strict=True)
        ]
        kinds = (np.int32, np.int32, np.int64, np.int32, np.int32, np.int32, np.int64)
        self._offers = Offers(
            *[
                np.array(column, kind)
                for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)
            ]
        )

    def offers(self, begun: int = 0) -> Iterator[Offers]:
        """All of them at once."""
        yield self._offers

    def prices(self, frame: Frame) -> PriceTable:
        """Of the one frame that there is."""
        return self._prices

    def forms(self, frame: Frame, places: Sequence[int]) -> list[Form]:
        """As they were read."""
        return [self._forms[place] for place in places]


def stage_table(data: Path) -> Iterator[str]:
    """CPU time of whole calls on a namespace of all conversations."""
    questions = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.rsm"
        with Memory.open(path, embedder=HashingEmbedder(384), synchronous="NORMAL") as memory:
            for reading in (read_realmem(data / "realmem"), read_locomo(data / "locomo")):
                for stream in reading.streams:
                    memory.add_many(_apart(turn, stream.name) for turn in stream.turns)
                    questions += list(dict.fromkeys(q.text for q in stream.questions))[:5]
        yield from call_table(path, questions)


def call_table(path: Path, questions: list[str]) -> Iterator[str]:
    """Medians over questions to a store."""
    with Memory.open(path, embedder=HashingEmbedder(384)) as memory:
        chunks = memory.stats().chunks
        scoring = median(best_of(partial(memory.search, q, k=1)) for q in questions)
        hot, packed = {}, {}
        for fold in (True, False):
            packs = [partial(memory.pack, q, budget=BUDGET, fold=fold) for q in questions]
            packed[fold] = median(pack().stats.admitted for pack in packs)
            hot[fold] = median(best_of(pack) for pack in packs)
    cold = []
    for question in questions[::5]:
        with Memory.open(path, embedder=HashingEmbedder(384)) as memory:
            memory.search(question, k=1)  # loads the namespace, and keeps no text
            cold.append(best_of(partial(memory.pack, question, budget=BUDGET), 1))
    yield (
        f"| {len(questions)} questions to {chunks:,} chunks, {BUDGET:,} tokens | chunks packed "
        "| microseconds | without `search` | of it per chunk |"
    )
    yield "|---|---|---|---|---|"
    rows = (
        ("`search` for one hit: scoring", 0.0, scoring),
        ("`pack`, texts read before", packed[True], hot[True]),
        ("`pack`, nothing folded", packed[False], hot[False]),
        ("`pack`, texts never read", packed[True], median(cold)),
    )
    for name, number, seconds in rows:
        cells = [f"{1e6 * seconds:,.0f}"]
        if number:
            rest = 1e6 * (seconds - scoring)
            cells = [f"{number:.0f}", *cells, f"{rest:,.0f}", f"{rest / number:.1f}"]
        else:
            cells = ["", *cells, "", ""]
        yield f"| {name} | {' | '.join(cells)} |"


def _apart(turn: Turn, stream: str) -> Turn:
    """A turn that may share a namespace with other streams."""
    return replace(turn, id=f"{stream}/{turn.id}", session=f"{stream}/{turn.session}")


TABLES = {"saving": saving_table, "frame": frame_table, "time": time_table}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", type=Path, default=Path("../shared/data"))
    parser.add_argument("--write", type=Path, help="a page with <!-- NAME --> markers")
    options = parser.parse_args()
    found = streams(options.data)
    page = options.write.read_text(encoding="utf-8") if options.write else ""
    tables = {name: table(found) for name, table in TABLES.items()}
    for name, lines in {**tables, "stages": stage_table(options.data)}.items():
        text = "\n".join(lines)
        print(text, end="\n\n")
        marker = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", re.S)
        page = marker.sub(lambda match, text=text: match[1] + text + match[2], page)
    if options.write:
        options.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
