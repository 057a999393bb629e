"""Sets the experts of the two encoders that a search uses (edgemem/data).

    python -m bench.fit_retrieval minilm|colbert --json OUT [--half 0|1 --to FOLDER] [--write]

The embedder's expert is minilm.npz. The token embedder's is colbert.npz, with the projection of its
vectors in tokens.npz.

The queries are the questions of models/conversations, and the messages of models/chats that need
earlier turns. The loss is -log p of each turn that a query needs, in a soft-max over the scores
times a learned scale. The negatives are the turns of its conversation that it does not need, and,
if the people of its conversation have names, all turns of the batch's other conversations. The
embedder's score is the cosine of two means, the token embedder's the mean over a query's tokens of
the largest cosine (MaxSim). A quarter of the conversations have up to four turns joined into one,
as messages are longer elsewhere. In half of the epochs a conversation's facts are searched too. No
text of LoCoMo, LongMemEval or Mem-Gallery is learned, and no held-out file.

One conversation in twenty is held out; printed is how often its queries find a turn that they need.
--half learns one half of the others, for bench.fit_fusion, which scores each half of ours with
encoders that have not learned it. Wants a GPU, where each of five epochs takes some half a minute
(bench/LOG.md).
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bench import report
from bench.lora import Encoder, half, learn, optimizer, rectangle, use_gpu
from bench.questions import half_of
from corpus import readers
from corpus.annotated import Annotated
from edgemem.retrieval.lexical import search_text
from edgemem.runtime import models
from edgemem.runtime.embedder import (
    DEFAULT_TOKENIZER,
    QUERY_MARK,
    QUERY_TOKENS,
    TEXT_MARK,
    TOKEN_MODEL,
    bundled_tokenizer,
)
from edgemem.stages.intent import TASKS

ENCODERS = {"minilm": models.DEFAULT_EMBEDDER, "colbert": TOKEN_MODEL}
CUT_OFF = 1e-4
EPOCHS, LR, TURNS, QUESTIONS = 5, 5e-4, 400, 500  # TURNS and QUESTIONS: of a batch
SCALES = {"minilm": 30.0, "colbert": 45.0}
JOINED, JOINED_MOST, AS_FACTS, TASK_WEIGHT = 0.25, 4, 0.5, 0.5
MOST_TOKENS, MOST_NEEDED = 250, 6
Ids = list[int]


@dataclass
class Talk:
    """Texts, and for each query which of them it needs.

    named: the people have names, so that texts of other conversations are wrong for sure. facts:
    the texts are facts, not turns. weight: of each query.
    """

    named: bool
    facts: bool
    texts: list[Ids]
    queries: list[Ids] = field(default_factory=list)
    needed: list[list[int]] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)

    def ask(self, query: Ids, needed: Sequence[int], weight: float = 1.0) -> None:
        if needed:
            self.queries.append(query)
            self.needed.append(sorted(set(needed)))
            self.weight.append(weight)


def talks(tokenizer: Any) -> Iterator[tuple[int | None, Talk]]:
    """Each conversation's turns and facts, with its half; None if it is held out."""

    def ids(text: str) -> Ids:
        found: Ids = tokenizer.encode(text, add_special_tokens=False).ids[:MOST_TOKENS]
        return found

    files = report.MODELS.glob("c*/*.txt")  # conversations and chats
    for file in sorted(files):
        if readers.is_messages(file) or file.stem.startswith("held-out"):
            continue
        for talk in readers.read_written(file):
            for made in (_turns(talk, ids), _facts(talk, ids)):
                if made.queries:
                    yield half_of(talk.id), made


def _turns(talk: Annotated, ids: Any) -> Talk:
    said = [str(m["content"]) for m in talk.messages]
    at = {text: i for i, text in reversed(list(enumerate(said)))}
    names = [m.get("name") for m in talk.messages]
    made = Talk(
        any(names),
        False,
        [ids(search_text(text, speaker=name)) for text, name in zip(said, names, strict=True)],
    )
    for question in talk.questions:
        if question.answer is not None:
            made.ask(ids(question.text), [at[e.text] for e in question.evidence if e.text in at])
    for exchange in (exchange for later in talk.later for exchange in later.exchanges):
        needed = [at[text] for text in exchange.evidence if text in at]
        if "overview" not in exchange.wants and len(needed) <= MOST_NEEDED:
            weight = TASK_WEIGHT if exchange.wants in TASKS else 1.0
            made.ask(ids(exchange.text), needed, weight)
    return made


def _facts(talk: Annotated, ids: Any) -> Talk:
    told = [
        (fact, pair.messages[source].content)
        for pair in talk.pairs
        for fact, source in zip(pair.facts, pair.sources, strict=True)
    ]
    named = any(m.get("name") for m in talk.messages)
    made = Talk(named, True, [ids(fact) for fact, _ in told])
    for question in talk.questions:
        if question.answer is not None and len(question.evidence) == 1:
            turn = question.evidence[0].text
            made.ask(ids(question.text), [i for i, (_, of) in enumerate(told) if of == turn])
    return made


class Net(nn.Module):
    """The encoder `kind`, which scores texts for queries."""

    def __init__(self, kind: str, tokenizer: Any) -> None:
        super().__init__()
        self._kind = kind
        self.encoder = Encoder(ENCODERS[kind])
        self.scale = nn.Parameter(torch.tensor(SCALES[kind]))
        self._cls, self._sep = tokenizer.encode("").ids
        marks = tokenizer.encode(string.punctuation, add_special_tokens=False).ids
        self._punctuation = torch.tensor(sorted(set(marks)))
        if kind == "colbert":
            with np.load(report.DATA / "tokens.npz") as kept:
                start = kept["projection"].astype(np.float32)
            self.projection = nn.Parameter(torch.tensor(start))

    def forward(self, queries: Sequence[Ids], texts: Sequence[Ids]) -> Tensor:
        """(q, n), the scores of n texts for q queries."""
        if self._kind == "minilm":
            one, other = (self._means(x) for x in (queries, texts))
            return one @ other.T
        asked, counts = self.vectors([q[: QUERY_TOKENS - 3] for q in queries], QUERY_MARK)
        said, real = self.vectors(texts, TEXT_MARK)

        def part(start: int) -> Tensor:
            cosines = torch.einsum("qid,njd->qnij", asked[start : start + 8], said)
            best = cosines.masked_fill(~real[None, :, None], -2).amax(-1)
            weight = counts[start : start + 8, None].float()
            made: Tensor = (best * weight).sum(-1) / weight.sum(-1)
            return made

        parts = range(0, len(queries), 8)
        return torch.cat([checkpoint(part, i, use_reentrant=False) for i in parts])

    def _states(self, texts: Sequence[Ids], *marks: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = [[self._cls, *marks, *text, self._sep] for text in texts]
        ids, real = rectangle(rows), rectangle([[1] * len(row) for row in rows]).bool()
        return ids, real, self.encoder(ids, torch.zeros_like(ids), real)[-1]

    def _means(self, texts: Sequence[Ids]) -> Tensor:
        _, real, x = self._states(texts)
        weight = real[..., None].float()
        return F.normalize((x * weight).sum(1) / weight.sum(1), dim=-1)

    def vectors(self, texts: Sequence[Ids], mark: int) -> tuple[Tensor, Tensor]:
        ids, real, x = self._states(texts, mark)
        kept = real & ~torch.isin(ids, self._punctuation)
        return F.normalize(x @ self.projection, dim=-1), kept


def joined(talk: Talk, draw: np.random.Generator) -> Talk:
    """The talk with each one to JOINED_MOST texts joined into one."""
    texts: list[Ids] = []
    to: list[int] = []
    start = 0
    while start < len(talk.texts):
        some = talk.texts[start : start + int(draw.integers(1, JOINED_MOST + 1))]
        to += [len(texts)] * len(some)
        texts.append([id for text in some for id in text][:MOST_TOKENS])
        start += len(some)
    needed = [sorted({to[i] for i in turns}) for turns in talk.needed]
    return replace(talk, texts=texts, needed=needed)


def batches(learned: Sequence[Talk], draw: np.random.Generator) -> Iterator[list[Talk]]:
    batch: list[Talk] = []
    for i in draw.permutation(len(learned)):
        talk = learned[i]
        if talk.facts and draw.random() >= AS_FACTS:
            continue
        batch.append(joined(talk, draw) if not talk.facts and draw.random() < JOINED else talk)
        if sum(len(talk.texts) for talk in batch) >= TURNS:
            yield batch
            batch = []
    if batch:
        yield batch


def loss_of(net: Net, batch: Sequence[Talk], draw: np.random.Generator) -> Tensor:
    """See the head of this file."""
    texts = [text for talk in batch for text in talk.texts]
    starts = np.cumsum([0, *(len(talk.texts) for talk in batch)]).tolist()
    rows = [
        (query, start, talk, needed, weight)
        for talk, start in zip(batch, starts, strict=False)
        for query, needed, weight in zip(talk.queries, talk.needed, talk.weight, strict=True)
    ]
    rows = [rows[i] for i in draw.permutation(len(rows))[:QUESTIONS]]
    allowed = np.zeros((len(rows), len(texts)), bool)
    right = np.zeros_like(allowed)
    for row, (_, start, talk, needed, _) in enumerate(rows):
        own = slice(None) if talk.named else slice(start, start + len(talk.texts))
        allowed[row, own] = True
        right[row, [start + i for i in needed]] = True
    logits = net([row[0] for row in rows], texts) * net.scale
    hit, others = torch.tensor(right), torch.tensor(allowed & ~right)
    wrong = logits.masked_fill(~others, -1e4).logsumexp(1, keepdim=True)
    each = -((logits - torch.logaddexp(logits, wrong)) * hit).sum(1) / hit.sum(1)
    weight = torch.tensor([row[4] for row in rows])
    return (each * weight).sum() / weight.sum()


def fit(net: Net, learned: Sequence[Talk]) -> None:
    draw = np.random.default_rng(0)
    net.train()
    plan = [batch for _ in range(EPOCHS) for batch in batches(learned, draw)]
    optimize, schedule = optimizer([(net, LR)], len(plan))
    for batch in report.track(plan, "fitting"):
        learn(net, loss_of(net, batch, draw), optimize, schedule)
    net.eval()


@torch.no_grad()
def hits(net: Net, apart: Sequence[Talk]) -> dict[str, float]:
    """Hit@k: how often one of the first k texts is needed."""
    ranks = []
    for talk in apart:
        order = (-net(talk.queries, talk.texts)).argsort(1).cpu().numpy()
        found = zip(order, talk.needed, strict=True)
        ranks += [int(np.flatnonzero(np.isin(row, needed))[0]) for row, needed in found]
    return {f"hit_at_{k}": round(float(np.mean(np.array(ranks) < k)), 4) for k in (1, 5, 10)}


@torch.no_grad()
def exported(
    net: Net, kind: str, texts: Sequence[Ids]
) -> dict[str, dict[str, NDArray[Any] | np.float64]]:
    """The files of an expert by name.

    The step that quantizes token vectors to int8 clips a share CUT_OFF of the numbers of `texts`.
    """
    made: dict[str, dict[str, NDArray[Any] | np.float64]] = {kind: {**net.encoder.exported()}}
    if kind == "colbert":
        vectors, kept = net.vectors(texts, TEXT_MARK)
        numbers = vectors[kept].abs().cpu().numpy()
        step = np.float64(np.quantile(numbers, 1 - CUT_OFF) / 127)
        made["tokens"] = {"projection": half(net.projection), "step": step}
    return made


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("fit_retrieval", __doc__)
    parser.add_argument("encoder", choices=list(ENCODERS))
    parser.add_argument("--half", type=int, choices=range(2), help="learn this half alone")
    parser.add_argument("--to", type=Path, help="folder for the expert of a half")
    parser.add_argument("--write", action="store_true", help="store it in the package")
    options = parser.parse_args(argv)
    kind = options.encoder
    use_gpu()
    torch.manual_seed(0)
    name = models.entry(ENCODERS[kind]).tokenizer or DEFAULT_TOKENIZER
    tokenizer = bundled_tokenizer(name)
    every = list(talks(tokenizer))
    wanted = range(2) if options.half is None else (options.half,)
    learned = [talk for half, talk in every if half in wanted]
    apart = [talk for half, talk in every if half is None]
    net = Net(kind, tokenizer)
    before = hits(net.eval(), apart)
    fit(net, learned)
    if (folder := report.DATA if options.write else options.to) is not None:
        texts = [text for talk in apart for text in talk.texts][:1000]
        for file, numbers in exported(net, kind, texts).items():
            np.savez_compressed(folder / file, **numbers)
    summary = {"encoder": kind, "talks": len(learned), **hits(net, apart)}
    report.write(options.json, {**summary, **{f"{k}_before": v for k, v in before.items()}}, [])


if __name__ == "__main__":
    main()
