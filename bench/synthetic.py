"""Invented memories to measure speed and size with: vectors and texts, the same for the same seed.

Knows NumPy and the product's stop words; no store, no index, no model. What it invents resembles
4,850 LoCoMo turns (speaker in front) under MiniLM in what decides the cost of a search: how near
and how many the nearest vectors are, what HNSW finds among them, how fast the spectrum decays, how
often words occur and how fast new ones turn up (`python -m bench.synthetic` prints most of that).
It says nothing about the quality of answers: nobody said these words.

Vectors: a common mean, the centres of a subject within a subject within a subject, and what is a
memory's own, all drawn with the spectrum exp(-0.3 √i), turned by a random rotation (int8 and
per-dimension variances must not meet the spectrum's own axes). Sizes: Zipf. One level of clusters
is not enough: HNSW (M 16, ef 10) then finds 0.78 of the ten best for a question, and 0.89 among
LoCoMo's turns; here it is 0.93. Independent noise around centres is too easy: all, at ef 64.
Texts: ranks after Zipf's law from a vocabulary that grows after Heaps', the first ranks being
English's stop words and the others made of syllables; one word in five is the subject's.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench import report
from edgemem.language import STOP_WORDS, words

__all__ = ["DIM", "Corpus", "Query", "corpus", "queries"]

DIM = 384
CHUNK = 10_000
MEAN = 0.10  # its share of a vector's squared length, and the cosine of any two
# Memories to a subject, on average, and the share of its centre; the rest is a memory's own.
LEVELS = ((2000, 0.08), (300, 0.10), (50, 0.14), (8, 0.16))
OWN = 1 - MEAN - sum(share for _, share in LEVELS)
# Of what a memory has for itself a question keeps this, and adds something of that length.
KEPT, ADDED = 0.3, 0.8
FLATTER = 1.5  # a word of rank r occurs as 1 / (r + FLATTER)
HEAPS_K, HEAPS_BETA = 8.3, 0.55  # n words of text have K·n^β different ones
TOPIC_WORDS, TOPIC_SHARE = 12, 0.2
LENGTHS = (8, 20)  # words to a memory

ONSETS = "bl br dr fl fr gl gr kl kr pl pr sk sl sn tr".split()  # two such make no name
SYLLABLES = [onset + vowel for onset in ONSETS for vowel in "aeiou"]
STOPS = sorted(STOP_WORDS)
SPEAKERS = 8

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """n memories. vectors: (n, 384) float32 of length 1. texts, speakers: n each.

    subjects: (n,) the row of its smallest subject in centres: (c, 384) float32.
    """

    vectors: FloatArray
    texts: list[str]
    speakers: list[str]
    subjects: IntArray
    centres: FloatArray


@dataclass(frozen=True)
class Query:
    """A question about one memory. vector: (384,) float32 of length 1. target: its position."""

    vector: FloatArray
    text: str
    target: int


def corpus(n: int, *, seed: int = 0) -> Corpus:
    """n memories, n >= 1. A million: 18 s of one core, 2 GB. A seed fixes them, up to rounding."""
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
    """Questions about memories drawn at random: a vector of the same subject, whose cosine with the
    memory's is about 0.63, as a LoCoMo question's with its nearest turn; the speaker, about half of
    the memory's words, and one of another (LoCoMo: 5.5 words that are no stop words).

    seed: the one that the corpus was made with.
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
    # Not the most frequent words, which belong to no subject.
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
    """`count` numbers from 0 to of - 1."""
    return np.minimum(_ranks(rng.random(count), of, a), of - 1)


def _vocabulary(tokens: int) -> int:
    return max(len(STOPS), int(HEAPS_K * tokens**HEAPS_BETA))


def _ranks(u: NDArray[np.float64], of: float | NDArray[np.float64], a: float = FLATTER) -> IntArray:
    """Ranks from 0 on, below `of`: from uniform numbers to Zipf's law, 1 / (rank + a)."""
    return (a * ((of + a) / a) ** u - a).astype(np.int64)


def _word(rank: int) -> str:
    """The word of a rank: a stop word, or two syllables and more; another for every rank."""
    if rank < len(STOPS):
        return STOPS[rank]
    left, said = rank - len(STOPS) + len(SYLLABLES), ""
    while left:
        left, syllable = divmod(left, len(SYLLABLES))
        said += SYLLABLES[syllable]
    return said


def _describe(n: int, seed: int) -> dict[str, object]:
    """The figures that the module's docstring speaks of, from a sample of 2,000."""
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
    parser = argparse.ArgumentParser(
        prog="python -m bench.synthetic", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000], metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="-", metavar="OUT", help="a file (default: stdout)")
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
