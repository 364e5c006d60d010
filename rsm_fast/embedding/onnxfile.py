"""A look into an ONNX file without loading it: which operators, which files beside it.

Reads the few fields that are needed straight from the protobuf wire format and skips the
weights, so neither the package onnx nor the bytes of the weights are touched. Field
numbers are those of onnx.proto3 (ModelProto.graph 7; GraphProto.node 1, .initializer 5;
NodeProto.op_type 4; TensorProto.external_data 13; StringStringEntryProto key 1, value 2).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rsm_fast.errors import ModelFileError

__all__ = ["OnnxSummary", "summarise"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_INT8_OPERATORS = frozenset(
    {
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QLinearMatMul",
        "QAttention",
    }
)


@dataclass(frozen=True, slots=True)
class OnnxSummary:
    """What `summarise` found.

    Attributes
    ----------
    operators : frozenset of str
        Operator types of the graph.
    external : tuple of str
        Names of the files, relative to the model's folder, that hold its weights.
    """

    operators: frozenset[str]
    external: tuple[str, ...]

    @property
    def kind(self) -> str:
        """``"int8"`` if the graph computes in int8, else ``"float"``.

        A file's name says nothing: weight-only int8 becomes float32 at load.
        """
        return "int8" if self.operators & _INT8_OPERATORS else "float"


def summarise(path: str | os.PathLike[str]) -> OnnxSummary:
    """Operators and external files of an ONNX model.

    Raises
    ------
    ModelFileError
        If the file is missing, empty, cut short or no ONNX model, or a file that it needs
        is missing.
    """
    folder = Path(path).parent
    try:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            summary = _summary(data)
    except OSError as error:
        raise ModelFileError(f"{path}: expected an ONNX model, got {error}") from error
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise ModelFileError(
            f"{path}: expected a whole ONNX model, got {os.path.getsize(path):,} bytes that "
            f"end early or are something else ({error}); fetch the file again"
        ) from error
    for name in summary.external:
        if not (folder / name).is_file():
            raise ModelFileError(
                f"{folder / name}: expected the weights of {Path(path).name} (external data), "
                "got no such file; fetch it too and keep both in one folder"
            )
    return summary


def _summary(data: mmap.mmap) -> OnnxSummary:
    operators = set()
    external = set()
    found = False
    for number, start, stop in _fields(data, 0, len(data)):
        if number != 7:
            continue
        found = True
        for part, first, last in _fields(data, start, stop):
            if part == 1:
                for field, low, high in _fields(data, first, last):
                    if field == 4:
                        operators.add(data[low:high].decode())
            elif part == 5:
                for field, low, high in _fields(data, first, last):
                    if field == 13:
                        entry = {key: data[a:b].decode() for key, a, b in _fields(data, low, high)}
                        if entry.get(1) == "location":
                            external.add(entry.get(2, ""))
    if not found:
        raise ValueError("no graph")
    return OnnxSummary(frozenset(operators), tuple(sorted(external)))


def _fields(data: mmap.mmap, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and stop of each length-delimited field; others are skipped."""
    while start < stop:
        tag, start = _varint(data, start)
        wire = tag & 7
        if wire == _BYTES:
            size, start = _varint(data, start)
            if start + size > stop:
                raise ValueError("a field is longer than the rest")
            yield tag >> 3, start, start + size
            start += size
        elif wire == _VARINT:
            _, start = _varint(data, start)
        elif wire in (_FIXED64, _FIXED32):
            start += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")


def _varint(data: mmap.mmap, start: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[start]
        start += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, start
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
