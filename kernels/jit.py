"""The one JIT decorator, the registry of kernels, and their cache.

By default Numba copies the code of a callee into each caller and optimises it again, so that a
kernel at the end of a long chain costs as much to compile as the whole chain. Here a kernel
calls another by a symbol, as C does (`_Linked`): each is compiled once.

Numba's own cache lies beside the source or is refused where that is read-only, and it
does not notice that an inlined function of *another* module changed. So `kernel` points
Numba at a folder of ours, named after the hash of all kernel sources, the CPU and the
versions, only while it decorates, and falls back to no cache where none can be written.
"""

from __future__ import annotations

import copy
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
from llvmlite.binding import add_symbol
from numba import types
from numba.core import config, sigutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError
from numba.core.registry import CPUDispatcher

from rsm_fast.kernels.layout import F32, F64, I8, I16, I32, I64, U8

__all__ = [
    "F32",
    "F64",
    "FAST",
    "I8",
    "I16",
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


class _Linked(CPUDispatcher):  # type: ignore[misc]
    """Numba's dispatcher, but for what a caller's code holds of it.

    That is the call of a symbol, which is made known to LLVM when the kernel is compiled or
    loaded from the cache; hence a kernel's callees are there before its own code is.

    Attributes
    ----------
    entry : Kernel
        What was declared; set by `kernel`.
    inlined : bool
        Whether callers hold a copy of the code after all.
    inner : bool
        Whether Python has no way in.
    """

    entry: Kernel
    inlined: bool
    inner: bool

    def compile(self, sig: Any) -> Any:
        with global_compiler_lock:
            names = self.py_func.__globals__
            for name in self.py_func.__code__.co_names:
                callee = names.get(name)
                if isinstance(callee, _Linked) and not callee.overloads:
                    callee.compile(callee.entry.signature)
            return super().compile(sig)

    def add_overload(self, cres: Any) -> None:
        if self.inner:
            self.overloads[tuple(cres.signature.args)] = cres
        else:
            super().add_overload(cres)
        if self.inlined or tuple(cres.signature.args) != tuple(self.entry.declared()[0]):
            return  # of another specialisation, which only Python can ask for, callers know nothing
        declared = copy.copy(cres.fndesc)
        declared.mangled_name = f"rsm_fast.{self.entry.name}"
        address = cres.library.get_pointer_to_function(cres.fndesc.llvm_func_name)
        add_symbol(declared.mangled_name, address)
        self.targetctx.remove_user_function(cres.entry_point)
        self.targetctx.insert_user_function(cres.entry_point, declared)

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        if self.inner:  # there is nothing that could be run
            raise TypeError(f"{self.entry.name} is called by kernels only")
        return super()._compile_for_args(*args, **kws)


def kernel(
    signature: Any,
    *,
    fastmath: Collection[str] = (),
    inline: bool = False,
    inner: bool | None = None,
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
    inline : bool
        Copy the code into the callers, for what takes a few instructions within a loop.
    inner : bool or None
        Called by other kernels only, so that no code is made for a call from Python; None:
        if an argument is a named tuple, whose unpacking takes more code than the kernel.

    Returns
    -------
    callable
        A decorator. With ``NUMBA_DISABLE_JIT=1`` it returns the function as it is.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = f"{function.__module__.rsplit('.', 1)[-1]}.{function.__name__}"
        compiled: Any = function
        if not JIT_DISABLED:
            hidden = _takes_tuples(signature) if inner is None else inner
            compiled = _compiled(function, set(fastmath), hidden)
            compiled.inlined = inline
        entry = REGISTRY[name] = Kernel(name, compiled, signature)
        if not JIT_DISABLED:
            compiled.entry = entry
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


def _takes_tuples(signature: Any) -> bool:
    arguments, _ = sigutils.normalize_signature(signature)
    return any(isinstance(kind, types.BaseNamedTuple) for kind in arguments)


def _compiled(function: Callable[..., Any], fastmath: set[str], inner: bool) -> _Linked:
    options: dict[str, Any] = {
        "nopython": True,
        "nogil": True,
        "error_model": "numpy",
        "boundscheck": False,
        "fastmath": fastmath or False,
        "no_cpython_wrapper": inner,
        "no_cfunc_wrapper": True,
    }
    made = _Linked(function, targetoptions=options)
    made.inner = inner
    folder = cache_folder()
    if folder is None:
        return made
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        made.enable_caching()
    except (OSError, RuntimeError, NumbaError):  # the folder vanished or became read-only
        pass
    finally:
        config.CACHE_DIR = before
    return made
