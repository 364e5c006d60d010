"""A stand-in for a language model that keeps notes: deterministic, and no model at all.

It answers the prompts of `rsm_fast.notes` by counting words, so that the whole machinery can
be run, timed and tested without an endpoint. What it says about quality holds for this rule,
not for A-MEM with a language model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rsm_fast.analysis import analyse

__all__ = ["StandIn"]

_KEYWORDS = 6
_SHARED = 2  # terms that two notes must share to be linked


class StandIn:
    """Describes by the longest words, links by shared words, rewrites what it links.

    Attributes
    ----------
    calls : int
        Questions answered so far.
    """

    def __init__(self) -> None:
        self.calls = 0

    def chat(
        self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any] | None = None
    ) -> str:
        """JSON for the last message of the user."""
        self.calls += 1
        asked = json.loads(messages[1]["content"])
        given = _connected(asked) if "neighbours" in asked else _described(asked)
        if schema is not None:
            given = {name: given[name] for name in schema["properties"] if name in given}
        return json.dumps(given, ensure_ascii=False)

    def reply(self, request: Mapping[str, Any]) -> str:
        """The same, for a decoded ``/chat/completions`` request."""
        wanted = request.get("response_format") or {}
        schema = wanted.get("schema") or wanted.get("json_schema", {}).get("schema")
        return self.chat(request["messages"], schema)


def _described(asked: Mapping[str, Any]) -> dict[str, Any]:
    counts = Counter(analyse(asked["text"]))
    ordered = sorted(counts, key=lambda term: (-len(term), -counts[term], term))
    keywords = ordered[:_KEYWORDS] or ["(nothing)"]
    return {
        "keywords": keywords,
        "tags": [f"about {keywords[0]}", f"by {asked['speaker']}"],
        "context": f"{asked['speaker']} speaks of {' and '.join(keywords[:3])}.",
    }


def _connected(asked: Mapping[str, Any]) -> dict[str, Any]:
    new = asked["new"]
    terms = set(analyse(new["text"]))
    links = [
        note["id"]
        for note in asked["neighbours"]
        if len(terms & set(analyse(note["text"]))) >= _SHARED
    ]
    rewrites = [
        {
            "id": note["id"],
            "keywords": list(dict.fromkeys([*note["keywords"], *new["keywords"][:1]]))[:8],
            "tags": note["tags"],
            "context": f"{note['context'].split(' See also')[0]} See also {new['id']}.",
        }
        for note in asked["neighbours"]
        if note["id"] in links[:2]
    ]
    return {"links": links, "rewrites": rewrites}
