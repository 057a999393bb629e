"""What the tests of Memory share: a quick stand-in for the embedder, and where the files are."""

from collections.abc import Callable
from zlib import crc32

import numpy as np

from edgemem import Memory
from edgemem.language import content_words, words
from edgemem.results import AddResults

# Every public method of Memory with arguments it takes, but close and the parts.
CALLS = {
    "add": ("hello", {"infer": False}),
    "search": ("hello", {}),
    "get": ("id", {}),
    "image": ("id", {}),
    "get_all": (None, {}),
    "relations": (None, {}),
    "evidence": ("hello", {}),
    "conflicts": ("hello", {}),
    "update": ("id", {"text": "hello"}),
    "delete": ("id", {}),
    "delete_all": (None, {"user_id": "ada"}),
    "erase_all": (None, {"user_id": "ada"}),
    "erase": ("id", {}),
    "reset": (None, {}),
    "history": ("id", {}),
    "source_turns": ("id", {}),
    "stale_turns": (["id"], {}),
    "pending": (None, {}),
    "process_pending": (None, {}),
    "take_facts": (AddResults(()), {}),
    "read_images": (None, {}),
    "export_jsonl": ("out.jsonl", {}),
    "import_jsonl": ("in.jsonl", {}),
    "reindex": (None, {}),
    "align": (None, {}),
    "doctor": (None, {}),
}


class BagOfWords:
    """Stands in for an embedder: texts that share words are near, and it takes no time.

    dim and model_id may be chosen; texts are cut into chunks of 200 words.
    """

    def __init__(self, dim=64, model_id="bag@1"):
        self.dim, self.model_id = dim, model_id
        self.embedded = 0

    def _unit(self, found):
        vector = np.full(self.dim, 1e-3, np.float32)
        for word in found:
            vector[crc32(word.encode()) % self.dim] += 1
        return vector / np.linalg.norm(vector)

    def embed_chunks(self, texts):
        self.embedded += len(texts)
        out = []
        for text in texts:
            found = content_words(text) or words(text)
            starts = range(0, max(1, len(found)), 200)
            out.append(np.stack([self._unit(found[i : i + 200]) for i in starts]))
        return out

    def embed(self, texts):
        return np.stack([self.embed_query(text) for text in texts])

    def embed_query(self, text):
        return self._unit(content_words(text) or words(text))

    def count_tokens(self, text):
        return len(words(text))


class Meanwhile(BagOfWords):
    """A stand-in for an embedder; while it embeds next, another thread or process does `act`."""

    act: Callable[[], object] | None = None

    def embed_chunks(self, texts):
        act, self.act = self.act, None
        if act is not None:
            act()
        return super().embed_chunks(texts)


class WordTokens:
    """Stands in for a token embedder: a word has the same vector wherever it stands."""

    dim, step = 16, 1 / 127

    def __init__(self, model_id="words@1"):
        self.model_id = model_id
        self.embedded: list[str] = []

    def embed(self, text):
        self.embedded.append(text)
        return self.embed_query(text)

    def embed_query(self, text):
        return np.stack([self._vector(word) for word in ["", *words(text)]])

    def _vector(self, word):
        vector = np.random.default_rng(crc32(word.encode())).standard_normal(self.dim)
        return np.rint(vector / np.linalg.norm(vector) * 127).astype(np.int8)


def quick(path=":memory:", **more):
    """A Memory with the stand-in embedder."""
    return Memory(path, **{"embedder": BagOfWords(), **more})


def call(memory, name):
    """Call a method of Memory as CALLS says."""
    first, more = CALLS[name]
    arguments = () if first is None else (first,)
    return getattr(memory, name)(*arguments, **more)


def texts(results):
    return [item.memory for item in results]


def bytes_beside(path):
    """The bytes of all files in the store's folder."""
    return b"\0".join(file.read_bytes() for file in path.parent.rglob("*") if file.is_file())


def crowd(memory, user_id="ana"):
    """Other memories that share no word with anything: where there are few, each may answer."""
    said = [{"role": "user", "content": f"Lorem {n} ipsum {n}."} for n in range(20)]
    memory.add(said, user_id=user_id, infer=False)
