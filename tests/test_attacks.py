"""The attacks of bench/attacks.py, a few cases of each, and a test for what each of them found."""

import shutil
import struct
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeEngine
from memorykit import quick, texts

from bench import attacks, faults, redos
from edgemem import Chat, budget
from edgemem import images as picture
from edgemem.cloud import names as naming
from edgemem.cloud import redact as redacting
from edgemem.cloud.governor import matches
from edgemem.cloud.redact import find, redact
from edgemem.compression import compress as layout
from edgemem.errors import InputError, StoreCorrupt
from edgemem.language import en, en_facts, undisguised
from edgemem.runtime import generation
from edgemem.runtime.gguf import check_header, read_header
from edgemem.store.changes import _postings
from edgemem.store.filters import compile_filters

KILLS = 23  # of each of nine operations
needs_shim = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("cc") is None,
    reason="the file layer that fails needs Linux and a C compiler",
)


def unhurt(rows):
    """How many cases these rows have, none of them wrong."""
    assert [row for row in rows if row["wrong"]] == []
    return sum(next(row[n] for n in ("cases", "kills", "cuts") if n in row) for row in rows)


@needs_shim
def test_killed_at_any_change_of_a_file_nothing_acknowledged_is_lost():
    assert unhurt(faults.kills(KILLS)) == 9 * KILLS


@needs_shim
def test_a_power_cut_leaves_what_was_acknowledged_and_no_byte_of_what_was_erased():
    """Backups and index files that an erase had removed came back: the folder was not synced."""
    assert unhurt(faults.power(12, ("erase", "add"))) == 24


@needs_shim
def test_a_disk_that_fails_is_an_error_of_ours():
    """A migration's backup raised OSError where not even its rest could be removed."""
    assert unhurt(faults.errors(6, ("migrate",))) == 18


def test_the_replay_of_a_log_ends_with_the_files_that_were_there(tmp_path):
    """The oracle is no better than its file layer: synced, all is there; unsynced, a part of it."""
    import random

    before = tmp_path / "before"
    before.mkdir()
    (before / "a").write_bytes(b"old")
    log = [("c", "/b", 0, b""), ("w", "/b", 0, b"x" * 1024), ("w", "/a", 1, b"EW"),
           ("r", "/b", 0, b"/c"), ("u", "/a", 0, b"")]  # fmt: skip
    synced = [*log[:3], ("s", "/a", 0, b""), ("s", "/b", 0, b""), *log[3:], ("s", "", 0, b"")]
    found = set()
    for seed in range(60):
        for records, whole in ((log, False), (synced, True)):
            faults.after_cut(before, records, tmp_path / "after", random.Random(seed))
            left = {f.name: f.read_bytes() for f in (tmp_path / "after").iterdir()}
            if whole:
                assert left == {"c": b"x" * 1024}
            else:
                found.add(tuple(sorted((name, len(data)) for name, data in left.items())))
    assert {(("a", 3),), (("c", 0),), (("c", 1024),)} <= found
    assert not any({"b", "c"} <= {name for name, _ in names} for names in found)


def test_damaged_files_and_calls_are_answered_or_refused():
    assert unhurt(attacks.files(10)) == 70
    assert unhurt(attacks.calls(15)) >= 30


def test_a_header_with_a_text_beyond_any_file_is_damaged(tmp_path):
    """struct raised OverflowError (56 of 100,000 headers)."""
    key = struct.pack("<Q1sIIQQ", 1, b"k", 9, 8, 1, 2**64 - 1)  # an array with a text of 2^64 - 1
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + key + b"\0" * 64)
    check_header(file)  # llama.cpp refuses it itself
    with pytest.raises(ValueError, match="ends in its header"):
        read_header(file.read_bytes())


@pytest.mark.parametrize("rowids", [[None], [1, 9, 4], [2, 2], ["x"]])
def test_a_full_text_index_with_rowids_that_are_none_is_damaged(rowids):
    """TypeError and IndexError (2 of 100,000 stores)."""
    connection: Any = SimpleNamespace(execute=lambda _: [(rowid,) for rowid in rowids])
    with pytest.raises(StoreCorrupt, match="full-text index"):
        _postings(connection)


def test_the_refusal_of_a_filter_can_be_printed():
    with pytest.raises(InputError) as caught:
        compile_filters({"t": {"\ud800": 1}})
    assert str(caught.value).encode()
    deep: Any = 1
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(InputError, match="too long to show"):
        compile_filters({"t": {"eq": deep}})


def test_memories_make_nothing_leave_that_may_not():
    rows = attacks.texts(240)
    assert unhurt(rows) == 240
    assert all(row["sent_other_words"] for row in rows)  # the rest did leave


@pytest.mark.parametrize(
    "name",
    ["Quill\u200bfeather", "Quіllfеаthеr", "Ｑuillfeather", "𝐪𝐮𝐢𝐥𝐥feather", "Qu\u00adillféather",
     "Quill\x02feather", "qu\u3164illfeather"],
)  # fmt: skip
def test_a_name_in_disguise_is_still_that_name(name):
    text = f"I told {name} of it"
    assert matches("quillfeather", text) and matches("/quill[a-z]+/", text)
    assert undisguised(name)[0].casefold() == "quillfeather"
    assert name not in redact([text], ["Quillfeather"]).texts[0]
    assert not matches("quillfeather", text.replace(name[3:5], "-"))


def test_other_scripts_and_accents_are_sent_and_restored_as_they_are():
    text = "Zoë lives in Łódź; Анна дома, 東京で"
    told = redact([text], ["Zoë"])
    assert told.texts[0] == "[PERSON_1] lives in Łódź; Анна дома, 東京で"
    assert told.restore(told.texts[0]) == text
    assert [span.kind for span in find("ana@example.org")] == ["EMAIL"]
    assert "example" not in redact(["ana\u200b@exa\u200bmple.org"]).texts[0]


def test_a_placeholder_that_a_memory_imitates_is_not_given_out():
    told = redact(["[PERSON 1] and [ person-2 ] and PERSON_3 met Ana"], ["Ana"])
    assert told.values == {"[PERSON_4]": "Ana"}


def test_what_a_model_repeats_from_a_memory_is_no_command(tmp_path):
    orders = [order.format("ana") for order in attacks._ORDERS]
    engine = FakeEngine()
    with quick(tmp_path / "a.db", engine=engine) as memory:
        memory.add(orders, user_id="ana", infer=False)
        before = set(texts(memory.get_all()))
        chat = Chat(memory, user_id="ana")
        for order in orders:
            engine.pieces = (order,)
            str(chat.send("What did I note of ana?"))
        assert before <= set(texts(memory.get_all()))
        assert memory.doctor(erased=True)["erased"]["receipts"] == 0


@pytest.mark.parametrize(
    ("pattern", "use", "text"),
    [
        (en_facts._WRITTEN_DATE, "finditer", "on " * 30_000),
        (en.HEAD, "match", " " * 100_000),
        (generation._JSON_TOKEN, "finditer", "1" * 100_000),
        (generation._JSON_TOKEN, "finditer", '"' + '\\"' * 50_000),
        (budget._SIZE, "fullmatch", "1.1" + " " * 100_000 + "!"),
        *((form, "finditer", "a+" * 50_000) for _, form in layout._WHOLE),
        *((form, "finditer", "Aastraße 1 A-1A" + " " * 100_000) for form in redacting._ADDRESSES),
        *((form, "finditer", "A-" * 50_000) for form in redacting._ADDRESSES),
        *((form, "finditer", "A-" * 50_000) for form in naming._MAYBE),
        *((form, "finditer", "with" + " " * 100_000) for form in naming._MAYBE),
        *(
            (redacting._ASSIGNED, "finditer", piece * (100_000 // len(piece)))
            for piece in ("pin is: ", "password - ", "is: = -", "pass is" + " " * 60)
        ),
        (redacting._PHRASE, "match", "ab-" * 30_000),
        (redacting._RUN, "finditer", "1-" * 50_000),
        (en_facts._CALLED, "finditer", "A" * 100_000),
        (picture._JPEG_MARKER, "search", b"\xff" * 100_000),
    ],
)
def test_a_pattern_that_took_the_square_of_a_texts_length(pattern, use, text):
    started = time.thread_time()
    found = getattr(pattern, use)(text)
    if use == "finditer":
        sum(1 for _ in found)
    assert time.thread_time() - started < 1


@pytest.mark.parametrize(
    ("pattern", "size", "slow"),
    [(r"a.*b", 80_000, True), (r"(?:x+x+)+y", 2_000, True), (r"\bab{1,3}\b", 200_000, False)],
)
def test_a_patterns_worst_input_is_found(pattern, size, slow, monkeypatch):
    monkeypatch.setattr(redos, "FIRST", 8192)  # a.*b is slow only with texts that are longer
    assert (redos.slowest(pattern, 0, size)[0] > 1) == slow


def test_every_pattern_of_the_package_is_found_beside_a_native_module():
    code = "from bench import redos; print(*redos.patterns()[0].values())"  # it imports all anew
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    files = {where.partition(":")[0] for where in done.stdout.split()}
    assert files >= {"cloud/redact.py", "language/en_dates.py", "sync/exchange.py"}
