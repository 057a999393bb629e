"""Tiny GGUF files of random weights with a tokenizer and a chat template, one for each family.

What they say is noise. What they are for is the memory that llama.cpp gives each architecture: a
KV cache, one with a sliding window, a recurrent state, or a mixture of both.
"""

from collections.abc import Callable
from types import MappingProxyType

import numpy as np
from ggufkit import Setting, letters, write_gguf

LAYERS, DIM, HEADS, KV_HEADS, HEAD_DIM, FFN = 6, 64, 4, 2, 16, 96
WINDOW = 24  # tokens that a layer of gemma3 with a sliding window sees
INNER, STATE, CONV, STEP = 128, 16, 4, 4  # of mamba
CONTEXT = 2048

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Qwen3: a turn before the last question loses its thoughts; enable_thinking=False closes the block.
QWEN3 = (
    "{%- set ns = namespace(last=messages|length - 1, found=false) -%}"
    "{%- for message in messages[::-1] -%}{%- set index = messages|length - 1 - loop.index0 -%}"
    "{%- if not ns.found and message.role == 'user' -%}"
    "{%- set ns.found = true -%}{%- set ns.last = index -%}{%- endif -%}{%- endfor -%}"
    "{%- for message in messages -%}"
    "{%- set content = message.content -%}{%- set thought = '' -%}"
    "{%- if message.role == 'assistant' and '</think>' in content -%}"
    "{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1] -%}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') -%}{%- endif -%}"
    "{{- '<|im_start|>' + message.role + '\n' -}}"
    "{%- if message.role == 'assistant' and loop.index0 > ns.last -%}"
    "{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' -}}{%- endif -%}"
    "{{- content + '<|im_end|>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}"
    "{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}{%- endif -%}"
)
# As DeepSeek's distilled models: every answer begins in a thought, and nothing turns that off.
ALWAYS_THINKS = CHATML.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message.role"
    " + '<|end_header_id|>\n\n' + message.content|trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{% set role = 'model' if message.role == 'assistant' else message.role %}"
    "{{ '<start_of_turn>' + role + '\n' + message.content|trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6


def write_family(
    folder,
    name,
    *,
    template=None,
    tags="added",
    seed=5,
    more=MappingProxyType({}),
):
    """The file of one of FAMILIES, or of "qwen2vl". template: in place of its own. more: settings.

    tags: what "<think>" and "</think>" are to the tokenizer: "added" tokens (as in Qwen3),
    "control" tokens (which have no text), or plain "text".
    """
    rng = np.random.default_rng(seed)
    make, own, tokenizer = FAMILIES[name.removesuffix("vl")]
    words = tokenizer(tags)
    settings, tensors = make(lambda *shape: rng.standard_normal(shape).astype(np.float32) / 8)
    vocabulary = len(words["tokenizer.ggml.tokens"])
    for matrix in ("token_embd", "output"):  # untied, or the last token would repeat itself
        tensors[f"{matrix}.weight"] = rng.standard_normal((vocabulary, DIM)).astype(np.float32)
    file = folder / f"{name}.gguf"
    parameters: dict[str, Setting] = {
        "general.architecture": name,
        **{f"{name}.{key}": value for key, value in settings.items()},
    }
    words["tokenizer.chat_template"] = own if template is None else template
    return write_gguf(file, {**parameters, **words, **more}, tensors)


# -- tokenizers ------------------------------------------------------------------------------


def _bytes_and_merges(pattern, bos, end, *more):
    """A tokenizer of bytes with a few merges, as GPT-2 writes them."""

    def make(tags):
        merges = ["t h", "th e", "Ġ a", "i n", "Ġ the", "o n", "e r"]
        texts = [*letters(), *(merge.replace(" ", "") for merge in merges)]
        kinds = [_NORMAL] * len(texts)
        for text in (bos, end, *more):
            texts.append(text)
            kinds.append(_CONTROL)
        _add_tags(tags, texts, kinds)
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pattern,
            "tokenizer.ggml.tokens": texts,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": texts.index(bos),
            "tokenizer.ggml.eos_token_id": texts.index(end),
            "tokenizer.ggml.add_bos_token": bos == "<|begin_of_text|>",
        }

    return make


def _pieces_with_scores(tags):
    """A tokenizer as SentencePiece makes them, whose rare characters are bytes."""
    texts = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    kinds = [_CONTROL, _CONTROL, _CONTROL, _UNKNOWN, _CONTROL, _CONTROL]
    _add_tags(tags, texts, kinds)
    texts += [f"<0x{b:02X}>" for b in range(256)]
    kinds += [_BYTE] * 256
    words = ["th", "the", "▁the", "▁a", "in", "on", "er", "\n"]
    words += ["▁", *(chr(c) for c in range(33, 127))]
    texts += words
    kinds += [_NORMAL] * len(words)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [-float(i) for i in range(len(texts))],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


def _add_tags(tags, texts, kinds):
    if tags != "text":
        texts += ["<think>", "</think>"]
        kinds += [_USER_DEFINED if tags == "added" else _CONTROL] * 2


# -- architectures ---------------------------------------------------------------------------

_Random = Callable[..., np.ndarray]
_Made = tuple[dict[str, Setting], dict[str, np.ndarray]]


def _named(number, layer):
    """Tensors of a layer; a name without a dot is of weights."""
    return {
        f"blk.{number}.{name if '.' in name else name + '.weight'}": tensor
        for name, tensor in layer.items()
    }


def _attention(of, *, biases=False, norms=False):
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    out = {
        "attn_q": 2 * of(queries, DIM),  # sharper attention than noise has: what is held matters
        "attn_k": 2 * of(keys, DIM),
        "attn_v": of(keys, DIM),
        "attn_output": of(DIM, queries),
    }
    if biases:
        out |= {
            f"attn_{n}.bias": of(size) for n, size in zip("qkv", (queries, keys, keys), strict=True)
        }
    if norms:
        out |= {f"attn_{n}_norm": 1 + of(HEAD_DIM) for n in "qk"}
    return out


def _feed_forward(of):
    up, gate, down = of(FFN, DIM), of(FFN, DIM), of(DIM, FFN)
    return {"ffn_norm": 1 + of(DIM), "ffn_up": up, "ffn_gate": gate, "ffn_down": down}


def _sizes(**more):
    return {
        "block_count": LAYERS,
        "embedding_length": DIM,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "context_length": CONTEXT,
        "rope.freq_base": 500.0,
        **more,
    }


def _transformer(*, biases=False, norms=False, gemma=False):
    def make(of):
        tensors = {"output_norm.weight": 1 + of(DIM)}
        for number in range(LAYERS):
            layer = {"attn_norm": 1 + of(DIM), **_feed_forward(of)}
            layer |= _attention(of, biases=biases, norms=norms)
            if gemma:
                layer |= {f"post_{n}_norm": 1 + of(DIM) for n in ("attention", "ffw")}
            tensors |= _named(number, layer)
        if not gemma:
            return _sizes(), tensors
        return _sizes(**{"attention.sliding_window": WINDOW}), tensors

    return make


def _mamba(of):
    tensors = {"output_norm.weight": 1 + of(DIM)}
    decay = -np.tile(np.arange(1, STATE + 1, dtype=np.float32), (INNER, 1))
    for number in range(LAYERS):
        layer = {
            "attn_norm": 1 + of(DIM),
            "ssm_in": of(2 * INNER, DIM),
            "ssm_conv1d": of(INNER, CONV),
            "ssm_conv1d.bias": of(INNER),
            "ssm_x": of(STEP + 2 * STATE, INNER),
            "ssm_dt": of(INNER, STEP),
            "ssm_dt.bias": of(INNER) - 3,  # small steps: what was read long ago still counts
            "ssm_a": decay,
            "ssm_d": 1 + of(INNER),
            "ssm_out": of(DIM, INNER),
        }
        tensors |= _named(number, layer)
        tensors[f"blk.{number}.ssm_a"] = tensors.pop(f"blk.{number}.ssm_a.weight")
        tensors[f"blk.{number}.ssm_d"] = tensors.pop(f"blk.{number}.ssm_d.weight")
    return {
        "block_count": LAYERS,
        "embedding_length": DIM,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "context_length": CONTEXT,
        "ssm.conv_kernel": CONV,
        "ssm.inner_size": INNER,
        "ssm.state_size": STATE,
        "ssm.time_step_rank": STEP,
    }, tensors


def _lfm2(of):
    """Convolutions that keep their last tokens, and attention in every second layer."""
    tensors = {"token_embd_norm.weight": 1 + of(DIM)}
    for number in range(LAYERS):
        layer = {"attn_norm": 1 + of(DIM), **_feed_forward(of)}
        if number % 2:
            layer |= _attention(of, norms=True)
        else:
            layer |= {
                "shortconv.conv.weight": of(DIM, 3),
                "shortconv.in_proj.weight": of(3 * DIM, DIM),
                "shortconv.out_proj.weight": of(DIM, DIM),
            }
        tensors |= _named(number, layer)
    kv_heads = [KV_HEADS * (number % 2) for number in range(LAYERS)]
    return _sizes(**{"attention.head_count_kv": kv_heads, "shortconv.l_cache": 3}), tensors


def _qwen35(of):
    """Gated delta nets, whose state is a matrix a head, and attention in every second layer."""
    heads, groups, size = 4, 2, 16
    values, both = heads * size, 2 * groups * size
    tensors = {"output_norm.weight": 1 + of(DIM)}
    for number in range(LAYERS):
        layer = {"attn_norm": 1 + of(DIM), "post_attention_norm": 1 + of(DIM), **_feed_forward(of)}
        del layer["ffn_norm"]
        if number % 2:
            layer |= _attention(of, norms=True)
            layer["attn_q"] = of(2 * HEADS * HEAD_DIM, DIM)  # with a gate beside each query
        else:
            layer |= {
                "attn_qkv": of(both + values, DIM),
                "attn_gate": of(values, DIM),
                "ssm_conv1d": of(both + values, CONV),
                "ssm_dt.bias": of(heads),
                "ssm_beta": of(heads, DIM),
                "ssm_alpha": of(heads, DIM),
                "ssm_norm": 1 + of(size),
                "ssm_out": of(DIM, values),
            }
            tensors[f"blk.{number}.ssm_a"] = -np.abs(of(heads))
        tensors |= _named(number, layer)
    state: dict[str, Setting] = {
        "full_attention_interval": 2,
        "rope.dimension_sections": [2, 2, 2, 0],
        "rope.dimension_count": HEAD_DIM,
        "ssm.conv_kernel": CONV,
        "ssm.inner_size": values,
        "ssm.state_size": size,
        "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
    }
    return _sizes(**state), tensors


_QWEN = _bytes_and_merges("qwen2", "<|endoftext|>", "<|im_end|>", "<|im_start|>")
_HEADERS = "<|start_header_id|>", "<|end_header_id|>"
_LLAMA = _bytes_and_merges("llama-bpe", "<|begin_of_text|>", "<|eot_id|>", *_HEADERS)

FAMILIES: dict[str, tuple[Callable[[_Random], _Made], str, Callable[[str], dict]]] = {
    "llama": (_transformer(), LLAMA3, _LLAMA),
    "qwen2": (_transformer(biases=True), CHATML, _QWEN),
    "qwen3": (_transformer(norms=True), QWEN3, _QWEN),
    "gemma3": (_transformer(norms=True, gemma=True), GEMMA, _pieces_with_scores),
    "mamba": (_mamba, CHATML, _QWEN),
    "lfm2": (_lfm2, CHATML, _QWEN),
    "qwen35": (_qwen35, QWEN3, _QWEN),
}
