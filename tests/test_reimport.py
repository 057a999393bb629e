"""A newer export of a chat adds what is new: nothing twice, and nothing that was erased."""

import json
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.pipeline import reimport
from edgemem.pipeline.reimport import Imported, Said, recognised

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
    ("2024-06-05 19:00", "Tom", "The oven is hot."),
    ("2024-06-05 19:02", "Eva", "Wear gloves."),
    ("2024-06-06 06:00", "Tom", "The rye came out well."),
    ("2024-06-06 06:10", "Eva", "Keep me a loaf."),
    ("2024-06-09 17:00", "Tom", "I have two left."),
    ("2024-06-09 17:05", "Eva", "I fetch them at six."),
    ("2024-06-09 17:05", "Tom", "The back door is open."),
]
NEWS: Line = ("2024-07-01 10:00", "Tom", "I like it there.")


def log(lines):
    return "".join(f"[{time}] {name}: {text}\n" for time, name, text in lines)


def later(lines, minutes):
    moved = [(datetime.fromisoformat(t) + timedelta(minutes=minutes), n, x) for t, n, x in lines]
    return [(f"{time:%Y-%m-%d %H:%M}", name, text) for time, name, text in moved]


def renamed(lines):
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


def imported(run, file, lines, *options):
    file.write_text(log(lines), encoding="utf-8")
    result = run("import", "--no-infer", str(file), "--json", *options)
    (row,) = json.loads(result.stdout)["results"]
    return {**row, "told": result.stderr}


def listed(run):
    rows = json.loads(run("list", "--json").stdout)["results"]
    return sorted(rows, key=lambda row: row["valid_from"])


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("lines", NEWER.values(), ids=NEWER)
@pytest.mark.parametrize("me", [(), ("--me", "Eva")], ids=["", "me"])
def test_a_newer_export_adds_only_what_is_new(tmp_path, run, lines, me):
    assert imported(run, tmp_path / "a.txt", CHAT, *me)["imported"] == len(CHAT)
    before = listed(run)
    row = imported(run, tmp_path / "b.txt", lines, *me)
    assert (row["imported"], row["skipped"]) == (0, len(lines))
    assert listed(run) == before


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("lines", NEWER.values(), ids=NEWER)
def test_what_was_erased_stays_erased_when_a_newer_export_comes(tmp_path, run, lines):
    imported(run, tmp_path / "a.txt", CHAT, "--me", "Eva")
    run("erase", "--matching", "Gareth", "--yes")
    row = imported(run, tmp_path / "b.txt", lines, "--me", "Eva")
    assert row["imported"] == 0 and "1 turn left out that you erased" in row["told"]
    assert len(listed(run)) == len(CHAT) - 1


@pytest.mark.usefixtures("home")
def test_an_export_of_another_zone_stays_erased_when_all_of_it_was(tmp_path, run):
    more = [(f"2024-08-{day} 12:00", "Eva", f"Day {day}") for day in range(10, 20)]
    imported(run, tmp_path / "a.txt", [*CHAT, *more])
    run("erase", "--all", "--yes")
    row = imported(run, tmp_path / "b.txt", later([*CHAT, *more], 330))
    assert row["imported"] == 0 and "25 turns left out that you erased" in row["told"]


@pytest.mark.usefixtures("home")
def test_news_of_an_export_from_another_zone_get_the_times_of_the_zone_before(tmp_path, run):
    imported(run, tmp_path / "a.txt", CHAT)
    row = imported(run, tmp_path / "b.txt", later([*CHAT, NEWS], 330))
    assert row["imported"] == 1 and "its times differ by +5.5 hours" in row["told"]
    last = listed(run)[-1]
    told = datetime.fromisoformat(last["valid_from"]).astimezone()
    assert last["memory"] == NEWS[2] and f"{told:%Y-%m-%d %H:%M}" == NEWS[0]
    assert imported(run, tmp_path / "c.txt", [*CHAT, NEWS])["imported"] == 0


@pytest.mark.usefixtures("home")
def test_a_zone_with_another_summer_time_is_recognised_on_both_sides_of_it(tmp_path, run):
    days = [(month, day) for month in range(1, 13) for day in (10, 20)]
    chat = [(f"2024-{m:02}-{d} 10:0{m % 7}", "Tom", f"Letter {m} {d}") for m, d in days]
    abroad = [later([line], 330 if 4 <= int(line[0][5:7]) < 11 else 270)[0] for line in chat]
    imported(run, tmp_path / "a.txt", chat)
    assert imported(run, tmp_path / "b.txt", abroad)["skipped"] == 24


@pytest.mark.usefixtures("home")
def test_equal_messages_of_one_minute_are_all_stored_and_one_more_is_new(tmp_path, run):
    file = tmp_path / "a.txt"
    assert imported(run, file, CHAT)["imported"] == len(CHAT)
    row = imported(run, file, [*CHAT[:6], CHAT[5], *CHAT[6:]])
    assert (row["imported"], row["skipped"]) == (1, len(CHAT))


@pytest.mark.usefixtures("home")
def test_the_same_words_of_somebody_else_in_the_same_minute_of_another_chat_are_new(tmp_path, run):
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
def test_a_speaker_who_is_left_with_one_of_two_equal_messages_is_known(tmp_path, run):
    imported(run, tmp_path / "a.txt", CHAT)
    without_evas = [line for n, line in enumerate(CHAT) if n != 1]
    assert imported(run, tmp_path / "b.txt", without_evas)["imported"] == 0


# -- --me and --again --------------------------------------------------------------------------


@pytest.mark.usefixtures("home")
def test_an_import_without_me_is_mended_by_a_second_one_with_me_and_again(tmp_path, run):
    file = tmp_path / "a.txt"
    imported(run, file, CHAT)
    row = imported(run, file, CHAT, "--me", "Eva")
    assert row["imported"] == 0
    assert "7 turns stored as said by Eva, from an import without --me. The same" in row["told"]
    row = imported(run, file, CHAT, "--me", "Eva", "--again")
    assert (row["imported"], row["skipped"]) == (7, 8)
    assert "7 turns of Eva erased, to be stored as yours" in row["told"]
    speakers = [row["metadata"].get("speaker") for row in listed(run)]
    assert speakers.count("Tom") == 8 and speakers.count(None) == 7
    for option in ((), ("--again",)):
        row = imported(run, file, CHAT, "--me", "Eva", *option)
        assert (row["imported"], row["skipped"]) == (0, len(CHAT)) and "erased" not in row["told"]


@pytest.mark.usefixtures("home")
def test_again_erases_no_turn_of_another_name(tmp_path, run):
    group = [("2025-01-01 00:00", name, "Happy New Year!") for name in ("Anna", "Ben", "Carl")]
    imported(run, tmp_path / "a.txt", [*group, ("2025-01-01 00:20", "Tom", "To you too")])
    other = [("2025-01-01 00:00", "Tom", "Happy New Year!"), ("2025-01-01 00:10", "Cleo", "Thanks")]
    row = imported(run, tmp_path / "b.txt", other, "--me", "Tom", "--again")
    assert "erased" not in row["told"]
    speakers = [row["metadata"].get("speaker") for row in listed(run)]
    assert {"Anna", "Ben", "Carl"} <= {*speakers}


@pytest.mark.usefixtures("home")
def test_again_erases_no_turn_of_a_former_name_of_yours(tmp_path, run):
    imported(run, tmp_path / "a.txt", CHAT)
    row = imported(run, tmp_path / "b.txt", renamed(CHAT), "--me", "Tom Lee", "--again")
    assert row["imported"] == 0 and "erased" not in row["told"]
    assert "of Tom Lee stored as said by Tom; they stay so" in row["told"]


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("text", [log(CHAT), "Tom: Hi\nEva: Hello\n"], ids=["dated", "undated"])
def test_again_brings_back_what_was_erased(tmp_path, run, text):
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
def test_again_is_for_conversations(tmp_path, run):
    file = tmp_path / "m.jsonl"
    file.write_text('{"memory": "I sail"}')
    assert "holds no conversation" in run("import", str(file), "--again", code=2).stderr


# -- any changes -------------------------------------------------------------------------------

said_at = st.tuples(
    st.integers(0, 40), st.sampled_from(["Tom", "Eva"]), st.sampled_from(["ok", "yes", "I sail"])
)


def as_said(chat):
    start = datetime(2024, 1, 20, 10)
    lines = sorted(chat, key=lambda line: line[0])
    return [Said("user", name, f"{start + timedelta(minutes=m)}", text) for m, name, text in lines]


def stored(said, found):
    times = [datetime.fromisoformat(one.time or "").timestamp() // 60 for one in said]
    return [
        Imported(one.import_id, one.import_id, of.role, of.name, int(time), of.text)
        for of, one, time in zip(said, found, times, strict=True)
        if one.turn is None and not one.erased
    ]


@given(st.lists(said_at, max_size=12), st.data())
def test_no_deletion_by_senders_doubles_a_message_or_brings_an_erased_one_back(chat, data):
    first = as_said(chat)
    turns = stored(first, recognised(first, [], lambda id: False))
    assert len({turn.import_id for turn in turns}) == len(first)
    gone = {turn.import_id for turn in turns if data.draw(st.booleans())}
    kept = [turn for turn in turns if turn.import_id not in gone]
    left = [line for line in chat if data.draw(st.integers(0, 4))]
    again = recognised(as_said(left), kept, gone.__contains__)
    assert all(one.turn is not None or one.erased for one in again)
    assert len({one.import_id for one in again}) == len(left)


@given(st.lists(said_at, max_size=12), st.lists(said_at, max_size=12), st.data())
def test_a_message_of_somebody_else_is_no_stored_one_and_erased_only_with_its_minute_and_words(
    chat, other, data
):
    first = as_said(chat)
    turns = stored(first, recognised(first, [], lambda id: False))
    gone = [turn for turn in turns if data.draw(st.booleans())]
    kept = [turn for turn in turns if turn not in gone]
    ruths = as_said([(minute, "Ruth", text) for minute, _, text in other])
    found = recognised(ruths, kept, {turn.import_id for turn in gone}.__contains__)
    assert all(one.turn is None for one in found)
    erased = {(turn.minute, turn.text) for turn in gone}
    assert all(
        (int(datetime.fromisoformat(of.time or "").timestamp() // 60), of.text) in erased
        for of, one in zip(ruths, found, strict=True)
        if one.erased
    )


@pytest.mark.usefixtures("home")
def test_an_export_of_few_messages_is_known_after_one_was_deleted(tmp_path, run):
    imported(run, tmp_path / "a.txt", CHAT[:4])
    assert imported(run, tmp_path / "b.txt", CHAT[1:4])["imported"] == 0


@pytest.mark.usefixtures("home")
def test_what_was_erased_stays_erased_under_a_new_name(tmp_path, run):
    imported(run, tmp_path / "a.txt", CHAT, "--me", "Eva")
    run("erase", "--matching", "Tom", "--yes")
    row = imported(run, tmp_path / "b.txt", renamed(CHAT), "--me", "Eva")
    assert row["imported"] == 0 and "8 turns left out that you erased" in row["told"]


# -- other chats -------------------------------------------------------------------------------


@pytest.mark.usefixtures("home")
def test_messages_sent_on_to_another_chat_move_no_times_and_are_stored(tmp_path, run):
    sent_on = [(time, "Eva", text) for time, _, text in later(CHAT, 180)]
    ben = [
        ("2024-05-02 12:30", "Ben", "Hi"),
        *((f"2024-07-{d} 12:00", "Ben", f"Day {d}") for d in (10, 11)),
    ]
    imported(run, tmp_path / "a.txt", CHAT, "--me", "Eva")
    lines = sorted([*sent_on, *ben])
    row = imported(run, tmp_path / "b.txt", lines, "--me", "Eva")
    assert row["imported"] == len(lines) and "its times differ" not in row["told"]


@pytest.mark.usefixtures("home")
def test_one_of_a_files_conversations_gets_no_times_of_another(tmp_path):
    def said(lines, chat):
        return [Said("user", name, time, text, chat=chat) for time, name, text in lines]

    first = said(CHAT, 0)
    turns = stored(first, recognised(first, [], lambda id: False))
    found = recognised([*said(later(CHAT, 330), 0), *said([NEWS], 1)], turns, lambda id: False)
    assert [one.ahead_min for one in found] == [330] * len(CHAT) + [0]


@pytest.mark.usefixtures("home")
def test_a_stopped_import_goes_on_where_it_stopped_in_a_store_of_other_chats(tmp_path, run):
    lines = [*CHAT, *((f"2024-08-{d} 12:00", "Eva", f"Day {d}") for d in range(10, 30))]
    imported(run, tmp_path / "c.txt", [("2020-01-01 09:00", "Eva", "Hi"), NEWS], "--me", "Eva")
    for count, new in ((2, 2), (9, 7), (len(lines), len(lines) - 9)):
        row = imported(run, tmp_path / "a.txt", lines[:count], "--me", "Eva")
        assert (row["imported"], row["skipped"]) == (new, count - new)


def test_the_ids_of_equal_messages_of_one_minute_are_made_once_each(
    monkeypatch,
):
    made = 0
    make = reimport._import_id

    def counted(key, place):
        nonlocal made
        made += 1
        return make(key, place)

    monkeypatch.setattr(reimport, "_import_id", counted)
    said = as_said([(1, "Tom", "ok")] * 400)
    turns = stored(said, recognised(said, [], lambda id: False))
    again = recognised(said, turns, lambda id: False)
    assert all(one.turn is not None for one in again) and made < 2_000
