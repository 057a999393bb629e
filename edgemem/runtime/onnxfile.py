"""The weights of BERT encoders: their ONNX files with int8 weights, and low-rank experts for them.

Rewrites such a file, so that loading it takes a third of the memory. On the way, an expert can be
added: a product x W becomes x W + (x A) B (LoRA, Hu et al. 2021), where A and B are the expert's.
Some experts ship with the package (edgemem/data). The weights can also be read by name. Knows
protobuf's wire format and ONNX's field numbers. Runs no model and imports no onnxruntime.

Such a file says weight = Cast(int8) * scale. onnxruntime computes both steps when it loads the
file and keeps both results, and so holds a whole vocabulary in float32. The rewritten graph gives
the same numbers, bit for bit:

- a lookup gathers int8 rows and their scales first, and turns only those rows into floats;
- a matrix is one DequantizeLinear, whose result onnxruntime packs and keeps;
- int8 weights stay in the file, which onnxruntime maps, so a row that is never read takes nothing.

A file of the other kind has integer products (MatMulInteger). An expert can be added to the weights
of either kind; the sum is rounded to int8 again, with a step for each column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["PRODUCTS", "Expert", "Matrix", "expert", "expert_file", "parameters", "read_expert"]
__all__ += ["rewritten"]

Expert = Mapping[str, NDArray[np.float32]]
"""Arrays by name. `0.q.a` (dim, r) and `0.q.b` (r, n) are A and B for the first layer's queries.
The others are weights of a job's own networks over the states; the job chooses their names."""

PRODUCTS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}
"""The products of a layer: their names in experts, and those in models' files."""

# Fields of ONNX's messages: onnx/onnx.proto3.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_INPUT, _NODE_OUTPUT, _NODE_OP, _NODE_ATTRIBUTE = 1, 2, 4, 5
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_FLOATS, _TENSOR_INTS = 1, 2, 4, 5
_TENSOR_NAME, _TENSOR_RAW = 8, 9
_TENSOR_EXTERNAL, _TENSOR_LOCATION = 13, 14
_FLOAT, _UINT8, _INT8 = 1, 2, 3  # TensorProto.DataType
_INT = 2  # AttributeProto.AttributeType
_IN_FILE = 1  # TensorProto.DataLocation.EXTERNAL
_MAX_INT8 = 127
_MAX_MATMUL_INT8 = 63  # AVX2 adds two uint8 × int8 products in 16 bits, saturated
_Number = TypeVar("_Number", np.int8, np.uint8, np.float32)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight: int8 (n, d), mapped from its file, times scale, (n, 1) for lookups, else (1, d)."""

    int8: NDArray[np.int8]
    scale: NDArray[np.float32]

    def times(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The product of x (m, n) and the weight: (m, d). The scale must be that of columns."""
        return (x @ self.int8.astype(np.float32)) * self.scale


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a protobuf message. start: where its value begins in the file; number: the value
    of a varint, else 0; encoded: the field's bytes, with tag and length."""

    tag: int
    start: int
    value: memoryview
    number: int
    encoded: memoryview


@dataclass(frozen=True, slots=True)
class _Node:
    op: bytes
    inputs: list[bytes]
    outputs: list[bytes]
    encoded: bytes


@dataclass(frozen=True, slots=True)
class _Tensor:
    """An initializer. raw: the bytes of its values, from whichever field; start: where they begin
    in the file if that is raw_data, else None; encoded: the field's bytes, empty if it is to be
    replaced by a reference to the file."""

    name: bytes
    shape: list[int]
    dtype: int
    raw: memoryview
    start: int | None
    encoded: bytes


class _Graph(NamedTuple):
    """nodes: in order. made: the nodes by their first output. tensors: the initializers by name.
    rest: all other parts, unchanged."""

    nodes: list[_Node]
    made: dict[bytes, _Node]
    tensors: dict[bytes, _Tensor]
    rest: list[bytes]


class _Product(NamedTuple):
    """A weight (n, m), int8 times a scale. name: BERT's name of it. integer: of MatMulInteger."""

    name: str
    int8: _Tensor
    scale: _Tensor
    integer: bool


def expert_file(name: str) -> bytes:
    """The bytes of a shipped file of arrays: an expert's, or the projection of `TokenEmbedder`."""
    return (files("edgemem") / "data" / f"{name}.npz").read_bytes()


@cache
def expert(name: str) -> Expert:
    """A shipped expert, cached for the process."""
    return read_expert(expert_file(name))


def read_expert(file: bytes) -> Expert:
    with np.load(BytesIO(file)) as arrays:
        kept = {key: arrays[key] for key in arrays.files}
    return {k: a if a.dtype.kind == "U" else a.astype(np.float32) for k, a in kept.items()}


def rewritten(file: Path, expert: Expert | None = None) -> bytes | None:
    """The rewritten model of an ONNX file; its int8 weights stay in that file as external data.

    Give onnxruntime the folder of `file` as the one of external data. expert: to be added to
    weights; the sums are within the returned model. None if nothing is added and no weight is of
    this form. Raises ValueError or IndexError if it is no ONNX file or lacks a weight of the
    expert, OSError if it cannot be read.
    """
    data = memoryview(file.read_bytes())
    graph = _graph(data)
    added = _add_expert(graph, expert or {})
    new = _rewritten_nodes(graph)
    if not new and not added:
        return None
    parts = [
        new.get(node.outputs[0], node.encoded) if node.outputs else node.encoded
        for node in graph.nodes
    ]
    parts += graph.rest
    parts += [t.encoded or _external_initializer(t, file.name) for t in graph.tensors.values()]
    others = [bytes(field.encoded) for field in _fields(data) if field.tag != _MODEL_GRAPH]
    return b"".join([*others, _field_head(_MODEL_GRAPH, sum(map(len, parts))), *parts])


def parameters(file: Path) -> dict[str, Matrix | NDArray[np.float32]]:
    """The weights of such a file by the names of BERT's parameters.

    A matrix without such a name is named after the bias that is added to its product: `weight`
    instead of `bias`. Raises as `rewritten`.
    """
    graph = _graph(memoryview(np.memmap(file, np.uint8, "r").data))
    found: dict[str, Matrix | NDArray[np.float32]] = {}
    for tensor in graph.tensors.values():
        if tensor.dtype == _FLOAT and tensor.raw:
            found[_parameter_name(tensor.name)] = np.array(_values(tensor, np.float32))
    for node in graph.nodes:
        if node.op == b"Gather" and (of := _int8_weight(node.inputs[0], graph)) is not None:
            found[_parameter_name(node.inputs[0])] = _matrix(*of)
        elif node.op == b"DequantizeLinear" and (rows := _rows(node, graph)) is not None:
            name = graph.made[node.inputs[0]].inputs[0]
            found[_parameter_name(name).removesuffix("_quantized")] = rows
    for product in _products(graph):
        found[product.name] = _matrix(product.int8, product.scale)
    return found


def _rows(node: _Node, graph: _Graph) -> NDArray[np.float32] | None:
    """The whole table of a uint8 lookup as float32, (q - zero) * scale; None for other nodes."""
    lookup = graph.made.get(node.inputs[0])
    if lookup is None or lookup.op != b"Gather":
        return None
    q, scale, zero = (graph.tensors[name] for name in (lookup.inputs[0], *node.inputs[1:]))
    number, _ = _varint(zero.raw, 0)
    rows: NDArray[np.float32] = _values(q, np.uint8) - np.float32(number)
    return rows * _values(scale, np.float32)


def _parameter_name(name: bytes) -> str:
    return name.decode().removeprefix("inner.")


def _matrix(q: _Tensor, scale: _Tensor) -> Matrix:
    return Matrix(_values(q, np.int8), np.array(_values(scale, np.float32)))


def _values(tensor: _Tensor, dtype: type[_Number]) -> NDArray[_Number]:
    return np.frombuffer(tensor.raw, dtype).reshape(tensor.shape)


def _products(graph: _Graph) -> Iterator[_Product]:
    """The int8 matrices that have a bias added to their product, named after that bias."""
    for node in graph.nodes:
        for sum_of, bias in (node.inputs, node.inputs[::-1]) if node.op == b"Add" else ():
            of = graph.made.get(sum_of)
            if of is None or bias not in graph.tensors:
                continue
            found, integer = None, of.op == b"Mul"
            if of.op == b"MatMul":
                found = _int8_weight(of.inputs[1], graph)
            elif integer:
                found = _integer_weight(of, graph)
            if found is not None:
                yield _Product(_parameter_name(bias.replace(b".bias", b".weight")), *found, integer)


def _int8_weight(name: bytes, graph: _Graph) -> tuple[_Tensor, _Tensor] | None:
    """The int8 tensor (n, d) and the scale of a weight, if it is Cast(int8) * scale."""
    mul = graph.made.get(name)
    cast = graph.made.get(mul.inputs[0]) if mul is not None and mul.op == b"Mul" else None
    if mul is None or cast is None or cast.op != b"Cast":
        return None
    return _scaled(graph, cast.inputs[0], mul.inputs[1])


def _integer_weight(node: _Node, graph: _Graph) -> tuple[_Tensor, _Tensor] | None:
    """The int8 tensor and the scale of MatMulInteger(x, int8) * (scale of x * scale)."""
    before = {graph.made[name].op: graph.made[name] for name in node.inputs if name in graph.made}
    cast, scales = before.get(b"Cast"), before.get(b"Mul")
    product = graph.made.get(cast.inputs[0]) if cast is not None else None
    if scales is None or product is None or product.op != b"MatMulInteger":
        return None
    return _scaled(graph, product.inputs[1], scales.inputs[1])


def _scaled(graph: _Graph, int8: bytes, scale: bytes) -> tuple[_Tensor, _Tensor] | None:
    """Two initializers, if they are a matrix of int8 and its scale."""
    q, s = graph.tensors.get(int8), graph.tensors.get(scale)
    if q is None or s is None or (q.dtype, s.dtype, len(q.shape)) != (_INT8, _FLOAT, 2):
        return None
    return (q, s) if q.raw and s.raw else None


def _add_expert(graph: _Graph, expert: Expert) -> bool:
    """Replace weights by their sums with an expert's products. Returns whether it has any.

    Raises ValueError if the file lacks a weight.
    """
    places = [key.removesuffix(".a") for key in expert if key.endswith(".a")]
    of = {product.name: product for product in _products(graph)} if places else {}
    for place in places:
        number, short = place.split(".")
        name = f"encoder.layer.{number}.{PRODUCTS[short]}.weight"
        a, b = expert[f"{place}.a"], expert[f"{place}.b"]
        shape = [len(a), b.shape[1]]
        if name not in of or of[name].int8.shape != shape:
            raise ValueError(f"the file has no int8 weight {name} of the shape {shape}")
        _, q, scale, integer = of[name]
        weight = _values(q, np.int8).astype(np.float32)
        weight *= _values(scale, np.float32)
        weight += a @ b
        largest = np.maximum(weight.max(axis=0), -weight.min(axis=0))
        steps = np.maximum(
            largest / (_MAX_MATMUL_INT8 if integer else _MAX_INT8), np.float32(1e-12)
        )
        weight /= steps
        np.rint(weight, out=weight)
        steps = steps if integer else steps[None]
        graph.tensors[q.name] = _initializer(q.name, weight.astype(np.int8), _INT8)
        graph.tensors[scale.name] = _initializer(scale.name, steps.astype(np.float32), _FLOAT)
    return bool(places)


def _rewritten_nodes(graph: _Graph) -> dict[bytes, bytes]:
    """The new encodings of lookups, matrices and their weights, by the first output of each node.

    A node that is no longer needed becomes empty. Adds to the initializers the scales of matrices
    in the shape that DequantizeLinear requires.
    """
    made, tensors = graph.made, graph.tensors
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    new: dict[bytes, bytes] = {}
    for node in graph.nodes:
        if node.op not in (b"Gather", b"MatMul") or len(node.inputs) < 2:
            continue
        weight = node.inputs[node.op == b"MatMul"]
        found = _int8_weight(weight, graph)
        if found is None or not readers[weight] == readers[made[weight].inputs[0]] == 1:
            continue
        q, scale = found
        out = node.outputs[0]
        if node.op == b"Gather" and scale.shape == [q.shape[0], 1]:
            rows, scales, floats = out + b".int8", out + b".scale", out + b".float"
            ids = node.inputs[1]
            new[made[weight].inputs[0]] = new[weight] = b""
            new[out] = (
                _encoded(b"Gather", [q.name, ids], rows)
                + _encoded(b"Gather", [scale.name, ids], scales)
                + _encoded(b"Cast", [rows], floats, to=_FLOAT)
                + _encoded(b"Mul", [floats, scales], out)
            )
        elif node.op == b"MatMul" and scale.shape == [1, q.shape[1]]:
            flat = scale.name + b".flat"
            tensors[flat] = _initializer(flat, _values(scale, np.float32).ravel(), _FLOAT)
            new[made[weight].inputs[0]] = b""
            new[weight] = _encoded(b"DequantizeLinear", [q.name, flat], weight, axis=1)
    return new


# -- reading -------------------------------------------------------------------------------------


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number at a position, and the position behind it."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def _fields(data: memoryview, message: _Field | None = None) -> Iterator[_Field]:
    """The fields of a message, or of the whole file. Raises ValueError if one is unknown or ends
    behind its message."""
    start = 0 if message is None else message.start
    end = len(data) if message is None else start + len(message.value)
    while start < end:
        key, at = _varint(data, start)
        number, wire = 0, key & 7
        first = at
        if wire == 0:
            number, at = _varint(data, at)
        elif wire == 2:
            length, first = _varint(data, at)
            at = first + length
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {start} is none of protobuf's")
        if at > end:
            raise ValueError(f"a field at byte {start} ends at {at}, after its message at {end}")
        yield _Field(key >> 3, first, data[first:at], number, data[start:at])
        start = at


def _graph(data: memoryview) -> _Graph:
    graph = _Graph([], {}, {}, [])
    found = next((field for field in _fields(data) if field.tag == _MODEL_GRAPH), None)
    for part in _fields(data, found) if found is not None else ():
        if part.tag == _GRAPH_NODE:
            graph.nodes.append(_node(data, part))
        elif part.tag == _GRAPH_INITIALIZER:
            tensor = _tensor(data, part)
            graph.tensors[tensor.name] = tensor
        else:
            graph.rest.append(bytes(part.encoded))
    graph.made.update((node.outputs[0], node) for node in graph.nodes if node.outputs)
    return graph


def _node(data: memoryview, part: _Field) -> _Node:
    texts: dict[int, list[bytes]] = {_NODE_OP: [b""], _NODE_INPUT: [], _NODE_OUTPUT: []}
    for field in _fields(data, part):
        texts.setdefault(field.tag, []).append(bytes(field.value))
    return _Node(texts[_NODE_OP][-1], texts[_NODE_INPUT], texts[_NODE_OUTPUT], bytes(part.encoded))


def _tensor(data: memoryview, part: _Field) -> _Tensor:
    name, shape, dtype, start, raw = b"", [], 0, None, data[:0]
    for field in _fields(data, part):
        if field.tag == _TENSOR_NAME:
            name = bytes(field.value)
        elif field.tag == _TENSOR_TYPE:
            dtype = field.number
        elif field.tag == _TENSOR_RAW:
            start, raw = field.start, field.value
        elif field.tag in (_TENSOR_FLOATS, _TENSOR_INTS):
            raw = field.value
        elif field.tag == _TENSOR_DIMS and field.encoded[0] & 7 == 2:  # packed
            at = 0
            while at < len(field.value):
                size, at = _varint(field.value, at)
                shape.append(size)
        elif field.tag == _TENSOR_DIMS:
            shape.append(field.number)
    inside = dtype not in (_INT8, _UINT8) or start is None
    return _Tensor(name, shape, dtype, raw, start, bytes(part.encoded) if inside else b"")


# -- writing -------------------------------------------------------------------------------------


def _varint_field(tag: int, number: int) -> bytes:
    return _base128(tag << 3) + _base128(number)


def _bytes_field(tag: int, value: bytes) -> bytes:
    return _field_head(tag, len(value)) + value


def _field_head(tag: int, length: int) -> bytes:
    """The tag and the length before the bytes of a field."""
    return _base128(tag << 3 | 2) + _base128(length)


def _base128(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _encoded(op: bytes, inputs: list[bytes], output: bytes, **attributes: int) -> bytes:
    """A node of a graph."""
    node = b"".join(_bytes_field(_NODE_INPUT, name) for name in inputs)
    node += _bytes_field(_NODE_OUTPUT, output) + _bytes_field(_NODE_OP, op)
    for name, value in attributes.items():
        attribute = (
            _bytes_field(1, name.encode()) + _varint_field(3, value) + _varint_field(20, _INT)
        )
        node += _bytes_field(_NODE_ATTRIBUTE, attribute)
    return _bytes_field(_GRAPH_NODE, node)


def _initializer(name: bytes, values: NDArray[Any], dtype: int) -> _Tensor:
    """A new initializer, little-endian."""
    raw = values.tobytes()
    head = _tensor_header(name, list(values.shape), dtype) + _field_head(_TENSOR_RAW, len(raw))
    encoded = b"".join([_field_head(_GRAPH_INITIALIZER, len(head) + len(raw)), head, raw])
    return _Tensor(name, list(values.shape), dtype, memoryview(encoded)[-len(raw) :], None, encoded)


def _external_initializer(tensor: _Tensor, file: str) -> bytes:
    """An initializer whose values are looked up in a file."""
    place = {"location": file, "offset": tensor.start, "length": len(tensor.raw)}
    encoded = _tensor_header(tensor.name, tensor.shape, tensor.dtype)
    for key, value in place.items():
        pair = _bytes_field(1, key.encode()) + _bytes_field(2, str(value).encode())
        encoded += _bytes_field(_TENSOR_EXTERNAL, pair)
    return _bytes_field(_GRAPH_INITIALIZER, encoded + _varint_field(_TENSOR_LOCATION, _IN_FILE))


def _tensor_header(name: bytes, shape: list[int], dtype: int) -> bytes:
    sizes = b"".join(_varint_field(_TENSOR_DIMS, size) for size in shape)
    return sizes + _varint_field(_TENSOR_TYPE, dtype) + _bytes_field(_TENSOR_NAME, name)
