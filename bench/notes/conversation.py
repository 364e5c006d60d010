"""One LoCoMo conversation as notes: what a model makes of it, what that costs, what it answers.

``python -m bench.notes.conversation --write`` takes the endpoint that the environment names (see
`bench.notes.peer`), else a server of its own with the stand-in behind it, which can keep notes
but not answer. Answers of a model are kept with what they cost, so a run that was stopped
continues, and counts what the whole would have cost.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.datasets import Question, Stream, read_dataset
from bench.model_server import serving
from bench.notes.kept import Kept
from bench.notes.peer import NoteSystem, model_from_environment
from bench.notes.standin import StandIn
from bench.quality.answers import Prompt, answer_all, summary
from bench.quality.measures import Scorer
from bench.quality.vectors import CachedEmbedder, default_cache
from rsm_fast.embedding import Embedder, as_embedder
from rsm_fast.llm import AnswerCache, ChatEndpoint, LanguageModel, Usage
from rsm_fast.tokens import TokenCounter, as_token_counter

__all__ = [
    "Outcome",
    "kept_model",
    "main",
    "model_name",
    "run_variant",
    "slice_of",
    "tables",
    "variants",
    "write_page",
]

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = _ROOT / "docs" / "notes.md"
_MOST_TOKENS = 300
"""Of an answer: small models do not know when to stop."""


@dataclass(frozen=True)
class Outcome:
    """One variant of the method on one conversation.

    Attributes
    ----------
    evidence : float
        Share of the turns with the answer that stand in the packs.
    most_tokens : int
        Of the largest pack.
    answered : list of dict
        Rows of `bench.quality.answers`; empty where nobody answers.
    """

    variant: str
    notes: int
    pending: int
    links: int
    evolutions: int
    usage: Usage
    evidence: float
    most_tokens: int
    answered: list[dict[str, Any]]


def model_name() -> str:
    """Name of the model that the environment names; empty for the stand-in."""
    return os.environ.get("RSM_FAST_LLM_MODEL", "") if os.environ.get("RSM_FAST_LLM_URL") else ""


@contextmanager
def kept_model(folder: Path, timeout: float = 600.0) -> Iterator[Kept]:
    """The environment's model with its answers kept in a folder; else a server of the stand-in."""
    counter = as_token_counter(None)
    if not (name := model_name()):
        with serving(StandIn().reply, count=counter) as server:
            yield Kept(ChatEndpoint(server.url, "stand-in", max_tokens=None), counter)
        return
    folder.mkdir(parents=True, exist_ok=True)
    endpoint = model_from_environment(timeout=timeout, max_tokens=_MOST_TOKENS, concurrency=1)
    with AnswerCache(folder / f"{name}.sqlite") as cache:
        yield Kept(endpoint, counter, cache)


def slice_of(stream: Stream, turns: int | None, questions: int | None = None) -> Stream:
    """The first turns of a conversation, and the questions whose evidence stands in them."""
    first = stream.turns[:turns]
    known = {turn.id for turn in first}
    asked = [
        replace(question, visible=len(first))
        for question in stream.questions
        if question.answer and known.issuperset(question.evidence)
    ]
    return Stream(stream.name, first, tuple(asked[:questions]), stream.group)


def variants(ks: Sequence[int]) -> dict[str, dict[str, Any]]:
    """The ablations: options of `NoteSystem` by name; they are made at the first k."""
    return {
        f"links and evolution, k = {ks[0]}": {"k": ks[0]},
        f"the same, packed without descriptions, k = {ks[0]}": {"k": ks[0], "details": False},
        "without links and evolution": {"k": ks[0], "links": False},
        f"without evolution, k = {ks[0]}": {"k": ks[0], "evolution": False},
        **{f"links and evolution, k = {k}": {"k": k} for k in ks[1:]},
    }


def run_variant(
    name: str,
    options: Mapping[str, Any],
    stream: Stream,
    model: LanguageModel,
    *,
    budget: int,
    answers: Path | None = None,
    embedder: Embedder,
    counter: TokenCounter,
) -> Outcome:
    """Make the notes of a conversation, pack for its questions, and have them answered.

    Parameters
    ----------
    answers : Path or None
        Folder of the answers; None: nobody is asked.
    """
    system = NoteSystem(embedder, counter, model, **options)
    try:
        system.write(stream.turns)
        scorer = Scorer(stream)
        shares, prompts = [], []
        for question in stream.questions:
            packed = system.read(question.text, budget)
            shares.append(scorer.measure(question, packed)["evidence"])
            key = f"{stream.name}/{len(stream.turns)}/{name}/{budget}/{question.id}"
            prompts.append(Prompt(key, question, packed.text, packed.tokens))
        stats = system.stats()
    finally:
        system.close()
    answered: list[dict[str, Any]] = []
    if answers is not None:
        file = answers / f"{re.sub('[^a-z0-9]+', '-', name)}.jsonl"
        answered, failed = answer_all(iter(prompts), file, model, None, concurrency=1)
        if failed:
            raise SystemExit(f"{failed} questions were not answered: start again")
    extra = stats.extra
    return Outcome(
        name,
        stats.chunks,
        *(int(extra[part]) for part in ("pending", "links", "evolutions")),
        usage=system.usage,
        evidence=sum(shares) / max(len(shares), 1),
        most_tokens=max((prompt.tokens for prompt in prompts), default=0),
        answered=answered,
    )


# -- writing ----------------------------------------------------------------------------------


def tables(outcomes: Sequence[Outcome], stream: Stream, budget: int, said: str) -> str:
    """What is written between the page's markers."""
    kinds = sorted({question.category for question in stream.questions})
    lines = [
        f"Made by `{said}`: {len(stream.turns)} turns of LoCoMo's conversation {stream.name}, "
        f"{len(stream.questions)} questions, packs of at most {budget:,} tokens.",
        "",
        "| variant | notes (pending) | links | rewritings | calls a note | tokens a note: "
        "prompts + answers | evidence in the pack | largest pack |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        notes = max(one.notes, 1)
        lines.append(
            f"| {one.variant} | {one.notes} ({one.pending}) | {one.links:,} | {one.evolutions:,} "
            f"| {one.usage.calls / notes:.1f} | {one.usage.prompt_tokens / notes:,.0f} + "
            f"{one.usage.completion_tokens / notes:,.0f} | {100 * one.evidence:.1f} % "
            f"| {one.most_tokens:,} |"
        )
    if any(one.answered for one in outcomes):
        heads = [f"{kind} ({_count(stream.questions, kind)})" for kind in kinds]
        lines += [
            "",
            f"| F1 / BLEU-1 | {' | '.join([*heads, 'all'])} |",
            "|---|" + "---|" * (len(kinds) + 1),
        ]
        for one in outcomes:
            cells = [_scores(one.answered, kind) for kind in (*kinds, None)]
            lines.append(f"| {one.variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _count(questions: Sequence[Question], kind: str) -> int:
    return sum(question.category == kind for question in questions)


def _scores(rows: Sequence[dict[str, Any]], kind: str | None) -> str:
    means = summary([row for row in rows if kind in (None, row["category"])])
    return f"{means['f1']:.1f} / {means['bleu1']:.1f}" if means else "none"


def write_page(text: str, place: str, page: Path = _PAGE) -> None:
    """Put the tables between the page's markers of that name."""
    begin, end = f"<!-- {place}: begin -->", f"<!-- {place}: end -->"
    before, found, rest = page.read_text("utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{page}: has no markers {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", "utf-8")


# -- running ----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    data = Path(os.environ.get("RSM_FAST_DATA", _ROOT.parent / "shared" / "data"))
    parser = argparse.ArgumentParser(prog="python -m bench.notes.conversation", description=__doc__)
    parser.add_argument("--locomo", type=Path, default=data / "locomo", metavar="PATH")
    parser.add_argument("--stream", type=int, default=0, metavar="N", help="which conversation")
    parser.add_argument("--turns", type=int, metavar="N", help="only so many, the first")
    parser.add_argument("--questions", type=int, metavar="N", help="at most so many")
    parser.add_argument("--k", type=int, nargs="+", default=[10, 20, 30, 40, 50])
    parser.add_argument("--repairs", type=int, default=1)
    parser.add_argument("--budget", type=int, default=1000)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for an answer")
    parser.add_argument("--out", type=Path, default=_ROOT / "build" / "notes", metavar="FOLDER")
    parser.add_argument("--write", action="store_true", help="write the table into docs/notes.md")
    chosen = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    said = " ".join(["python -m bench.notes.conversation", *given])
    stream = slice_of(
        read_dataset("locomo", chosen.locomo).streams[chosen.stream],
        chosen.turns,
        chosen.questions,
    )
    name = model_name()
    outcomes = []
    for outcome in _outcomes(chosen, stream, name):
        print(outcome.variant, outcome.usage, file=sys.stderr, flush=True)
        outcomes.append(outcome)
        text = tables(outcomes, stream, chosen.budget, said)
        if chosen.write:
            write_page(text, "conversation with a model" if name else "conversation with a rule")
    print(text)
    return 0


def _outcomes(chosen: argparse.Namespace, stream: Stream, name: str) -> Iterator[Outcome]:
    counter = as_token_counter(None)
    embedder = CachedEmbedder(as_embedder(None), default_cache())
    try:
        with kept_model(chosen.out, chosen.timeout) as model:
            for variant, options in variants(chosen.k).items():
                yield run_variant(
                    variant,
                    {**options, "repairs": chosen.repairs},
                    stream,
                    model,
                    budget=chosen.budget,
                    answers=chosen.out / "answers" if name else None,
                    embedder=embedder,
                    counter=counter,
                )
    finally:
        embedder.close()


if __name__ == "__main__":
    sys.exit(main())
