"""A LangGraph agent whose long-term memory is an rsm_fast store.

    pip install "rsm-fast[langgraph,minilm]"
    python docs/examples/langgraph_agent.py agent.rsm "I keep bees." "Which animals do I keep?"

The model is a stand-in that repeats what was recalled, so that the example needs no endpoint; put
a chat model in its place.
"""

from __future__ import annotations

import sys
from typing import Any

from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore
from typing_extensions import TypedDict

from rsm_fast import Memory
from rsm_fast.integrations.langgraph import RSMStore


class State(TypedDict, total=False):
    """What goes through the graph."""

    user: str
    message: str
    recalled: list[str]
    answer: str


def recall(state: State, *, store: BaseStore) -> dict[str, Any]:
    """Look up what is known about the message."""
    found = store.search(("facts", state["user"]), query=state["message"], limit=3)
    return {"recalled": [item.value["text"] for item in found]}


def answer(state: State) -> dict[str, Any]:
    """The model's place."""
    known = "; ".join(state["recalled"]) or "nothing yet"
    return {"answer": f"What I know: {known}"}


def remember(state: State, *, store: BaseStore) -> dict[str, Any]:
    """Keep what the user said."""
    number = len(store.search(("facts", state["user"]), limit=10_000))
    store.put(("facts", state["user"]), f"fact-{number}", {"text": state["message"]})
    return {}


def build(store: BaseStore) -> Any:
    """The graph: recall, answer, remember."""
    graph = StateGraph(State)
    for name, node in (("recall", recall), ("answer", answer), ("remember", remember)):
        graph.add_node(name, node)
    graph.add_edge(START, "recall")
    graph.add_edge("recall", "answer")
    graph.add_edge("answer", "remember")
    graph.add_edge("remember", END)
    return graph.compile(store=store)


def main(arguments: list[str]) -> int:
    """Say each message to the agent."""
    if len(arguments) < 2:
        sys.stderr.write(__doc__ or "")
        return 2
    path, *messages = arguments
    with Memory.open(path) as memory:
        agent = build(RSMStore(memory))
        for message in messages:
            state = agent.invoke({"user": "me", "message": message})
            sys.stdout.write(f"> {message}\n{state['answer']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
