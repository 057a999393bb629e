"""The governor: when it asks, what it sends, what it costs, what is noted, and when it fails."""

import hashlib
import json
import threading
from dataclasses import replace

import numpy as np
import pytest
from cloudkit import answer, sleep
from fake_engine import FakeEngine
from memorykit import bytes_beside, quick

from edgemem.chat import Chat
from edgemem.cloud import governor as governing
from edgemem.cloud.governor import Governor, Price, load_prices
from edgemem.compression.compress import Scores, estimated_tokens
from edgemem.config import CloudSettings
from edgemem.errors import (
    CloudDisabled,
    CloudError,
    CloudRejected,
    ConfigError,
    ModelNotFound,
    StoreError,
)
from edgemem.memory import Memory
from edgemem.results import Hit, Scope
from edgemem.stages.generation import CHECK_THIS, KEEPS_AND_ERASES_NOTHING
from edgemem.store.receipts import receipts

pytestmark = pytest.mark.usefixtures("empty_home")

ADA = Scope("ada")


@pytest.fixture
def memory():
    with quick() as opened:
        opened.add(
            [
                {"role": "user", "content": "My sister Ingrid Lund lives at 12 Mill Road, Leeds."},
                {"role": "user", "content": "Call Ingrid on 0113 496 0000, or ingrid@example.org."},
            ],
            user_id="ada",
            timestamp="2024-05-01T10:00:00+00:00",
            infer=False,
        )
        yield opened


def hits(memory):
    return [Hit(**vars(item), score=0.9) for item in memory.get_all()]


def one(memory):
    (receipt,) = receipts(memory.store)
    return receipt


# -- whether -----------------------------------------------------------------------------------


def test_without_settings_it_is_off_and_says_how_to_switch_it_on(memory):
    with pytest.raises(CloudDisabled) as caught:
        Governor(memory)
    for step in ("cloud.base_url", "cloud.model", "cloud.api_key_env", "edgemem config set"):
        assert step in str(caught.value)


@pytest.mark.parametrize("value", [None, "", "  ", "key\nX-Evil: 1", "ключ"])
def test_a_key_that_is_none_is_said_and_not_repeated(memory, monkeypatch, value):
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    settings = CloudSettings(base_url="http://localhost/v1", model="m", api_key_env="MY_KEY")
    with pytest.raises(CloudDisabled, match=r"MY_KEY.*holds no key") as caught:
        Governor(memory, settings)
    assert "Evil" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "confidence", "mode", "why"),
    [
        ("hello", 1.0, "ask", "asked"),
        ("hello", 0.0, "off", None),
        ("translate this", 0.0, "off", None),
        ("hello", 0.5, "auto", None),
        ("hello", 0.4, "auto", "low confidence"),
        ("please translate this", 1.0, "auto", "rule"),
    ],
)
def test_it_asks_when_the_user_a_rule_or_low_confidence_says_so(
    cloud, memory, text, confidence, mode, why
):
    settings = cloud.settings(min_confidence=0.5, ask_when=("translat",))
    assert Governor(memory, settings).decide(text, confidence, mode) == why


def test_by_default_nothing_goes_unasked(cloud, memory):
    assert Governor(memory, cloud.settings()).decide("anything", 0.0) is None


# -- what --------------------------------------------------------------------------------------


def test_private_parts_and_ids_stay_and_names_come_back_in_the_answer(cloud, memory):
    cloud.behaviour = lambda call: call.reply(answer("[PERSON_1] lives at [ADDRESS_1], [Phone 1]."))
    found = Governor(memory, cloud.settings()).ask(
        "Where does Ingrid live?", hits(memory), scope=ADA
    )
    assert found.text == "Ingrid Lund lives at 12 Mill Road, Leeds, 0113 496 0000."
    out = cloud.received.decode().lower()
    ids = [id for item in memory.get_all() for id in (item.id, item.sources[0])]
    for private in ("ingrid", "lund", "mill road", "0113", "example.org", *ids):
        assert private not in out
    assert "where does [person_1] live?" in out and "1 may 2024" in out
    assert "ada" not in out.split("\r\n\r\n")[1]


def test_memories_that_are_hardly_relevant_stay(cloud, memory):
    weak = [replace(hit, score=0.001) for hit in hits(memory)]
    with Governor(memory, cloud.settings()) as governor:
        assert len(governor.prepare("Who?", hits(memory), scope=ADA).receipt.memory_ids) == 2
        outgoing = governor.prepare("Who?", weak, scope=ADA)
        assert outgoing.receipt.memory_ids == () and b"My notes" not in outgoing.request.body


def test_preparing_sends_nothing_and_shows_the_bytes_that_are_sent(cloud, memory):
    opened = Governor(memory, cloud.settings())
    outgoing = opened.prepare("Where does Ingrid live?", hits(memory), scope=ADA)
    assert cloud.received == b"" and receipts(memory.store) == []
    opened.send(outgoing)
    assert [outgoing.request.body] == [call.body for call in cloud.calls]


def test_a_placeholder_of_the_users_own_is_not_mistaken(cloud, memory):
    cloud.behaviour = lambda call: call.reply(answer("[PERSON_1] and [PERSON_2]"))
    found = Governor(memory, cloud.settings()).ask("Is [PERSON_1] Ingrid?", scope=ADA)
    assert found.text == "[PERSON_1] and Ingrid Lund"


def test_a_long_context_is_compressed_after_it_was_redacted(cloud, memory, monkeypatch):
    asked: list[tuple[str, str, int]] = []

    def compressed(_, context, question, target, **_more):
        asked.append((context, question, target))
        return "short"

    monkeypatch.setattr(governing, "compressed", compressed)
    for number in range(8):
        memory.add(f"Ingrid said number {number}, {'and so on ' * 30}", user_id="ada", infer=False)
    opened = Governor(memory, cloud.settings(context_tokens=100))
    opened.ask("What did Ingrid say?", hits(memory), scope=ADA)
    ((context, question, target),) = asked
    assert "Ingrid" not in context + question and target == 100
    assert "short" in cloud.messages() and "and so on" not in cloud.messages()
    receipt = one(memory)
    assert receipt.tokens_before > 100 > receipt.tokens_after and receipt.compress_s > 0


def test_what_the_question_asks_for_survives_compression(cloud, memory):
    opened = Governor(memory, cloud.settings(context_tokens=60))
    asked = "Where does my sister Ingrid live?"
    outgoing = opened.prepare(asked, long_memories(memory), scope=ADA)
    assert outgoing.receipt.tokens_before > 150 and outgoing.receipt.tokens_after <= 60
    sent = outgoing.text
    restored = outgoing.redacted.restore(sent)
    assert "On 1 May 2024" in sent and "12 Mill Road" in restored and "Ingrid Lund" not in sent
    assert restored.count("soup") < 4


def long_memories(memory):
    for number in range(8):
        what = "I slept badly in that weather" if number == 3 else "The weather was grey"
        said = f"{what} on day {number}. I had soup for lunch, it was fine."
        memory.add(said, user_id="ada", infer=False, timestamp=f"2026-05-1{number}T10:00:00+00:00")
    return hits(memory)


@pytest.mark.parametrize(
    ("compression", "limited", "model", "scored"),
    [
        ("question", False, True, False),
        ("fdtd", False, True, True),
        ("fdtd", True, True, False),  # no room for the model once more
        ("fdtd", False, False, False),
    ],
)
def test_the_setting_says_by_what_memories_are_compressed(
    cloud,
    memory,
    monkeypatch,
    compression,
    limited,
    model,
    scored,
):
    asked: list[tuple[str, str]] = []

    def fdtd(engine, text, question):
        """The words of day 3 are worth most."""
        asked.append((text, question))
        offsets, day = estimated_tokens(text), text.index("day 3")
        near = (offsets[:, 0] > day - 30) & (offsets[:, 0] < day + 40)
        return Scores(offsets, 1 + 9 * near.astype(np.float32), "made up")

    def engine(_):
        if not model:
            raise ModelNotFound("there is no model")
        return FakeEngine()

    monkeypatch.setattr("edgemem.cloud.governor.fdtd", fdtd)
    monkeypatch.setattr(Memory, "engine", property(engine))
    monkeypatch.setattr(Memory, "plan", object() if limited else None)
    settings = cloud.settings(context_tokens=64, compression=compression)
    monkeypatch.setattr(governing, "SECOND_PRICE", 1000.0)
    opened = Governor(memory, settings)
    found = long_memories(memory)
    for _ in range(2):
        outgoing = opened.prepare("How was the weather?", found, scope=ADA)
        if scored:
            opened.send(outgoing)
    assert outgoing.receipt.tokens_before > 150 and outgoing.receipt.tokens_after <= 64
    sent = outgoing.text
    assert ("on day 3" in sent) == scored
    assert len(asked) == 2 * scored  # whatever the seconds cost
    assert all("Ingrid" not in text + question for text, question in asked)


@pytest.mark.models
def test_fdtd_by_the_models_own_gradients_keeps_the_budget(cloud, engine):
    with quick(engine=engine) as memory:
        settings = cloud.settings(context_tokens=64, compression="fdtd")
        found = Governor(memory, settings).ask("What weather?", long_memories(memory), scope=ADA)
        assert found.receipt.tokens_before > 150 and 0 < found.receipt.tokens_after <= 64
        assert found.receipt.compress_s > 0 and "On " in cloud.messages()


@pytest.mark.parametrize(
    ("tokens", "rate_s", "second_price", "price", "pays"),
    [
        (500, None, 0.001, Price(1e-6, 0.0), False),
        (1000, None, 0.001, Price(1e-6, 0.0), True),  # never measured: tried
        (1000, 1e-6, 0.001, Price(1e-6, 0.0), True),  # 1 ms for 0.0005
        (1000, 1e-2, 0.001, Price(1e-6, 0.0), False),  # 10 s for 0.0005
        (1000, 1e-2, 0.0, Price(1e-6, 0.0), True),
        (1000, 1.0, 1.0, None, True),
    ],
)
def test_compression_is_skipped_when_it_does_not_pay(
    cloud, memory, monkeypatch,
    tokens, rate_s, second_price, price, pays,
):  # fmt: skip
    monkeypatch.setattr(governing.receipts, "compress_rate", lambda _: rate_s)
    monkeypatch.setattr(governing, "load_prices", lambda: {"gpt-4o-mini": price})
    monkeypatch.setattr(governing, "SECOND_PRICE", second_price)
    assert Governor(memory, cloud.settings(context_tokens=500))._pays(tokens) == pays


def test_a_compressor_that_was_too_slow_is_not_asked_again(cloud, memory, monkeypatch):
    asked: list[str] = []

    def compressed(_, context, *_more, **_named):
        asked.append(context)
        return "short"

    monkeypatch.setattr(governing, "compressed", compressed)
    memory.add("so " * 200, user_id="ada", infer=False)
    monkeypatch.setattr(governing, "SECOND_PRICE", 1000.0)  # whatever time it took
    opened = Governor(memory, cloud.settings(context_tokens=64))
    for _ in range(2):
        opened.ask("So?", hits(memory), scope=ADA)
    assert len(asked) == 1


# -- cost and receipts -------------------------------------------------------------------------


def test_each_call_leaves_a_receipt_without_text(cloud, memory):
    outgoing = Governor(memory, cloud.settings()).prepare("Where?", hits(memory), scope=ADA)
    Governor(memory, cloud.settings()).send(outgoing)
    receipt = one(memory)
    assert receipt.outcome == "answered" and receipt.attempts == 1
    assert set(receipt.memory_ids) == {item.id for item in memory.get_all()}
    assert receipt.sent_sha256 == hashlib.sha256(cloud.calls[0].body).hexdigest()
    assert receipt.sent_bytes == len(cloud.calls[0].body)
    assert (receipt.prompt_tokens, receipt.completion_tokens) == (40, 5)
    assert receipt.cost == pytest.approx(40 * 0.15e-6 + 5 * 0.6e-6)
    text = json.dumps(receipt.to_dict())
    for word in ("Ingrid", "Mill", "Where", "PERSON"):
        assert word not in text


def test_the_estimate_is_not_below_the_cost_it_stands_for(cloud, memory):
    opened = Governor(memory, cloud.settings())
    outgoing = opened.prepare("Where?", hits(memory), scope=ADA)
    price = load_prices()["gpt-4o-mini"]
    read = len(estimated_tokens(outgoing.request.body.decode()))
    assert outgoing.receipt.cost is not None
    assert 512 * price.output < outgoing.receipt.cost < 512 * price.output + 2 * read * price.input


def test_the_budget_is_kept_and_counts_what_may_have_been_billed(cloud, memory):
    most = Governor(memory, cloud.settings()).prepare("Well?", scope=ADA).receipt.cost
    assert most is not None
    opened = Governor(memory, cloud.settings(monthly_budget=2.5 * most))
    cloud.behaviour = lambda call: call.reply(b"garbled")
    for _ in range(2):
        with pytest.raises(CloudError, match="not what a chat"):
            opened.ask("Well?", scope=ADA)
    assert [r.outcome for r in receipts(memory.store)] == ["unknown"] * 2
    with pytest.raises(CloudRejected, match=r"budget of this month.*was not sent"):
        opened.ask("Well?", scope=ADA)
    assert len(cloud.calls) == 2 and len(receipts(memory.store)) == 2


def test_what_was_refused_costs_nothing(cloud, memory):
    cloud.behaviour = lambda call: call.reply(b"", 401)
    with pytest.raises(CloudRejected):
        Governor(memory, cloud.settings()).ask("Well?", scope=ADA)
    assert (one(memory).outcome, one(memory).cost) == ("refused", 0.0)


def test_a_dry_governor_needs_no_key_shows_what_a_call_would_send_and_sends_nothing(
    cloud, memory, monkeypatch
):
    settings = cloud.settings(api_key_env="MY_KEY")
    monkeypatch.delenv("MY_KEY", raising=False)
    with Governor(memory, settings, dry=True) as dry:
        shown = dry.prepare("Well?", scope=ADA)
        with pytest.raises(CloudDisabled, match="dry and sends nothing"):
            dry.send(shown)
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with Governor(memory, settings) as opened:
        real = opened.prepare("Well?", scope=ADA).request
    assert "authorization: (the key)" in real.shown().lower()
    assert [name for name, _ in shown.request.headers] == [name for name, _ in real.headers]
    assert shown.request.body == real.body and len(cloud.calls) == 0


def test_a_budget_needs_a_price(cloud, memory, empty_home):
    settings = CloudSettings(base_url=cloud.base_url, model="our-own", monthly_budget=1.0)
    assert Governor(memory, settings).prepare("Well?", scope=ADA).receipt.cost is None
    with pytest.raises(CloudRejected, match="price of 'our-own' is not known"):
        Governor(memory, settings).ask("Well?", scope=ADA)
    assert len(cloud.calls) == 0
    prices = empty_home / "prices.toml"
    prices.write_text('["our-own"]\ninput = 0\noutput = 0\n')
    assert Governor(memory, settings).ask("Well?", scope=ADA).receipt.cost == 0.0
    prices.write_text('["our-own"]\ninput = "cheap"\n')
    with pytest.raises(ConfigError, match=r"'our-own' in .*prices\.toml"):
        Governor(memory, settings)


def test_two_at_once_cannot_overspend(cloud, memory):
    most = Governor(memory, cloud.settings()).prepare("Well?", scope=ADA).receipt.cost
    assert most is not None
    cloud.behaviour = lambda call: (sleep(0.3)(call), call.reply(answer(usage=None)))
    settings = cloud.settings(monthly_budget=1.5 * most)
    refused: list[str] = []

    def ask():
        try:
            Governor(memory, settings).ask("Well?", scope=ADA)
        except CloudRejected as exc:
            refused.append(str(exc))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(cloud.calls), len(refused)) == (1, 3)


def test_one_prepared_call_is_sent_once(cloud, memory):
    opened = Governor(memory, cloud.settings())
    outgoing = opened.prepare("Well?", scope=ADA)
    opened.send(outgoing)
    with pytest.raises(StoreError, match="was made before"):
        opened.send(outgoing)
    assert len(cloud.calls) == 1
    assert cloud.calls[0].header("idempotency-key") == outgoing.receipt.uid


def test_a_receipt_is_written_before_anything_is_sent(cloud, memory):
    seen: list[str] = []

    def look(call):
        seen.append(one(memory).outcome)
        call.reply(answer())

    cloud.behaviour = look
    Governor(memory, cloud.settings()).ask("Well?", scope=ADA)
    assert (seen, one(memory).outcome) == (["sent"], "answered")


def test_a_store_that_refuses_the_last_note_does_not_lose_the_answer(cloud, memory, monkeypatch):
    def locked(*_):
        raise StoreError("locked")

    monkeypatch.setattr(governing.receipts, "end_receipt", locked)
    opened = Governor(memory, cloud.settings())
    assert opened.ask("Well?", scope=ADA).text == "It is Oslo."
    assert one(memory).outcome == "sent" and one(memory).cost


def test_an_erase_takes_ids_and_hashes_out_of_the_receipts(cloud, tmp_path):
    path = tmp_path / "store" / "a.db"
    with quick(path) as memory:
        first = memory.add("My cat Tom sleeps.", user_id="ada", infer=False)[0].id
        second = memory.add("I like green tea.", user_id="ada", infer=False)[0].id
        other = memory.add("I live in Oslo.", user_id="bob", infer=False)[0].id
        opened = Governor(memory, cloud.settings())
        opened.ask("So?", hits(memory)[:2], scope=ADA)
        opened.ask("And?", hits(memory)[2:], scope=Scope("bob"))
        hashes = [r.sent_sha256 for r in receipts(memory.store)]
        memory.erase(first)
        ours, theirs = receipts(memory.store)
        assert ours.memory_ids == (second,) and ours.sent_sha256 is None and ours.cost
        assert theirs.memory_ids == (other,) and theirs.sent_sha256 == hashes[1]
        memory.store.check()
        for gone in (first, hashes[0]):
            assert gone is not None and gone.encode() not in bytes_beside(path)
        memory.reset()
        assert receipts(memory.store) == []


# -- in a chat ---------------------------------------------------------------------------------


@pytest.fixture
def talk(cloud, embedder):
    fake = FakeEngine(pieces=("Local ", "answer."))
    with Memory(":memory:", engine=fake, embedder=embedder) as memory:
        yield Chat(memory, cloud=Governor(memory, cloud.settings(timeout_s=1.0)))


def turns(chat):
    return [t.content for t in chat.memory.store.recent_turns(limit=100)]


@pytest.mark.models
def test_asked_the_cloud_answers_and_the_turn_is_remembered(talk, cloud):
    "".join(talk.send("My sister Ingrid lives in Leeds."))
    cloud.behaviour = lambda call: call.reply(answer("[PERSON_1] lives in Leeds."))
    reply = talk.send("Where does my sister Ingrid live?", cloud="ask")
    assert "".join(reply) == reply.text == "Ingrid lives in Leeds."
    assert reply.cloud is not None and reply.cloud.why == "asked" and reply.cloud_error is None
    assert "Leeds" in cloud.messages() and "Ingrid" not in cloud.messages()
    assert turns(talk)[-2:] == ["Where does my sister Ingrid live?", "Ingrid lives in Leeds."]


@pytest.mark.models
@pytest.mark.parametrize("mode", ["auto", "off"])
def test_unasked_nothing_leaves(talk, cloud, mode):
    assert "".join(talk.send("Good morning to you!", cloud=mode)) == "Local answer."
    assert cloud.received == b""


@pytest.mark.models
def test_a_request_to_forget_goes_nowhere_unasked(cloud, embedder):
    settings = cloud.settings(min_confidence=1.0, ask_when=("wifi",))
    with Memory(":memory:", engine=FakeEngine(), embedder=embedder) as memory:
        chat = Chat(memory, cloud=Governor(memory, settings))
        reply = chat.send("please forget what I said about the wifi")
        assert "".join(reply) == KEEPS_AND_ERASES_NOTHING and cloud.received == b""


@pytest.mark.models
@pytest.mark.parametrize("fault", ["slow", "refused", "garbled", "forbidden", "locked"])
def test_a_failing_cloud_loses_no_turn_and_the_local_model_answers(talk, cloud, fault, monkeypatch):
    if fault == "slow":
        cloud.behaviour = sleep(3)
    elif fault == "refused":
        cloud.behaviour = lambda call: call.reply(b"", 403)
    elif fault == "garbled":
        cloud.behaviour = lambda call: call.reply(b"<html>", content_type="text/html")
    elif fault == "forbidden":
        talk.cloud.settings = cloud.settings(never_send=("tell",))
    else:
        monkeypatch.setattr(
            governing.receipts, "add_receipt", lambda *_: (_ for _ in ()).throw(StoreError("no"))
        )
    reply = talk.send("Please tell me a story.", cloud="ask")
    assert "".join(reply) == f"Local answer.\n\n{CHECK_THIS}"
    assert reply.cloud is None and reply.cloud_error
    assert turns(talk) == ["Please tell me a story.", reply.text]


@pytest.mark.models
def test_a_chat_whose_reply_is_dropped_asks_nobody(talk, cloud):
    talk.send("Hello there, friend.", cloud="ask").close()
    assert cloud.received == b"" and turns(talk) == ["Hello there, friend."]
