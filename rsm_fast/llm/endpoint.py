"""A client for OpenAI-compatible ``/chat/completions`` endpoints, on the standard library."""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from rsm_fast._version import __version__
from rsm_fast.errors import InvalidInputError, LanguageModelError
from rsm_fast.llm.answers import Answer, Message, Schema, Usage, parsed_answer
from rsm_fast.llm.cache import AnswerCache

__all__ = ["ChatEndpoint", "JsonMode"]

JsonMode: TypeAlias = Literal["auto", "json_schema", "json_object_schema", "json_object", "text"]

_MODES: Final = ("json_schema", "json_object_schema", "json_object", "text")
_RETRIED: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_REFUSED_FORMAT: Final = frozenset({400, 415, 422, 501})
_MOST_BYTES: Final = 16 << 20
_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 60.0
_ROLES: Final = ("system", "user", "assistant", "developer", "tool")

_log = logging.getLogger(__name__)


class _TryAgain(Exception):
    """What may pass: ``wait`` is what the server asked for, in seconds."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


class _Refused(Exception):
    """The endpoint does not take the request as it is."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Reply:
    """The parts of a completion that count."""

    text: str
    finish: str
    model: str
    usage: Usage


class ChatEndpoint:
    """A language model behind an OpenAI-compatible endpoint. Usable from many threads.

    Parameters
    ----------
    base_url : str
        Such as ``http://127.0.0.1:8080/v1``; ``/chat/completions`` is added.
    model : str
        Name of the model, as the endpoint knows it.
    api_key : str, optional
        Sent as a bearer token. It is in no message, log or cache.
    timeout : float
        Seconds for one attempt, from connecting to the last byte.
    retries : int
        Attempts after the first, where the endpoint is unreachable, slow, busy (429) or
        failing (5xx). The waits between them double from half a second, with jitter; a
        ``Retry-After`` is kept to.
    concurrency : int
        Requests under way at a time; others wait.
    json_mode : str
        How JSON is asked for. ``"auto"`` tries ``json_schema``, ``json_object`` with a schema
        beside it, bare ``json_object`` and plain text, goes on where the endpoint refuses,
        and remembers what it took.
    temperature : float or None
        None leaves it to the endpoint.
    max_tokens : int or None
        Limit of an answer.
    seed : int or None
        For endpoints that know seeds.
    cache : AnswerCache or None
        Where answers are kept.

    Raises
    ------
    InvalidInputError
        If an option is out of range.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout: float = 120.0,
        retries: int = 4,
        concurrency: int = 4,
        json_mode: JsonMode = "auto",
        temperature: float | None = 0.0,
        max_tokens: int | None = 1024,
        seed: int | None = None,
        cache: AnswerCache | None = None,
        _sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = _checked_url(base_url)
        if not model or not isinstance(model, str):
            raise InvalidInputError(f"model: expected a name, got {model!r}")
        if api_key is not None and (not api_key.isascii() or not api_key.isprintable()):
            raise InvalidInputError("api_key: expected printable ASCII")
        if not timeout > 0:
            raise InvalidInputError(f"timeout: expected seconds above 0, got {timeout!r}")
        for name, value, low in (("retries", retries, 0), ("concurrency", concurrency, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise InvalidInputError(f"{name}: expected {low} or more, got {value!r}")
        if json_mode not in ("auto", *_MODES):
            raise InvalidInputError(
                f"json_mode: expected 'auto' or one of {_MODES}, got {json_mode!r}"
            )
        self.base_url = base_url
        self.model = model
        self.timeout = timeout
        self.retries = retries
        self.concurrency = concurrency
        self._key = api_key
        self._modes: tuple[str, ...] = _MODES if json_mode == "auto" else (json_mode,)
        self._options = {
            name: value
            for name, value in {
                "temperature": temperature,
                "max_tokens": max_tokens,
                "seed": seed,
            }.items()
            if value is not None
        }
        self._cache = cache
        self._sleep = _sleep
        self._slots = threading.BoundedSemaphore(concurrency)
        self._lock = threading.Lock()
        self._usage = Usage()

    @property
    def usage(self) -> Usage:
        """What all answers so far cost."""
        return self._usage

    def __repr__(self) -> str:
        return f"ChatEndpoint({self.base_url!r}, {self.model!r})"

    def chat(
        self,
        messages: Sequence[Message],
        schema: Schema | None = None,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> Answer:
        """Ask once; failures that may pass are tried again.

        Parameters
        ----------
        messages : sequence of mapping
            ``role`` and ``content`` each.
        schema : mapping, optional
            JSON Schema of the answer, an object. An answer that does not fit comes back with
            ``problem`` set; `rsm_fast.llm.ask` has it asked for again.
        max_tokens, temperature
            Instead of the endpoint's own, for this call.

        Returns
        -------
        Answer

        Raises
        ------
        InvalidInputError
            If a message is malformed.
        LanguageModelError
            If there is no answer after all attempts, or the endpoint refuses.
        """
        request = {**self._options, "model": self.model, "messages": _checked_messages(messages)}
        for name, value in (("max_tokens", max_tokens), ("temperature", temperature)):
            if value is not None:
                request[name] = value
        key = AnswerCache.key({**request, "schema": schema}) if self._cache is not None else b""
        kept = self._cache.get(key) if self._cache is not None else None
        if kept is not None:
            reply = _Reply(kept["text"], kept["finish"], kept["model"], Usage(cached=1))
        else:
            with self._slots:
                reply = self._asked(request, schema)
        answer = Answer(reply.text, None, reply.usage, "", reply.finish, reply.model)
        if schema is not None:
            answer = parsed_answer(answer, schema)
        if self._cache is not None and kept is None and not answer.problem:
            self._cache.put(
                key, {"text": answer.text, "finish": answer.finish, "model": answer.model}
            )
        with self._lock:
            self._usage += answer.usage
        return answer

    def close(self) -> None:
        """Close the cache, if there is one; nothing else is held between calls."""
        if self._cache is not None:
            self._cache.close()

    # -- asking -------------------------------------------------------------------------------

    def _asked(self, request: Mapping[str, Any], schema: Schema | None) -> _Reply:
        """The reply in the first way of asking for JSON that the endpoint takes."""
        if schema is None:
            return self._tried(request)
        modes = self._modes
        first: LanguageModelError | None = None
        for mode in modes:
            try:
                reply = self._tried({**request, **_response_format(mode, schema)})
            except LanguageModelError as error:
                cause = error.__cause__
                if not isinstance(cause, _Refused) or cause.status not in _REFUSED_FORMAT:
                    raise
                first = first or error
                continue
            if mode != modes[0]:  # this request fails in no other way: it was the format
                _log.info("%s takes no %s; asking for %s", self, modes[0], mode)
                self._modes = modes[modes.index(mode) :]
            return reply
        assert first is not None
        raise first

    def _tried(self, request: Mapping[str, Any]) -> _Reply:
        body = json.dumps(request, ensure_ascii=False).encode("utf-8", "replace")
        for attempt in range(self.retries + 1):
            try:
                return self._posted(body)
            except _TryAgain as error:
                if attempt == self.retries or error.wait > _LONGEST_WAIT:
                    raise LanguageModelError(
                        f"{self.base_url}: no answer after {attempt + 1} attempts: {error}"
                    ) from error
                most = min(_FIRST_WAIT * 2**attempt, _LONGEST_WAIT)
                wait = error.wait + random.uniform(most / 2, most)
                _log.info("%s: %s; trying again in %.1f s", self, error, wait)
                self._sleep(wait)
            except _Refused as error:
                raise LanguageModelError(f"{self.base_url}: {error}") from error
        raise AssertionError("unreachable")

    def _posted(self, body: bytes) -> _Reply:
        status, headers, data = self._exchanged(body)
        if status in _RETRIED:
            wait = _retry_after(headers.get("retry-after"))
            raise _TryAgain(f"HTTP {status}: {_error_text(data)}", wait)
        if status != 200:
            raise _Refused(status, f"HTTP {status}: {_error_text(data)}{_advice(status)}")
        try:
            return _reply(json.loads(data), body)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise _TryAgain(
                f"expected a chat completion, got {data[:80]!r} ({type(error).__name__})"
            ) from None

    def _exchanged(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """One request and its response, within the time-out as a whole."""
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": f"rsm-fast/{__version__}",
            "Connection": "close",
        }
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        connection, target = _connection(self._url, self.timeout)
        expired = threading.Event()
        sockets: list[socket.socket] = []  # the connection forgets its own while it is read

        def expire() -> None:
            expired.set()
            for opened in sockets:
                with contextlib.suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self.timeout, expire)
        timer.daemon = True
        try:
            connection.connect()
            sockets.append(connection.sock)
            timer.start()
            connection.request("POST", target, body, headers)
            response = connection.getresponse()
            data = response.read(_MOST_BYTES + 1)
            if expired.is_set():
                raise TimeoutError
            if len(data) > _MOST_BYTES:
                raise _Refused(200, f"answered more than {_MOST_BYTES:,} bytes")
            return response.status, {k.lower(): v for k, v in response.headers.items()}, data
        except (OSError, http.client.HTTPException) as error:
            if expired.is_set() or isinstance(error, TimeoutError):
                raise _TryAgain(f"no answer within {self.timeout:g} s") from error
            raise _TryAgain(f"{type(error).__name__}: {error}") from error
        finally:
            timer.cancel()
            connection.close()


def _checked_url(base_url: str) -> SplitResult:
    try:
        url = urlsplit(base_url)
        _ = url.port
    except (ValueError, TypeError, AttributeError):
        url = urlsplit("")
    if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query:
        raise InvalidInputError(
            f"base_url: expected something like http://127.0.0.1:8080/v1, got {base_url!r}"
        )
    return url


def _checked_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    checked = []
    for index, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES or not isinstance(content, str):
            raise InvalidInputError(
                f"messages[{index}]: expected role (one of {_ROLES}) and content as text, "
                f"got {dict(message)!r:.80}"
            )
        checked.append({"role": str(role), "content": content})
    if not checked:
        raise InvalidInputError("messages: expected at least one")
    return checked


def _response_format(mode: str, schema: Schema) -> dict[str, Any]:
    if mode == "json_schema":
        named = {"name": "answer", "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    if mode == "json_object_schema":
        return {"response_format": {"type": "json_object", "schema": schema}}
    if mode == "json_object":
        return {"response_format": {"type": "json_object"}}
    return {}


def _connection(url: SplitResult, timeout: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection that is not yet open, and what to ask it for; proxies as the system says."""
    host, path = str(url.hostname), f"{url.path.rstrip('/')}/chat/completions"
    secure = url.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    proxy = None if proxy_bypass(host) else getproxies().get(url.scheme)
    if proxy is None or host in ("127.0.0.1", "localhost", "::1"):
        return kind(host, url.port, timeout=timeout), path
    through = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    connection = kind(str(through.hostname), through.port or 8080, timeout=timeout)
    if secure:
        connection.set_tunnel(host, url.port or 443)
        return connection, path
    return connection, f"http://{url.netloc}{path}"


def _reply(document: Any, body: bytes) -> _Reply:
    """The parts of a completion; an endpoint that does not count tokens has them estimated."""
    choice = document["choices"][0]
    content = choice["message"].get("content")
    if isinstance(content, list):  # parts
        content = "".join(part.get("text", "") for part in content)
    text = content or ""
    if not isinstance(text, str):
        raise TypeError("content is no text")
    counted = document.get("usage") or {}
    prompt, completion = counted.get("prompt_tokens"), counted.get("completion_tokens")
    usage = (
        Usage(1, 0, prompt, completion)
        if isinstance(prompt, int) and isinstance(completion, int)
        else Usage(1, 0, _third(body), _third(text.encode("utf-8", "replace")), estimated=True)
    )
    model = document.get("model")
    return _Reply(
        text,
        str(choice.get("finish_reason") or "stop"),
        model if isinstance(model, str) else "",
        usage,
    )


def _third(data: bytes) -> int:
    return -(-len(data) // 3)


def _error_text(data: bytes) -> str:
    text = data[:4000].decode("utf-8", "replace")
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(text)
        error = document.get("error", document) if isinstance(document, dict) else document
        if isinstance(error, dict):
            error = error.get("message") or error.get("detail") or error
        text = str(error)
    return " ".join(text.split())[:300] or "no reason given"


def _advice(status: int) -> str:
    if status in (401, 403):
        return "; give the right api_key"
    if status == 404:
        return "; check base_url (it often ends in /v1) and the model's name"
    if 300 <= status < 400:
        return "; redirects are not followed: give the address it leads to"
    return ""


def _retry_after(value: str | None) -> float:
    """Seconds that a server asks to wait: a number, or a date."""
    if not value:
        return 0.0
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(email.utils.parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        return 0.0
