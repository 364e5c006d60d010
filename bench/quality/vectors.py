"""An embedder whose vectors are kept on disk, so that a run embeds every text once for ever."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from platformdirs import user_cache_path

from rsm_fast.embedding import Embedder

__all__ = ["CachedEmbedder", "default_cache"]

F32 = npt.NDArray[np.float32]

_BATCH = 32


def default_cache() -> Path:
    """Where vectors are kept unless told otherwise."""
    return user_cache_path("rsm_fast", appauthor=False) / "bench" / "vectors.sqlite"


class CachedEmbedder:
    """Gives the vectors of another embedder, remembering them by fingerprint and text.

    Parameters
    ----------
    inner : Embedder
    path : Path
        SQLite file; several processes may use it at once.
    """

    def __init__(self, inner: Embedder, path: Path) -> None:
        self._inner = inner
        self.name = inner.name
        self.dim = inner.dim
        self.fingerprint = inner.fingerprint
        self.max_tokens = inner.max_tokens
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, timeout=120, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("CREATE TABLE IF NOT EXISTS vector (key BLOB PRIMARY KEY, value BLOB)")
        self._recent: dict[bytes, F32] = {}
        self.seconds = 0.0  # spent here, so that a benchmark can leave embedding out

    def embed_passages(self, texts: Sequence[str]) -> F32:
        """Unit rows for texts that are stored."""
        return self._vectors(texts, "passage")

    def embed_queries(self, texts: Sequence[str]) -> F32:
        """Unit rows for questions."""
        return self._vectors(texts, "query")

    def count_tokens(self, text: str) -> int:
        """As the inner embedder counts."""
        return self._inner.count_tokens(text)

    def close(self) -> None:
        """Close the cache and the inner embedder."""
        self._db.close()
        self._inner.close()

    def _vectors(self, texts: Sequence[str], verb: str) -> F32:
        start = time.perf_counter()
        try:
            return self._looked_up(texts, verb)
        finally:
            self.seconds += time.perf_counter() - start

    def _looked_up(self, texts: Sequence[str], verb: str) -> F32:
        keys = [self._key(text, verb) for text in texts]
        with self._lock:
            known = {key: vector for key in set(keys) if (vector := self._load(key)) is not None}
            missing = {k: t for k, t in zip(keys, texts, strict=True) if k not in known}
            # Texts of like length share a batch, so little is padded.
            ordered = sorted(missing.items(), key=lambda item: len(item[1]))
            for start in range(0, len(ordered), _BATCH):
                known.update(self._embed(ordered[start : start + _BATCH], verb))
        self._recent = known
        if not keys:
            return np.empty((0, self.dim), np.float32)
        return np.stack([known[key] for key in keys])

    def _key(self, text: str, verb: str) -> bytes:
        digest = hashlib.sha256(f"{self.fingerprint}\0{verb}\0".encode())
        digest.update(text.encode("utf-8", "surrogatepass"))
        return digest.digest()

    def _load(self, key: bytes) -> F32 | None:
        if key in self._recent:
            return self._recent[key]
        row = self._db.execute("SELECT value FROM vector WHERE key = ?", (key,)).fetchone()
        return None if row is None else np.frombuffer(row[0], np.float32)

    def _embed(self, batch: list[tuple[bytes, str]], verb: str) -> dict[bytes, F32]:
        embed = self._inner.embed_queries if verb == "query" else self._inner.embed_passages
        vectors = np.asarray(embed([text for _, text in batch]), np.float32)
        found = dict(zip((key for key, _ in batch), vectors, strict=True))
        with self._db:
            self._db.executemany(
                "INSERT OR IGNORE INTO vector VALUES (?, ?)",
                [(key, vector.tobytes()) for key, vector in found.items()],
            )
        return found
