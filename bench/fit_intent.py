"""Sets the weights that classify a message's intent (edgemem/data/intent.npz).

    python -m bench.fit_intent --json OUT [--write]

A softmax regression predicts what a message wants, a logistic one whether it tells a fact. Both
learn the messages of models/chats, but for those held out, and EXTRA telling ones of
models/conversations, half of them without capitals and marks. Some examples lack the vector, so
that the words alone can decide where another embedding model is used.

Printed for groups left out of the fit: how many messages are classified right; at several
probabilities of telling, how many messages are kept of those that ask and tell, and of those that
only ask (except tasks, which are always kept). Printed for the weights of all groups: how many
telling messages of held-out files are taken to tell nothing, and how many dev questions of
bench/scenarios are classified right. --write stores these weights. Seven minutes. Needs the extra
`train`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import report
from bench.scenarios import read_all
from corpus import annotated, readers
from corpus.annotated import Labelled
from edgemem.config import load_settings
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.onnxfile import Expert
from edgemem.stages.intent import BUCKETS, CLASSES, REMARK, TASKS, Want, decided, features

CHATS, CONVERSATIONS = report.MODELS / "chats", report.MODELS / "conversations"
WEIGHTS = report.DATA / "intent.npz"
EXTRA = 500
ASKING = "earlier-chats.txt"
"""Its messages teach what is wanted alone: "I wanted to follow up on our chat about the roof" tells
nothing new, and looks as news do."""
FOLDS = 5
EPOCHS, LR, WEIGHT_DECAY, BATCH = 60, 3e-3, 1e-2, 256
WITHOUT_VECTOR = 0.2  # of the examples
THRESHOLDS = (0.05, 0.1, 0.15, 0.2)
_OF_KIND: dict[str, Want] = {
    "advice": "task",
    "write": "text",
    "summary": "overview",
    "general": "general",
    "identity": "self",
}

FloatArray = NDArray[np.float32]


def telling(path: Path) -> Iterator[Labelled]:
    """The messages of a file's conversations from which facts were taken."""
    for talk in readers.read_written(path):
        for pair in talk.pairs:
            for source in sorted(set(pair.sources)):
                yield Labelled(pair.messages[source].content, "", None, True, talk.id)


def _class(message: Labelled) -> int:
    return CLASSES.index(message.wants if message.wants or message.tells else REMARK)


class Examples:
    """Labelled messages as arrays.

    vectors: (n, dim) and words: (n, BUCKETS), float32; wants: (n,) classes of CLASSES; tells: (n,).
    """

    def __init__(self, labelled: Sequence[Labelled], embedder: Embedder) -> None:
        self.labelled = labelled
        self.vectors = np.concatenate(
            [
                embedder.embed([m.text for m in labelled[i : i + BATCH]])
                for i in report.track(range(0, len(labelled), BATCH), "embedding")
            ]
        )
        self.words = np.zeros((len(labelled), BUCKETS), np.float32)
        for row, message in zip(self.words, labelled, strict=True):
            buckets, values = features(message.text)
            row[buckets] = values
        self.wants = np.array([_class(m) for m in labelled])
        self.tells = np.array([m.tells for m in labelled])


def fit(made: Examples, rows: Sequence[int]) -> dict[str, FloatArray]:
    """The weights by AdamW on the rows given."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)  # the products are small
    vectors, words = torch.from_numpy(made.vectors[rows]), torch.from_numpy(made.words[rows])
    wants = torch.from_numpy(made.wants[rows])
    tells = torch.from_numpy(made.tells[rows].astype(np.float32))
    of_vector = torch.nn.Linear(vectors.shape[1], len(CLASSES) + 1)
    of_words = torch.nn.Linear(BUCKETS, len(CLASSES) + 1, bias=False)
    parameters = [*of_vector.parameters(), *of_words.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=LR, weight_decay=WEIGHT_DECAY)
    for _ in range(EPOCHS):
        for at in torch.randperm(len(rows)).split(BATCH):
            seen = (torch.rand(len(at), 1) >= WITHOUT_VECTOR).float()
            logits = of_vector(vectors[at] * seen) + of_words(words[at])
            loss = torch.nn.functional.cross_entropy(logits[:, :-1], wants[at])
            loss = loss + torch.nn.functional.binary_cross_entropy_with_logits(
                logits[:, -1], tells[at]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {
        "vector": of_vector.weight.detach().numpy().T,
        "words": of_words.weight.detach().numpy().T,
        "bias": of_vector.bias.detach().numpy(),
    }


def logits_of(made: Examples, weights: Expert, *, vectors: bool = True) -> FloatArray:
    """(n, len(CLASSES) + 1), the last of telling. vectors: False reads the words alone."""
    words = made.words @ weights["words"] + weights["bias"]
    return words + made.vectors @ weights["vector"] if vectors else words


def left_out(made: Examples) -> dict[str, Any]:
    """Figures on the groups that each fold leaves out of its fit."""
    groups = sorted({m.group for m in made.labelled})
    random.Random(0).shuffle(groups)
    fold = {group: i % FOLDS for i, group in enumerate(groups)}
    folds = np.array([fold[m.group] for m in made.labelled])
    logits = np.zeros((len(folds), len(CLASSES) + 1), np.float32)
    words_only = np.zeros_like(logits)
    for i in report.track(range(FOLDS), "folds"):
        weights = fit(made, np.flatnonzero(folds != i).tolist())
        rows = folds == i
        logits[rows] = logits_of(made, weights)[rows]
        words_only[rows] = logits_of(made, weights, vectors=False)[rows]
    right = decided(logits)[0] == made.wants
    asks = ~np.isin(made.wants, [CLASSES.index(want) for want in (None, *TASKS)])
    both, only = asks & made.tells, asks & ~made.tells
    kept = {t: decided(logits, t)[1] for t in THRESHOLDS}
    return {
        "right": round(float(right.mean()), 3),
        "right_words_only": round(float((decided(words_only)[0] == made.wants).mean()), 3),
        "of": len(right),
        "by_want": {
            str(want): [int(right[made.wants == i].sum()), int((made.wants == i).sum())]
            for i, want in enumerate(CLASSES)
        },
        "both_kept": {t: [int(k[both].sum()), int(both.sum())] for t, k in kept.items()},
        "asking_kept": {t: [int(k[only].sum()), int(only.sum())] for t, k in kept.items()},
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("fit_intent", __doc__)
    parser.add_argument("--write", action="store_true", help="store the weights in the package")
    given = parser.parse_args(argv)

    embedder = Embedder.load(load_settings().embedder)
    rng = random.Random(0)
    chats = [path for path in sorted(CHATS.glob("*.txt")) if not path.stem.startswith("held-out")]
    alone = [path for path in chats if readers.is_messages(path)]
    read = {path.name: list(readers.read_messages(path)) for path in alone}
    asking = read.pop(ASKING)
    labelled = [message for messages in read.values() for message in messages]
    talks = [talk for path in chats if path not in alone for talk in readers.read_written(path)]
    labelled += [m for talk in talks for m in annotated.labelled(talk)]
    files = [path for path in sorted(CONVERSATIONS.glob("*.txt")) if readers.is_written(path)]
    held = [path for path in files if path.stem.startswith("held-out")]
    told = [m for path in files if path not in held for m in telling(path)]
    labelled += rng.sample(told, EXTRA)
    bared = list(annotated.bare([*labelled, *asking]))
    made = Examples(bared, embedder)
    result: dict[str, Any] = {"left_out": left_out(made)}
    weights = fit(made, range(len(bared)))
    of_telling = fit(made, range(len(labelled)))
    for name, array in weights.items():
        array[..., -1] = of_telling[name][..., -1]

    unseen = [m for path in held for m in telling(path)]
    unseen += list(annotated.bare(unseen))
    logits = logits_of(Examples(unseen, embedder), weights)
    lost = {t: int((~decided(logits, t)[1]).sum()) for t in THRESHOLDS}
    result["telling_lost"] = {"of": len(unseen), **lost}

    asked = [
        Labelled(question.ask, "", _OF_KIND.get(question.kind, "recall"), False, scenario.name)
        for scenario in read_all()
        if not scenario.frozen
        for question in scenario.questions
    ]
    dev = Examples(asked, embedder)
    right = decided(logits_of(dev, weights))[0] == dev.wants
    result["dev_questions"] = [int(right.sum()), len(right)]
    report.write(given.json, result, [])
    if given.write:
        saved = {name: array.astype(np.float16) for name, array in weights.items()}
        np.savez_compressed(WEIGHTS, embedder=np.array(embedder.model_id), **saved)


if __name__ == "__main__":
    main()
