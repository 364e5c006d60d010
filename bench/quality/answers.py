"""Answers and judgements by a language model on top of packed prompts.

Every finished answer is appended to a file at once, so neither a failing endpoint nor a stopped
run loses any; a later run asks only for what is missing.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.datasets import Dataset, Question
from bench.quality.suite import make_system
from rsm_fast.analysis import analyse
from rsm_fast.embedding import Embedder
from rsm_fast.errors import LanguageModelError
from rsm_fast.llm import LanguageModel, Schema, ask
from rsm_fast.tokens import TokenCounter

__all__ = ["Prompt", "answer_all", "overlap", "prompts_of", "summary"]

_ANSWER = (
    "Answer the question from the memory below, as briefly as you can. If the memory does not "
    'hold the answer, say "unknown". Reply with JSON: {"answer": "..."}'
)
_JUDGE = (
    "Does the given answer say the same as the reference answer to this question? Extra detail "
    'is fine, a contradiction or "unknown" is not. Reply with JSON: {"correct": true} or '
    '{"correct": false}'
)
_ANSWER_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
}
_JUDGE_SCHEMA = {
    "type": "object",
    "properties": {"correct": {"type": "boolean"}},
    "required": ["correct"],
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question with the prompt that a system packed for it."""

    key: str
    question: Question
    memory: str
    tokens: int


def prompts_of(
    dataset: Dataset,
    system: str,
    budget: int,
    embedder: Embedder,
    counter: TokenCounter,
    *,
    questions: int | None = None,
) -> Iterator[Prompt]:
    """Prompts for all questions that have a reference answer."""
    for stream in dataset.streams:
        asked = [question for question in stream.questions if question.answer][:questions]
        memory = make_system(system, embedder, counter)
        written = 0
        try:
            for question in sorted(asked, key=lambda question: question.visible):
                if question.visible > written:
                    memory.write(stream.turns[written : question.visible])
                    written = question.visible
                packed = memory.read(question.text, budget)
                key = f"{dataset.name}/{system}/{budget}/{question.id}"
                yield Prompt(key, question, packed.text, packed.tokens)
        finally:
            memory.close()


def answer_all(
    prompts: Iterator[Prompt],
    path: Path,
    model: LanguageModel,
    judge: LanguageModel | None,
    *,
    concurrency: int = 4,
) -> tuple[list[dict[str, Any]], int]:
    """Answer and judge what is not in the file yet.

    Returns
    -------
    rows : list of dict
        All finished answers, those of earlier runs too.
    failed : int
        Questions that the endpoint did not answer; they are asked again next time.
    """
    rows = (
        [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        if (path.exists())
        else []
    )
    done = {row["key"] for row in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = threading.Lock()
    failed = 0
    with path.open("a", encoding="utf-8") as file, ThreadPoolExecutor(concurrency) as pool:

        def finish(prompt: Prompt) -> dict[str, Any]:
            row = _answer(prompt, model, judge)
            with lock:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
            return row

        running = [pool.submit(finish, prompt) for prompt in prompts if prompt.key not in done]
        for future in as_completed(running):
            try:
                rows.append(future.result())
            except LanguageModelError as error:
                failed += 1
                print(f"not answered: {error}", file=sys.stderr)
    return rows, failed


def _answer(prompt: Prompt, model: LanguageModel, judge: LanguageModel | None) -> dict[str, Any]:
    question, reference = prompt.question, prompt.question.answer or ""
    user = f"# Memory\n{prompt.memory}\n\n# Question\n{question.text}"
    answer = str(_asked(model, _ANSWER, user, _ANSWER_SCHEMA, "answer"))
    row = {
        "key": prompt.key,
        "category": question.category,
        "tokens": prompt.tokens,
        "answer": answer,
        "reference": reference,
        **overlap(answer, reference),
    }
    if judge is not None:
        asked = f"Question: {question.text}\nReference: {reference}\nAnswer: {answer}"
        verdict = _asked(judge, _JUDGE, asked, _JUDGE_SCHEMA, "correct")
        row["judged"] = float(verdict is True or str(verdict).strip().lower() in ("true", "yes"))
    return row


def _asked(model: LanguageModel, system: str, user: str, schema: Schema, name: str) -> object:
    """One field of the answer; the bare text where the model wrote no JSON."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    answer = ask(model, messages, schema)
    if isinstance(answer.parsed, dict) and name in answer.parsed:
        return answer.parsed[name]
    return answer.text.strip()


def overlap(answer: str, reference: str) -> dict[str, float]:
    """Exact match, token F1 and BLEU-1 (with brevity penalty) on analysed terms."""
    given, wanted = analyse(answer), analyse(reference)
    common = sum((Counter(given) & Counter(wanted)).values())
    precision = common / len(given) if given else 0.0
    recall = common / len(wanted) if wanted else 0.0
    brevity = 2.718281828459045 ** min(0.0, 1.0 - len(wanted) / len(given)) if given else 0.0
    return {
        "exact": float(given == wanted),
        "f1": 2 * precision * recall / (precision + recall) if common else 0.0,
        "bleu1": brevity * precision,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Means in percent."""
    names = ("exact", "f1", "bleu1", "judged")
    return {
        name: 100.0 * sum(row[name] for row in chosen) / len(chosen)
        for name in names
        if (chosen := [row for row in rows if name in row])
    }
