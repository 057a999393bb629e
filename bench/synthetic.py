"""Invented memories to measure speed and size with: vectors and texts, the same for the same seed.

Knows NumPy and the product's stop words; knows no store, no index and no model. The invented
memories resemble 4,850 LoCoMo turns ("speaker: words") under MiniLM in what decides the cost of a
search: the distances and number of near neighbours, the recall of HNSW, the decay of the spectrum,
the word frequencies and the growth of the vocabulary (`python -m bench.synthetic` prints most of
these). They say nothing about the quality of answers, since the words have no meaning.

Vectors: the sum of a common mean, centres of nested subjects, and a part of the memory's own. All
parts are drawn with the spectrum exp(-0.3 √i) and rotated at random, so that int8 and per-dimension
variances do not align with the spectrum's axes. Cluster sizes follow Zipf's law. One level of
clusters is too hard: HNSW (M 16, ef 10) then finds 0.78 of the ten best for a question, against
0.89 among LoCoMo's turns and 0.93 here. Independent noise around centres is too easy: HNSW finds
all of them at ef 64.
Texts: word ranks follow Zipf's law over a vocabulary that grows by Heaps' law. The first ranks are
English stop words, the others are made of syllables. One word in five belongs to the subject.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench import report
from edgemem.language import STOP_WORDS, words

DIM = 384
CHUNK = 10_000
MEAN = 0.10  # its share of a vector's squared length, and the cosine of two unrelated vectors
# (memories per subject on average, share of its centre); the rest is a memory's own part.
LEVELS = ((2000, 0.08), (300, 0.10), (50, 0.14), (8, 0.16))
OWN = 1 - MEAN - sum(share for _, share in LEVELS)
# A question keeps this share of the memory's own part, and adds noise of that length.
KEPT, ADDED = 0.3, 0.8
FLATTER = 1.5  # a word of rank r occurs as 1 / (r + FLATTER)
HEAPS_K, HEAPS_BETA = 8.3, 0.55  # n words of text have K·n^β distinct words
TOPIC_WORDS, TOPIC_SHARE = 12, 0.2
LENGTHS = (8, 20)  # words per memory

ONSETS = "bl br dr fl fr gl gr kl kr pl pr sk sl sn tr".split()  # two syllables make no real name
SYLLABLES = [onset + vowel for onset in ONSETS for vowel in "aeiou"]
STOPS = sorted(STOP_WORDS)
SPEAKERS = 8

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """n memories. vectors: (n, 384) float32 of length 1. texts, speakers: n each.

    subjects: (n,) each memory's smallest subject, as a row of `centres`. centres: (c, 384) float32.
    """

    vectors: FloatArray
    texts: list[str]
    speakers: list[str]
    subjects: IntArray
    centres: FloatArray


@dataclass(frozen=True)
class Query:
    """A question about one memory. vector: (384,) float32 of length 1. target: its row."""

    vector: FloatArray
    text: str
    target: int


def corpus(n: int, *, seed: int = 0) -> Corpus:
    """n memories, n >= 1, fixed by the seed up to rounding. A million: 18 s of one core, 2 GB."""
    if n < 1:
        raise ValueError(f"n is {n}; it must be 1 or more")
    rng = np.random.default_rng([seed, 0])
    draw = _Spectrum(seed).draw
    mean = draw(rng, 1)
    centres = np.float32(np.sqrt(MEAN)) * mean / np.linalg.norm(mean)
    for size, share in LEVELS:
        outer = _zipf(rng, max(4, n // size), len(centres))
        centres = centres[outer] + np.float32(np.sqrt(share)) * draw(rng, len(outer))
    subjects = _zipf(rng, n, len(centres))
    vectors = np.empty((n, DIM), np.float32)
    for start in range(0, n, CHUNK):
        some = subjects[start : start + CHUNK]
        made = centres[some] + np.float32(np.sqrt(OWN)) * draw(rng, len(some))
        vectors[start : start + CHUNK] = made / np.linalg.norm(made, axis=1, keepdims=True)
    texts, speakers = _texts(np.random.default_rng([seed, 1]), outer[subjects])
    return Corpus(vectors, texts, speakers, subjects, centres)


def queries(of: Corpus, count: int, *, seed: int = 0) -> list[Query]:
    """Questions about memories drawn at random.

    A question's vector has the memory's subject and a cosine of about 0.63 with the memory, as a
    LoCoMo question with its nearest turn. Its text has the speaker, about half of the memory's
    words and one word of another memory (LoCoMo: 5.5 words that are not stop words).
    seed: the seed of the corpus.
    """
    rng = np.random.default_rng([seed, 2])
    targets = rng.integers(len(of.vectors), size=count)
    centres = of.centres[of.subjects[targets]]
    asked = centres + np.float32(KEPT) * (of.vectors[targets] - centres)
    asked += np.float32(ADDED) * _Spectrum(seed).draw(rng, count)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    out = []
    for target, vector in zip(targets.tolist(), asked, strict=True):
        own = of.texts[target].split()
        some = [word for word in own if rng.random() < 0.5] or own[:1]
        stranger = str(rng.choice(of.texts[rng.integers(len(of.texts))].split()))
        text = " ".join([of.speakers[target], *some, stranger]) + "?"
        out.append(Query(vector, text, target))
    return out


class _Spectrum:
    """Draws vectors with decaying variances along random axes."""

    def __init__(self, seed: int) -> None:
        variances = np.exp(-0.3 * np.sqrt(np.arange(DIM)))
        self.deviations = np.sqrt(variances / variances.sum()).astype(np.float32)
        normal = np.random.default_rng([seed, 3]).standard_normal((DIM, DIM))
        self.axes = np.linalg.qr(normal)[0].astype(np.float32)

    def draw(self, rng: np.random.Generator, count: int) -> FloatArray:
        """(count, DIM), of length 1 on average."""
        drawn: FloatArray = rng.standard_normal((count, DIM), dtype=np.float32)
        drawn *= self.deviations
        return drawn @ self.axes


def _texts(rng: np.random.Generator, subjects: IntArray) -> tuple[list[str], list[str]]:
    """Texts and speakers of memories with these subjects."""
    n = len(subjects)
    vocabulary = np.array([_word(rank) for rank in range(_vocabulary(n * max(LENGTHS)) + 1)])
    names = [_word(len(vocabulary) + i).capitalize() for i in range(SPEAKERS)]
    # From rank quantile 0.6 on: the most frequent words belong to no subject.
    shape = (int(subjects.max()) + 1, TOPIC_WORDS)
    topics = _ranks(rng.uniform(0.6, 1.0, shape), len(vocabulary))
    texts: list[str] = []
    so_far = 0
    for start in range(0, n, CHUNK):
        some = subjects[start : start + CHUNK]
        lengths = rng.integers(LENGTHS[0], LENGTHS[1] + 1, len(some))
        total = int(lengths.sum())
        known = HEAPS_K * np.arange(so_far + 1, so_far + total + 1) ** HEAPS_BETA
        ranks = _ranks(rng.random(total), np.maximum(known, len(STOPS)))
        own = np.flatnonzero(rng.random(total) < TOPIC_SHARE)
        of = np.repeat(some, lengths)[own]
        ranks[own] = topics[of, rng.integers(TOPIC_WORDS, size=len(own))]
        said = vocabulary[np.minimum(ranks, len(vocabulary) - 1)].tolist()
        ends = np.cumsum(lengths).tolist()
        texts += [" ".join(said[end - k : end]) for end, k in zip(ends, lengths, strict=True)]
        so_far += total
    return texts, [names[i] for i in _zipf(rng, n, SPEAKERS, FLATTER)]


def _zipf(rng: np.random.Generator, count: int, of: int, a: float = 10) -> IntArray:
    """`count` numbers from 0 to of - 1, distributed by Zipf's law, 1 / (rank + a)."""
    return np.minimum(_ranks(rng.random(count), of, a), of - 1)


def _vocabulary(tokens: int) -> int:
    return max(len(STOPS), int(HEAPS_K * tokens**HEAPS_BETA))


def _ranks(u: NDArray[np.float64], of: float | NDArray[np.float64], a: float = FLATTER) -> IntArray:
    """Ranks in [0, of) by Zipf's law, 1 / (rank + a), from uniform numbers `u` in [0, 1)."""
    return (a * ((of + a) / a) ** u - a).astype(np.int64)


def _word(rank: int) -> str:
    """The word of a rank, distinct for every rank: a stop word, or two or more syllables."""
    if rank < len(STOPS):
        return STOPS[rank]
    left, said = rank - len(STOPS) + len(SYLLABLES), ""
    while left:
        left, syllable = divmod(left, len(SYLLABLES))
        said += SYLLABLES[syllable]
    return said


def _describe(n: int, seed: int) -> dict[str, object]:
    """Most figures named in the module's docstring, from a sample of 2,000 memories."""
    made = corpus(n, seed=seed)
    rng = np.random.default_rng(seed)
    some = rng.permutation(n)[:2000]
    cosines = made.vectors[some] @ made.vectors.T
    cosines[np.arange(len(some)), some] = -1
    best = -np.sort(-cosines, axis=1)[:, :100]
    pairs = cosines[:, rng.permutation(n)[:1000]]
    asked = queries(made, min(1000, n), seed=seed)
    to_query = np.array([made.vectors @ query.vector for query in asked[:200]])
    spectrum = np.linalg.eigvalsh(np.cov(made.vectors[:20_000].T))[::-1]
    said = [words(text) for text in made.texts]
    return {
        "n": n,
        "pair_cosine_mean": float(pairs.mean()),
        **{
            f"neighbour_{k}_cosine_p50": report.percentile(best[:, k - 1].tolist(), 50)
            for k in (1, 10, 100)
            if k <= best.shape[1]
        },
        "query_best_cosine_p50": report.percentile(to_query.max(axis=1).tolist(), 50),
        "query_target_cosine_p50": report.percentile(
            [float(made.vectors[query.target] @ query.vector) for query in asked], 50
        ),
        "variance_of_50_directions": float(spectrum[:50].sum() / spectrum.sum()),
        "words": sum(map(len, said)),
        "different_words": len({word for text in said for word in text}),
        "query_words_mean": float(
            np.mean([sum(w not in STOP_WORDS for w in words(query.text)) for query in asked])
        ),
    }


def main(argv: list[str] | None = None) -> None:
    parser = report.parser("synthetic", __doc__, to_file=False)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000], metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if min(options.sizes) < 100:
        parser.error("--sizes must be 100 or more")
    rows = []
    for n in options.sizes:
        sys.stderr.write(f"{n} memories …\n")
        rows.append(_describe(n, options.seed))
    report.write(options.json, {"seed": options.seed}, rows)


if __name__ == "__main__":
    main()
