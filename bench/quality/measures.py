"""What a prompt keeps of the truth.

- **evidence**: share of the gold evidence turns that stand in the prompt (a part of a turn
  counts by its share of the turn's characters; a byte-equal copy counts as the turn).
- RealMem **sess**: share of the gold sessions of which anything stands in the prompt.
- RealMem **cov**: idf-weighted share of the gold memories' content words found in what the prompt
  shows of the memory's own session; words that the session never uses are left out, so the
  whole history has 100 %.
- RealMem **src**: `evidence` for the turns that the gold memories were taken from.
- RealMem's official **recall_any@k**, **recall_all@k**, **ndcg@k** on ranked sessions.
- **answer**: share of the reference answer's terms that stand in the prompt.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import log, log2

from bench.datasets import Question, Stream
from bench.quality.packed import Packed, Shown
from rsm_fast.analysis import analyse

__all__ = ["RANKS", "Scorer", "ranking_measures"]

RANKS = (5, 10, 20)


class Scorer:
    """Measures of one stream's questions."""

    def __init__(self, stream: Stream) -> None:
        self._turns = {turn.id: turn for turn in stream.turns}
        self._position = {turn.id: position for position, turn in enumerate(stream.turns)}
        self._same: dict[tuple[str, str], list[str]] = defaultdict(list)
        for turn in stream.turns:
            self._same[turn.role, turn.text].append(turn.id or "")
        self._terms = {turn.id: set(analyse(turn.text)) for turn in stream.turns}
        self._frequency = Counter(term for terms in self._terms.values() for term in terms)
        self._session_terms: dict[str, set[str]] = defaultdict(set)
        for turn in stream.turns:
            self._session_terms[turn.session or ""] |= self._terms[turn.id]
        self._wanted: dict[str, list[tuple[str, str, float]]] = {}

    def measure(self, question: Question, packed: Packed) -> dict[str, float]:
        """All measures that the question's gold allows, each from 0 to 1."""
        shares = self._shares(question, packed.shown)
        measures: dict[str, float] = {}
        if question.evidence:
            name = "src" if question.facts else "evidence"
            measures[name] = _mean(shares.get(turn, 0.0) for turn in question.evidence)
        if question.facts:
            measures.update(self._facts(question, packed.shown))
        if question.answer and not question.facts:
            wanted = set(analyse(question.answer))
            shown: set[str] = set()
            for turn in shares:
                shown |= self._terms[turn]
            measures["answer"] = len(wanted & shown) / len(wanted) if wanted else 1.0
        return measures

    def _shares(self, question: Question, shown: Sequence[Shown]) -> dict[str, float]:
        """Share of each visible turn that stands in the prompt."""
        shares: dict[str, float] = defaultdict(float)
        for part in shown:
            turn = self._turns[part.turn]
            share = len(part.text) / len(turn.text) if part.text else 1.0
            ids = [part.turn]
            if part.copies > 1:
                same = self._same[turn.role, turn.text]
                ids = [id for id in same if self._position[id] < question.visible]
            for id in ids:
                shares[id] = min(1.0, shares[id] + share)
        return shares

    def _facts(self, question: Question, shown: Sequence[Shown]) -> dict[str, float]:
        """RealMem's sess and cov."""
        sessions = {fact.session for fact in question.facts}
        words: dict[str, set[str]] = {}
        for part in shown:
            turn = self._turns[part.turn]
            session = turn.session or ""
            if session not in sessions:
                continue
            whole = not part.text or len(part.text) == len(turn.text)
            terms = self._terms[part.turn] if whole else set(analyse(part.text))
            words.setdefault(session, set()).update(terms)
        found = total = 0.0
        for session, term, weight in self._words_of_facts(question):
            total += weight
            found += weight if term in words.get(session, ()) else 0.0
        return {"sess": len(words) / len(sessions), "cov": found / total if total else 1.0}

    def _words_of_facts(self, question: Question) -> list[tuple[str, str, float]]:
        """Session, term and weight of each content word, remembered for the next budget."""
        if question.id not in self._wanted:
            self._wanted[question.id] = [
                (fact.session, term, self._idf(term))
                for fact in question.facts
                for term in sorted(set(analyse(fact.text)) & self._session_terms[fact.session])
            ]
        return self._wanted[question.id]

    def _idf(self, term: str) -> float:
        frequency = self._frequency[term]
        return log(1.0 + (len(self._turns) - frequency + 0.5) / (frequency + 0.5))


def ranking_measures(ranked: Sequence[str], gold: Iterable[str]) -> dict[str, float]:
    """RealMem's official ranking measures on session ids."""
    wanted = set(gold)
    measures = {}
    for k in RANKS:
        top = ranked[:k]
        hits = [float(session in wanted) for session in top]
        best = [1.0] * min(len(wanted), k)
        measures[f"recall_any@{k}"] = float(any(hits))
        measures[f"recall_all@{k}"] = float(wanted <= set(top))
        measures[f"ndcg@{k}"] = _gain(hits) / _gain(best) if best else 0.0
    return measures


def _gain(hits: Sequence[float]) -> float:
    """Discounted gain as the official script has it: the first two places count alike."""
    return sum(hit / (log2(place) if place > 1 else 1.0) for place, hit in enumerate(hits, 1))


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
