"""Real embeddings for tests and benches: RealMem turns through the packaged MiniLM.

They are made once (some minutes) and kept in the user's cache folder, never in the
repository. ``python -m bench.kernels.vectors`` makes all of them.
"""

from __future__ import annotations

import hashlib
import os
import textwrap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.datasets.realmem import read_realmem
from bench.datasets.records import Stream

__all__ = ["noisy_copies", "real_questions", "real_texts", "real_vectors"]

F32 = npt.NDArray[np.float32]

_CHARACTERS = 220
_BLOCK = 1000


def _streams() -> tuple[Stream, ...]:
    root = Path(__file__).resolve().parents[2]
    data = Path(os.environ.get("RSM_FAST_DATA", root.parent / "shared" / "data"))
    if not (data / "realmem").is_dir():
        raise FileNotFoundError(f"no RealMem at {data}/realmem: set RSM_FAST_DATA")
    return read_realmem(data / "realmem").streams


def real_texts() -> list[str]:
    """Pieces of at most 220 characters of RealMem turns, in their order."""
    texts: list[str] = []
    for stream in _streams():
        for turn in stream.turns:
            texts += textwrap.wrap(turn.text, _CHARACTERS)
    return texts


def real_questions() -> list[str]:
    """Questions of RealMem, in their order."""
    return [question.text for stream in _streams() for question in stream.questions]


def real_vectors(count: int | None = None, *, make: bool = True) -> F32:
    """Unit vectors of pieces of at most 220 characters of RealMem turns, in their order.

    Parameters
    ----------
    count : int or None
        The first so many; None: all, about 35,000.
    make : bool
        Embed what is not cached yet; otherwise give only what is there.

    Returns
    -------
    float32[n, 384]
        n is at most ``count``.
    """
    from platformdirs import user_cache_path

    from rsm_fast.embedding.onnx_embedder import OnnxEmbedder

    embedder = OnnxEmbedder("minilm")
    key = hashlib.sha256(f"{embedder.fingerprint} {_CHARACTERS}".encode()).hexdigest()[:12]
    folder = user_cache_path("rsm_fast", appauthor=False) / "bench" / f"realmem-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    texts = real_texts()[:count]
    blocks: list[F32] = []
    for start in range(0, len(texts), _BLOCK):
        file = folder / f"{start:06d}.npy"
        wanted = len(texts[start : start + _BLOCK])
        stored = np.load(file) if file.exists() else np.zeros((0, 384), np.float32)
        if len(stored) < wanted:
            if not make:
                break
            stored = embedder.embed_passages(texts[start : start + _BLOCK])
            partial = file.with_suffix(f".{os.getpid()}.npy")
            np.save(partial, stored)
            partial.replace(file)
        blocks.append(stored[:wanted])
    return np.concatenate(blocks) if blocks else np.zeros((0, 384), np.float32)


def noisy_copies(vectors: F32, count: int, *, seed: int = 0, noise: float = 0.35) -> F32:
    """The vectors, then copies with Gaussian noise of the given norm, normalised again.

    A norm of 0.35 leaves a cosine of about 0.945 to the source.
    """
    rng = np.random.default_rng(seed)
    out = np.empty((count, vectors.shape[1]), np.float32)
    kept = min(count, len(vectors))
    out[:kept] = vectors[:kept]
    for start in range(kept, count, 10_000):
        stop = min(start + 10_000, count)
        source = vectors[rng.integers(0, len(vectors), stop - start)]
        shift = rng.standard_normal(source.shape, np.float32)
        shift *= noise / np.sqrt(source.shape[1])
        noisy = source + shift
        out[start:stop] = noisy / np.linalg.norm(noisy, axis=1, keepdims=True)
    return out


if __name__ == "__main__":
    print(real_vectors().shape)
