"""Sets the weights by which a new fact is compared with an old one (edgemem/data/updates.npz).

    python -m bench.fit_updates --json OUT [--write] [--on]

An expert of the encoder and a small net over its last states (edgemem/stages/update.py) learn the
pairs of models/pairs. harmless.txt, and a twentieth of the memories of each other file but
apart.txt, are not learned. Printed for these: how many endings (DELETE) are found at several
probabilities, and how many other pairs are taken for one. held-out files are not read
(bench.updates counts them).
--write stores the weights; --on continues from the stored ones for one epoch. 12 minutes an
epoch of 17,700 pairs on two cores, half a minute on a GPU. Needs the extra `train`.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bench import report
from bench.lora import Encoder, half, padded, rectangle, train, use_gpu
from corpus.readers import read_pairs
from edgemem.runtime import encoder as runtime
from edgemem.stages.update import EVENTS

PAIRS = report.MODELS / "pairs"
WEIGHTS = report.DATA / "updates.npz"
FOR_CHOICE = "harmless"
APART = 500  # pairs learned from apart.txt, which nobody read one by one
WIDTH, DROPOUT, SMOOTHING = 128, 0.1, 0.02
EPOCHS, BATCH, LR, LR_ON = 3, 24, 1e-3, 5e-4
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)

Pair = tuple[str, str, int]
"""An old memory, a new fact, and the number of its event."""


class Net(nn.Module):
    """A pair's logits, as edgemem/stages/update.py computes them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.hidden, self.event = nn.Linear(3 * 384, WIDTH), nn.Linear(WIDTH, len(EVENTS))
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, tokens: Sequence[Any]) -> Tensor:
        ids, types, real = padded(tokens)
        x = self.encoder(ids, types, real)[-1]
        marks = rectangle([t.special_tokens_mask for t in tokens])
        said = real & (marks == 0)
        means = [_mean(x, said & (types == which)) for which in (0, 1)]
        seen = torch.cat([x[:, 0], *means], -1)
        logits: Tensor = self.event(self.drop(torch.relu(self.hidden(self.drop(seen)))))
        return logits

    def exported(self) -> dict[str, NDArray[np.float16]]:
        return {
            **self.encoder.exported(),
            "hidden.w": half(self.hidden.weight.T),
            "hidden.b": half(self.hidden.bias),
            "event.w": half(self.event.weight.T),
            "event.b": half(self.event.bias),
        }

    def resume(self, kept: Mapping[str, NDArray[np.float16]]) -> None:
        """Take the weights of `exported`."""

        def take(parameter: Tensor, name: str) -> None:
            parameter.copy_(torch.tensor(kept[name].astype(np.float32)))

        self.encoder.resume(kept)
        with torch.no_grad():
            for name, layer in (("hidden", self.hidden), ("event", self.event)):
                take(layer.weight.T, f"{name}.w")
                take(layer.bias, f"{name}.b")


def _mean(x: Tensor, where: Tensor) -> Tensor:
    weight = where[..., None].float()
    return (x * weight).sum(1) / weight.sum(1).clamp(min=1)


def pairs(file: Path) -> list[Pair]:
    return [(s.memories[0], s.fact, EVENTS.index(s.event)) for s in read_pairs(file)]


def split(seed: int = 0) -> tuple[list[Pair], dict[str, list[Pair]]]:
    """The pairs to learn, and by file the pairs to count with."""
    draw = random.Random(seed)
    learned: list[Pair] = []
    apart: dict[str, list[Pair]] = {}
    for file in sorted(PAIRS.glob("*.txt")):
        if file.stem.startswith("held-out"):
            continue
        found = pairs(file)
        if file.stem == FOR_CHOICE:
            apart[file.stem] = found
        elif file.stem == "apart":
            learned += draw.sample(found, APART)
        else:
            for pair in found:
                kept = zlib.crc32(pair[0].encode()) % 20 == 0  # independent of the other files
                (apart.setdefault(file.stem, []) if kept else learned).append(pair)
    return learned, apart


def fit(
    net: Net, learned: Sequence[Pair], encoder: runtime.Encoder, epochs: int, lr: float
) -> None:
    tokens = [encoder.encode(memory, fact) for memory, fact, _ in learned]

    def loss_of(batch: list[int]) -> Tensor:
        wanted = torch.tensor([learned[i][2] for i in batch])
        return F.cross_entropy(net([tokens[i] for i in batch]), wanted, label_smoothing=SMOOTHING)

    lengths = [len(t.ids) for t in tokens]
    train(net, [(net, lr)], lengths, loss_of, epochs=epochs, size=BATCH)


def counted(net: Net, kept: Sequence[Pair], encoder: runtime.Encoder) -> dict[str, Any]:
    """For each threshold the endings found, and the other pairs taken for one."""
    with torch.no_grad():
        ending = np.array(
            [
                float(net([encoder.encode(memory, fact)]).softmax(-1)[0, EVENTS.index("DELETE")])
                for memory, fact, _ in kept
            ]
        )
    is_end = np.array([event == EVENTS.index("DELETE") for _, _, event in kept])
    return {
        "endings": int(is_end.sum()),
        "others": int((~is_end).sum()),
        "found; wrong": {
            str(t): [int((ending[is_end] >= t).sum()), int((ending[~is_end] >= t).sum())]
            for t in THRESHOLDS
        },
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("fit_updates", __doc__)
    parser.add_argument("--write", action="store_true", help="store the weights in the package")
    parser.add_argument("--on", action="store_true", help="go on from the stored weights")
    options = parser.parse_args(argv)
    use_gpu()
    encoder = runtime.Encoder.load()
    learned, apart = split()
    torch.manual_seed(0)
    net = Net()
    if options.on:
        net.resume(np.load(WEIGHTS))
    fit(net, learned, encoder, 1 if options.on else EPOCHS, LR_ON if options.on else LR)
    rows = [{"file": name, **counted(net, kept, encoder)} for name, kept in apart.items()]
    for row in rows:
        print(row)
    if options.write:
        np.savez_compressed(WEIGHTS, **net.exported())
    report.write(options.json, {"learned": len(learned), "on": options.on}, rows)


if __name__ == "__main__":
    main()
