"""The governor: decides whether a message goes to the cloud, what is sent, and at what cost.

decide → choose memories that may be sent → redact → compress if it pays → budget → receipt → send →
restore the placeholders in the answer. Off until configured. Any failure raises a CloudError, after
which the local model answers.

A memory may be sent only if nothing that it is tied to by source turns is marked: its turns, the
facts taken from these turns, the other turns of these facts, and so on. Copies in other turns are
recognised by their words: no text is sent that holds a sentence of a marked text. Invisible
characters, look-alike letters and a phone's apostrophes do not prevent this. A paraphrase is not
recognised. A pattern `image:ID` marks an image: the image, the words said with it and the text in
it stay.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import threading
import time
import tomllib
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgemem.cloud.client import Client, Reply, Request
from edgemem.cloud.names import People
from edgemem.cloud.redact import Redacted, redact
from edgemem.compression.compress import (
    Layout,
    compress,
    estimated_tokens,
    fdtd,
    final_scores,
    group_means,
    relevance,
)
from edgemem.config import CloudSettings, config_dir, expression
from edgemem.errors import (
    CloudDisabled,
    CloudError,
    CloudRejected,
    ConfigError,
    ModelError,
    StoreError,
)
from edgemem.language import (
    APOSTROPHES,
    DIGRAPHS,
    content_words,
    is_unspaced,
    joins_words,
    sentences,
    undisguised,
    words,
)
from edgemem.results import Hit, Scope, to_utc, utc_now
from edgemem.stages.evidence import head, plain
from edgemem.store import Store, receipts
from edgemem.store.receipts import Receipt, Related, marked_texts, marks, related
from edgemem.store.relations import other_names

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["IMAGE", "CloudAnswer", "Governor", "Guard", "Mode", "compressed", "guard"]
__all__ += ["matches", "require_enabled", "status"]

# -- what may never be sent ------------------------------------------------------------------------

IMAGE = "image:"

_MIN_WORDS = 3  # content words; shorter sentences ("Yes, please") are said by everybody
_MIN_CHARACTERS = 6  # the same in scripts without spaces


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules in force at one moment.

    patterns: as in the settings. scopes: marked ones; an id that is None matches all. quotes:
    normalised sentences of marked texts. images: ids of marked images.
    """

    patterns: tuple[str, ...]
    scopes: tuple[Scope, ...]
    quotes: frozenset[str]
    images: frozenset[str] = frozenset()

    def allows(self, text: str) -> bool:
        """Whether a text has no match of a pattern and no sentence of a marked text."""
        if any(matches(pattern, text) for pattern in self.patterns):
            return False
        # The whole text at once, so that a quoted sentence is found however the text is split.
        flat = f" {_normalised(text)} "
        joined = flat.replace(" ", "")
        return not any(quote in flat or quote in joined for quote in self.quotes)

    def allows_scope(self, scope: Scope) -> bool:
        """Whether messages of a scope may be sent at all."""
        return not any(_covers(marked, scope) for marked in self.scopes)

    def check(self, texts: Iterable[str], scope: Scope) -> None:
        """Raises CloudRejected, without the text in its message, unless all texts may be sent."""
        if not self.allows_scope(scope):
            raise CloudRejected(
                "nothing of this user, agent or run may be sent (never_send); it was not sent. "
                "`edgemem cloud never-send` lists what is marked"
            )
        if not all(map(self.allows, texts)):
            raise CloudRejected(
                "this holds what may never be sent (never_send); it was not sent. "
                "`edgemem cloud never-send` lists what is marked"
            )

    def sendable(self, store: Store, memory_ids: Sequence[str]) -> frozenset[str]:
        """Returns the ids of the memories that may be sent."""
        tied = related(store, memory_ids)
        return frozenset(id for id, rows in tied.items() if all(map(self._is_free, rows)))

    def _is_free(self, row: Related) -> bool:
        seen = not self.images.isdisjoint(row.images)
        return not (row.flagged or seen) and self.allows_scope(row.scope) and self.allows(row.text)


def guard(store: Store, patterns: Sequence[str]) -> Guard:
    """Returns the rules in force. patterns: from the settings, added to those in the store."""
    found = marks(store)
    listed = (*patterns, *(mark.pattern for mark in found if mark.pattern is not None))
    given = tuple(pattern for pattern in listed if not pattern.startswith(IMAGE))
    # A person whom a pattern names may have other names.
    aliases = [
        name
        for names in (other_names(store) if given else ())
        if any(matches(pattern, name) for pattern in given for name in names)
        for name in names
    ]
    return Guard(
        patterns=(*given, *aliases),
        scopes=tuple(mark.scope for mark in found if mark.pattern is None),
        quotes=frozenset(quote for text in marked_texts(store) for quote in _quotes(text)),
        images=frozenset(p.removeprefix(IMAGE) for p in listed if p.startswith(IMAGE)),
    )


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern occurs in a text, as written or with disguised characters replaced.

    pattern: a regular expression between slashes, or a keyword, which also matches the beginning of
    a longer word. Case does not matter. An invalid expression matches everything.
    """
    bare, plain = undisguised(pattern)[0], undisguised(text)[0]
    if plain == text.translate(APOSTROPHES) and expression(pattern) is not None:
        bare = pattern.translate(APOSTROPHES)  # "[а-я]" in Latin letters has nearly all characters
    spelled = pattern.translate(DIGRAPHS), text.translate(DIGRAPHS)
    return _is_in(pattern, text) or _is_in(bare, plain) or _is_in(*spelled)


def _is_in(pattern: str, text: str) -> bool:
    if (form := expression(pattern)) is not None:
        try:
            return re.search(form, text, re.I) is not None
        except re.error:
            return True
    parts = re.split(r"[\s_-]+", pattern.strip())
    keyword = r"[\s_-]+".join(map(re.escape, parts))
    before = "" if joins_words(pattern.strip()) else r"(?<![^\W_])"
    return re.search(before + keyword, text, re.I) is not None


def _covers(marked: Scope, scope: Scope) -> bool:
    pairs = zip(astuple(marked), astuple(scope), strict=True)
    return all(one in (None, other) for one, other in pairs)


def _normalised(text: str) -> str:
    return " ".join(words(undisguised(text)[0]))


def _quotes(text: str) -> Iterable[str]:
    for sentence in sentences(text):
        flat = _normalised(sentence)
        if is_unspaced(flat):
            if len(joined := flat.replace(" ", "")) >= _MIN_CHARACTERS:
                yield joined
        elif len(content_words(sentence)) >= _MIN_WORDS:
            yield f" {flat} "


# -- the governor ----------------------------------------------------------------------------------

Mode = Literal["ask", "auto", "off"]

SHOWN = 8  # memories in one call
_MIN_SCORE = 0.004  # score of a memory that is sent (bench/LOG.md, 2026-11-28)
SHOWN_IMAGES = 3
SECOND_PRICE = 0.001  # of a second of the user's waiting, in the price table's currency
IMAGE_TOKENS = 2833
"""Most tokens of an image of low detail: those of gpt-4o-mini (OpenAI, images and vision)."""
GRADIENTS = 0.1  # weight of a sentence's standardised log score, added to its relevance (LOG.md)
_SYSTEM = (
    "You answer a person from their own notes. Texts such as [PERSON_1] or [PHONE_2] stand for "
    "names and numbers that you are not told: repeat them as they are, brackets included. Answer "
    "in one or two short sentences. If the notes do not tell, say so, or answer from general "
    "knowledge."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One call, ready to be sent and not sent yet.

    request: the exact bytes. text: the message in it, after its notes. receipt: what is kept of the
    call; its cost is an upper bound. images: ids of the images that are sent, small and without
    metadata.
    """

    why: str
    request: Request
    text: str
    redacted: Redacted
    receipt: Receipt
    images: tuple[str, ...]

    @property
    def replaced(self) -> dict[str, str]:
        """The text behind each placeholder of the request. Compression drops some of them."""
        return {name: value for name, value in self.redacted.values.items() if name in self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudAnswer:
    """An answer from the cloud.

    text: with the private parts restored. sent: the message and its notes as they were sent. why:
    see `decide`.
    """

    text: str
    sent: str
    why: str
    receipt: Receipt


def require_enabled(settings: CloudSettings) -> None:
    """Raises CloudDisabled, with instructions to set it up, unless a cloud is configured."""
    if not settings.enabled:
        raise CloudDisabled(
            "the cloud is off, and nothing is sent; to switch it on: `edgemem config set "
            "cloud.base_url https://api.openai.com/v1`, `edgemem config set cloud.model "
            "gpt-4o-mini`, `edgemem config set cloud.api_key_env OPENAI_API_KEY`"
        )


def compressed(
    memory: Memory, context: str, question: str, target_tokens: int, *, gradients: bool = False
) -> str:
    """Returns the sentences, or parts of them, that are most relevant to the question.

    gradients: sentences also count by CoreMem's FDTD, which scores how much the local model's loss
    on the question depends on their words. Without a local model only relevance counts.
    """
    scores = None
    if gradients:
        with suppress(ModelError):
            scores = fdtd(memory.engine, context, question)

    def nearness(layout: Layout) -> NDArray[np.float32]:
        near: NDArray[np.float32] = relevance(layout, question, memory.embedder)
        if scores is not None:
            unit_scores, body = final_scores(layout, scores), (~layout.head).astype(np.int64)
            fisher = group_means(unit_scores, layout.sentence, len(layout.turn), body)
            logs = np.log(np.maximum(fisher, 1e-12))
            standard = (logs - logs.mean()) / max(float(logs.std()), 1e-6)
            near += (GRADIENTS * standard).astype(np.float32)
        return near

    return compress(
        [context],
        estimated_tokens,
        target_token=target_tokens,
        scorer=None if scores is None else lambda _: scores,
        relevance=nearness,
    ).compressed_prompt


def status(store: Store, settings: CloudSettings) -> dict[str, Any]:
    """Returns the cloud's settings, whether the key is set, and this month's cost so far.

    left_this_month: None without a budget.
    """
    price = load_prices().get(settings.model or "")
    name, most = settings.api_key_env, settings.monthly_budget
    spent = receipts.spent_since(store, _month_start())
    return {
        "base_url": settings.base_url,
        "model": settings.model,
        "api_key_env": name,
        "key": "none needed" if name is None else "set" if os.environ.get(name) else "missing",
        "input_price_per_million": None if price is None else price.input * 1e6,
        "output_price_per_million": None if price is None else price.output * 1e6,
        "monthly_budget": most,
        "spent_this_month": spent,
        "left_this_month": None if most is None else max(0.0, most - spent),
        "calls": len(receipts.receipts(store)),
        "never_send": len(receipts.marks(store)) + len(settings.never_send),
    }


class Governor:
    """Stands between a Memory and the cloud. Thread-safe. Must be closed.

    settings: None takes the memory's own. dry: only prepare calls, which takes no key. Raises
    CloudDisabled if the cloud or its key is not configured.
    """

    def __init__(
        self,
        memory: Memory,
        settings: CloudSettings | None = None,
        *,
        dry: bool = False,
    ) -> None:
        self.memory = memory
        self.settings = settings or memory.settings.cloud
        require_enabled(self.settings)
        # Gradients map the model a second time, for which a memory limit leaves no room.
        self._gradients = self.settings.compression == "fdtd" and memory.plan is None
        self._price = load_prices().get(self.settings.model or "")
        self._people = People(self.settings.names)
        self._dry = dry
        # A placeholder for the key gives the headers of a real call.
        key = self.settings.api_key_env and "dry" if dry else _api_key(self.settings)
        self._client = Client(self.settings, key)
        self._lock = threading.RLock()

    def decide(self, text: str, confidence: float, mode: Mode = "auto") -> str | None:
        """Returns why a message goes to the cloud ("asked", "rule", "low confidence"), or None.

        confidence: in the local answer, in [0, 1]; the score of the best memory. mode: "ask" always
        sends, "off" never does, "auto" lets the settings decide.
        """
        if mode != "auto":
            return "asked" if mode == "ask" else None
        if any(matches(pattern, text) for pattern in self.settings.ask_when):
            return "rule"
        return "low confidence" if confidence < self.settings.min_confidence else None

    def ask(
        self, question: str, hits: Sequence[Hit] = (), *, scope: Scope, why: str = "asked"
    ) -> CloudAnswer:
        """Prepares and sends a call. Raises CloudError or a subclass."""
        return self.send(self.prepare(question, hits, scope=scope, why=why))

    def prepare(
        self, question: str, hits: Sequence[Hit] = (), *, scope: Scope, why: str = "asked"
    ) -> Outgoing:
        """Returns what would be sent for a message, and sends nothing.

        hits: of a search, best first; those that may not be sent are left out. scope: whose chat it
        is. Raises CloudRejected if the message itself may not be sent.
        """
        with self._lock:
            rules = guard(self.memory.store, self.settings.never_send)
            rules.check([question], scope)
            lines, ids = self._sendable_notes(question, hits, rules)
            self._people.learn(self.memory.store)
            self._people.read(question)
            redacted = redact([*lines, question], self._people.names())
            context, asked = "\n".join(redacted.texts[:-1]), redacted.texts[-1]
            before = _tokens(context)
            context, compress_s = self._shortened(context, asked, before)
            rules.check([context, asked, redacted.restore(context)], scope)
            images = self._images(ids)
            text = f"My notes:\n{context}\n\n{asked}" if context else asked
            parameters = self._parameters(text, list(images.values()))
            uid = uuid.uuid4().hex
            request = self._client.build(parameters, uid)
            receipt = Receipt(
                uid=uid,
                created_at=utc_now(),
                endpoint=str(self.settings.base_url),
                model=str(self.settings.model),
                **asdict(scope),
                memory_ids=ids,
                tokens_before=before,
                tokens_after=_tokens(context),
                compress_s=compress_s,
                sent_bytes=len(request.body),
                sent_sha256=hashlib.sha256(request.body).hexdigest(),
                cost=self._cost_at_most(parameters),
            )
            return Outgoing(
                why=why,
                request=request,
                text=text,
                redacted=redacted,
                receipt=receipt,
                images=tuple(images),
            )

    def send(self, outgoing: Outgoing) -> CloudAnswer:
        """Writes the receipt of a call, and sends it.

        Raises CloudRejected if the budget does not allow the call, CloudError or a subclass if it
        fails, and StoreError if the same call was sent before.
        """
        if self._dry:
            raise CloudDisabled("this Governor is dry and sends nothing; make one without dry=True")
        with self._lock:
            receipt = self._open_receipt(replace(outgoing.receipt, created_at=utc_now()))
            started = time.monotonic()
            try:
                reply = self._client.send(outgoing.request)
            except BaseException as exc:
                billed = not isinstance(exc, CloudError) or exc.may_be_billed
                self._close_receipt(
                    replace(
                        receipt,
                        outcome="unknown" if billed else "refused",
                        cost=receipt.cost if billed or receipt.cost is None else 0.0,
                        seconds=time.monotonic() - started,
                    )
                )
                raise
            receipt = self._close_receipt(self._with_usage(receipt, reply))
            return CloudAnswer(
                text=outgoing.redacted.restore(reply.text),
                sent=outgoing.text,
                why=outgoing.why,
                receipt=receipt,
            )

    def close(self) -> None:
        """Closes the connections to the service."""
        self._client.close()

    def __enter__(self) -> Governor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- what is sent ----------------------------------------------------------------------------

    def _sendable_notes(
        self, question: str, hits: Sequence[Hit], rules: Guard
    ) -> tuple[list[str], tuple[str, ...]]:
        """Returns dated lines of the memories that may be sent, and these memories' ids."""
        from edgemem.pipeline.recall import recall, sources, within

        hits = self._without_images(within(hits, 0.0, least=_MIN_SCORE))
        allowed = rules.sendable(self.memory.store, [hit.id for hit in hits])
        free = [hit for hit in hits if hit.id in allowed]
        found = recall(self.memory, question, free, most=SHOWN, whole=True)
        lines = [head(evidence) + plain(evidence) for evidence in found]
        sent = [(e, line) for e, line in zip(found, lines, strict=True) if rules.allows(line)]
        return [line for _, line in sent], tuple(hit.id for hit in sources([e for e, _ in sent]))

    def _without_images(self, hits: Sequence[Hit]) -> list[Hit]:
        """Returns the hits without what was read or seen in images, unless images may be sent.

        An image keeps the caption that was typed with it. Without one its hit is left out.
        """
        if self.settings.images != "off":
            return list(hits)
        found = []
        for hit in hits:
            if hit.kind == "image":
                turns = self.memory.store.turns(hit.sources).values()
                writers = {"user", *(turn.name or turn.role for turn in turns)}
                image = hit.image
                if image is None or not image.caption or image.caption_by not in writers:
                    continue
                hit = replace(hit, memory=f"Photo: {image.caption}", line=None)
            found.append(hit)
        return found

    def _shortened(self, context: str, question: str, tokens: int) -> tuple[str, float]:
        """Returns the context, compressed if that pays, and the seconds that compression took."""
        if not self._pays(tokens):
            return context, 0.0
        started, target = time.perf_counter(), self.settings.context_tokens
        shorter = compressed(self.memory, context, question, target, gradients=self._gradients)
        return shorter, time.perf_counter() - started

    def _pays(self, tokens: int) -> bool:
        """Whether compressing a context of so many tokens saves at least what it costs.

        It saves the price of the tokens that it removes. It costs the user's time, estimated from
        recent compressions, at SECOND_PRICE per second. It is always tried if the price is unknown,
        or if the user chose gradients and so accepted the time that they take.
        """
        saved, price = tokens - self.settings.context_tokens, self._price
        if saved <= 0 or price is None or self._gradients:
            return saved > 0
        rate_s = receipts.compress_rate(self.memory.store) or 0.0
        return saved * price.input >= tokens * rate_s * SECOND_PRICE

    def _images(self, memory_ids: Sequence[str]) -> dict[str, str]:
        """Returns images of these memories by id, as data URIs; none if the settings forbid it."""
        if self.settings.images == "off":
            return {}
        from edgemem import images as picture

        found: dict[str, str] = {}
        for item in self.memory.store.get(memory_ids).values():
            if item.image is None or len(found) == SHOWN_IMAGES:
                continue
            if (whole := self.memory.image(item.image.id)) is not None:
                encoded = base64.b64encode(picture.outgoing(whole.data)).decode()
                found[whole.id] = f"data:image/jpeg;base64,{encoded}"
        return found

    def _parameters(self, text: str, images: Sequence[str]) -> dict[str, Any]:
        content: str | list[dict[str, Any]] = text
        if images:
            content = [
                {"type": "text", "text": text},
                *({"type": "image_url", "image_url": {"url": u, "detail": "low"}} for u in images),
            ]
        return {
            "model": self.settings.model,
            "messages": [
                {"role": "system", "content": _SYSTEM},
                {"role": "user", "content": content},
            ],
            self.settings.max_tokens_name: self.settings.max_tokens,
        }

    # -- cost and receipts -----------------------------------------------------------------------

    def _cost_at_most(self, parameters: dict[str, Any]) -> float | None:
        if self._price is None:
            return None
        read = sum(_read_tokens(message["content"]) + 8 for message in parameters["messages"])
        return read * self._price.input + self.settings.max_tokens * self._price.output

    def _open_receipt(self, receipt: Receipt) -> Receipt:
        """Stores and returns the receipt of a call. Raises CloudRejected beyond the budget."""
        budget = self.settings.monthly_budget
        if budget is not None and receipt.cost is None:
            raise CloudRejected(
                f"a budget is set, and the price of {self.settings.model!r} is not known, so "
                "nothing is sent; write it to prices.toml in the configuration folder, or unset "
                "cloud.monthly_budget"
            )
        with self.memory.store.transaction() as tx:
            if budget is not None and receipt.cost is not None:
                spent = receipts.spent_since(tx, _month_start())
                if spent + receipt.cost > budget:
                    raise CloudRejected(
                        f"the budget of this month is {budget:g}, {spent:.4f} of it is spent, and "
                        f"this call may cost {receipt.cost:.4f}; it was not sent. Raise "
                        "cloud.monthly_budget, or wait for the next month"
                    )
            receipts.add_receipt(tx, receipt)
        return receipt

    def _with_usage(self, receipt: Receipt, reply: Reply) -> Receipt:
        cost, price = receipt.cost, self._price
        if price is not None and None not in (reply.prompt_tokens, reply.completion_tokens):
            cost = (reply.prompt_tokens or 0) * price.input
            cost += (reply.completion_tokens or 0) * price.output
        return replace(
            receipt,
            outcome="answered",
            cost=cost,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            seconds=reply.seconds,
            attempts=reply.attempts,
        )

    def _close_receipt(self, receipt: Receipt) -> Receipt:
        """Stores the outcome of a call, and returns the receipt.

        If the store fails, the stored cost remains the upper bound. The caller still gets the
        answer, or the error of the call.
        """
        with suppress(StoreError), self.memory.store.transaction() as tx:
            receipts.end_receipt(tx, receipt)
        return receipt


def _tokens(text: str) -> int:
    """Returns an upper estimate of a text's tokens, for any model."""
    return len(estimated_tokens(text))


def _read_tokens(content: str | list[dict[str, Any]]) -> int:
    if isinstance(content, str):
        return _tokens(content)
    return sum(_tokens(part["text"]) if "text" in part else IMAGE_TOKENS for part in content)


def _api_key(settings: CloudSettings) -> str | None:
    name = settings.api_key_env
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key or not key.isprintable() or not key.isascii():
        raise CloudDisabled(
            f"the environment variable {name}, which cloud.api_key_env names, holds no key; set "
            "it, or `edgemem config unset cloud.api_key_env` for a service without keys"
        )
    return key


def _month_start() -> str:
    """Returns the start of this calendar month (UTC), as it is stored."""
    return to_utc(datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0))


# -- prices ----------------------------------------------------------------------------------------

_PRICES = "prices.toml"
_PACKAGED = Path(__file__).parent.parent / "data" / _PRICES


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one input token and one output token, in the table's currency."""

    input: float
    output: float


def load_prices() -> dict[str, Price]:
    """Returns the prices per token of each known model.

    Prices in `prices.toml` of the configuration folder replace the packaged ones. Raises
    ConfigError if a table cannot be read.
    """
    out: dict[str, Price] = {}
    for file in (_PACKAGED, config_dir() / _PRICES):
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (ValueError, OSError) as exc:
            raise ConfigError(f"The price table {file} cannot be read ({exc}).") from exc
        out |= {model: _price(model, row, file) for model, row in table.items()}
    return out


def _price(model: str, row: object, file: Path) -> Price:
    table = row if isinstance(row, dict) else {}
    prices: list[Any] = [table.get("input"), table.get("output")]
    if not all(type(price) in (int, float) and 0 <= price < 1e9 for price in prices):
        raise ConfigError(
            f"The price of {model!r} in {file} is {row!r}; give input and output, numbers from 0 "
            "up, per million tokens."
        )
    return Price(*(price / 1e6 for price in prices))
