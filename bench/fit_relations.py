"""Sets the weights by which facts are read as relations (edgemem/data/relations.npz).

    python -m bench.fit_relations --json OUT [--write] [--on FILE...]

An expert of the encoder and nets over its states (edgemem/pipeline/graph.py) learn the facts of
bench/relations/train-*.txt, and in each epoch copies of them with other names and things. The
negative examples of a fact are some runs of words that are no entity, and the pairs that contain
the likeliest of these runs.

Prints precision, recall and F1 on bench/relations/dev.txt at several thresholds. Only the threshold
is chosen on that file. --write stores the weights. 24 minutes on two cores. --on continues from the
stored weights for one epoch, with the facts of these files and some of the others, and averages
both. Needs the extra `train`.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional as F

from bench import report
from bench.graph import figures, labelled, read_triples
from bench.lora import Encoder, batches, half, learn, optimizer, padded
from edgemem.language import without_pronoun, word_spans
from edgemem.pipeline import graph as reader
from edgemem.pipeline.graph import DISTANCES, LABELS, LAYERS, LONGEST, TYPES, Run
from edgemem.results import Entity
from edgemem.runtime import encoder as runtime
from edgemem.runtime.embedder import MAX_TOKENS
from edgemem.store import NewRelation

HERE = Path(__file__).resolve().parent / "relations"
WEIGHTS = report.DATA / "relations.npz"
WIDTH, DROPOUT = 160, 0.2
EPOCHS, BATCH, LR, NETS_LR = 3, 24, 1e-3, 1.5e-3
ON, OTHERS = 0.3, 1.5
"""With --on: the learning rates' share, and the other facts to each new one."""
KEPT = 0.65
"""With --on: the stored weights' share in the average that is written. Source: WiSE-FT (Wortsman et
al. 2022); the new weights alone read more wordings and lose on dev.txt."""
SWAPPED = 0.7  # share of the names that a copy replaces
NO_ENTITIES, HARD = 45, 4  # runs of a fact that are no entity; the likeliest, which are paired
THRESHOLDS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.48, 0.5)

Fact = tuple[str, list[NewRelation]]


@dataclass(frozen=True)
class Example:
    """A fact of n words and t tokens as numbers.

    tokens: the encoded fact. pooling: (n, t), averages each word's tokens. shapes: (n, 8).
    entities: each run's type, from 1. pairs: the label of source and target, from 1. others: the
    runs that are no entity.
    """

    tokens: Any
    pooling: Tensor
    shapes: Tensor
    entities: dict[Run, int]
    pairs: dict[tuple[Run, Run], int]
    others: list[Run]


# -- examples ----------------------------------------------------------------------------------


def with_others_names(facts: Sequence[Fact], seed: int = 0) -> list[Fact]:
    """Copies of facts in which entities are replaced by others of their type and role."""
    draw = random.Random(seed)
    pool: dict[tuple[Any, ...], list[str]] = defaultdict(list)

    def place(entity: Entity, label: str) -> tuple[Any, ...]:
        told = "" if entity.type in ("person", "place") else label
        return entity.type, told, entity.name[:1].isupper()

    def is_own(name: str) -> bool:
        return name != "User" and not re.search("['’]", name)

    ends = [
        (entity, label)
        for _, triples in facts
        for t in triples
        for entity, label in ((t.source, ""), (t.target, t.label))
        if is_own(entity.name)
    ]
    for entity, label in ends:
        pool[place(entity, label)].append(entity.name)
    made = []
    for fact, triples in facts:
        new: dict[str, str] = {}
        for t in triples:
            for entity, label in ((t.source, ""), (t.target, t.label)):
                known = pool.get(place(entity, label))
                if is_own(entity.name) and entity.name not in new and known:
                    new[entity.name] = (
                        draw.choice(known) if draw.random() < SWAPPED else entity.name
                    )
        if new:
            longest_first = sorted(map(re.escape, new), key=len, reverse=True)
            form = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)")

            def renamed(text: str, form: Any = form, new: dict[str, str] = new) -> str:
                return form.sub(lambda found: new[found[0]], text)

            made.append((renamed(fact), [_renamed(t, renamed) for t in triples]))
    return made


def _renamed(t: NewRelation, renamed: Any) -> NewRelation:
    return NewRelation(
        Entity(renamed(t.source.name), t.source.type),
        t.label,
        Entity(renamed(t.target.name), t.target.type),
    )


def example(fact: str, triples: Sequence[NewRelation], encoder: runtime.Encoder) -> Example | None:
    """A fact as an Example, without triples whose ends are not in it; None if it is too long."""
    words = word_spans(fact)
    tokens = encoder.encode(fact)
    if len(tokens.ids) > MAX_TOKENS:
        return None
    entities: dict[Run, int] = {}
    pairs: dict[tuple[Run, Run], int] = {}
    for t in triples:
        near = sorted(
            ((a, b) for a in _places(fact, words, t.source.name)
             for b in _places(fact, words, t.target.name) if a != b),
            key=lambda ab: abs(ab[0][0] - ab[1][0]),
        )  # fmt: skip
        for a, b in near[:1]:
            entities[a], entities[b] = (
                1 + TYPES.index(t.source.type),
                1 + TYPES.index(t.target.type),
            )
            pairs[a, b] = 1 + LABELS.index(t.label)
    others = [run for run in reader.runs(fact, words) if run not in entities]
    pooling, shapes = reader.pooling(words, tokens.offsets), reader.shapes(fact, words)
    return Example(
        tokens, torch.from_numpy(pooling), torch.from_numpy(shapes), entities, pairs, others
    )


def _places(fact: str, words: Sequence[tuple[int, int]], name: str) -> list[Run]:
    """The runs that are a name, else those like "her father" for "Ana's father"."""
    said = {
        (i, j): fact[words[i][0] : words[j][1]].casefold()
        for i in range(len(words))
        for j in range(i, min(len(words), i + LONGEST))
    }
    whose = re.fullmatch(r".*['’]s? (.+)", name.casefold())
    return [run for run, text in said.items() if text == name.casefold()] or [
        run for run, text in said.items() if whose and without_pronoun(text) == whose[1]
    ]


# -- the nets, as reader.py computes them ------------------------------------------------------


class Nets(nn.Module):
    """The nets over the states of words. width: of one state, with its word's shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(width, WIDTH), nn.LayerNorm(WIDTH)
        self.first, self.last, self.mean = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.length, self.kind = nn.Embedding(LONGEST, WIDTH), nn.Linear(WIDTH, 1 + len(TYPES))
        self.source, self.target = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.middle, self.whole = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.apart = nn.Embedding(2 * DISTANCES + 1, WIDTH)
        self.label = nn.Linear(WIDTH, 1 + len(LABELS))
        self.drop = nn.Dropout(DROPOUT)

    def words(self, states: Tensor) -> Tensor:
        # The last columns are the shapes of words: never dropped.
        hidden, shape = states[..., :-8], states[..., -8:]
        x: Tensor = self.norm(self.into(torch.cat([self.drop(hidden), shape], -1)))
        return x

    def runs(self, x: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors and type logits of runs. of: (m, 3), each run's fact, first and last word."""
        fact, i, j = of.T
        sums = F.pad(x.cumsum(1), (0, 0, 1, 0))
        mean = (sums[fact, j + 1] - sums[fact, i]) / (j - i + 1)[:, None]
        run = torch.tanh(
            self.first(x)[fact, i] + self.last(x)[fact, j] + self.mean(mean) + self.length(j - i)
        )
        return run, self.kind(self.drop(run))

    def pairs(
        self, x: Tensor, real: Tensor, run: Tensor, of: Tensor, a: list[int], b: list[int]
    ) -> Tensor:
        """Label logits of the pairs of runs a[i], b[i]. real: (facts, n), False for padding."""
        rows = of.tolist()
        apart, between = reader.ends(
            [(rows[i][1], rows[i][2]) for i in a], [(rows[i][1], rows[i][2]) for i in b]
        )
        fact = of[a, 0]
        at = torch.arange(x.shape[1])
        first, end = torch.tensor(between).T[..., None]
        middle = _largest(x[fact], (at >= first) & (at < end))
        whole = _largest(x, real)
        hidden = (
            self.source(run)[a] + self.target(run)[b] + self.middle(middle)
            + self.whole(whole)[fact] + self.apart(torch.from_numpy(apart))
        )  # fmt: skip
        logits: Tensor = self.label(self.drop(torch.relu(hidden)))
        return logits

    def exported(self) -> dict[str, NDArray[np.float16]]:
        def weight(layer: nn.Linear) -> Tensor:
            return layer.weight.T

        arrays = {
            "in.w": weight(self.into), "in.b": self.into.bias,
            "norm.w": self.norm.weight, "norm.b": self.norm.bias,
            "first.w": weight(self.first), "last.w": weight(self.last),
            "mean.w": weight(self.mean), "length.w": self.length.weight,
            "run.b": self.first.bias + self.last.bias + self.mean.bias,
            "type.w": weight(self.kind), "type.b": self.kind.bias,
            "source.w": weight(self.source), "target.w": weight(self.target),
            "middle.w": weight(self.middle), "whole.w": weight(self.whole),
            "apart.w": self.apart.weight,
            "pair.b": self.source.bias + self.target.bias + self.middle.bias + self.whole.bias,
            "label.w": weight(self.label), "label.b": self.label.bias,
        }  # fmt: skip
        return {name: half(a) for name, a in arrays.items()}

    def resume(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over the weights of `exported`, and each sum of biases as one of its terms."""
        layers = {
            "in": self.into, "norm": self.norm, "first": self.first, "last": self.last,
            "mean": self.mean, "length": self.length, "type": self.kind, "source": self.source,
            "target": self.target, "middle": self.middle, "whole": self.whole,
            "apart": self.apart, "label": self.label,
        }  # fmt: skip
        sums = {"first": "run.b", "source": "pair.b"}
        with torch.no_grad():
            for name, layer in layers.items():
                weight = torch.from_numpy(arrays[f"{name}.w"].astype(np.float32))
                layer.weight.copy_(weight.T if isinstance(layer, nn.Linear) else weight)
                if not isinstance(layer, nn.Embedding):
                    bias = arrays.get(sums.get(name, f"{name}.b"))
                    layer.bias.zero_()
                    if bias is not None:
                        layer.bias.copy_(torch.from_numpy(bias.astype(np.float32)))


def _largest(x: Tensor, where: Tensor) -> Tensor:
    """The maximum over words for which `where` holds, 0 where there is none."""
    found = x.masked_fill(~where[..., None], -1e4).max(1).values
    return found.masked_fill(~where.any(1)[:, None], 0.0)


class Reader(nn.Module):
    """The encoder with its expert, and the nets over its states."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.nets = Encoder(), Nets(len(LAYERS) * 384 + 8)

    def states(self, batch: Sequence[Example]) -> list[Tensor]:
        """For each fact (n, k): the states and shapes of its words."""
        seen = self.encoder(*padded([e.tokens for e in batch]))
        hidden = torch.cat([seen[number] for number in LAYERS], -1)
        return [
            torch.cat([e.pooling @ hidden[i, : e.pooling.shape[1]], e.shapes], -1)
            for i, e in enumerate(batch)
        ]

    def exported(self) -> dict[str, NDArray[np.float16]]:
        return {**self.encoder.exported(), **self.nets.exported()}

    def resume(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over the weights of `exported`."""
        self.encoder.resume(arrays)
        self.nets.resume(arrays)


def fit(
    model: Reader,
    facts: Sequence[Fact],
    encoder: runtime.Encoder,
    *,
    epochs: int = EPOCHS,
    share: float = 1.0,
    seed: int = 0,
) -> Reader:
    """Train on facts and copies of them. share: of the learning rates."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    model.train()

    def examples(some: Sequence[Fact]) -> list[Example]:
        made = (example(fact, triples, encoder) for fact, triples in some)
        return [e for e in made if e is not None and e.others]

    written = examples(facts)
    steps = epochs * -(-(len(written) + len(with_others_names(facts))) // BATCH)
    rates = [(model.encoder, share * LR), (model.nets, share * NETS_LR)]
    optimize, schedule = optimizer(rates, steps)
    with Progress(console=report.console) as progress:
        task = progress.add_task("fitting", total=steps)
        for epoch in range(epochs):
            some = [*written, *examples(with_others_names(facts, seed=epoch))]
            for places in batches([len(e.tokens.ids) for e in some], BATCH, draw):
                batch = [some[i] for i in places]
                loss = _loss(model.nets, batch, model.states(batch), draw)
                learn(model, loss, optimize, schedule)
                progress.advance(task)
    return model.eval()


def _loss(
    nets: Nets, batch: Sequence[Example], seen: Sequence[Tensor], draw: random.Random
) -> Tensor:
    """The mean over facts of the cross-entropy of their runs' types and their pairs' labels."""
    states = nn.utils.rnn.pad_sequence([*seen], batch_first=True)
    lengths = torch.tensor([len(rows) for rows in seen])
    real = torch.arange(states.shape[1]) < lengths[:, None]
    x = nets.words(states)
    rows, types = [], []
    for number, e in enumerate(batch):
        others = draw.sample(e.others, min(len(e.others), NO_ENTITIES))
        rows += [(number, *run) for run in [*e.entities, *others]]
        types += [*e.entities.values(), *(0 for _ in others)]
    of = torch.tensor(rows)
    run, logits = nets.runs(x, of)
    loss = F.cross_entropy(logits, torch.tensor(types), reduction="sum")
    likely = logits.detach().softmax(-1)[:, 0].tolist()
    a, b, labels = [], [], []
    for number, e in enumerate(batch):
        mine = [i for i, row in enumerate(rows) if row[0] == number]
        wrong = sorted((i for i in mine if not types[i]), key=lambda i: likely[i])[:HARD]
        paired = [i for i in mine if types[i]] + wrong
        for i in paired:
            for j in paired:
                if i != j:
                    a.append(i)
                    b.append(j)
                    labels.append(e.pairs.get((rows[i][1:], rows[j][1:]), 0))
    if a:
        found = nets.pairs(x, real, run, of, a, b)
        loss = loss + F.cross_entropy(found, torch.tensor(labels), reduction="sum")
    return loss / len(batch)


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("fit_relations", __doc__)
    parser.add_argument("--write", action="store_true", help="store the weights in the package")
    parser.add_argument(
        "--on", nargs="+", type=Path, default=[], metavar="FILE", help="go on from stored weights"
    )
    options = parser.parse_args(argv)
    encoder = runtime.Encoder.load()
    torch.manual_seed(0)
    model = Reader()
    written = [fact for file in sorted(HERE.glob("train-*.txt")) for fact in read_triples(file)]
    if options.on:
        model.resume(dict(np.load(WEIGHTS)))
        new = [fact for file in options.on for fact in read_triples(file)]
        rest = [fact for fact in written if fact not in new]
        written = new + random.Random(0).sample(rest, min(len(rest), round(OTHERS * len(new))))
        fit(model, written, encoder, epochs=1, share=ON)
    else:
        fit(model, written, encoder)
    weights = model.exported()
    if options.on:
        with np.load(WEIGHTS) as kept:
            weights = {
                name: (KEPT * kept[name].astype(np.float32) + (1 - KEPT) * new).astype(np.float16)
                for name, new in weights.items()
            }
    reader.expert = lambda _: {n: w.astype(np.float32) for n, w in weights.items()}  # type: ignore[assignment]
    dev = read_triples(HERE / "dev.txt")
    wanted = [labelled(triples) for _, triples in dev]
    rows = []
    for threshold in THRESHOLDS:
        reader._SURE = threshold
        found = [labelled(reader.triples(fact, encoder)) for fact, _ in dev]
        counted = figures(wanted, found)
        rows.append({"threshold": threshold, "facts_learned": len(written), **counted})
    report.write(options.json, {"epochs": EPOCHS}, rows)
    for row in rows:
        report.console.print({key: value for key, value in row.items() if key != "labels"})
    if options.write:
        np.savez_compressed(WEIGHTS, **weights)


if __name__ == "__main__":
    main()
