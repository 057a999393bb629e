"""From prompts to tokens and from tokens to bytes, by one model's vocabulary and chat template.

It needs no context, so it may be used while a generation runs. What users write is *defused*: a
control token that is written in it is read as plain text, so that a message cannot end its own turn
or begin another.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import InputError, ModelError
from edgemem.inputs import THOUGHT_TAGS, utf8
from edgemem.runtime import llama

__all__ = ["CLOSED", "NO_PROJECTOR", "Content", "Pixels", "Prompt", "Vocabulary", "vocabulary_of"]

Pixels = NDArray[np.uint8]
"""An image: (height, width, 3), red, green and blue."""
Content = str | Sequence[str | Pixels]
Prompt = Content | Sequence[Mapping[str, Content]]

CLOSED = "the engine is closed; load it again with Engine.load(...)"
NO_PROJECTOR = (
    "{} was loaded without a projector, so it sees no images; load it with the mmproj file of the "
    "same model: Engine.load(path, mmproj=...)"
)

_CONTROL = 1 << 3  # a bit of llama_token_attr
_IMAGE = "<__media__>"  # marks an image in a text; if a user writes it, it is defused


class Vocabulary:
    """The tokens of a loaded model, until `close`. Thread-safe, except `piece` and `ends`.

    handle: llama.cpp's vocabulary. size: how many tokens there are. name: the model's, for
    messages. bos: the token that begins a text, whether or not prompts get it; EOS without one.
    """

    def __init__(self, lib: Any, model: Any, name: str) -> None:
        self._lib, self._name = lib, name
        self.handle = lib.llama_model_get_vocab(model)
        self.size = int(lib.llama_vocab_n_tokens(self.handle))
        self._lock = threading.RLock()
        self._sizes = np.full(self.size, -1, np.int64)
        self._no_template = "no chat template"
        self._template = self._read_template(model)
        self._control = self._control_pattern()
        tags = {tag: self.tokenize(tag, special=True) for tag in THOUGHT_TAGS}
        self._tags = {found[0]: tag.encode() for tag, found in tags.items() if len(found) == 1}

    @property
    def end_of_turn(self) -> int:
        """The token that ends an answer to a plain text."""
        end = int(self._lib.llama_vocab_eot(self.handle))
        return end if end >= 0 else int(self._lib.llama_vocab_eos(self.handle))

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def notes(self) -> tuple[str, ...]:
        """What is left out or reworded because of the model's chat template, and why."""
        if self._template is None:
            return (f"Plain strings only, no chat messages: the model has {self._no_template}.",)
        system, user = ({"role": role, "content": "Hi."} for role in ("system", "user"))
        notes = []
        with suppress(Exception):  # a model's own Jinja may raise anything
            plain = self._render([user])
            thought = plain.rstrip().endswith(THOUGHT_TAGS[1])
            if thought or plain != self._render([user], enable_thinking=True):
                notes.append(
                    "The model is told not to think before it answers: a thought takes more "
                    "tokens than most answers may have."
                )
        try:
            self._render([system, user])
        except Exception:
            notes.append(
                "A system message is said at the head of the next turn: the chat template "
                "refuses the role."
            )
        return tuple(notes)

    def close(self) -> None:
        """Call this before the model is freed; waits for a `tokenize` of another thread."""
        with self._lock:
            self.handle = None

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """See Engine.tokenize."""
        data = utf8(text)
        room = len(data) + 8
        out = (ctypes.c_int32 * room)()
        with self._lock:
            if self.handle is None:
                raise ModelError(CLOSED)
            n = self._lib.llama_tokenize(self.handle, data, len(data), out, room, False, special)
        if n < 0:
            raise ModelError(f"llama.cpp could not tokenize a text of {len(data)} bytes")
        return list(out[:n])

    def prompt_tokens(
        self, prompt: Prompt, see: Callable[[Pixels, int], list[int]] | None = None
    ) -> list[int]:
        """All tokens of a prompt, at least one, with BOS if the model wants it.

        see: gives an image's tokens from its pixels and the number of images. Raises ModelError if
        there is an image and no `see`, InputError if the prompt is empty or ends in an image.
        """
        images: list[Pixels] = []
        first, *rest = self._text(prompt, images).split(_IMAGE)
        tokens = self.tokenize(first, special=True)
        if self._bos is not None and tokens[:1] != [self._bos]:  # most templates write it
            tokens.insert(0, self._bos)
        if len(rest) != len(images):
            raise ModelError(
                f"the chat template of {self._name} shows {len(rest)} of {len(images)} images; use "
                "another model"
            )
        for image, text in zip(images, rest, strict=True):
            if see is None:
                raise ModelError(NO_PROJECTOR.format(self._name))
            tokens += see(image, len(images)) + self.tokenize(text, special=True)
        if not tokens or tokens[-1] < 0:
            raise InputError(
                "the prompt is empty, or ends in an image; give at least one character at its end"
            )
        return tokens

    def ends(self, token: int) -> bool:
        """Whether a token ends an answer."""
        return bool(self._lib.llama_vocab_is_eog(self.handle, token))

    def piece(self, token: int) -> bytes:
        """The bytes of a token, which may be a part of a character.

        No bytes for a control token, unless it begins or ends a thought.
        """
        if token in self._tags:
            return self._tags[token]
        out = ctypes.create_string_buffer(64)
        with self._lock:
            if self.handle is None:
                raise ModelError(CLOSED)
            n = self._lib.llama_token_to_piece(self.handle, token, out, 64, 0, False)
            if n < 0:
                out = ctypes.create_string_buffer(-n)
                n = self._lib.llama_token_to_piece(self.handle, token, out, -n, 0, False)
        return out.raw[:n]

    def piece_bytes(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many bytes each token stands for: (n,). The sizes are cached."""
        with self._lock:
            if self.handle is None:
                raise ModelError(CLOSED)
            for token in np.unique(tokens[self._sizes[tokens] < 0]).tolist():
                self._sizes[token] = len(self.piece(token))
        return self._sizes[tokens]

    def offsets(self, text: str, tokens: Sequence[int]) -> NDArray[np.int64]:
        """(n, 2) characters [start, end) of each token of a text, in order.

        tokens: those of the text. A token that holds a part of a character spans all of it.
        """
        ids = np.asarray(tokens, np.int64)
        data = text.encode()
        sizes = self.piece_bytes(ids)
        ends = np.cumsum(sizes)
        # Some models put a space before any text, to which none of its characters corresponds.
        ends -= int(len(ends) > 0 and ends[-1] == len(data) + 1)
        spans = np.stack([ends - sizes, ends], axis=1)
        if len(ends) and ends[-1] != len(data):
            # llama.cpp leaves out a byte that a vocabulary has no token for, such as 0xF1 with
            # SmolLM2: so each token's bytes are searched for in the text.
            at = 0
            for i, token in enumerate(tokens):
                piece = self.piece(token)
                start = max(data.find(piece, at), at)
                at = min(start + len(piece), len(data))
                spans[i] = start, at
        spans = np.clip(spans, 0, len(data))
        if text.isascii():
            return spans
        is_start = (np.frombuffer(data, np.uint8) & 0xC0) != 0x80
        chars = np.concatenate([[0], np.cumsum(is_start)])  # characters that begin before each byte
        begun = np.append(is_start, True)
        return np.stack([chars[spans[:, 0]] - ~begun[spans[:, 0]], chars[spans[:, 1]]], axis=1)

    def _read_template(self, model: Any) -> Any:
        lib, vocab = self._lib, self.handle
        bos = lib.llama_vocab_bos(vocab)
        self.bos: int = bos if bos >= 0 else max(lib.llama_vocab_eos(vocab), 0)
        self._bos: int | None = bos if lib.llama_vocab_get_add_bos(vocab) and bos >= 0 else None
        raw = lib.llama_model_chat_template(model, None)
        if not raw:
            return None
        try:
            return llama.chat_formatter(
                raw.decode("utf-8"),
                eos=self._token_text(lib.llama_vocab_eos(vocab)),
                bos=self._token_text(bos),
            )
        except Exception as exc:  # Jinja's, or no UTF-8: the model still takes plain strings
            self._no_template = f"a chat template that cannot be read ({exc})"
            return None

    def _token_text(self, token: int) -> str:
        if not 0 <= token < self.size:
            return ""
        raw = self._lib.llama_vocab_get_text(self.handle, token)
        return raw.decode("utf-8", "replace") if raw else ""

    def _control_pattern(self) -> re.Pattern[str]:
        """Matches the text of any control token."""
        texts = (
            self._token_text(t)
            for t in range(self.size)
            if self._lib.llama_vocab_get_attr(self.handle, t) & _CONTROL or self.ends(t)
        )
        return re.compile("|".join(re.escape(t) for t in (_IMAGE, *texts) if len(t) > 1))

    def _text(self, prompt: Prompt, images: list[Pixels]) -> str:
        """A prompt as one text, with a mark for each image, which is appended to `images`."""
        if isinstance(prompt, str) or any(not isinstance(part, Mapping) for part in prompt):
            return self._defused(prompt, images)  # type: ignore[arg-type]
        return self._rendered(prompt, images)  # type: ignore[arg-type]

    def _defused(self, content: Content, images: list[Pixels]) -> str:
        parts = [content] if isinstance(content, str) else content
        images += [part for part in parts if not isinstance(part, str)]
        return "".join(
            self._control.sub(lambda m: f"{m[0][0]} {m[0][1:]}", part)
            if isinstance(part, str)
            else _IMAGE
            for part in parts
        )

    def _rendered(self, prompt: Sequence[Mapping[str, Content]], images: list[Pixels]) -> str:
        if self._template is None:
            raise ModelError(
                f"{self._name} has {self._no_template}, so it takes a plain string, not messages; "
                "use an instruction-tuned GGUF for chat, such as the bundled "
                "SmolLM2-135M-Instruct"
            )
        if not prompt:
            raise InputError("the prompt is an empty list; give at least one message")
        for message in prompt:
            if not {"role", "content"} <= set(message):
                raise InputError(
                    f"a message has the keys {sorted(message)}; it needs 'role' and 'content'"
                )
        messages = [{k: self._defused(v, images) for k, v in m.items()} for m in prompt]
        try:
            try:
                return self._render(messages)
            except Exception:
                if messages[0]["role"] != "system":
                    raise
                # Some templates (Gemma 2's) refuse the system role. Its text becomes the head of
                # the user's next turn.
                first, *rest = messages
                first = {**first, "role": "user"}
                if rest and rest[0]["role"] == "user":
                    first["content"] += f"\n\n{rest.pop(0)['content']}"
                return self._render([first, *rest])
        except Exception as exc:  # a model's own Jinja may raise anything
            raise ModelError(
                f"the chat template of {self._name} refused the messages: {exc}"
            ) from exc

    def _render(
        self, messages: Sequence[Mapping[str, str]], *, enable_thinking: bool = False
    ) -> str:
        """The messages as the template renders them, with thinking turned off if it can do that."""
        text = self._template(messages=messages, enable_thinking=enable_thinking).prompt
        # Some templates begin every answer with a thought. Closing it at once leaves it empty, as
        # templates do that can turn thinking off.
        opened, closed = THOUGHT_TAGS
        return f"{text.rstrip()}\n\n{closed}\n\n" if text.rstrip().endswith(opened) else str(text)


@contextmanager
def vocabulary_of(path: Path) -> Iterator[Vocabulary]:
    """The vocabulary of a GGUF file, without its weights. Raises ModelError if it is unreadable."""
    lib, model = llama.library(), llama.load_model(path, vocab_only=True)
    try:
        vocabulary = Vocabulary(lib, model, path.name)
        try:
            yield vocabulary
        finally:
            vocabulary.close()
    finally:
        lib.llama_model_free(model)
