"""Sets the weights that tell which relations a question asks for (edgemem/data/questions.npz).

    python -m bench.fit_questions --json OUT [--write]

The questions of bench/relations/questions-*.txt: `LABEL … | QUESTION`, each file by another hand.
For each file is printed what a fit on the others finds: the share of its questions whose likeliest
label is one that is asked for, and of those that ask for none the share for which no label is
likelier than not. --write stores the fit on all. A minute. Needs the extra `train`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn import functional as F

from bench import report
from edgemem.graph.reader import LABELS
from edgemem.runtime.embedder import Embedder

HERE = Path(__file__).resolve().parent / "relations"
WEIGHTS = Path(__file__).resolve().parent.parent / "edgemem" / "data" / "questions.npz"
STEPS, LR, DECAY = 400, 0.5, 1e-5
_console = Console(stderr=True)


def read(file: Path) -> tuple[list[str], Tensor]:
    """The questions of a file, and (n, labels), 1 where a label is asked for. Raises ValueError."""
    questions, wanted = [], []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        labels, bar, question = line.partition(" | ")
        if not bar or not {*labels.split()} <= {*LABELS, "none"}:
            raise ValueError(f"{file}: {line!r} is no `LABEL … | QUESTION`")
        questions.append(question)
        wanted.append([float(label in labels.split()) for label in LABELS])
    return questions, torch.tensor(wanted)


def fit(x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.zeros(x.shape[1], len(LABELS), requires_grad=True)
    bias = torch.full((len(LABELS),), -3.0, requires_grad=True)
    optimizer = torch.optim.Adam([weights, bias], lr=LR)
    for _ in range(STEPS):
        loss = F.binary_cross_entropy_with_logits(x @ weights + bias, wanted, reduction="none")
        total = loss.sum(1).mean() + DECAY * weights.square().sum()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    return weights.detach(), bias.detach()


def counted(x: Tensor, wanted: Tensor, weights: Tensor, bias: Tensor) -> dict[str, Any]:
    chances = torch.sigmoid(x @ weights + bias)
    some = wanted.sum(1) > 0
    best = chances[some].argmax(1, keepdim=True)
    row = {"questions": len(x), "likeliest": round(float(wanted[some].gather(1, best).mean()), 3)}
    if not some.all():
        row["none"] = round(float((chances[~some].amax(1) < 0.5).float().mean()), 3)
    return row


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fit_questions", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", required=True, metavar="OUT", help="file to write")
    parser.add_argument("--write", action="store_true", help="store the weights in the package")
    options = parser.parse_args(argv)
    embedder = Embedder.load()
    x, wanted = {}, {}
    for file in track(sorted(HERE.glob("questions-*.txt")), "embedding", console=_console):
        questions, wanted[file.stem] = read(file)
        x[file.stem] = torch.from_numpy(embedder.embed(questions))
    rows = []
    for name in x:
        others = [other for other in x if other != name]
        fitted = fit(torch.cat([x[o] for o in others]), torch.cat([wanted[o] for o in others]))
        rows.append({"file": name, **counted(x[name], wanted[name], *fitted)})
        _console.print(rows[-1])
    if options.write:
        weights, bias = fit(torch.cat([*x.values()]), torch.cat([*wanted.values()]))
        with WEIGHTS.open("wb") as file:
            np.savez_compressed(file, weights=weights.numpy().astype(np.float16), bias=bias.numpy())
    report.write(options.json, {"questions": sum(map(len, x.values()))}, rows)


if __name__ == "__main__":
    main()
