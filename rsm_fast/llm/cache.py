"""Answers kept on disk, so that a run that is started again pays for none twice."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rsm_fast.closing import Closing
from rsm_fast.errors import StoreError

__all__ = ["AnswerCache"]


class AnswerCache(Closing):
    """Maps requests to answers, in one SQLite file of mode 0600.

    The key is a hash of everything that decides an answer: model, messages, schema, options.
    The address of the endpoint is not part of it.

    Parameters
    ----------
    path : str or Path
        Made if it is not there. Threads and processes may share it.

    Raises
    ------
    StoreError
        If the file cannot be opened, or is something else.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self._connection = sqlite3.connect(self.path, timeout=30, check_same_thread=False)
            with self._connection as connection:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer TEXT)"
                )
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"answer cache {self.path}: cannot be used ({error})") from error

    @staticmethod
    def key(request: Mapping[str, Any]) -> bytes:
        """Hash of a request."""
        text = json.dumps(request, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).digest()

    def get(self, key: bytes) -> dict[str, Any] | None:
        """The answer kept under a key."""
        with self._lock:
            row = self._connection.execute(
                "SELECT answer FROM answers WHERE key = ?", (key,)
            ).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def put(self, key: bytes, answer: Mapping[str, Any]) -> None:
        """Keep an answer."""
        text = json.dumps(answer, ensure_ascii=True)
        with self._lock, self._connection as connection:
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, text))

    def __len__(self) -> int:
        with self._lock:
            (count,) = self._connection.execute("SELECT count(*) FROM answers").fetchone()
        return int(count)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        with self._lock:
            self._connection.close()
