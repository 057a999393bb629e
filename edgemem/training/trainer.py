"""Training one expert: the loop, its schedule, its checkpoints, the best adapter kept.

Knows examples, packed rows and a model with adapters; knows no terminal: it reports progress to
whoever asked. Imports torch late (extra `train`).
Source: MemLoRA, appendix B, algorithm B1; its search over settings is left to the caller.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgemem.errors import InputError
from edgemem.training import adapterfile, lora
from edgemem.training.examples import Example, Stage
from edgemem.training.extra import require
from edgemem.training.packing import Row, Tokens, rows
from edgemem.training.tokens import tokenized

__all__ = ["TARGETS", "Outcome", "Plan", "Progress", "learning_rate", "split", "train"]

TARGETS: dict[Stage, tuple[str, ...]] = {
    "extraction": lora.QV,
    "update": lora.QV,
    "generation": lora.ALL_LINEAR,
}
WARMUP_STEPS = 10
LAST_LR = 0.1  # of the highest
_HOW_LONG = ("minutes", "epochs", "patience", "threads")  # a resumed run may change these


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train. lr: the highest learning rate; batch: examples of a step.

    minutes: wall-clock limit that the schedule is planned to end in; None is what the epochs take.
    every: steps between validations, each with a checkpoint; patience: validations without a better
    loss before it ends; valid_examples: most that a validation reads; row_tokens: of one pass.
    threads: None is one for each core.
    """

    lr: float = 1e-3
    batch: int = 16
    epochs: int = 50
    minutes: float | None = None
    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.1
    weight_decay: float = 0.01
    seed: int = 0
    every: int = 25
    patience: int = 8
    valid_examples: int = 64
    row_tokens: int = 1024
    precision: str = "auto"
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is. done: share of the plan, 0 to 1. loss: of the last steps, per target token.

    tokens_per_s: prompt and target tokens of examples trained on. valid_loss: the last one;
    best_loss: the lowest, whose adapter is in the file. validated: whether it is new.
    """

    step: int
    epoch: float
    done: float
    loss: float
    valid_loss: float
    best_loss: float
    tokens_per_s: float
    left_s: float
    validated: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that has ended. first_loss, best_loss: of validation, before and at its best.

    ended: "epochs", "minutes" or "patience".
    """

    steps: int
    epochs: float
    first_loss: float
    best_loss: float
    tokens_per_s: float
    elapsed_s: float
    ended: str
    bytes: int


def split(examples: Sequence[Example], seed: int = 0) -> tuple[list[Example], list[Example]]:
    """Training and validation examples: whole groups for validation until a tenth is reached.

    Raises InputError when there is one group only.
    """
    groups = sorted({e.group for e in examples})
    if len(groups) < 2:
        raise InputError(
            f"the examples are of {len(groups)} group, which cannot be split; give validation "
            "examples of other conversations"
        )
    random.Random(seed).shuffle(groups)
    held: set[str] = set()
    for group in groups[:-1]:
        held.add(group)
        if sum(e.group in held for e in examples) * 10 >= len(examples):
            break
    return (
        [e for e in examples if e.group not in held],
        [e for e in examples if e.group in held],
    )


def learning_rate(plan: Plan, step: int, done: float) -> float:
    """Of a step counted from 0, done being the share of the plan behind it, 0 to 1.

    Linear over the first steps, then a cosine that ends at a tenth.
    """
    cosine = LAST_LR + (1 - LAST_LR) * (1 + math.cos(math.pi * min(1.0, done))) / 2
    return plan.lr * cosine * min(1.0, (step + 1) / WARMUP_STEPS)


def train(
    stage: Stage,
    base: Path,
    examples: Sequence[Example],
    valid: Sequence[Example],
    out: Path,
    plan: Plan,
    *,
    init: Path | None = None,
    resume: bool = False,
    report: Callable[[Progress], None] = lambda _: None,
) -> Outcome:
    """Train a stage's expert on a base GGUF; the best adapter so far is always in `out`.

    examples, valid: of this stage, with no group in common. init: an adapter file to begin from.
    resume: go on from the checkpoint beside `out`, if there is one. The same seed, data and machine
    give the same adapter, unless the clock ends the run. Raises InputError, ConfigError, ModelError
    and AdapterError.
    """
    _check(stage, examples, valid, plan)
    require()
    import torch

    learn, judge = tokenized(base, examples), tokenized(base, valid)
    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    judge = random.Random(plan.seed).sample(judge, min(len(judge), plan.valid_examples))
    judged = rows(judge, plan.row_tokens)
    model = lora.load_base(base, precision=plan.precision)
    shape = adapterfile.Shape(
        adapterfile.architecture(base),
        model.config.num_hidden_layers,
        model.config.num_attention_heads,
        model.config.num_key_value_heads,
    )
    lora.add_lora(
        model, TARGETS[stage], rank=plan.rank, alpha=plan.alpha, dropout=plan.dropout,
        seed=plan.seed,
    )  # fmt: skip
    tensors = lora.lora_tensors(model)
    if init is not None:
        _begin_from(init, tensors, shape, plan)
    optimizer = torch.optim.AdamW(
        tensors.values(), lr=plan.lr, betas=(0.9, 0.999), weight_decay=plan.weight_decay
    )
    checkpoint = out.with_name(out.name + ".checkpoint")
    identity = _identity(stage, base, learn, judge, plan)
    state: dict[str, Any] = {
        "step": 0, "elapsed_s": 0.0, "tokens": 0, "trained_s": 0.0,
        "first": math.nan, "best": math.inf, "worse": 0, "valid": math.nan,
        "judging_s": 0.0, "judged_at": 0.0,
    }  # fmt: skip
    if resume and checkpoint.exists():
        state = _load(torch, checkpoint, identity, tensors, optimizer)

    def save_best() -> int:
        arrays = {n: t.detach().float().cpu().numpy() for n, t in tensors.items()}
        return adapterfile.write(out, arrays, alpha=plan.alpha, shape=shape)

    def validate() -> None:
        started = time.monotonic()
        state["valid"] = _mean_loss(torch, model, judged)
        state["judging_s"], state["judged_at"] = time.monotonic() - started, elapsed()
        if state["step"] == 0:
            state["first"] = state["valid"]
        if state["valid"] < state["best"]:
            state["best"], state["worse"] = state["valid"], 0
            save_best()
        else:
            state["worse"] += 1

    per_epoch = math.ceil(len(learn) / plan.batch)
    last_step = per_epoch * plan.epochs
    limit_s = math.inf if plan.minutes is None else plan.minutes * 60
    begun = time.monotonic() - state["elapsed_s"]
    ended = "epochs"
    losses: list[float] = []

    def elapsed() -> float:
        return time.monotonic() - float(begun)

    def tell(validated: bool) -> None:
        done = progress()
        report(
            Progress(
                step=state["step"],
                epoch=state["step"] / per_epoch,
                done=done,
                loss=sum(losses[-20:]) / max(1, len(losses[-20:])),
                valid_loss=state["valid"],
                best_loss=state["best"],
                tokens_per_s=state["tokens"] / max(1e-9, state["trained_s"]),
                left_s=max(0.0, min(limit_s - elapsed(), elapsed() * (1 - done) / max(done, 1e-9))),
                validated=validated,
            )
        )

    def progress() -> float:
        steps = float(state["step"]) / last_step
        return min(1.0, max(steps, elapsed() / limit_s))

    if state["step"] == 0:
        validate()
        tell(True)
    while state["step"] < last_step:
        step, started = state["step"], time.monotonic()
        epoch, at = divmod(step, per_epoch)
        order = list(range(len(learn)))
        random.Random(f"{plan.seed} {epoch}").shuffle(order)
        chosen = [learn[i] for i in order[at * plan.batch : (at + 1) * plan.batch]]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(plan, step, progress())
        torch.manual_seed(plan.seed * 1_000_003 + step)  # dropout, the same after a resume
        losses.append(_step(torch, model, optimizer, tensors, chosen, plan))
        state["step"] = step + 1
        state["tokens"] += sum(map(len, chosen))
        state["trained_s"] += time.monotonic() - started
        out_of_time = elapsed() + state["judging_s"] >= limit_s
        # Under a limit, a slow machine's validations may not take more than a fifth of the time.
        rested = plan.minutes is None or elapsed() - state["judged_at"] >= 4 * state["judging_s"]
        due = ((step + 1) % plan.every == 0 and rested) or step + 1 == last_step or out_of_time
        if due:
            validate()
            state["elapsed_s"] = elapsed()
            _save(torch, checkpoint, identity, tensors, optimizer, state)
        tell(due)
        if out_of_time:
            ended = "minutes"
            break
        if due and state["worse"] >= plan.patience:
            ended = "patience"
            break
    return Outcome(
        steps=state["step"],
        epochs=state["step"] / per_epoch,
        first_loss=state["first"],
        best_loss=state["best"],
        tokens_per_s=state["tokens"] / max(1e-9, state["trained_s"]),
        elapsed_s=elapsed(),
        ended=ended,
        bytes=out.stat().st_size,
    )


def _step(
    torch: Any, model: Any, optimizer: Any, tensors: dict[str, Any], chosen: list[Tokens],
    plan: Plan,
) -> float:  # fmt: skip
    """One optimizer step; the batch's loss per target token."""
    model.train()
    optimizer.zero_grad(set_to_none=True)
    targets = sum(len(e.target) for e in chosen)
    total = 0.0
    for row in rows(chosen, plan.row_tokens):
        loss = lora.loss_sum(model, row) / targets
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(tensors.values(), 1.0)
    optimizer.step()
    return total


def _mean_loss(torch: Any, model: Any, judged: Sequence[Row]) -> float:
    """Loss per target token, without dropout."""
    model.eval()
    with torch.no_grad():
        total = math.fsum(float(lora.loss_sum(model, row)) for row in judged)
    return total / sum(len(row.labels) for row in judged)


def _check(stage: Stage, examples: Sequence[Example], valid: Sequence[Example], plan: Plan) -> None:
    for what, given in (("training", examples), ("validation", valid)):
        wrong = next((e.stage for e in given if e.stage != stage), None)
        if not given or wrong:
            raise InputError(
                f"the {what} data has {len(given)} examples{f', one of {wrong}' if wrong else ''}; "
                f"give at least one, all of {stage}"
            )
    both = sorted({e.group for e in examples} & {e.group for e in valid})
    if both:
        raise InputError(
            f"{len(both)} groups are in the training and the validation data ({both[0]!r} is "
            "one); a group may be in one of them only, or validation tells nothing"
        )
    numbers = (plan.lr, plan.batch, plan.epochs, plan.rank, plan.every, plan.patience)
    if min(numbers) <= 0 or (plan.minutes is not None and plan.minutes <= 0):
        raise InputError("lr, batch, epochs, minutes, rank, every and patience must be above 0")


def _begin_from(init: Path, tensors: dict[str, Any], shape: adapterfile.Shape, plan: Plan) -> None:
    import torch

    arrays, alpha = adapterfile.read(init, shape=shape)
    wanted = {name: tuple(t.shape) for name, t in tensors.items()}
    if {name: a.shape for name, a in arrays.items()} != wanted:
        raise InputError(
            f"{init} does not have the layers and the rank of this expert ({len(tensors) // 2} "
            f"layers, rank {plan.rank}); give an adapter of the same stage and --rank"
        )
    with torch.no_grad():
        for name, values in arrays.items():
            if name.endswith("B"):  # the product keeps its size under this plan's alpha
                values = values * np.float32(alpha / plan.alpha)
            tensors[name].copy_(torch.from_numpy(values))


# -- checkpoints -----------------------------------------------------------------------------


def _identity(
    stage: str, base: Path, learn: Sequence[Tokens], judge: Sequence[Tokens], plan: Plan
) -> str:
    """Of all that a run depends on but how long it lasts."""
    settings = {k: v for k, v in asdict(plan).items() if k not in _HOW_LONG}
    parts = [stage, base.name, settings, *([*e.prompt, -1, *e.target] for e in (*learn, *judge))]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _save(
    torch: Any, file: Path, identity: str, tensors: dict[str, Any], optimizer: Any,
    state: dict[str, Any],
) -> None:  # fmt: skip
    temporary = file.with_name(file.name + ".tmp")
    torch.save(
        {
            "identity": identity,
            "tensors": {n: t.detach() for n, t in tensors.items()},
            "optimizer": optimizer.state_dict(),
            "state": state,
        },
        temporary,
    )
    os.replace(temporary, file)


def _load(
    torch: Any, file: Path, identity: str, tensors: dict[str, Any], optimizer: Any
) -> dict[str, Any]:
    found = torch.load(file, weights_only=True)
    if found["identity"] != identity:
        raise InputError(
            f"{file} is of a run with other data or settings; give the same ones, or leave out "
            "--resume to begin anew"
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(found["tensors"][name])
    optimizer.load_state_dict(found["optimizer"])
    state: dict[str, Any] = found["state"]
    return state
