"""ONNX Runtime sessions: their options, their sharing, their inputs and outputs.

A process has one session for a model, whoever asks and from whichever thread. Sessions
are not carried over a fork: a child opens its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from rsm_fast.embedding.cpu import has_int8_dot, instructions
from rsm_fast.errors import MissingDependencyError, ModelFileError

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["Session", "open_session", "session_options"]

_IDS, _MASK, _TYPES, _POSITIONS = "input_ids", "attention_mask", "token_type_ids", "position_ids"
_INTEGERS: Final = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_SENTENCE_OUTPUTS: Final = ("sentence_embedding",)
_TOKEN_OUTPUTS: Final = ("last_hidden_state", "token_embeddings")
_REINSTALL: Final = "run: pip install onnxruntime"


def session_options(kind: str, flags: tuple[str, ...] | None) -> onnxruntime.SessionOptions:
    """Options of every session, each for a measured reason (``bench/embedding_options.py``).

    Parameters
    ----------
    kind : {"int8", "float"}
        See `rsm_fast.embedding.onnxfile.OnnxSummary`.
    flags : tuple of str or None
        See `rsm_fast.embedding.cpu.instructions`.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    # One thread a run: bulk work runs texts side by side on callers' threads, which uses
    # the CPUs better than splitting one text, and an explicit count keeps ORT from
    # pinning threads to CPUs that the process may not use (test_f12).
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    # Lengths differ from run to run, so a memory pattern is never reused; it only costs.
    options.enable_mem_pattern = False
    # Without the arena long texts take half as long again.
    options.enable_cpu_mem_arena = True
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # test_f14
    # ORT's SkipLayerNormalization is scalar on the CPU and slower than its two parts.
    options.add_session_config_entry(
        "optimization.disable_specified_optimizers", "SkipLayerNormFusion"
    )
    if kind == "int8" and not has_int8_dot(flags):
        options.add_session_config_entry("session.x64quantprecision", "1")  # test_f16
    return options


class Session:
    """One loaded model; `run` may be called from many threads at once.

    Attributes
    ----------
    inputs : dict
        Name to NumPy integer type, of the inputs that the model takes.
    output : str
        Name of the one output that is fetched.
    pooled : bool
        Whether that output is one vector a text (2-D), not one a token (3-D).
    single : bool
        Whether the model takes one text at a time.
    dim : int or None
        Last dimension of the output; None where the file leaves it open.
    """

    def __init__(self, path: Path, kind: str) -> None:
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise MissingDependencyError(
                f"local models need the package onnxruntime ({error}); {_REINSTALL}, or pass "
                "embedder= a callable list[str] -> (n, d) array"
            ) from error
        self.path = path
        self.kind = kind
        options = session_options(kind, instructions())
        try:
            # By path, not by bytes: external data lies beside the file.
            self._session: Any = ort.InferenceSession(
                os.fspath(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ORT's exceptions have no common base but Exception
            raise ModelFileError(
                f"{path}: ONNX Runtime {ort.__version__} cannot load the model: {error}"
            ) from error
        self.inputs = self._read_inputs()
        self.output, self.pooled, self.dim = self._choose_output()

    def run(
        self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Fetch the output for padded ids, both of shape (batch, length)."""
        feed = {}
        for name, dtype in self.inputs.items():
            if name == _IDS:
                value = ids
            elif name == _MASK:
                value = mask
            elif name == _TYPES:
                value = np.zeros_like(ids)
            else:
                value = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
            feed[name] = value.astype(dtype, copy=False)
        result: npt.NDArray[np.float32] = self._session.run([self.output], feed)[0]
        return result

    def __getstate__(self) -> object:
        raise TypeError("a Session cannot be pickled; open the model in each process")

    def _read_inputs(self) -> dict[str, Any]:
        known = (_IDS, _MASK, _TYPES, _POSITIONS)
        inputs = {}
        self.single = False
        for item in self._session.get_inputs():
            self.single |= item.name == _IDS and item.shape[:1] == [1]
            if item.name not in known or item.type not in _INTEGERS:
                raise ModelFileError(
                    f"{self.path}: expected inputs {', '.join(known)} of int64 or int32 (a "
                    f"BERT-type encoder), got {item.name!r} of {item.type}"
                )
            inputs[item.name] = _INTEGERS[item.type]
        if _IDS not in inputs:
            raise ModelFileError(f"{self.path}: expected an input input_ids, got {list(inputs)}")
        return inputs

    def _choose_output(self) -> tuple[str, bool, int | None]:
        """By name, then rank: never just the first (pooler_output is not the embedding)."""
        outputs = {item.name: item.shape for item in self._session.get_outputs()}
        found = [(name, True) for name in _SENTENCE_OUTPUTS if len(outputs.get(name, ())) == 2]
        found += [(name, False) for name in _TOKEN_OUTPUTS if len(outputs.get(name, ())) == 3]
        if not found:
            found = [(name, False) for name, shape in outputs.items() if len(shape) == 3]
            if len(found) != 1:
                raise ModelFileError(
                    f"{self.path}: expected an output sentence_embedding (2-D) or "
                    f"last_hidden_state (3-D), got {outputs}"
                )
        name, pooled = found[0]
        width = outputs[name][-1]
        return name, pooled, width if isinstance(width, int) else None


class _Registry:
    """Sessions of this process by model; the last two stay loaded when nobody holds them."""

    def __init__(self) -> None:
        self._abandoned: list[object] = []
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._sessions: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
        self._recent: deque[Session] = deque(maxlen=2)

    def after_fork(self) -> None:
        """Forget the parent's sessions without destroying them: their threads are not here."""
        self._abandoned += [list(self._sessions.values()), self._recent]
        self._start()

    def get(self, path: Path, sha256: str, kind: str) -> Session:
        with self._lock:
            session = self._sessions.get(sha256)
            if session is None:
                session = Session(path, kind)
                self._sessions[sha256] = session
            if session not in self._recent:
                self._recent.append(session)
            return session

    def count(self) -> int:
        return len(self._sessions)


_registry = _Registry()
os.register_at_fork(after_in_child=_registry.after_fork)


def open_session(path: Path, sha256: str, kind: str) -> Session:
    """Give this process's session for a model, loading it if it is not loaded yet.

    Parameters
    ----------
    path : Path
        The ``.onnx`` file.
    sha256 : str
        Identity of the model (all its files).
    kind : {"int8", "float"}
        See `rsm_fast.embedding.onnxfile.OnnxSummary`.

    Raises
    ------
    MissingDependencyError
        If onnxruntime cannot be imported.
    ModelFileError
        If the file cannot be loaded, or its inputs or outputs are not an encoder's.
    """
    return _registry.get(path, sha256, kind)
