"""BERT out of an ONNX file, and back into one that computes in int8 for one text at a time.

Needs the package onnx (extra ``convert``); only `rsm_fast.embedding.optimize` imports it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from rsm_fast.embedding.models import Pooling
from rsm_fast.errors import ModelFileError

__all__ = ["BertWeights", "build_float", "build_int8", "matmul_inputs", "read_weights"]

Array = npt.NDArray[Any]

_QUERY: Final = "attention.self.query"
_KEY: Final = "attention.self.key"
_VALUE: Final = "attention.self.value"
_ATTENTION_OUT: Final = "attention.output.dense"
_UP: Final = "intermediate.dense"
_DOWN: Final = "output.dense"
_LINEAR: Final = (_QUERY, _KEY, _VALUE, _ATTENTION_OUT, _UP, _DOWN)
_NORMS: Final = ("attention.output.LayerNorm", "output.LayerNorm")
_MICROSOFT: Final = "com.microsoft"
_FLOAT_TYPE: Final = int(TensorProto.FLOAT)

# Products whose input is smoothed before it is quantised (the three of attention share
# one), and how far (Xiao et al. 2023, "SmoothQuant", equation 4): on the golden texts the
# mean cosine rises from 0.992 to 0.996 and the 5th percentile from 0.977 to 0.992, for three
# elementwise products a layer; smoothing the attention's output as well gains nothing.
_SMOOTHED: Final = ((_QUERY, _KEY, _VALUE), (_UP,), (_DOWN,))
_SMOOTHING: Final = 0.7


@dataclass(frozen=True, slots=True)
class BertWeights:
    """Float32 weights of a BERT encoder under the names of Hugging Face.

    Attributes
    ----------
    arrays : mapping
        ``embeddings.word_embeddings.weight`` and so on; matrices have shape (in, out).
    layers, heads, dim : int
    eps : float
        Of the layer norms.
    """

    arrays: Mapping[str, Array]
    layers: int
    heads: int
    dim: int
    eps: float

    def linear(self, layer: int, name: str) -> tuple[Array, Array]:
        """Matrix (in, out) and bias (out,) of a product."""
        base = f"encoder.layer.{layer}.{name}"
        return self.arrays[f"{base}.weight"], self.arrays[f"{base}.bias"]


def read_weights(path: Path, *, heads: int, eps: float = 1e-12) -> BertWeights:
    """Collect a BERT's weights from an ONNX export, float32 or weight-only int8.

    Exports keep the names of biases, norms and embeddings; a matrix, whose name an export
    may lose, is found as the factor of the product that its bias is added to.

    Raises
    ------
    ModelFileError
        If the file is no export of a BERT encoder.
    """
    try:
        model = onnx.load(str(path))
    except Exception as error:  # protobuf's errors have no common base but Exception
        raise ModelFileError(f"{path}: expected an ONNX model, got {error}") from error
    constants = _constants(model)
    matrices = _matrices_by_bias(model, constants)

    def named(name: str) -> str:
        found = [key for key in constants if key == name or key.endswith(f".{name}")]
        if len(found) != 1:
            raise ModelFileError(
                f"{path}: expected an export of a BERT encoder with one constant "
                f"...{name}, got {len(found)}; such a model cannot be optimised"
            )
        return found[0]

    arrays: dict[str, Array] = {}

    def take(name: str) -> None:
        arrays[name] = np.asarray(constants[named(name)], np.float32)

    for part in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
        take(f"embeddings.{part}.weight")
    for part in ("weight", "bias"):
        take(f"embeddings.LayerNorm.{part}")
    numbers = [
        int(match[1])
        for key in constants
        if (match := re.search(r"encoder\.layer\.(\d+)\.attention\.self\.query\.bias$", key))
    ]
    layers = max(numbers, default=-1) + 1
    for layer in range(layers):
        base = f"encoder.layer.{layer}"
        for name in _LINEAR:
            key = named(f"{base}.{name}.bias")
            if key not in matrices:
                raise ModelFileError(f"{path}: expected a matrix product before the bias {key}")
            arrays[f"{base}.{name}.bias"] = np.asarray(constants[key], np.float32)
            arrays[f"{base}.{name}.weight"] = np.asarray(constants[matrices[key]], np.float32)
        for name in _NORMS:
            take(f"{base}.{name}.weight")
            take(f"{base}.{name}.bias")
    dim = arrays["embeddings.word_embeddings.weight"].shape[1]
    if not layers or dim % heads:
        raise ModelFileError(
            f"{path}: expected encoder layers and a hidden size that {heads} heads divide, got "
            f"{layers} layers and hidden size {dim}"
        )
    return BertWeights(arrays, layers, heads, dim, eps)


def _constants(model: Any) -> dict[str, Array]:
    """Initialisers and what follows from them alone (weight-only int8 is Cast and Mul)."""
    values: dict[str, Array] = {
        item.name: numpy_helper.to_array(item) for item in model.graph.initializer
    }
    for node in model.graph.node:
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        if node.op_type == "Constant" and "value" in attributes:
            values[node.output[0]] = numpy_helper.to_array(attributes["value"])
            continue
        if not node.input or not all(name in values for name in node.input):
            continue
        inputs = [values[name] for name in node.input]
        match node.op_type:
            case "Identity":
                result = inputs[0]
            case "Cast":
                result = inputs[0].astype(helper.tensor_dtype_to_np_dtype(attributes["to"]))
            case "Mul":
                result = inputs[0] * inputs[1]
            case "Transpose":
                result = np.transpose(inputs[0], attributes.get("perm"))
            case "DequantizeLinear" if np.ndim(inputs[1]) == 0:
                offset = inputs[2].astype(np.float32) if len(inputs) > 2 else np.float32(0)
                result = (inputs[0].astype(np.float32) - offset) * inputs[1]
            case _:
                continue
        values[node.output[0]] = np.asarray(result)
    return values


def _matrices_by_bias(model: Any, constants: Mapping[str, Array]) -> dict[str, str]:
    """Name of a bias to the name of the matrix of the product that it is added to."""
    products = {
        node.output[0]: node.input[1]
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in constants
    }
    found = {}
    for node in model.graph.node:
        if node.op_type == "Add":
            for bias, product in (tuple(node.input), tuple(node.input)[::-1]):
                if bias in constants and product in products:
                    found[bias] = products[product]
    return found


class _Graph:
    """Nodes and initialisers of a graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}

    def constant(self, name: str, value: Array) -> str:
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def add(
        self,
        operator: str,
        inputs: Sequence[str],
        *,
        domain: str = "",
        outputs: int = 1,
        output: str | None = None,
        **attributes: Any,
    ) -> list[str]:
        label = f"{operator}_{len(self.nodes)}"
        names = [output] if output else [f"{label}:{index}" for index in range(outputs)]
        self.nodes.append(
            helper.make_node(operator, inputs, names, name=label, domain=domain, **attributes)
        )
        return names

    def one(self, operator: str, *inputs: str, **options: Any) -> str:
        return self.add(operator, inputs, **options)[0]


def build_float(weights: BertWeights) -> bytes:
    """The encoder in float32 with every product's input as an output, for calibration."""
    graph, _ = _build(weights, "mean", None)
    inputs = sorted({node.input[0] for node in graph.nodes if node.op_type == "MatMul"})
    return _serialise(graph, weights, extra_outputs=inputs)


def matmul_inputs(model: bytes) -> dict[str, str]:
    """Names of a `build_float` model's products (``0.intermediate.dense``) to their inputs."""
    return {
        node.input[1].removesuffix(".weight"): node.input[0]
        for node in onnx.load_from_string(model).graph.node
        if node.op_type == "MatMul"
    }


def build_int8(
    weights: BertWeights, pooling: Pooling, largest: Mapping[str, npt.NDArray[np.float32]]
) -> bytes:
    """The encoder in int8 for one text, pooling included.

    Against an ordinary export: no mask and no padding (one text has none), token types
    folded into positions, one quantisation for the three inputs of attention, and for CLS
    pooling only one row of the last layer. Weights are int8 by column, word embeddings
    int8 by row; activations are quantised as they come, after smoothing.

    Parameters
    ----------
    weights : BertWeights
        What to build from.
    pooling : {"cls", "mean"}
        How token vectors become one.
    largest : mapping
        Largest absolute value of each input channel of each product, over calibration
        texts; keys as `matmul_inputs` gives them.

    Returns
    -------
    bytes
        A serialised model: ``input_ids`` int64 (1, n) to ``sentence_embedding`` (1, dim),
        not normalised.
    """
    graph, _ = _build(weights, pooling, largest)
    return _serialise(graph, weights)


def _build(
    weights: BertWeights, pooling: Pooling, largest: Mapping[str, Array] | None
) -> tuple[_Graph, str]:
    """Emit the encoder; ``largest`` None means float32 products."""
    graph = _Graph()
    x = _emit_embeddings(graph, weights)
    for layer in range(weights.layers):
        only_first = largest is not None and pooling == "cls" and layer == weights.layers - 1
        x = _emit_layer(graph, weights, layer, x, largest, only_first=only_first)
    if pooling == "cls":
        first = graph.constant("index_0", np.array(0, np.int64))
        result = graph.one("Gather", x, first, axis=1, output="sentence_embedding")
    else:
        result = graph.one("ReduceMean", x, axes=[1], keepdims=0, output="sentence_embedding")
    return graph, result


def _emit_embeddings(graph: _Graph, weights: BertWeights) -> str:
    words = weights.arrays["embeddings.word_embeddings.weight"]
    codes, scales = _quantised(words.T)
    row = graph.one("Gather", graph.constant("words", codes.T), "input_ids", axis=0)
    scale = graph.one("Gather", graph.constant("words.scale", scales[:, None]), "input_ids", axis=0)
    x = graph.one("Mul", graph.one("Cast", row, to=_FLOAT_TYPE), scale)
    positions = (
        weights.arrays["embeddings.position_embeddings.weight"]
        + weights.arrays["embeddings.token_type_embeddings.weight"][0]
    )
    length = graph.one("Shape", "input_ids", start=1, end=2)
    zero = graph.constant("zero", np.array([0], np.int64))
    place = graph.one("Slice", graph.constant("positions", positions), zero, length, zero)
    return _emit_norm(graph, weights, "embeddings.LayerNorm", graph.one("Add", x, place))


def _emit_layer(
    graph: _Graph,
    weights: BertWeights,
    layer: int,
    x: str,
    largest: Mapping[str, Array] | None,
    *,
    only_first: bool,
) -> str:
    attention = _Products(graph, weights, layer, (_QUERY, _KEY, _VALUE), largest)
    every = attention.prepare(x)
    residual = x
    own = every
    if only_first:
        zero = graph.constant("zero", np.array([0], np.int64))
        one = graph.constant("one", np.array([1], np.int64))
        residual = graph.one("Slice", x, zero, one, one)
        own = attention.prepare(residual)
    query = attention.multiply(_QUERY, own)
    key, value = (attention.multiply(name, every) for name in (_KEY, _VALUE))
    context = graph.one(
        "MultiHeadAttention", query, key, value, domain=_MICROSOFT, num_heads=weights.heads
    )
    base = f"encoder.layer.{layer}"
    x = _product(graph, weights, layer, _ATTENTION_OUT, context, largest)
    x = _emit_norm(graph, weights, f"{base}.{_NORMS[0]}", graph.one("Add", x, residual))
    y = _product(graph, weights, layer, _UP, x, largest)
    y = graph.one("Gelu", y, domain=_MICROSOFT)
    y = _product(graph, weights, layer, _DOWN, y, largest)
    return _emit_norm(graph, weights, f"{base}.{_NORMS[1]}", graph.one("Add", y, x))


def _emit_norm(graph: _Graph, weights: BertWeights, name: str, x: str) -> str:
    scale, shift = (
        graph.constant(f"{name}.{part}", weights.arrays[f"{name}.{part}"])
        for part in ("weight", "bias")
    )
    return graph.one("LayerNormalization", x, scale, shift, axis=-1, epsilon=weights.eps)


class _Products:
    """Products that share one input: smoothed and quantised once."""

    def __init__(
        self,
        graph: _Graph,
        weights: BertWeights,
        layer: int,
        names: Sequence[str],
        largest: Mapping[str, Array] | None,
    ) -> None:
        self._graph = graph
        self._weights = weights
        self._layer = layer
        self._int8 = largest is not None
        self._factor: Array | None = None
        if largest is not None and tuple(names) in _SMOOTHED:
            matrices = [weights.linear(layer, name)[0] for name in names]
            self._factor = _smoothing(largest[f"{layer}.{names[0]}"], matrices)
        self._label = f"{layer}.{names[0]}"

    def prepare(self, x: str) -> list[str]:
        """The input as the products take it: float, or codes with scale and zero point."""
        if not self._int8:
            return [x]
        if self._factor is not None:
            inverse = (1.0 / self._factor).astype(np.float32)
            x = self._graph.one("Mul", x, self._graph.constant(f"{self._label}.smooth", inverse))
        return self._graph.add("DynamicQuantizeLinear", [x], outputs=3)

    def multiply(self, name: str, prepared: list[str]) -> str:
        """One product with its bias."""
        graph, label = self._graph, f"{self._layer}.{name}"
        matrix, bias = self._weights.linear(self._layer, name)
        shift = graph.constant(f"{label}.bias", bias)
        if not self._int8:
            weight = graph.constant(f"{label}.weight", matrix)
            return graph.one("Add", graph.one("MatMul", prepared[0], weight), shift)
        if self._factor is not None:
            matrix = matrix * self._factor[:, None]
        codes, scales = _quantised(matrix)
        x, x_scale, x_zero = prepared
        return graph.one(
            "MatMulIntegerToFloat",
            x,
            graph.constant(f"{label}.weight", codes),
            x_scale,
            graph.constant(f"{label}.scale", scales),
            x_zero,
            graph.constant(f"{label}.zero", np.zeros(scales.shape, np.int8)),
            shift,
            domain=_MICROSOFT,
        )


def _product(
    graph: _Graph,
    weights: BertWeights,
    layer: int,
    name: str,
    x: str,
    largest: Mapping[str, Array] | None,
) -> str:
    products = _Products(graph, weights, layer, (name,), largest)
    return products.multiply(name, products.prepare(x))


def _smoothing(largest: Array, matrices: Sequence[Array]) -> Array:
    """Factor of each input channel, rounded to quarters of an octave.

    Coarse steps make the file the same, byte for byte, on machines whose calibration
    differs in the last bits; whole octaves would cost a tenth of the gain.
    """
    inputs = np.maximum(largest.astype(np.float64), 1e-5)
    weights = np.maximum(np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0), 1e-5)
    factor = inputs**_SMOOTHING / weights.astype(np.float64) ** (1 - _SMOOTHING)
    rounded: Array = np.exp2(np.clip(np.rint(np.log2(factor) * 4) / 4, -12, 12))
    return rounded.astype(np.float32)


def _quantised(matrix: Array) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Codes in [-127, 127] and a scale for each column."""
    scales = (np.abs(matrix).max(axis=0) / np.float32(127)).astype(np.float32)
    scales[scales == 0] = 1
    return np.rint(matrix / scales).astype(np.int8), scales


def _serialise(graph: _Graph, weights: BertWeights, extra_outputs: Sequence[str] = ()) -> bytes:
    outputs = [
        helper.make_tensor_value_info("sentence_embedding", _FLOAT_TYPE, [1, weights.dim]),
        *(helper.make_tensor_value_info(name, _FLOAT_TYPE, None) for name in extra_outputs),
    ]
    inputs = [helper.make_tensor_value_info("input_ids", int(TensorProto.INT64), [1, "n"])]
    body = helper.make_graph(
        graph.nodes, "bert", inputs, outputs, list(graph.initializers.values())
    )
    model = helper.make_model(
        body,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(_MICROSOFT, 1)],
        ir_version=8,
        producer_name="rsm_fast",
    )
    data: bytes = model.SerializeToString(deterministic=True)
    return data
