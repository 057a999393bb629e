"""A newer export of a chat adds what is new: nothing twice, and nothing that was erased."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from clikit import Run
from hypothesis import given
from hypothesis import strategies as st
from memorykit import quick

from edgemem import Memory
from edgemem.pipeline.importers import import_ids, read_chat_log
from edgemem.pipeline.reimport import Found, Imported, Said, recognised

Line = tuple[str, str, str]  # time, name, text

CHAT: list[Line] = [
    ("2024-05-02 09:00", "Tom", "The roof is done."),
    ("2024-05-02 09:01", "Eva", "ok"),
    ("2024-05-02 09:01", "Tom", "ok"),
    ("2024-05-13 18:30", "Tom", "Gareth rang about the boat."),
    ("2024-06-01 07:15", "Eva", "ok"),
    ("2024-06-01 07:15", "Eva", "ok"),
    ("2024-06-03 12:00", "Tom", "I start at the bakery on Monday."),
    ("2024-06-04 08:00", "Eva", "Good luck!"),
]
NEWS: Line = ("2024-07-01 10:00", "Tom", "I like it there.")


def log(lines: Sequence[Line]) -> str:
    return "".join(f"[{time}] {name}: {text}\n" for time, name, text in lines)


def later(lines: Sequence[Line], minutes: int) -> list[Line]:
    moved = [(datetime.fromisoformat(t) + timedelta(minutes=minutes), n, x) for t, n, x in lines]
    return [(f"{time:%Y-%m-%d %H:%M}", name, text) for time, name, text in moved]


def renamed(lines: Sequence[Line]) -> list[Line]:
    return [(time, "Tom Lee" if name == "Tom" else name, text) for time, name, text in lines]


NEWER: dict[str, list[Line]] = {
    "the same": CHAT,
    "an old message was deleted": CHAT[1:],
    "a contact was renamed": renamed(CHAT),
    "it begins later": CHAT[3:],
    "renamed, and it begins later": renamed(CHAT[3:]),
    "with seconds": [(f"{time}:{n:02}", name, x) for n, (time, name, x) in enumerate(CHAT)],
    "five and a half hours later": later(CHAT, 330),
    "eight hours earlier, and an old message was deleted": later(CHAT[1:], -480),
}

# Former ids depend on how a time was written.
AS_WRITTEN = {name: lines for name, lines in NEWER.items() if name != "with seconds"}


def imported(run: Run, file: Path, lines: Sequence[Line], *options: str) -> dict[str, Any]:
    file.write_text(log(lines), encoding="utf-8")
    result = run("import", "--no-infer", str(file), "--json", *options)
    (row,) = json.loads(result.stdout)["results"]
    return {**row, "told": result.stderr}


def listed(run: Run) -> list[dict[str, Any]]:
    rows = json.loads(run("list", "--json").stdout)["results"]
    return sorted(rows, key=lambda row: row["valid_from"])


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("lines", NEWER.values(), ids=NEWER)
@pytest.mark.parametrize("me", [(), ("--me", "Eva")], ids=["", "me"])
def test_a_newer_export_adds_only_what_is_new(
    tmp_path: Path, run: Run, lines: list[Line], me: tuple[str, ...]
) -> None:
    assert imported(run, tmp_path / "a.txt", CHAT, *me)["imported"] == len(CHAT)
    before = listed(run)
    row = imported(run, tmp_path / "b.txt", lines, *me)
    assert (row["imported"], row["skipped"]) == (0, len(lines))
    assert listed(run) == before


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("lines", NEWER.values(), ids=NEWER)
def test_what_was_erased_stays_erased_when_a_newer_export_comes(
    tmp_path: Path, run: Run, lines: list[Line]
) -> None:
    imported(run, tmp_path / "a.txt", CHAT, "--me", "Eva")
    run("erase", "--matching", "Gareth", "--yes")
    row = imported(run, tmp_path / "b.txt", lines, "--me", "Eva")
    assert row["imported"] == 0 and "1 turn left out that you erased" in row["told"]
    assert len(listed(run)) == len(CHAT) - 1


@pytest.mark.usefixtures("home")
def test_an_export_of_another_zone_stays_erased_when_all_of_it_was(
    tmp_path: Path, run: Run
) -> None:
    imported(run, tmp_path / "a.txt", CHAT)
    run("erase", "--all", "--yes")
    row = imported(run, tmp_path / "b.txt", later(CHAT, 330))
    assert row["imported"] == 0 and "8 turns left out that you erased" in row["told"]


@pytest.mark.usefixtures("home")
def test_news_of_an_export_from_another_zone_get_the_times_of_the_zone_before(
    tmp_path: Path, run: Run
) -> None:
    imported(run, tmp_path / "a.txt", CHAT)
    row = imported(run, tmp_path / "b.txt", later([*CHAT, NEWS], 330))
    assert row["imported"] == 1 and "its times differ by +5.5 hours" in row["told"]
    last = listed(run)[-1]
    told = datetime.fromisoformat(last["valid_from"]).astimezone()
    assert last["memory"] == NEWS[2] and f"{told:%Y-%m-%d %H:%M}" == NEWS[0]
    assert imported(run, tmp_path / "c.txt", [*CHAT, NEWS])["imported"] == 0


@pytest.mark.usefixtures("home")
def test_a_zone_with_another_summer_time_is_recognised_on_both_sides_of_it(
    tmp_path: Path, run: Run
) -> None:
    chat = [(f"2024-{n + 1:02}-10 10:0{n % 7}", "Tom", f"Letter {n}") for n in range(12)]
    abroad = [later([line], 330 if 3 <= n < 10 else 270)[0] for n, line in enumerate(chat)]
    imported(run, tmp_path / "a.txt", chat)
    assert imported(run, tmp_path / "b.txt", abroad)["skipped"] == 12


@pytest.mark.usefixtures("home")
def test_equal_messages_of_one_minute_are_all_stored_and_one_more_is_new(
    tmp_path: Path, run: Run
) -> None:
    file = tmp_path / "a.txt"
    assert imported(run, file, CHAT)["imported"] == 8
    row = imported(run, file, [*CHAT[:6], CHAT[5], *CHAT[6:]])
    assert (row["imported"], row["skipped"]) == (1, 8)


@pytest.mark.usefixtures("home")
def test_the_same_words_of_somebody_else_in_the_same_minute_of_another_chat_are_new(
    tmp_path: Path, run: Run
) -> None:
    other = [
        ("2024-05-02 08:58", "Ruth", "Is there cake?"),
        ("2024-05-02 09:01", "Ruth", "ok"),
        ("2024-05-02 09:30", "Ruth", "I bake one."),
    ]
    imported(run, tmp_path / "a.txt", CHAT)
    assert imported(run, tmp_path / "b.txt", other)["imported"] == 3
    for lines in (other, CHAT):
        assert imported(run, tmp_path / "c.txt", lines)["imported"] == 0


@pytest.mark.usefixtures("home")
def test_a_speaker_who_is_left_with_one_of_two_equal_messages_is_known(
    tmp_path: Path, run: Run
) -> None:
    imported(run, tmp_path / "a.txt", CHAT)
    without_evas = [line for n, line in enumerate(CHAT) if n != 1]
    assert imported(run, tmp_path / "b.txt", without_evas)["imported"] == 0


@pytest.mark.parametrize("either_order", [False, True])
@pytest.mark.parametrize("lines", NEWER.values(), ids=NEWER)
def test_a_store_of_an_earlier_version_is_not_doubled(
    tmp_path: Path, run: Run, home: Path, lines: list[Line], either_order: bool
) -> None:
    file = tmp_path / "a.txt"
    file.write_text(log(CHAT))
    messages = read_chat_log(file).messages
    ids = import_ids(messages, seed="", either_order=either_order)
    for message, id in zip(messages, ids, strict=True):
        message["metadata"]["import_id"] = id
    with quick(home / "memory.db") as memory:
        memory.add(messages, user_id="default", infer=False, imported=True)
    assert imported(run, file, lines)["skipped"] == len(lines)


@pytest.mark.models
@pytest.mark.parametrize("me", [(), ("--me", "Eva")], ids=["", "me"])
@pytest.mark.parametrize("lines", AS_WRITTEN.values(), ids=AS_WRITTEN)
def test_what_was_erased_from_a_store_of_an_earlier_version_stays_erased(
    tmp_path: Path, run: Run, home: Path, lines: list[Line], me: tuple[str, ...]
) -> None:
    file = tmp_path / "a.txt"
    file.write_text(log(CHAT))
    messages = read_chat_log(file).messages
    for message, id in zip(messages, import_ids(messages, seed=""), strict=True):
        message["metadata"]["import_id"] = id
        if me and message["name"] == "Eva":
            del message["name"]
    with Memory(home / "memory.db") as memory:
        memory.add(messages, user_id="default", infer=False, imported=True)
    run("erase", "--matching", "Gareth", "--yes")
    row = imported(run, file, lines, *me)
    assert "1 turn left out that you erased" in row["told"]


@pytest.mark.models
def test_what_is_a_notice_since_then_changes_no_id_of_an_earlier_version(
    tmp_path: Path, run: Run, home: Path
) -> None:
    notice = ("2024-05-02 08:00", "Tom", "This message was deleted by admin Eva")
    file = tmp_path / "a.txt"
    file.write_text(log([notice, *CHAT]))
    log_now = read_chat_log(file)
    before = [message for message, _ in log_now.former]
    assert len(before) == len(log_now.messages) + 1
    for message, id in zip(before, import_ids(before, seed=""), strict=True):
        message["metadata"]["import_id"] = id
    with Memory(home / "memory.db") as memory:
        memory.add(before, user_id="default", infer=False, imported=True)
    run("erase", "--matching", "Gareth", "--yes")
    row = imported(run, file, [notice, *CHAT])
    assert (row["imported"], row["skipped"]) == (0, len(CHAT) - 1)
    assert "1 turn left out that you erased" in row["told"]


# -- --me and --again --------------------------------------------------------------------------


@pytest.mark.usefixtures("home")
def test_an_import_without_me_is_mended_by_a_second_one_with_me_and_again(
    tmp_path: Path, run: Run
) -> None:
    file = tmp_path / "a.txt"
    imported(run, file, CHAT)
    row = imported(run, file, CHAT, "--me", "Eva")
    assert row["imported"] == 0
    assert "4 turns stored as said by Eva, from an import without --me. The same" in row["told"]
    row = imported(run, file, CHAT, "--me", "Eva", "--again")
    assert (row["imported"], row["skipped"]) == (4, 4)
    assert "4 turns of Eva erased, to be stored as yours" in row["told"]
    speakers = [row["metadata"].get("speaker") for row in listed(run)]
    assert speakers.count("Tom") == 4 and speakers.count(None) == 4
    for option in ((), ("--again",)):
        row = imported(run, file, CHAT, "--me", "Eva", *option)
        assert (row["imported"], row["skipped"]) == (0, 8) and "erased" not in row["told"]


@pytest.mark.usefixtures("home")
def test_again_erases_no_turn_of_another_name(tmp_path: Path, run: Run) -> None:
    group = [("2025-01-01 00:00", name, "Happy New Year!") for name in ("Anna", "Ben", "Carl")]
    imported(run, tmp_path / "a.txt", [*group, ("2025-01-01 00:20", "Tom", "To you too")])
    other = [("2025-01-01 00:00", "Tom", "Happy New Year!"), ("2025-01-01 00:10", "Cleo", "Thanks")]
    row = imported(run, tmp_path / "b.txt", other, "--me", "Tom", "--again")
    assert "erased" not in row["told"]
    speakers = [row["metadata"].get("speaker") for row in listed(run)]
    assert {"Anna", "Ben", "Carl"} <= {*speakers}


@pytest.mark.usefixtures("home")
def test_again_erases_no_turn_of_a_former_name_of_yours(tmp_path: Path, run: Run) -> None:
    imported(run, tmp_path / "a.txt", CHAT)
    row = imported(run, tmp_path / "b.txt", renamed(CHAT), "--me", "Tom Lee", "--again")
    assert row["imported"] == 0 and "erased" not in row["told"]
    assert "of Tom Lee stored as said by Tom; they stay so" in row["told"]


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("text", [log(CHAT), "Tom: Hi\nEva: Hello\n"], ids=["dated", "undated"])
def test_again_brings_back_what_was_erased(tmp_path: Path, run: Run, text: str) -> None:
    file = tmp_path / "a.txt"
    file.write_text(text)
    count = text.count("\n")
    run("import", "--no-infer", str(file))
    run("erase", "--all", "--yes")
    told = run("import", "--no-infer", str(file)).stderr
    assert f"{count} turns left out that you erased. With --again they come back." in told
    assert f"{count} turns imported." in run("import", "--no-infer", str(file), "--again").stderr
    assert len(listed(run)) == count
    told = run("import", "--no-infer", str(file)).stderr
    assert f"0 turns imported, {count} were there already" in told and "erased" not in told


@pytest.mark.usefixtures("home")
def test_again_is_for_conversations(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text('{"memory": "I sail"}')
    assert "holds no conversation" in run("import", str(file), "--again", code=2).stderr


# -- any changes -------------------------------------------------------------------------------

said_at = st.tuples(
    st.integers(0, 40), st.sampled_from(["Tom", "Eva"]), st.sampled_from(["ok", "yes", "I sail"])
)


def as_said(chat: Sequence[tuple[int, str, str]], names: dict[str, str]) -> list[Said]:
    start = datetime(2024, 1, 20, 10)
    lines = [
        (f"{start + timedelta(minutes=minute):%Y-%m-%d %H:%M}", names.get(name, name), text)
        for minute, name, text in sorted(chat, key=lambda line: line[0])
    ]
    return [
        Said("user", name, time, text, [json.dumps(lines[: n + 1])] * 2)
        for n, (time, name, text) in enumerate(lines)
    ]


def stored(said: Sequence[Said], found: Sequence[Found]) -> list[Imported]:
    times = [datetime.fromisoformat(one.time or "").astimezone() for one in said]
    return [
        Imported(
            one.import_id, one.import_id, of.role, of.name, int(time.timestamp() // 60), of.text,
            time.isoformat(),
        )
        for of, one, time in zip(said, found, times, strict=True)
        if one.turn is None and not one.erased
    ]  # fmt: skip


@given(st.lists(said_at, max_size=12), st.data())
def test_no_deletion_by_senders_doubles_a_message_or_brings_an_erased_one_back(
    chat: list[tuple[int, str, str]], data: st.DataObject
) -> None:
    first = as_said(chat, {})
    found = recognised(first, [], lambda id: False)
    turns = stored(first, found)
    assert len({turn.import_id for turn in turns}) == len(chat)
    gone = {turn.import_id for turn in turns if data.draw(st.booleans())}
    kept = [turn for turn in turns if turn.import_id not in gone]
    left = [line for line in chat if data.draw(st.integers(0, 4))]
    again = recognised(as_said(left, {}), kept, gone.__contains__)
    assert all(one.turn is not None or one.erased for one in again)
    assert len({one.import_id for one in again}) == len(left)
