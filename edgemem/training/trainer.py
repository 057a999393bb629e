"""Training one expert: the loop, its schedule, its checkpoints, the best adapter's file.

Workers of a Ray cluster may compute the rows of a step; the result is that of one machine. Each
machine needs edgemem, and the base model's file at the same path. Owns ray (extra `fleet`), whose
usage reports are switched off. Ray's ports are open to the cluster's network, even for `local`, so
the network must be a trusted one.
Source: MemLoRA, appendix B, algorithm B1; its search over settings is left to the caller.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.config import require
from edgemem.errors import AdapterError, EdgememError, InputError, ModelError
from edgemem.runtime.models import known_sha256, sha256_of
from edgemem.training import adapters, lora
from edgemem.training.examples import Example, Row, Stage, Tokens, rows, tokenized

__all__ = ["Expert", "Plan", "Progress", "Workers", "checkpoint_of", "cluster", "split"]
__all__ += ["targets", "train", "workers"]

Share = tuple[Row, int | None, int]
"""A row, the seed of its dropout (None: validation), and how many target tokens the step has."""
Arrays = dict[str, NDArray[np.float32]]
Workers = Callable[[Arrays, Sequence[Share]], Iterable[tuple[float, Arrays]]]
"""From an adapter's values and shares of a step: each share's loss and gradients, in order."""

LAYERS = {"qv": lora.QV, "all": lora.ALL_LINEAR}
_LAYERS_OF: dict[Stage, str] = {
    "extraction": "qv",
    "update": "qv",
    "generation": "all",
    "reply": "all",
    "talk": "all",
    "intent": "qv",
    "vision": "all",
}
WARMUP_STEPS = 10
LAST_LR = 0.1  # share of the highest
MAX_GRADIENT_NORM = 1.0
_HOW_LONG = ("minutes", "epochs", "patience", "threads")  # a resumed run may change these


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train. layers: which get an adapter, a key of LAYERS; None is the stage's default.

    lr: the highest learning rate. batch: examples of a step. minutes: wall-clock limit, in which
    the schedule ends; None is what the epochs take. every: steps between validations, each with a
    checkpoint. patience: validations without a better loss after which training ends.
    valid_examples: most examples that a validation reads. row_tokens: most tokens of a forward
    pass. precision: as `lora.load_base` takes it. threads: None is one for each core.
    """

    layers: str | None = None
    lr: float = 1e-3
    batch: int = 8
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


@dataclass(slots=True)
class _State:
    """A run's state, which a checkpoint stores.

    tokens: prompt and target tokens of examples trained on. loss: of the last steps, smoothed, per
    target token. first_loss, valid_loss: of the validation before training, and of the last one.
    best_loss: the lowest of them, whose adapter is in the file. worse: validations since then.
    """

    step: int = 0
    elapsed_s: float = 0.0
    tokens: int = 0
    stepping_s: float = 0.0
    loss: float = math.nan
    first_loss: float = math.nan
    valid_loss: float = math.nan
    best_loss: float = math.inf
    worse: int = 0
    judging_s: float = 0.0
    judged_at_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / max(1e-9, self.stepping_s)

    def stepped(self, batch: Sequence[Tokens], loss: float, seconds: float) -> None:
        self.loss = loss if math.isnan(self.loss) else 0.9 * self.loss + 0.1 * loss
        self.step += 1
        self.tokens += sum(map(len, batch))
        self.stepping_s += seconds

    def judge(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise ModelError(
                f"the validation loss is {loss} at step {self.step}; train with a smaller --lr"
            )
        if self.step == 0:
            self.first_loss = loss
        self.valid_loss = loss
        self.worse = 0 if loss < self.best_loss else self.worse + 1
        self.best_loss = min(loss, self.best_loss)


@dataclass(slots=True, kw_only=True)
class Progress(_State):
    """Where a run is. done: share of the plan, 0 to 1. validated: whether valid_loss is new."""

    epoch: float
    done: float
    left_s: float
    validated: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that has ended: what `_State` says of it, and the epochs of the plan that were done.

    ended: "epochs", "minutes" or "patience". bytes: the adapter file's.
    """

    steps: int
    epochs_done: float
    tokens: int
    first_loss: float
    best_loss: float
    tokens_per_s: float
    elapsed_s: float
    ended: str
    bytes: int


def targets(stage: Stage, plan: Plan) -> tuple[str, ...]:
    """Names of the linear layers that the stage's expert changes."""
    return LAYERS[plan.layers or _LAYERS_OF[stage]]


def split(examples: Sequence[Example], seed: int = 0) -> tuple[list[Example], list[Example]]:
    """Training and validation examples: whole groups for validation until a tenth is reached.

    Raises InputError when there are less than two groups.
    """
    groups = sorted({e.group for e in examples})
    if len(groups) < 2:
        found = "all examples are of 1 group, which cannot be split" if groups else "no examples"
        raise InputError(f"{found}; give validation examples of other conversations")
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
    """A step's learning rate. step: counted from 0. done: share of the plan before it, 0 to 1.

    Rises linearly over WARMUP_STEPS, and follows a cosine that ends at LAST_LR of `plan.lr`.
    """
    cosine = LAST_LR + (1 - LAST_LR) * (1 + math.cos(math.pi * min(1.0, done))) / 2
    return plan.lr * cosine * min(1.0, (step + 1) / WARMUP_STEPS)


def checkpoint_of(out: Path) -> Path:
    """Where a run that writes `out` keeps what it takes to go on."""
    return out.with_name(out.name + ".checkpoint")


def train(
    stage: Stage,
    base: Path,
    examples: Sequence[Example],
    valid: Sequence[Example],
    out: Path,
    plan: Plan,
    *,
    mmproj: Path | None = None,
    init: Path | None = None,
    resume: bool = False,
    workers: Workers | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> Outcome:
    """Train a stage's expert on a base GGUF; the best adapter so far is always in `out`.

    examples, valid: of this stage, with no group in common. mmproj: the projector, for examples
    with images. init: an adapter file to begin from. resume: go on from the checkpoint beside
    `out`, if there is one; else `out` may not exist, unless it is `init`. workers: compute the rows
    of a step in other processes (`workers`, below), with the same result. report: called after each
    step. The same seed, data and machine give the same adapter, unless the clock ends the run.
    Raises InputError, ConfigError, ModelError and AdapterError.
    """
    checkpoint = checkpoint_of(out)
    _check_out(out, checkpoint if resume else None, init)
    _check(stage, examples, valid, plan)
    require("train")
    import torch

    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    both = tokenized(base, [*examples, *valid], mmproj)  # in one call, which numbers all images
    learn, judge = both[: len(examples)], both[len(examples) :]
    judge = random.Random(plan.seed).sample(judge, min(len(judge), plan.valid_examples))
    judged = rows(judge, plan.row_tokens)
    expert = Expert(stage, base, plan, workers)
    if init is not None:
        expert.begin_from(init)
    state = _State()
    identity = _identity(stage, base, learn, judge, plan)
    if resume and checkpoint.exists():
        state = expert.load(checkpoint, identity, out)

    per_epoch = math.ceil(len(learn) / plan.batch)
    run = _Run(expert, plan, state, judged, per_epoch, out, checkpoint, identity)
    if math.isnan(state.first_loss):
        run.validate()
        report(run.progress(validated=True))
    ended = "epochs" if state.step >= run.last_step else ""
    while not ended:
        batch = _batch(learn, state.step, plan)
        started = run.elapsed_s()
        loss = expert.step(batch, state.step, learning_rate(plan, state.step, run.done()))
        state.stepped(batch, loss, run.elapsed_s() - started)
        if state.step == run.last_step:
            ended = "epochs"
        elif run.elapsed_s() + state.judging_s >= run.limit_s:
            ended = "minutes"
        due = bool(ended) or run.is_due()
        if due:
            run.validate()
            if not ended and state.worse >= plan.patience:
                ended = "patience"
        report(run.progress(validated=due))
    return run.outcome(ended)


def _batch(learn: Sequence[Tokens], step: int, plan: Plan) -> list[Tokens]:
    """The examples of a step: every epoch has an order of its own, the last batch may be short."""
    epoch, at = divmod(step, math.ceil(len(learn) / plan.batch))
    order = list(range(len(learn)))
    random.Random(f"{plan.seed} {epoch}").shuffle(order)
    return [learn[i] for i in order[at * plan.batch : (at + 1) * plan.batch]]


class _Run:
    """A training under way. judged: the rows of a validation. per_epoch: steps of an epoch."""

    def __init__(
        self, expert: Expert, plan: Plan, state: _State, judged: Sequence[Row], per_epoch: int,
        out: Path, checkpoint: Path, identity: str,
    ) -> None:  # fmt: skip
        self._expert, self._plan, self._state, self._judged = expert, plan, state, judged
        self._per_epoch, self._out = per_epoch, out
        self._checkpoint, self._identity = checkpoint, identity
        self._begun = time.monotonic() - state.elapsed_s
        self.limit_s = math.inf if plan.minutes is None else plan.minutes * 60
        self.last_step = per_epoch * plan.epochs

    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    def done(self) -> float:
        """The share of the plan, 0 to 1."""
        return min(1.0, max(self._state.step / self.last_step, self.elapsed_s() / self.limit_s))

    def is_due(self) -> bool:
        """Whether a validation is due after this step. Under a limit, those of a slow machine may
        not take more than a fifth of the time."""
        state, plan = self._state, self._plan
        rested_s = self.elapsed_s() - state.judged_at_s
        rested = plan.minutes is None or rested_s >= 4 * state.judging_s
        return state.step % plan.every == 0 and rested

    def validate(self) -> None:
        """Judge the expert, write it if it is the best so far, and write a checkpoint."""
        state, started = self._state, self.elapsed_s()
        state.judge(self._expert.mean_loss(self._judged))
        if state.worse == 0:
            self._expert.write(self._out)
        state.judged_at_s, state.judging_s = self.elapsed_s(), self.elapsed_s() - started
        state.elapsed_s = self.elapsed_s()
        self._expert.save(self._checkpoint, self._identity, state, self._out)

    def progress(self, *, validated: bool) -> Progress:
        ahead_s = self.elapsed_s() * (1 / max(self.done(), 1e-9) - 1)
        return Progress(
            **asdict(self._state),
            epoch=self._state.step / self._per_epoch,
            done=self.done(),
            left_s=max(0.0, min(self.limit_s - self.elapsed_s(), ahead_s)),
            validated=validated,
        )

    def outcome(self, ended: str) -> Outcome:
        state = self._state
        return Outcome(
            steps=state.step,
            epochs_done=state.step / self._per_epoch,
            tokens=state.tokens,
            first_loss=state.first_loss,
            best_loss=state.best_loss,
            tokens_per_s=state.tokens_per_s,
            elapsed_s=self.elapsed_s(),
            ended=ended,
            bytes=self._out.stat().st_size,
        )


class Expert:
    """The model, its adapter and the optimizer. workers: compute the rows; None: this process."""

    def __init__(
        self, stage: Stage, base: Path, plan: Plan, workers: Workers | None = None
    ) -> None:
        import torch

        self._torch: Any = torch
        self._plan, self._workers = plan, workers
        self._model = lora.load_base(base, precision=plan.precision)
        self._shape = adapters.shape_of(base)
        self._tensors = lora.add_lora(
            self._model, targets(stage, plan), rank=plan.rank, alpha=plan.alpha,
            dropout=plan.dropout, seed=plan.seed,
        )  # fmt: skip
        self._optimizer = torch.optim.AdamW(
            self._tensors.values(), lr=plan.lr, betas=(0.9, 0.999), weight_decay=plan.weight_decay
        )

    def begin_from(self, init: Path) -> None:
        """Take an adapter's values; what the adapter lacks stays as it was initialised.

        An adapter of a lower rank fills the first rows of A and columns of B. The others change
        nothing yet, because their B is zero. Raises AdapterError when the adapter has layers that
        this expert lacks, or a higher rank.
        """
        arrays, alpha = adapters.read(init, shape=self._shape)
        most = self._plan.rank
        with self._torch.no_grad():
            for name, values in arrays.items():
                axis = 1 if name.endswith("B") else 0  # of the ranks
                rank, padded = values.shape[axis], list(values.shape)
                padded[axis] = most
                own = list(self._tensors[name].shape) if name in self._tensors else []
                if rank > most or own != padded:
                    raise AdapterError(
                        f"{init} has {name} {values.shape}, where this expert has "
                        f"{tuple(own) or 'no such layer'}; give an adapter of the same base, of "
                        f"rank {most} at most, and with no layers but this expert's"
                    )
                if axis:  # the product keeps its size under this plan's alpha and rank
                    values = values * np.float32(alpha / rank * most / self._plan.alpha)
                n, m = values.shape
                self._tensors[name][:n, :m] = self._torch.from_numpy(values)

    def step(self, batch: Sequence[Tokens], number: int, lr: float) -> float:
        """Take one optimizer step. Returns the batch's loss per target token."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.zero_grad(set_to_none=True)
        targets = sum(e.learned for e in batch)
        # Each row has a seed of its own: the same if resumed, or computed elsewhere.
        seed = self._plan.seed * 1_000_003 + number
        packed = enumerate(rows(batch, self._plan.row_tokens))
        total = sum(self._losses([(row, seed + n * 2**32, targets) for n, row in packed]))
        self._torch.nn.utils.clip_grad_norm_(self._tensors.values(), MAX_GRADIENT_NORM)
        self._optimizer.step()
        return total

    def mean_loss(self, judged: Sequence[Row]) -> float:
        """Loss per target token, without dropout."""
        total = math.fsum(self._losses([(row, None, 1) for row in judged]))
        return total / sum(len(row.labels) for row in judged)

    def _losses(self, shares: Sequence[Share]) -> list[float]:
        """The loss of each share; adds the shares' gradients to the adapter's."""
        if self._workers is None:
            return [self._loss(*share) for share in shares]
        losses = []
        for loss, gradients in self._workers(self._arrays(), shares):
            losses.append(loss)
            for name, gradient in gradients.items():
                tensor = self._tensors[name]
                new = self._torch.tensor(gradient, device=tensor.device)
                tensor.grad = new if tensor.grad is None else tensor.grad + new
        return losses

    def _loss(self, row: Row, seed: int | None, targets: int) -> float:
        learns = seed is not None
        self._model.train(learns)
        with self._torch.set_grad_enabled(learns):
            if seed is not None:
                self._torch.manual_seed(seed)
            loss = lora.loss_sum(self._model, row) / targets
            if learns:
                loss.backward()
        return float(loss.item())

    def share(self, values: Arrays, share: Share) -> tuple[float, Arrays]:
        """What a worker does: the loss and the gradients of a share under these values."""
        self._optimizer.zero_grad(set_to_none=True)
        with self._torch.no_grad():
            for name, tensor in self._tensors.items():
                tensor.copy_(self._torch.tensor(values[name]))
        loss = self._loss(*share)
        found = {n: t.grad.cpu().numpy() for n, t in self._tensors.items() if t.grad is not None}
        return loss, found

    def _arrays(self) -> Arrays:
        return {n: t.detach().cpu().numpy() for n, t in self._tensors.items()}

    def write(self, out: Path) -> None:
        adapters.write(out, self._arrays(), alpha=self._plan.alpha, shape=self._shape)

    def save(self, file: Path, identity: str, state: _State, out: Path) -> None:
        """Write a checkpoint, replacing the file atomically. out: the best adapter's file."""
        temporary = file.with_name(file.name + ".tmp")
        kept = {
            "identity": identity,
            "out_sha256": sha256_of(out),
            "tensors": {n: t.detach() for n, t in self._tensors.items()},
            "optimizer": self._optimizer.state_dict(),
            "state": asdict(state),
        }
        self._torch.save(kept, temporary)
        os.replace(temporary, file)

    def load(self, file: Path, identity: str, out: Path) -> _State:
        """Go back to a checkpoint. out: the best adapter's file.

        Raises InputError when the checkpoint is damaged or of another run, or `out` is not the file
        that this run wrote.
        """
        anew = "or give another --out, and no --resume, to begin anew"
        try:
            kept = self._torch.load(file, weights_only=True)
            found, sha256 = kept["identity"], kept["out_sha256"]
        except (*_NO_CHECKPOINT, pickle.UnpicklingError) as exc:
            raise InputError(
                f"{file} is no checkpoint, or is damaged ({exc!r:.80}); bring it back, {anew}"
            ) from exc
        if found != identity:
            raise InputError(
                f"{file} is of a run with another model, other data or settings; give the same "
                f"ones, {anew}"
            )
        if not out.is_file() or sha256_of(out) != sha256:
            raise InputError(
                f"{out} is not the adapter that {file} goes with; bring that one back, {anew}"
            )
        with self._torch.no_grad():
            for name, tensor in self._tensors.items():
                tensor.copy_(kept["tensors"][name])
        self._optimizer.load_state_dict(kept["optimizer"])
        return _State(**kept["state"])


_NO_CHECKPOINT = (OSError, RuntimeError, EOFError, ValueError, TypeError, LookupError)


def _identity(
    stage: str, base: Path, learn: Sequence[Tokens], judge: Sequence[Tokens], plan: Plan
) -> str:
    """A hash of all that a run depends on, except how long it lasts."""
    settings = {k: v for k, v in asdict(plan).items() if k not in _HOW_LONG}
    read = ([*e.prompt, -1, *e.target, *e.earlier, _digest(e.seen)] for e in (*learn, *judge))
    parts = [stage, known_sha256(base), settings, *read]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _digest(seen: Mapping[int, NDArray[np.float32]]) -> str:
    return hashlib.sha256(b"".join(seen[id].tobytes() for id in sorted(seen))).hexdigest()


def _check_out(out: Path, checkpoint: Path | None, init: Path | None) -> None:
    """Refuse to replace a trained adapter. checkpoint: of a run to go on with, if it exists."""
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent} to write {out.name} to; make it first")
    going_on = checkpoint is not None and checkpoint.exists()
    begun_from = init is not None and init.exists() and out.exists() and out.samefile(init)
    if out.exists() and not (going_on or begun_from):
        lacks = f" ({checkpoint} does not exist)" if checkpoint is not None else ""
        raise InputError(
            f"{out} exists, and a training begun anew would replace it; give another --out, go on "
            f"from its checkpoint with --resume{lacks}, or begin from it with `--init {out}`"
        )


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
    if not 0 <= plan.seed < 2**32:
        raise InputError(f"the seed is {plan.seed}; it must be at least 0 and below {2**32:,}")
    if plan.layers not in (None, *LAYERS):
        raise InputError(f"layers is {plan.layers!r}; allowed: {', '.join(LAYERS)}")
    if not 0.0 <= plan.dropout < 0.99:
        raise InputError(f"dropout is {plan.dropout}; it must be at least 0 and below 0.99")


# -- on a Ray cluster ------------------------------------------------------------------------------

_RESTARTS = 2  # of a worker that died; nothing is lost, as each step sends all values anew
_OBJECTS_BYTES = 256 * 2**20  # of the object store of a `local` cluster


@contextmanager
def cluster(address: str) -> Iterator[Any]:
    """Ray's module, connected. address: `HOST:PORT`, `auto`, or `local` to start a cluster here.

    Raises ConfigError without the extra, EdgememError when there is no cluster or it fails, and
    any EdgememError that a worker raised.
    """
    require("fleet")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    own = {"object_store_memory": _OBJECTS_BYTES, "include_dashboard": False}
    try:
        ray.init(
            address, log_to_driver=False, logging_level="error", **own if address == "local" else {}
        )
    except (ConnectionError, OSError, RuntimeError, ValueError) as exc:
        raise EdgememError(
            f"there is no Ray cluster at {address!r} ({exc!s:.200}); start one with `ray start "
            "--head` and give its HOST:PORT, or give `local`"
        ) from exc
    try:
        yield ray
    except ray.exceptions.RayError as exc:
        cause = getattr(exc, "cause", None) or exc  # what a task raised, without its traceback
        if isinstance(cause, EdgememError):
            raise cause from None
        raise EdgememError(
            f"the Ray cluster at {address!r} failed ({type(cause).__name__}: {cause!s:.300}). "
            "What was done is kept: the same command goes on there, a training with --resume"
        ) from exc
    finally:
        ray.shutdown()


@contextmanager
def workers(address: str, stage: Stage, base: Path, plan: Plan) -> Iterator[Workers]:
    """Workers for `train`: one for each GPU of a cluster.

    Without GPUs, one for every `plan.threads` CPUs (1 by default). Each loads the base model once.
    Raises as `cluster`, InputError on too few CPUs, ModelError when a machine has another base.
    """
    with cluster(address) as ray:
        threads = plan.threads or 1
        has = ray.cluster_resources()
        takes = {"num_gpus": 1} if has.get("GPU") else {"num_cpus": threads}
        count = int(has["GPU"] if has.get("GPU") else has.get("CPU", 0) // threads)
        if count < 1:
            raise InputError(
                f"the Ray cluster at {address!r} has {has.get('CPU', 0):g} CPUs, too few for a "
                f"worker of {threads}; lower --threads"
            )
        actor = ray.remote(max_restarts=_RESTARTS, max_task_retries=_RESTARTS, **takes)(_Worker)
        given = (stage, base, known_sha256(base), plan, threads)
        actors = [actor.remote(*given) for _ in range(count)]

        def compute(values: Arrays, shares: Sequence[Share]) -> list[tuple[float, Arrays]]:
            sent = ray.put(values)
            asked = [actors[n % count].share.remote(sent, s) for n, s in enumerate(shares)]
            return list(ray.get(asked))

        yield compute


class _Worker:
    """One process of the cluster, with the base model loaded."""

    def __init__(self, stage: Stage, base: Path, sha256: str, plan: Plan, threads: int) -> None:
        import torch

        if not base.is_file() or known_sha256(base) != sha256:
            raise ModelError(f"{base} of {os.uname().nodename} is not the base model trained on")
        torch.set_num_threads(threads)
        self._expert = Expert(stage, base, plan)

    def share(self, values: Arrays, share: Share) -> tuple[float, Arrays]:
        return self._expert.share(values, share)
