"""What the tests of the memory inspector share: a store that has something of everything."""

from fake_engine import FakeEngine
from memorykit import quick

from edgemem.store.receipts import Receipt, add_receipt

OSLO, BERGEN = "I live in Oslo.", "I moved to Bergen in May."
FACTS = {
    OSLO: "{} lives in Oslo",
    BERGEN: "{} moved to Bergen",
    "My cat is called Tom.": "{} has a cat called Tom",
    "I work at the harbour.": "{} works at the harbour",
}
EVIL = '<img src=x onerror="document.title=1"><script>document.title=1</script>'


def filled(path=":memory:"):
    """Memories of ana: four facts, one of which replaced another, and their turns; one of ben; a
    piece of work that waits; a receipt of a cloud."""
    engine = FakeEngine(facts=FACTS, ends={"Ana moved to Bergen": "Ana lives in Oslo"})
    memory = quick(path, engine=engine)
    for month, text in enumerate(FACTS, 3):
        said = {"role": "user", "name": "Ana", "content": text}
        memory.add([said], user_id="ana", timestamp=f"2025-{month:02}-01T10:00Z")
    memory.add(EVIL, user_id="ben", infer=False, timestamp="2025-02-01T10:00Z")
    engine.broken = True
    memory.add("I bought a red kayak.", user_id="ana", timestamp="2025-08-01T10:00Z")
    receipt = Receipt(
        uid="r1", created_at="2025-08-02T10:00:00.000+00:00", endpoint="https://api.example/v1",
        model="some-model", user_id="ana", memory_ids=(fact(memory, "harbour"),),
        tokens_before=900, tokens_after=400, compress_s=0.1, sent_bytes=2100, sent_sha256="ab" * 32,
        cost=0.0012, outcome="answered", prompt_tokens=500, completion_tokens=40, seconds=1.2,
        attempts=1,
    )  # fmt: skip
    with memory.store.transaction() as tx:
        add_receipt(tx, receipt)
    return memory


def fact(memory, word):
    """The id of the fact that has a word in it, over or not."""
    items = memory.store.list(kinds={"fact"}, include_invalid=True)
    return next(item.id for item in items if word in item.memory)
