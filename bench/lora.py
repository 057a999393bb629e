"""The layers of BERT-like encoders in torch, with a trainable low-rank expert.

Computes the same as edgemem/runtime/encoder.py, but over a batch and with dropout in training. Only
the expert's A and B are trained.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bench import report
from edgemem.runtime import models
from edgemem.runtime.encoder import HEADS
from edgemem.runtime.onnxfile import PRODUCTS, Matrix, parameters

RANK, DROPOUT = 16, 0.1
DECAY = 0.01


class _Product(nn.Module):
    """x W + b + (x A) B, where only A and B are trained."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        inputs, outputs = weight.shape
        self.register_buffer("weight", weight.T.contiguous())
        self.register_buffer("bias", bias)
        self.a = nn.Parameter(torch.randn(inputs, RANK) / math.sqrt(inputs))
        self.b = nn.Parameter(torch.zeros(RANK, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + x @ self.a @ self.b  # type: ignore[arg-type]


class Encoder(nn.Module):
    """An encoder from token ids to the hidden states of each layer."""

    def __init__(self, model: str = models.DEFAULT_EMBEDDER) -> None:
        """model: a name in the models manifest."""
        super().__init__()
        of = {name: _tensor(value) for name, value in parameters(models.find(model)).items()}
        layers = sum(name.endswith("query.weight") for name in of)
        # The bundled model uses the tanh approximation of GELU; the other models use exact GELU.
        self._gelu = "tanh" if model == models.DEFAULT_EMBEDDER else "none"
        self._words = of["embeddings.word_embeddings.weight"]
        self._places = of["embeddings.position_embeddings.weight"]
        self._types = of["embeddings.token_type_embeddings.weight"]

        def norm(name: str) -> tuple[Tensor, Tensor]:
            return of[f"{name}.weight"], of[f"{name}.bias"]

        self._first = norm("embeddings.LayerNorm")
        self._norms = [
            (norm(f"{name}.attention.output.LayerNorm"), norm(f"{name}.output.LayerNorm"))
            for name in (f"encoder.layer.{number}" for number in range(layers))
        ]
        self.products = nn.ModuleDict(
            {
                f"{number}_{short}": _Product(
                    of[f"encoder.layer.{number}.{name}.weight"],
                    of[f"encoder.layer.{number}.{name}.bias"],
                )
                for number in range(layers)
                for short, name in PRODUCTS.items()
            }
        )

    def forward(self, ids: Tensor, types: Tensor, real: Tensor) -> list[Tensor]:
        """The hidden states of each layer, (n, t, dim).

        ids, types, real: (n, t); `real` is True at tokens and False at padding.
        """
        x = self._words[ids] + self._places[: ids.shape[1]] + self._types[types]
        x = self._norm(x, self._first)
        seen = []
        for number, (after_attention, after) in enumerate(self._norms):
            x = self._norm(x + self._attended(x, real, number), after_attention)
            inner = F.gelu(self.products[f"{number}_up"](x), approximate=self._gelu)
            x = self._norm(x + self._dropped(self.products[f"{number}_down"](inner)), after)
            seen.append(x)
        return seen

    def _attended(self, x: Tensor, real: Tensor, number: int) -> Tensor:
        n, t, dim = x.shape
        q, k, v = (
            self.products[f"{number}_{short}"](x).view(n, t, HEADS, -1).transpose(1, 2)
            for short in "qkv"
        )
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None, :])
        joined = seen.transpose(1, 2).reshape(n, t, dim)
        return self._dropped(self.products[f"{number}_o"](joined))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, DROPOUT, self.training)

    def _norm(self, x: Tensor, of: tuple[Tensor, Tensor]) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], *of, 1e-12)

    def exported(self) -> dict[str, NDArray[np.float16]]:
        """The expert in the form that edgemem/runtime/encoder.py loads."""
        return {
            f"{name.replace('_', '.')}.{side}": half(getattr(product, side))
            for name, product in self.products.items()
            for side in "ab"
        }

    def resume(self, kept: Mapping[str, NDArray[np.float16]]) -> None:
        """Take the weights of `exported`."""
        with torch.no_grad():
            for name, product in self.products.items():
                for side in "ab":
                    of = kept[f"{name.replace('_', '.')}.{side}"]
                    getattr(product, side).copy_(torch.tensor(of.astype(np.float32)))


def use_gpu() -> None:
    """Create all later tensors of this process on a GPU if there is one."""
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")


def learn(
    model: nn.Module,
    loss: Tensor,
    optimize: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> None:
    """One optimizer and scheduler step on a batch's loss; gradient norms are clipped to 1."""
    optimize.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimize.step()
    schedule.step()


def train(
    net: nn.Module,
    rates: Sequence[tuple[nn.Module, float]],
    lengths: Sequence[int],
    loss_of: Callable[[list[int]], Tensor],
    *,
    epochs: int,
    size: int,
) -> None:
    """Train a net on examples of these lengths, in batches of `size`; leaves it in eval mode.

    rates: as for `optimizer`. loss_of: the loss of the examples with these indices.
    """
    draw = random.Random(0)
    net.train()
    steps = epochs * -(-len(lengths) // size)
    optimize, schedule = optimizer(rates, steps)
    order = (batch for _ in range(epochs) for batch in batches(lengths, size, draw))
    for batch in report.track(order, "fitting", total=steps):
        learn(net, loss_of(batch), optimize, schedule)
    net.eval()


def half(x: Tensor) -> NDArray[np.float16]:
    """A tensor as float16, the type in which experts are stored."""
    made: NDArray[np.float16] = x.detach().cpu().numpy().astype(np.float16)
    return made


def padded(tokens: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """The arguments of `Encoder.forward` for a batch of `tokenizers.Encoding`."""
    ids, types, real = (
        rectangle([getattr(t, name) for t in tokens])
        for name in ("ids", "type_ids", "attention_mask")
    )
    return ids, types, real.bool()


def rectangle(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of unequal length as one tensor, with zeros after the shorter ones."""
    made = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, to in zip(rows, made, strict=True):
        to[: len(row)] = row
    return torch.tensor(made)


def batches(lengths: Sequence[int], size: int, draw: Any) -> Iterator[list[int]]:
    """The indices of all `lengths`, each once, in batches of similar length in random order."""
    order = list(range(len(lengths)))
    draw.shuffle(order)
    near = 20 * size
    made = []
    for start in range(0, len(order), near):
        some = sorted(order[start : start + near], key=lengths.__getitem__)
        made += [some[i : i + size] for i in range(0, len(some), size)]
    draw.shuffle(made)
    yield from made


def optimizer(
    groups: Sequence[tuple[nn.Module, float]], steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW and its schedule. groups: modules, each with its peak learning rate.

    Each learning rate rises for the first tenth of the steps and then falls.
    """
    made = torch.optim.AdamW(
        [{"params": list(module.parameters()), "lr": lr} for module, lr in groups],
        weight_decay=DECAY,
    )
    rates = [lr for _, lr in groups]
    return made, torch.optim.lr_scheduler.OneCycleLR(made, rates, steps, pct_start=0.1)


def _tensor(value: Matrix | NDArray[np.float32]) -> Tensor:
    if isinstance(value, Matrix):
        value = value.int8.astype(np.float32) * value.scale
    return torch.tensor(value)
