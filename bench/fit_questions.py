"""Sets the weights that tell which relations a question asks for (bench/relations/questions.npz).

    python -m bench.fit_questions --json OUT [--write]

An expert of the encoder, and for each label a logistic regression over the mean of the encoder's
last states (`bench.graph.asked`), learn the questions of bench/relations/questions-*.txt, lines of
`LABEL … | QUESTION`. One question in twenty is held out. Printed for these: the share whose
likeliest label is asked for; the share whose labels are all right at a probability of 0.5; and of
those that ask for no label the share without any above 0.5. --write stores the weights. 24 minutes
beside another fit. Needs the extra `train`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bench import report
from bench.graph import QUESTIONS as WEIGHTS
from bench.lora import Encoder, half, padded, train
from edgemem.pipeline.graph import LABELS
from edgemem.runtime import encoder as runtime

HERE = Path(__file__).resolve().parent / "relations"
EPOCHS, BATCH, LR, LR_REGRESSION = 4, 32, 1e-3, 1e-2

Asked = tuple[str, list[float]]
"""A question, and 1 for each label that it asks for."""


class Net(nn.Module):
    """A question's logits, as `bench.graph.asked` computes them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.label = Encoder(), nn.Linear(384, len(LABELS))

    def forward(self, tokens: Sequence[Any]) -> Tensor:
        ids, types, real = padded(tokens)
        x = self.encoder(ids, types, real)[-1] * real[..., None]
        logits: Tensor = self.label(x.sum(1) / real.sum(1, keepdim=True))
        return logits

    def exported(self) -> dict[str, NDArray[np.float16]]:
        label = {"label.w": half(self.label.weight.T), "label.b": half(self.label.bias)}
        return {**self.encoder.exported(), **label}


def read(file: Path) -> list[Asked]:
    """The questions of a file. Raises ValueError, naming the line, if a line has another form."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        labels, bar, question = line.partition(" | ")
        if not bar or not {*labels.split()} <= {*LABELS, "none"}:
            raise ValueError(f"{file}: {line!r} is no `LABEL … | QUESTION`")
        found.append((question, [float(label in labels.split()) for label in LABELS]))
    return found


def fit(learned: Sequence[Asked], encoder: runtime.Encoder) -> Net:
    torch.manual_seed(0)
    net = Net()
    tokens = [encoder.encode(question) for question, _ in learned]

    def loss_of(batch: list[int]) -> Tensor:
        logits = net([tokens[i] for i in batch])
        wanted = torch.tensor([learned[i][1] for i in batch])
        return F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / len(batch)

    rates = [(net.encoder, LR), (net.label, LR_REGRESSION)]
    train(net, rates, [len(t.ids) for t in tokens], loss_of, epochs=EPOCHS, size=BATCH)
    return net


def counted(net: Net, kept: Sequence[Asked], encoder: runtime.Encoder) -> dict[str, Any]:
    with torch.no_grad():
        chances = net([encoder.encode(question) for question, _ in kept]).sigmoid()
    wanted = torch.tensor([labels for _, labels in kept])
    some = wanted.sum(1) > 0
    best = chances[some].argmax(1, keepdim=True)
    return {
        "questions": len(kept),
        "likeliest": round(float(wanted[some].gather(1, best).mean()), 3),
        "all_likely": round(
            float(((chances > 0.5).float() == wanted)[some].all(1).float().mean()), 3
        ),
        "none": round(float((chances[~some].amax(1) < 0.5).float().mean()), 3),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("fit_questions", __doc__)
    parser.add_argument("--write", action="store_true", help="store the weights in the package")
    options = parser.parse_args(argv)
    encoder = runtime.Encoder.load()
    found = [asked for file in sorted(HERE.glob("questions-*.txt")) for asked in read(file)]
    kept = [each for each in found if zlib.crc32(each[0].encode()) % 20 == 0]
    learned = [each for each in found if zlib.crc32(each[0].encode()) % 20]
    net = fit(learned, encoder)
    rows = [counted(net, kept, encoder)]
    report.console.print(rows[0])
    if options.write:
        np.savez_compressed(WEIGHTS, **net.exported())
    report.write(options.json, {"learned": len(learned), "epochs": EPOCHS}, rows)


if __name__ == "__main__":
    main()
