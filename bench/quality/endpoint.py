"""A client for any OpenAI-compatible chat endpoint: retries, cache, counts, JSON with fallback."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Endpoint", "EndpointError", "Usage"]

_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class EndpointError(Exception):
    """The endpoint gave no usable answer."""


@dataclass
class Usage:
    """What was asked of an endpoint so far.

    Attributes
    ----------
    calls, cached, retries : int
        Requests that were answered; answers from the cache; requests sent again.
    prompt_tokens, completion_tokens : int
        As the endpoint counts them, cached answers left out.
    """

    calls: int = 0
    cached: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def cost(self, prompt_price: float, completion_price: float) -> float:
        """Cost at prices per million tokens."""
        spent = self.prompt_tokens * prompt_price + self.completion_tokens * completion_price
        return spent / 1e6


@dataclass
class Endpoint:
    """One model behind ``BASE_URL/chat/completions``.

    Attributes
    ----------
    base_url, model : str
    key : str
        Sent as bearer token.
    cache : Path
        SQLite file; an answer that stands there is never asked for again.
    timeout : float
        Seconds for one request.
    attempts : int
        Requests at most for one answer; the wait between them doubles from `pause` seconds.
    max_tokens : int
        Of an answer.
    """

    base_url: str
    model: str
    cache: Path
    key: str = ""
    timeout: float = 120.0
    attempts: int = 5
    pause: float = 1.0
    max_tokens: int = 256
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        self.cache.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._db = sqlite3.connect(self.cache, timeout=60, check_same_thread=False)
        self._db.execute("CREATE TABLE IF NOT EXISTS answer (key BLOB PRIMARY KEY, value TEXT)")

    def close(self) -> None:
        """Close the cache."""
        self._db.close()

    def ask(self, system: str, user: str, schema: dict[str, Any]) -> dict[str, Any]:
        """One JSON object that follows a schema.

        JSON mode is asked for with the schema, then without it, then not at all, as far as
        the endpoint refuses; an answer that is no JSON is taken as the first field's value.

        Raises
        ------
        EndpointError
            If no answer came after all attempts.
        """
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        key = hashlib.sha256(
            json.dumps([self.base_url, self.model, self.max_tokens, messages, schema]).encode()
        ).digest()
        with self._lock:
            row = self._db.execute("SELECT value FROM answer WHERE key = ?", (key,)).fetchone()
            if row is not None:
                self.usage.cached += 1
                return dict(json.loads(row[0]))
        answer = _as_object(self._content(messages, schema), schema)
        with self._lock, self._db:
            self._db.execute(
                "INSERT OR REPLACE INTO answer VALUES (?, ?)", (key, json.dumps(answer))
            )
        return answer

    def _content(self, messages: list[dict[str, str]], schema: dict[str, Any]) -> str:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "temperature": 0.0,
            "max_tokens": self.max_tokens,
        }
        modes: list[dict[str, Any] | None] = [
            {"type": "json_object", "schema": schema},
            {"type": "json_object"},
            None,
        ]
        for mode in modes:
            if mode is not None:
                body["response_format"] = mode
            else:
                body.pop("response_format", None)
            try:
                return self._send(body)
            except urllib.error.HTTPError as error:
                if error.code not in (400, 404, 422) or mode is None:
                    raise EndpointError(
                        f"{self.base_url}: status {error.code} {error.reason}"
                    ) from error
        raise EndpointError(f"{self.base_url}: every form of the request was refused")

    def _send(self, body: dict[str, Any]) -> str:
        request = urllib.request.Request(
            f"{self.base_url.rstrip('/')}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"},
        )
        for attempt in range(self.attempts):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as response:
                    answer = json.load(response)
                content = answer["choices"][0]["message"]["content"]
            except urllib.error.HTTPError as error:
                if error.code not in _RETRIED or attempt + 1 == self.attempts:
                    raise
                self._wait(attempt, error.headers.get("Retry-After"))
            except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
                if attempt + 1 == self.attempts:
                    raise EndpointError(
                        f"{self.base_url}: no usable answer in {self.attempts} attempts: {error!r}"
                    ) from error
                self._wait(attempt, None)
            else:
                usage = answer.get("usage") or {}
                with self._lock:
                    self.usage.calls += 1
                    self.usage.prompt_tokens += int(usage.get("prompt_tokens") or 0)
                    self.usage.completion_tokens += int(usage.get("completion_tokens") or 0)
                return str(content or "")
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _wait(self, attempt: int, asked: str | None) -> None:
        with self._lock:
            self.usage.retries += 1
        wanted = float(asked) if asked and asked.isdigit() else 0.0
        time.sleep(max(wanted, self.pause * 2**attempt))


def _as_object(content: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The JSON object in an answer, else its text under the schema's first property."""
    match = re.search(r"\{.*\}", content, re.DOTALL)
    if match:
        try:
            found = json.loads(match[0])
        except json.JSONDecodeError:
            found = None
        if isinstance(found, dict):
            return found
    return {next(iter(schema["properties"])): content.strip()}
