"""Tiny ONNX models, written byte by byte: protobuf's wire format, onnx/onnx.proto3's fields."""

import json

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_FLOAT, _INT64 = 1, 7  # TensorProto.DataType


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, value):
    """One protobuf field: a number or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def _value(name, dtype, shape):
    """A graph's input or output; a dimension in bytes is one of any size."""
    dims = b"".join(field(1, field(1 if isinstance(n, int) else 2, n)) for n in shape)
    return field(1, name) + field(2, field(1, field(1, dtype) + field(2, dims)))


def write_embedder(folder, meanings):
    """A multilingual embedder in a folder of its own: the file of a model that looks each word's
    meaning up, with its tokenizer beside it. Unknown words mean nothing."""
    dim = len(next(iter(meanings.values())))
    table = np.zeros((len(SPECIAL) + len(meanings), dim), "<f4")
    table[len(SPECIAL) :] = list(meanings.values())
    table[1 : len(SPECIAL), -1] = 0.01  # no text is without a direction
    weights = b"".join(field(1, n) for n in table.shape)
    weights += field(2, _FLOAT) + field(8, b"table") + field(9, table.tobytes())
    node = field(1, b"table") + field(1, b"input_ids") + field(2, b"out") + field(4, b"Gather")
    graph = field(1, node) + field(2, b"g") + field(5, weights)
    graph += field(11, _value(b"input_ids", _INT64, (b"batch", b"tokens")))
    graph += field(12, _value(b"out", _FLOAT, (b"batch", b"tokens", dim)))
    folder.mkdir()
    file = folder / "many-languages.onnx"
    file.write_bytes(field(1, 8) + field(7, graph) + field(8, field(2, 17)))
    vocabulary = {word: i for i, word in enumerate((*SPECIAL, *meanings))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    return file


def _mean(axes, source, out):
    """A node that takes the mean over axes and drops them."""
    ints = b"".join(field(8, axis) for axis in axes)
    attributes = field(5, field(1, b"axes") + ints + field(20, 7))  # AttributeProto.INTS
    attributes += field(5, field(1, b"keepdims") + field(3, 0) + field(20, 2))  # INT
    return field(1, source) + field(2, out) + field(4, b"ReduceMean") + attributes


def write_image_embedder(folder):
    """The image half of a CLIP in a folder of its own: a vector is the mean colour, -1 to 1."""
    folder.mkdir()
    graph = field(1, _mean((2, 3), b"pixel_values", b"image_embeds")) + field(2, b"g")
    graph += field(11, _value(b"pixel_values", _FLOAT, (b"batch", 3, 8, 8)))
    graph += field(12, _value(b"image_embeds", _FLOAT, (b"batch", 3)))
    model = field(1, 8) + field(7, graph) + field(8, field(2, 17))
    (folder / "vision_model.onnx").write_bytes(model)
    given = {
        "do_center_crop": True,
        "crop_size": {"height": 8, "width": 8},
        "image_mean": [0.5] * 3,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(given))
    return folder
