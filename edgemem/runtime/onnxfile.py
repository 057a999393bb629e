"""An ONNX file with int8 weights: rewritten so that loading it takes a third of the memory, also
with an expert's share in its weights; and its weights by name.

Knows protobuf's wire format and ONNX's field numbers. Runs no model and imports no onnxruntime.

Such a file says weight = Cast(int8) * scale. onnxruntime computes both steps when it loads the
file, keeps the two results side by side, and so holds a whole vocabulary in float32. The rewritten
graph gives the same numbers, bit for bit:

- a lookup gathers int8 rows and their scales first, and turns only those rows into floats;
- a matrix is one DequantizeLinear, whose result onnxruntime packs and keeps;
- int8 weights stay in the file, which onnxruntime maps, so a row that is never read takes nothing.

A file of the other kind has products of whole numbers (MatMulInteger). Either kind takes what is to
be added to a weight: the sum is rounded to int8 again, with a step for each column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Factors", "Matrix", "parameters", "rewritten"]

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
_MOST, _MOST_INTEGER = 127, 63  # AVX2 adds two products of uint8 and int8 in 16 bits, saturated
Factors = tuple[NDArray[np.float32], NDArray[np.float32]]
"""A (n, r) and B (r, m) of a product A B that is added to a weight (n, m)."""
_Number = TypeVar("_Number", np.int8, np.uint8, np.float32)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight: int8 (n, d), mapped from its file, times scale, (n, 1) of a lookup or (1, d)."""

    int8: NDArray[np.int8]
    scale: NDArray[np.float32]

    def times(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """(m, d) of (m, n). The scale must be of columns."""
        return (x @ self.int8.astype(np.float32)) * self.scale


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a message. start, end: its value's bytes; number: its value if it is a number;
    whole: all of it, tag and length too."""

    tag: int
    start: int
    end: int
    number: int
    whole: memoryview


@dataclass(frozen=True, slots=True)
class _Node:
    op: bytes
    inputs: list[bytes]
    outputs: list[bytes]
    whole: bytes


@dataclass(frozen=True, slots=True)
class _Tensor:
    """An initializer. raw: its values, of whichever field; start: where raw bytes lie in the file,
    else None; whole: all of it, empty where it stays in the file."""

    name: bytes
    shape: list[int]
    dtype: int
    raw: memoryview
    start: int | None
    whole: bytes


class _Product(NamedTuple):
    """A weight (n, m) by BERT's name of it: int8 times a scale. integer: of MatMulInteger."""

    name: str
    int8: _Tensor
    scale: _Tensor
    integer: bool


def rewritten(file: Path, added: Mapping[str, Factors] | None = None) -> bytes | None:
    """The model of an ONNX file without its int8 weights, which it finds in that file.

    The folder of `file` is to be given to onnxruntime as the one of external data. added: the
    products added to weights, by BERT's names of them; these are within the model. None if no
    weight is of this form. Raises ValueError or IndexError on what is no ONNX file, or if a weight
    is not in it, OSError if it cannot be read.
    """
    data = memoryview(file.read_bytes())
    nodes, tensors, rest = _graph(data)
    if added:
        _add(nodes, tensors, added)
    changed = _changed(nodes, tensors)
    if changed is None and not added:
        return None
    parts = [*(changed or [node.whole for node in nodes]), *rest]
    parts += [t.whole or _outside(t, file.name) for t in tensors.values()]
    model = _fields(data, 0, len(data))
    others = [bytes(f.whole) for f in model if f.tag != _MODEL_GRAPH]
    return b"".join([*others, _start(_MODEL_GRAPH, sum(map(len, parts))), *parts])


def parameters(file: Path) -> dict[str, Matrix | NDArray[np.float32]]:
    """The weights of such a file by the names of BERT's parameters.

    A matrix that has none is called like the bias that is added to its product. Raises as
    `rewritten`.
    """
    data = memoryview(np.memmap(file, np.uint8, "r").data)
    nodes, tensors, _ = _graph(data)
    made = {node.outputs[0]: node for node in nodes if node.outputs}
    found: dict[str, Matrix | NDArray[np.float32]] = {}
    for tensor in tensors.values():
        if tensor.dtype == _FLOAT and tensor.raw:
            found[_short(tensor.name)] = np.array(_values(tensor, np.float32))
    for node in nodes:
        of = _int8_weight(node.inputs[0], made, tensors) if node.op == b"Gather" else None
        if of is not None:
            found[_short(node.inputs[0])] = _matrix(*of)
    for node in nodes:
        if node.op == b"DequantizeLinear" and (rows := _rows(node, made, tensors)) is not None:
            found[_short(made[node.inputs[0]].inputs[0]).removesuffix("_quantized")] = rows
    for product in _products(nodes, tensors):
        found[product.name] = _matrix(product.int8, product.scale)
    return found


def _rows(
    node: _Node, made: Mapping[bytes, _Node], tensors: Mapping[bytes, _Tensor]
) -> NDArray[np.float32] | None:
    """The whole table of a lookup in uint8, (q - zero) * scale."""
    lookup = made.get(node.inputs[0])
    if lookup is None or lookup.op != b"Gather":
        return None
    q, scale, zero = (tensors[name] for name in (lookup.inputs[0], *node.inputs[1:]))
    number, _ = _varint(zero.raw, 0)
    rows: NDArray[np.float32] = _values(q, np.uint8) - np.float32(number)
    return rows * _values(scale, np.float32)


def _short(name: bytes) -> str:
    return name.decode().removeprefix("inner.")


def _matrix(q: _Tensor, scale: _Tensor) -> Matrix:
    return Matrix(_values(q, np.int8), np.array(_values(scale, np.float32)))


def _values(tensor: _Tensor, dtype: type[_Number]) -> NDArray[_Number]:
    return np.frombuffer(tensor.raw, dtype).reshape(tensor.shape)


def _products(nodes: list[_Node], tensors: Mapping[bytes, _Tensor]) -> Iterator[_Product]:
    """The weights that a bias is added to the product of; they are called like it."""
    made = {node.outputs[0]: node for node in nodes if node.outputs}
    for node in nodes:
        for sum_of, bias in (node.inputs, node.inputs[::-1]) if node.op == b"Add" else ():
            of = made.get(sum_of)
            if of is None or bias not in tensors:
                continue
            found, integer = None, of.op == b"Mul"
            if of.op == b"MatMul":
                found = _int8_weight(of.inputs[1], made, tensors)
            elif integer:
                found = _integer_weight(of, made, tensors)
            if found is not None:
                yield _Product(_short(bias.replace(b".bias", b".weight")), *found, integer)


def _integer_weight(
    node: _Node, made: Mapping[bytes, _Node], tensors: Mapping[bytes, _Tensor]
) -> tuple[_Tensor, _Tensor] | None:
    """The int8 tensor and the scale of MatMulInteger(x, int8) * (scale of x * scale)."""
    before = {made[name].op: made[name] for name in node.inputs if name in made}
    cast, scales = before.get(b"Cast"), before.get(b"Mul")
    product = made.get(cast.inputs[0]) if cast is not None else None
    if scales is None or product is None or product.op != b"MatMulInteger":
        return None
    q, scale = tensors.get(product.inputs[1]), tensors.get(scales.inputs[1])
    if q is None or scale is None or (q.dtype, scale.dtype) != (_INT8, _FLOAT):
        return None
    return (q, scale) if q.raw and scale.raw else None


def _add(nodes: list[_Node], tensors: dict[bytes, _Tensor], added: Mapping[str, Factors]) -> None:
    """Put the sums in the place of weights. Raises ValueError if one is not in the file."""
    of = {product.name: product for product in _products(nodes, tensors)}
    for name, (a, b) in added.items():
        shape = [len(a), b.shape[1]]
        if name not in of or of[name].int8.shape != shape:
            raise ValueError(f"the file has no int8 weight {name} of the shape {shape}")
        _, q, scale, integer = of[name]
        weight = _values(q, np.int8).astype(np.float32)
        weight *= _values(scale, np.float32)
        weight += a @ b
        largest = np.maximum(weight.max(axis=0), -weight.min(axis=0))
        steps = np.maximum(largest / (_MOST_INTEGER if integer else _MOST), np.float32(1e-12))
        weight /= steps
        np.rint(weight, out=weight)
        tensors[q.name] = _initializer(q.name, weight.astype(np.int8), _INT8)
        steps = steps if integer else steps[None]
        tensors[scale.name] = _initializer(scale.name, steps.astype(np.float32), _FLOAT)


def _graph(data: memoryview) -> tuple[list[_Node], dict[bytes, _Tensor], list[bytes]]:
    """The nodes of a file's graph, its initializers by name, and the rest of its parts."""
    nodes: list[_Node] = []
    tensors: dict[bytes, _Tensor] = {}
    rest: list[bytes] = []
    graph = next((f for f in _fields(data, 0, len(data)) if f.tag == _MODEL_GRAPH), None)
    for part in _fields(data, graph.start, graph.end) if graph is not None else ():
        if part.tag == _GRAPH_NODE:
            nodes.append(_node(data, part))
        elif part.tag == _GRAPH_INITIALIZER:
            tensor = _tensor(data, part)
            tensors[tensor.name] = tensor
        else:
            rest.append(bytes(part.whole))
    return nodes, tensors, rest


def _int8_weight(
    name: bytes, made: Mapping[bytes, _Node], tensors: Mapping[bytes, _Tensor]
) -> tuple[_Tensor, _Tensor] | None:
    """The int8 tensor (n, d) and the scale of a weight, if it is Cast(int8) * scale."""
    mul = made.get(name)
    cast = made.get(mul.inputs[0]) if mul is not None and mul.op == b"Mul" else None
    if mul is None or cast is None or cast.op != b"Cast":
        return None
    q, scale = tensors.get(cast.inputs[0]), tensors.get(mul.inputs[1])
    if q is None or scale is None or (q.dtype, scale.dtype) != (_INT8, _FLOAT):
        return None
    return (q, scale) if q.raw and scale.raw and len(q.shape) == 2 else None


def _changed(nodes: list[_Node], tensors: dict[bytes, _Tensor]) -> list[bytes] | None:
    """The graph's nodes with lookups and matrices in their new form, None if there are none.

    Adds to `tensors` the scales of matrices, as DequantizeLinear wants them.
    """
    made = {node.outputs[0]: node for node in nodes if node.outputs}
    readers: dict[bytes, int] = {}
    for node in nodes:
        for name in node.inputs:
            readers[name] = readers.get(name, 0) + 1

    new: dict[bytes, bytes] = {}  # what a node's first output is made by now
    for node in nodes:
        if node.op not in (b"Gather", b"MatMul") or len(node.inputs) < 2:
            continue
        weight = node.inputs[node.op == b"MatMul"]
        found = _int8_weight(weight, made, tensors)
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
    if not new:
        return None
    return [new.get(node.outputs[0], node.whole) if node.outputs else node.whole for node in nodes]


# -- reading -------------------------------------------------------------------------------------


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number, and where the next one begins."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def _fields(data: memoryview, start: int, end: int) -> Iterator[_Field]:
    """The fields of a message. Raises ValueError if they do not end where it does."""
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
        yield _Field(key >> 3, first, at, number, data[start:at])
        start = at


def _node(data: memoryview, part: _Field) -> _Node:
    op, inputs, outputs = b"", [], []
    for field in _fields(data, part.start, part.end):
        value = bytes(data[field.start : field.end])
        if field.tag == _NODE_INPUT:
            inputs.append(value)
        elif field.tag == _NODE_OUTPUT:
            outputs.append(value)
        elif field.tag == _NODE_OP:
            op = value
    return _Node(op, inputs, outputs, bytes(part.whole))


def _tensor(data: memoryview, part: _Field) -> _Tensor:
    name, shape, dtype, start, raw = b"", [], 0, None, data[:0]
    for field in _fields(data, part.start, part.end):
        if field.tag == _TENSOR_NAME:
            name = bytes(data[field.start : field.end])
        elif field.tag == _TENSOR_TYPE:
            dtype = field.number
        elif field.tag == _TENSOR_RAW:
            start, raw = field.start, data[field.start : field.end]
        elif field.tag in (_TENSOR_FLOATS, _TENSOR_INTS):
            raw = data[field.start : field.end]
        elif field.tag == _TENSOR_DIMS and field.whole[0] & 7 == 2:  # packed
            at = field.start
            while at < field.end:
                size, at = _varint(data, at)
                shape.append(size)
        elif field.tag == _TENSOR_DIMS:
            shape.append(field.number)
    inside = dtype not in (_INT8, _UINT8) or start is None
    return _Tensor(name, shape, dtype, raw, start, bytes(part.whole) if inside else b"")


# -- writing -------------------------------------------------------------------------------------


def _number(tag: int, number: int) -> bytes:
    return _base128(tag << 3) + _base128(number)


def _bytes(tag: int, value: bytes) -> bytes:
    return _start(tag, len(value)) + value


def _start(tag: int, length: int) -> bytes:
    """What comes before the bytes of a field."""
    return _base128(tag << 3 | 2) + _base128(length)


def _base128(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _encoded(op: bytes, inputs: list[bytes], output: bytes, **attributes: int) -> bytes:
    """A node of a graph."""
    node = b"".join(_bytes(_NODE_INPUT, name) for name in inputs)
    node += _bytes(_NODE_OUTPUT, output) + _bytes(_NODE_OP, op)
    for name, value in attributes.items():
        attribute = _bytes(1, name.encode()) + _number(3, value) + _number(20, _INT)
        node += _bytes(_NODE_ATTRIBUTE, attribute)
    return _bytes(_GRAPH_NODE, node)


def _initializer(name: bytes, values: NDArray[Any], dtype: int) -> _Tensor:
    """A new one, little-endian."""
    raw = values.tobytes()
    head = _head(name, list(values.shape), dtype) + _start(_TENSOR_RAW, len(raw))
    whole = b"".join([_start(_GRAPH_INITIALIZER, len(head) + len(raw)), head, raw])
    return _Tensor(name, list(values.shape), dtype, memoryview(whole)[-len(raw) :], None, whole)


def _outside(tensor: _Tensor, file: str) -> bytes:
    """An initializer whose values are looked up in a file."""
    place = {"location": file, "offset": tensor.start, "length": len(tensor.raw)}
    whole = _head(tensor.name, tensor.shape, tensor.dtype)
    for key, value in place.items():
        pair = _bytes(1, key.encode()) + _bytes(2, str(value).encode())
        whole += _bytes(_TENSOR_EXTERNAL, pair)
    return _bytes(_GRAPH_INITIALIZER, whole + _number(_TENSOR_LOCATION, _IN_FILE))


def _head(name: bytes, shape: list[int], dtype: int) -> bytes:
    sizes = b"".join(_number(_TENSOR_DIMS, size) for size in shape)
    return sizes + _number(_TENSOR_TYPE, dtype) + _bytes(_TENSOR_NAME, name)
