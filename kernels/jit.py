"""The one JIT decorator, the registry of kernels, and their cache.

Numba's own cache lies beside the source or is refused where that is read-only, and it
does not notice that an inlined function of *another* module changed. So `kernel` points
Numba at a folder of ours, named after the hash of all kernel sources, the CPU and the
versions, only while it decorates, and falls back to no cache where none can be written.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import llvmlite
import numba
import numpy as np
import numpy.typing as npt
from numba.core import config, sigutils
from numba.core.errors import NumbaError

__all__ = [
    "F32",
    "F64",
    "FAST",
    "I8",
    "I32",
    "I64",
    "JIT_DISABLED",
    "REGISTRY",
    "U8",
    "Int",
    "Kernel",
    "Real",
    "cache_folder",
    "kernel",
    "warmup",
]

F32: TypeAlias = npt.NDArray[np.float32]
F64: TypeAlias = npt.NDArray[np.float64]
I8: TypeAlias = npt.NDArray[np.int8]
I32: TypeAlias = npt.NDArray[np.int32]
I64: TypeAlias = npt.NDArray[np.int64]
U8: TypeAlias = npt.NDArray[np.uint8]
Int: TypeAlias = Any
Real: TypeAlias = Any
"""Scalars in kernels: Python's or NumPy's without the JIT, machine numbers with it."""

FAST = frozenset({"reassoc", "contract", "arcp", "nsz"})
"""Flags for kernels whose sums may be reordered. Never ``nnan`` or ``ninf``: LLVM would
then delete checks for NaN (numba#2919)."""

JIT_DISABLED = bool(config.DISABLE_JIT)
"""Whether ``NUMBA_DISABLE_JIT`` is set: kernels are then plain Python functions."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One registered kernel.

    Attributes
    ----------
    name : str
        ``module.function``, without the package.
    function : callable
        Numba's dispatcher, or the plain function where compiling is disabled.
    signature : str or object
        The one declared specialisation.
    """

    name: str
    function: Any
    signature: Any

    def compile(self) -> None:
        """Compile (or load from the cache) the declared specialisation."""
        if not JIT_DISABLED:
            self.function.compile(self.signature)

    def declared(self) -> tuple[Any, Any]:
        """Argument types and return type of the signature."""
        return sigutils.normalize_signature(self.signature)  # type: ignore[no-any-return]


REGISTRY: dict[str, Kernel] = {}


def kernel(
    signature: Any, *, fastmath: Collection[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a kernel: serial, without the GIL, compiled at its first call, cached.

    Parameters
    ----------
    signature : str or numba signature
        The one specialisation, such as ``"void(float32[:, ::1], int64)"``. Arrays are
        C-contiguous. It is not compiled here (that would cost 0.25 s each at import) but
        by `warmup` or the first call.
    fastmath : collection of str
        LLVM flags, `FAST` or a subset; none by default.

    Returns
    -------
    callable
        A decorator. With ``NUMBA_DISABLE_JIT=1`` it returns the function as it is.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled = _jit(function, set(fastmath))
        name = f"{function.__module__.rsplit('.', 1)[-1]}.{function.__name__}"
        REGISTRY[name] = Kernel(name, compiled, signature)
        return compiled  # type: ignore[no-any-return]

    return decorate


def warmup() -> dict[str, float]:
    """Compile every registered kernel, or load it from the cache.

    Returns
    -------
    dict
        Seconds by kernel name, in the order of registration.
    """
    for module in sorted(Path(__file__).parent.glob("*.py")):
        importlib.import_module(f"{__package__}.{module.stem}")
    seconds = {}
    for name, entry in REGISTRY.items():
        start = time.perf_counter()
        entry.compile()
        seconds[name] = time.perf_counter() - start
    return seconds


@cache
def cache_folder() -> Path | None:
    """Folder of compiled kernels for this source, CPU and these versions.

    It lies under ``NUMBA_CACHE_DIR`` if that is set, else under the user's cache folder.

    Returns
    -------
    pathlib.Path or None
        None where no such folder can be written; kernels are then compiled in each process.
    """
    folder = _cache_root() / _cache_key()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return None


def _cache_root() -> Path:
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        return Path(given) / "rsm_fast"
    from platformdirs import user_cache_path

    return user_cache_path("rsm_fast", appauthor=False) / "kernels"


def _cache_key() -> str:
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    from llvmlite.binding import get_host_cpu_features, get_host_cpu_name

    for part in (
        platform.python_version(),
        numba.__version__,
        llvmlite.__version__,
        np.__version__,
        config.CPU_NAME or get_host_cpu_name(),
        config.CPU_FEATURES or get_host_cpu_features().flatten(),
    ):
        digest.update(b"\0" + str(part).encode())
    return digest.hexdigest()[:20]


def _jit(function: Callable[..., Any], fastmath: set[str]) -> Any:
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "boundscheck": False,
        "fastmath": fastmath or False,
    }
    folder = None if JIT_DISABLED else cache_folder()
    if folder is None:
        return numba.njit(**options)(function)
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        return numba.njit(cache=True, **options)(function)
    except (OSError, RuntimeError, NumbaError):  # the folder vanished or became read-only
        return numba.njit(**options)(function)
    finally:
        config.CACHE_DIR = before
