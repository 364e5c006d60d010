"""Have everything ready before the first call that counts."""

from __future__ import annotations

from rsm_fast.memory import Memory

__all__ = ["warmup"]


def warmup() -> dict[str, float]:
    """Compile the kernels, or load them from the cache, and go once through every path.

    After that the first call in this process is as quick as the next ones: modules are loaded,
    and Numba has resolved the arguments of each kernel. Takes seconds with a warm cache and about
    half a minute with an empty one.

    Returns
    -------
    dict
        Seconds that each kernel took, by name.
    """
    from rsm_fast.kernels import jit

    seconds = jit.warmup()
    with Memory(embedder="hashing") as memory:
        ids = memory.add_many(f"Warming up, sentence {number} of sixty." for number in range(60))
        memory.add("One by one as well.")
        memory.pack("Which sentence is the last?", budget=200)
        memory.pack("Which sentence is the last?", budget=200, preset="paper")
        memory.search("sentence", k=3, where={"role": "user"})
        memory.update(ids[0], "Another sentence.")
        memory.delete(ids[1])
    return seconds
