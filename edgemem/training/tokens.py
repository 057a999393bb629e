"""Examples as token ids, exactly as the engine reads a prompt when the expert is used.

Knows the vocabulary of a GGUF through llama.cpp; loads no weights, knows no torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from edgemem.errors import InputError, ModelError
from edgemem.runtime import llama
from edgemem.runtime.gguf import check_header
from edgemem.runtime.vocabulary import Vocabulary
from edgemem.training.examples import Example
from edgemem.training.packing import Tokens

__all__ = ["MAX_TOKENS", "tokenized"]

MAX_TOKENS = 2048  # of one example: the engine's default window


def tokenized(base: Path, examples: Sequence[Example]) -> list[Tokens]:
    """Prompt and target of each example; the model's end-of-turn token ends the target.

    They are tokenized apart, for the engine never sees them joined. Raises ModelError when base is
    no model with a vocabulary, InputError on an example of more than MAX_TOKENS.
    """
    check_header(base)
    lib = llama.library()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(os.fsencode(base), params)
    if not model:
        raise ModelError(f"{base} cannot be loaded ({llama.last_errors('no reason given')})")
    try:
        vocabulary = Vocabulary(lib, model, base.stem)
        end = lib.llama_vocab_eot(vocabulary.handle)
        if end < 0:
            end = lib.llama_vocab_eos(vocabulary.handle)
        found = [_tokens(vocabulary, example, end) for example in examples]
        vocabulary.close()
    finally:
        lib.llama_model_free(model)
    for example, tokens in zip(examples, found, strict=True):
        if len(tokens) > MAX_TOKENS:
            raise InputError(
                f"an example of group {example.group!r} has {len(tokens)} tokens; at most "
                f"{MAX_TOKENS} are allowed: show it fewer turns or memories"
            )
    return found


def _tokens(vocabulary: Vocabulary, example: Example, end: int) -> Tokens:
    """end: the token that ends an answer to a plain text; a chat's template has its own."""
    if isinstance(example.prompt, str):
        prompt = vocabulary.prompt_tokens(example.prompt)
        return Tokens(tuple(prompt), (*vocabulary.tokenize(example.target), end))
    chat = [*example.prompt, {"role": "assistant", "content": example.target}]
    tokens = vocabulary.prompt_tokens(chat)
    answers = []
    for place in (*example.earlier, len(chat) - 1):
        first = len(vocabulary.prompt_tokens(chat[:place]))
        stop = first + len(vocabulary.tokenize(chat[place]["content"])) + 1
        if not vocabulary.ends(tokens[stop - 1]):
            raise ModelError(
                f"the chat template ends no answer after {chat[place]['content'][-20:]!r}; train "
                "on a model whose template shows an answer as the model writes it"
            )
        answers.append((first, stop))
    *earlier, (first, stop) = answers
    return Tokens(tuple(tokens[:first]), tuple(tokens[first:stop]), tuple(earlier))
