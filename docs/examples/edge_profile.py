"""A memory for a small machine: one thread, int8 vectors, little RAM.

    python docs/examples/edge_profile.py            # with the packaged model
    python docs/examples/edge_profile.py hashing    # without any model

The profile keeps only the quantised vectors in RAM, an eighth to a quarter of the memory, and
spares an SD card at the price that a power cut may lose the last writes.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

from rsm_fast import Memory, sample
from rsm_fast.embedding import Embedder, HashingEmbedder


def small_embedder(name: str) -> Embedder:
    """One thread and a small cache of repeated texts; or no model at all."""
    if name == "hashing":
        return HashingEmbedder()
    from rsm_fast.embedding.onnx_embedder import OnnxEmbedder

    return OnnxEmbedder(name, threads=1, cache_bytes=1 << 20)


def open_small(path: Path, embedder: Embedder) -> Memory:
    """A store with int8 vectors and cheap writes."""
    return Memory.open(path, profile="edge", embedder=embedder)


def main(arguments: list[str]) -> int:
    """Fill a store with the sample conversation and report what it took."""
    embedder = small_embedder(arguments[0] if arguments else "minilm")
    with tempfile.TemporaryDirectory() as folder:
        with open_small(Path(folder) / "edge.rsm", embedder) as memory:
            memory.add_many(sample.turns())
            pack = memory.pack("What does Biscuit weigh?", budget=500)
            stats = memory.stats()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(
        f"{pack.text}\n\n"
        f"{pack.tokens} of {pack.budget} tokens; {stats.bytes / stats.chunks:,.0f} bytes a chunk "
        f"beside its text; peak resident memory {peak_mib:,.0f} MiB\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
