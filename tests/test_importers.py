"""Conversations in files become messages: LoCoMo, chat logs, the demo's format."""

import json
from datetime import datetime
from importlib import resources
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.readers import locomo_file, locomo_files
from edgemem.errors import InputError
from edgemem.pipeline.importers import (
    batches,
    detect_format,
    import_ids,
    read_chat_log,
    read_demo,
    read_mem_gallery,
    spaced,
)


def locomo():
    """A conversation of LoCoMo's shape; the words are ours."""
    return {
        "sample_id": "conv-0",
        "qa": [{"question": "Who sails?", "answer": "Nia", "evidence": ["D2:1"], "category": 4}],
        "conversation": {
            "speaker_a": "Nia",
            "speaker_b": "Omar",
            "session_10_date_time": "12:05 am on 1 June, 2023",
            "session_10": [{"speaker": "Omar", "dia_id": "D10:1", "text": "Good night!"}],
            "session_2_date_time": "1:56 pm on 8 May, 2023",
            "session_2": [
                {"speaker": "Nia", "dia_id": "D2:1", "text": "I went sailing yesterday."},
                {"speaker": "Omar", "dia_id": "D2:2", "text": "Nice!",
                 "blip_caption": "a red boat", "img_url": ["x"]},
            ],
            "session_3_date_time": "4:00 pm on 9 May, 2023",
        },
    }  # fmt: skip


def write(path, text):
    if isinstance(text, bytes):
        path.write_bytes(text)
    else:
        path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return path


def said(path):
    messages = read_chat_log(path).messages
    return [(m.get("name"), m["content"], m.get("timestamp")) for m in messages]


# -- LoCoMo --------------------------------------------------------------------------------------


def test_locomo_turns_come_in_the_order_of_their_sessions_with_dates(tmp_path):
    file = locomo_file(write(tmp_path / "c.json", locomo()))
    assert file.sample_id == "conv-0" and file.qa == locomo()["qa"]
    expected = (
        ("Nia", "I went sailing yesterday.", "2023-05-08T13:56:00.000+00:00", 2, "D2:1"),
        ("Omar", "Nice! [shares a photo: a red boat]", "2023-05-08T13:56:05.000+00:00", 2, "D2:2"),
        ("Omar", "Good night!", "2023-06-01T00:05:00.000+00:00", 10, "D10:1"),
    )
    for message, (name, content, time, session, id) in zip(file.messages, expected, strict=True):
        about = {"speaker": name, "session": session, "dia_id": id, "sample_id": "conv-0"}
        told = {"role": "user", "name": name, "content": content, "timestamp": time}
        assert message == {**told, "metadata": about}


def test_a_session_at_the_end_of_time_is_an_input_error():
    assert spaced("9999-12-31T23:59:59Z", 0) == "9999-12-31T23:59:59.000+00:00"
    with pytest.raises(InputError, match="past the year 9999"):
        spaced("9999-12-31T23:59:59Z", 1)


@pytest.mark.parametrize("key", ["session_01", "session_\u0661", "session_" + "9" * 5000])
def test_a_key_that_is_no_sessions_is_passed_over(tmp_path, key):
    more = write(tmp_path / "c.json", broken(lambda c: c.update({key: [5]})))
    assert locomo_file(more) == locomo_file(write(tmp_path / "d.json", locomo()))


def test_several_locomo_conversations_are_read_one_by_one(tmp_path):
    first, second = locomo(), locomo()
    del second["sample_id"]
    path = write(tmp_path / "all.json", [first, second])
    assert [s.sample_id for s in locomo_files(path)] == ["conv-0", "all-2"]
    with pytest.raises(InputError, match="holds 2 LoCoMo conversations where one is expected"):
        locomo_file(path)


def broken(change):
    raw = locomo()
    change(raw["conversation"])
    return raw


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"qa": []}, "has no object 'conversation'"),
        ([], "holds 0 LoCoMo conversations"),
        ("{", "is not JSON"),
        (broken(lambda c: c.update(session_2="x")), "session_2 is 'x'; it must be a list of turns"),
        (broken(lambda c: c.update(session_2_date_time="8 May")),
         "session_2_date_time is '8 May'; it must look like '1:56 pm on 8 May, 2023'"),
        (broken(lambda c: c.update(session_2_date_time="13:56 pm on 8 May, 2023")),
         "session_2_date_time is '13:56 pm on 8 May, 2023'"),
        (broken(lambda c: c["session_2"][1].pop("dia_id")),
         "turn 2 of session_2 lacks one of the texts"),
        (broken(lambda c: c["session_2"].insert(0, 5)), "turn 1 of session_2 lacks"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_locomos_says_where(tmp_path, raw, message):
    with pytest.raises(InputError) as caught:
        locomo_file(write(tmp_path / "c.json", raw))
    assert message in str(caught.value) and "c.json" in str(caught.value)


# -- chat logs -----------------------------------------------------------------------------------


def test_a_log_with_iso_times_in_brackets_keeps_lines_without_a_head(tmp_path):
    text = "[2024-05-01 10:00] Ada: Hi!\nSecond line: still Ada\n\n"
    text += "[2024-05-01 10:01:30] Bo B.:\nyes\n"
    assert said(write(tmp_path / "log.txt", text)) == [
        ("Ada", "Hi!\nSecond line: still Ada", "2024-05-01T10:00:00"),
        ("Bo B.", "yes", "2024-05-01T10:01:30"),
    ]


@pytest.mark.parametrize(
    ("line", "time"),
    [
        ("2024-05-01 10:00 Ada: hi", "2024-05-01T10:00:00"),
        ("2024-05-01T10:00:05Z Ada: hi", "2024-05-01T10:00:05+00:00"),
        ("[2024-05-01T10:00:05.123+02:00] Ada: hi", "2024-05-01T10:00:05+02:00"),
        ("31/12/2023, 14:03 - Ada: hi", "2023-12-31T14:03:00"),
        ("[31/12/2023, 14:03:22] Ada: hi", "2023-12-31T14:03:22"),
        ("\u200e[31.12.23, 14:03:22] Ada: hi", "2023-12-31T14:03:22"),
        ("12/31/23, 2:03\u202fPM - Ada: hi", "2023-12-31T14:03:00"),
        ("5/1/24, 12:03 AM - Ada: hi", "2024-05-01T00:03:00"),
        ("5/1/24, 10:03 - Ada: hi", "2024-01-05T10:03:00"),
        ("2024/05/01, 10:03 - Ada: hi", "2024-05-01T10:03:00"),
    ],
)
def test_each_shape_of_time_is_read(tmp_path, line, time):
    assert said(write(tmp_path / "log.txt", line)) == [("Ada", "hi", time)]


def test_day_and_month_are_told_apart_by_the_whole_log(tmp_path):
    by_a_later_line = "5/1/24, 10:00 - Ada: a\n5/13/24, 10:00 - Ada: b\n"
    assert said(write(tmp_path / "a.txt", by_a_later_line))[0][2] == "2024-05-01T10:00:00"
    by_time_running_on = "11/1/24, 10:00 - Ada: a\n12/1/24, 10:00 - Ada: b\n1/2/25, 9:00 - Ada: c\n"
    assert said(write(tmp_path / "b.txt", by_time_running_on))[2][2] == "2025-02-01T09:00:00"
    back_and_forth = "1/12/24, 10:00 - Ada: a\n2/1/24, 10:00 - Ada: b\n3/2/24, 10:00 - Ada: c\n"
    assert said(write(tmp_path / "c.txt", back_and_forth))[0][2] == "2024-01-12T10:00:00"


@pytest.mark.parametrize("head", ["[{}/12/2024, 10:00:00] {}: ", "{}/12/24, 10:00 - {}: "])
@pytest.mark.parametrize(
    "pasted",
    [
        "12/05/2024 10:00 dentist",
        "13/05/2024 11:00 Bo: vaccination",
        "3.14.15 9:26 roughly",
        "3.14.15 9:26 pi: roughly",
        "[31/02/2024, 10:00:00] Bo: no day",
        "31/02/24, 10:00 - Bo: no day",
    ],
)
def test_a_date_within_a_message_is_a_line_of_it(tmp_path, head, pasted):
    lines = [f"{head.format(25, 'Ada')}Dates:", pasted, "more", f"{head.format(26, 'Bo')}thanks"]
    assert said(write(tmp_path / "log.txt", "\n".join(lines))) == [
        ("Ada", f"Dates:\n{pasted}\nmore", "2024-12-25T10:00:00"),
        ("Bo", "thanks", "2024-12-26T10:00:00"),
    ]


def test_notices_and_media_are_left_out_and_counted(tmp_path):
    text = (
        "01/05/2024, 10:00 - Messages are encrypted.\n01/05/2024, 10:01 - Ada: <Media omitted>\n"
        "01/05/2024, 10:02 - Ada: hello\n01/05/2024, 10:03 - Bo left\n"
    )
    log = read_chat_log(write(tmp_path / "log.txt", text))
    assert [m["content"] for m in log.messages] == ["hello"]
    assert log.left_out == 3 and log.dated


def test_a_log_without_times_takes_every_named_line(tmp_path):
    text = "my notes\n\nuser: What is up?\nassistant: Not much.\nSee https://example.org\n"
    log = read_chat_log(write(tmp_path / "log.txt", text + "Ana-Lía: ¡Hola!\n"))
    assert not log.dated and log.left_out == 1
    assert log.messages == [
        {"role": "user", "content": "What is up?"},
        {"role": "assistant", "content": "Not much.\nSee https://example.org"},
        {"role": "user", "name": "Ana-Lía", "content": "¡Hola!",
         "metadata": {"speaker": "Ana-Lía"}},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"just words\nand more", "has no line such as `[2024-05-01 10:00] Name: text`"),
        (b"", "has no line such as"),
        (b"Ada: caf\xe9", "is not UTF-8 text: byte 8 is 0xe9. Save it as UTF-8"),
        (b"[2024-05-01 25:00] A: x", "has no line such as"),
    ],
)
def test_what_is_no_chat_log_says_why(tmp_path, data, message):
    with pytest.raises(InputError) as caught:
        read_chat_log(write(tmp_path / "log.txt", data))
    assert message in str(caught.value)


NOTES = {
    "a letter": "Dear Ruth,\n\nThe move went well.\n\nPS: The spare key is with Mrs Dunmore.\n",
    "a diary": "Rain all day.\nTo do: paint\nFed the cat.\nTo do: a roofer\nSlept.\nWalked.\n",
    "a diary that begins so": "To do: order boots\nPaul cooked.\nWe walked to the harbour.\n",
    "a short letter": "Dear Ruth, the move went well.\n\nPS: The key is with Mrs Dunmore.\n",
    "a login": "The router is in the hall.\nIt is grey.\nUser: admin\nIt has no password.\n",
    "front matter": "---\ntitle: Beans\ndate: 2021-04-10\ntags: plot\n---\nPlanted beans.\n",
}


@pytest.mark.parametrize("text", NOTES.values(), ids=NOTES)
def test_a_letter_or_note_is_refused_instead_of_losing_most_of_it(tmp_path, run, home, text):
    file = write(tmp_path / "note.txt", text)
    told = run("import", "--no-infer", str(file), code=2).stderr
    assert "looks like a letter or a note" in told and "`edgemem add - --timestamp TIME <" in told
    assert "turn" in run("import", "--no-infer", "--format", "chat", str(file)).stderr


@pytest.mark.parametrize(
    "text",
    [
        "Ada: Hi!\n",
        "Ada: Hi!\nBo: Hello.\n",
        "Our chat\n\nAda: Hi!\nBo: Hello.\nWell met.\nAda: Bye.\n",
        "user: Write a poem.\nassistant: Roses\nare red,\nviolets\nare\nblue.\n",
        "You: What may I cook?\nChatGPT: These\n1. Soup\n2. Rice\n3. Pasta\n",
        "Human: What may I cook?\nAssistant: These\n1. Soup\n2. Rice\n3. Pasta\n",
        "user: Write a poem.\nmodel: Roses\nare red,\nviolets\nare\nblue.\n",
        "Ada: I move in May.\nBo: I got the job.\nCarl: My knee is better.\n",
        "Chat with Ada\nsaved by phone\nAda: Hi!\nBo: Hello.\n",
        "Tom: We flew to Rome.\nA small hotel.\nTom: Day two.\nWe saw the forum.\nIt rained.\n",
    ],
)
def test_a_chat_without_times_is_no_note(tmp_path, text):
    assert len(read_chat_log(write(tmp_path / "log.txt", text)).messages) == text.count(": ")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"Cannot read .*none\.txt: No such file"):
        read_chat_log(tmp_path / "none.txt")
    with pytest.raises(InputError, match=r"Cannot read .*none\.txt: No such file"):
        detect_format(tmp_path / "none.txt")


words = st.text(st.characters(categories=("L", "N"), include_characters=" ,.!?'"), max_size=40)
turns_of_a_log = st.tuples(
    st.sampled_from(["Ada", "Bo B.", "Ямато", "user-1"]),
    words.filter(lambda t: t.strip() not in ("", "null")),  # which WhatsApp writes for others
    st.datetimes(datetime(2000, 1, 1), datetime(2099, 1, 1)),
)


@given(st.lists(turns_of_a_log, min_size=1, max_size=8))
def test_a_written_log_reads_back(tmp_path_factory, turns):
    lines = [f"[{time:%Y-%m-%d %H:%M:%S}] {name}: {text}" for name, text, time in turns]
    path = tmp_path_factory.getbasetemp() / "written.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    expected = [
        (name, text.strip(), time.replace(microsecond=0).isoformat()) for name, text, time in turns
    ]
    assert said(path) == expected


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader_in_another_way(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(data)
    try:
        detect_format(path)
        read_chat_log(path)
    except InputError:
        pass


# -- which file is which -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"type": "turn", "id": "1"}\n{"type": "memory"}\n', "edgemem"),
        ("", "edgemem"),
        (json.dumps(locomo()), "locomo"),
        (json.dumps(locomo(), indent=2), "locomo"),
        (json.dumps([locomo()], indent=2), "locomo"),
        ("[2024-05-01 10:00] Ada: hi", "chat"),
        ("{smiles} Ada: hi", "chat"),
        ("Ada: hi", "chat"),
        ("12", "chat"),
    ],
)
def test_the_format_is_told_by_the_content(tmp_path, text, expected):
    assert detect_format(write(tmp_path / "file", text)) == expected


# -- ids and batches -----------------------------------------------------------------------------

message = {
    "role": st.just("user"),
    "content": st.text(st.characters(), max_size=5),
    "metadata": st.fixed_dictionaries({"session": st.integers(1, 3)}),
}
message_lists = st.lists(st.fixed_dictionaries(message), max_size=12)


@given(message_lists, message_lists)
def test_ids_of_what_was_there_stay_when_a_log_grows(old, new):
    ids = import_ids(old + new, seed="s")
    assert ids[: len(old)] == import_ids(old, seed="s")
    assert len(set(ids)) == len(ids)


def test_ids_depend_on_the_seed_and_on_everything_before():
    hi, bye = {"content": "hi"}, {"content": "bye"}
    assert import_ids([hi], seed="a") != import_ids([hi], seed="b")
    assert import_ids([hi, bye], seed="")[1] != import_ids([bye, bye], seed="")[1]


@given(message_lists, st.booleans())
def test_batches_hold_every_message_once_in_order(messages, infer):
    with patch("edgemem.pipeline.importers.BATCH_TURNS", 5):
        made = list(batches(messages, infer=infer))
    assert [m for batch in made for m in batch] == messages
    if infer:
        assert all(len(b) <= 2 for b in made)
        assert all(len({m["metadata"]["session"] for m in b}) == 1 for b in made)
    else:
        assert all(len(b) == 5 for b in made[:-1])


# -- the demo ------------------------------------------------------------------------------------


def test_the_bundled_demo_is_of_its_format():
    with resources.as_file(resources.files("edgemem") / "data" / "demo.json") as path:
        demo = read_demo(path)
    assert len(demo.questions) == 6 and len(demo.sessions) >= 3
    assert demo.questions_date > demo.sessions[-1].date > demo.sessions[0].date
    first = demo.sessions[0]
    assert [m["timestamp"] for m in first.messages[:2]] == [first.date, spaced(first.date, 1)]


def demo_file():
    session = {"date": "2025-01-01T10:00:00Z", "messages": [{"role": "user", "content": "x"}]}
    questions = [{"question": "q?", "answers": ["a"]}]
    return {"sessions": [session], "questions_date": "2025-02-01", "questions": questions}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("sessions"), "lacks 'sessions', a list that is not empty"),
        (lambda d: d["sessions"][0].update(date="soon"), "session 1: 'date' is 'soon'; it must be"),
        (lambda d: d["sessions"][0]["messages"][0].pop("role"), "session 1: message 1 lacks"),
        (lambda d: d.pop("questions_date"), "'questions_date' is None"),
        (lambda d: d.update(questions=[{"question": "q?"}]), "question 1 lacks 'answers'"),
        (lambda d: d["questions"][0].update(answers=[" "]), "question 1 lacks the text"),
    ],
)
def test_a_demo_that_lacks_something_says_what(tmp_path, change, message):
    raw = demo_file()
    assert read_demo(write(tmp_path / "d.json", raw)).user_id == "demo"
    change(raw)
    with pytest.raises(InputError) as caught:
        read_demo(write(tmp_path / "d.json", raw))
    assert message in str(caught.value)


def test_an_error_quotes_the_beginning_of_a_long_value(tmp_path):
    raw = demo_file()
    raw["questions_date"] = "x" * 10_000
    with pytest.raises(
        InputError, match=r"'questions_date' is 'x+\.\.\.; it must be a time"
    ) as caught:
        read_demo(write(tmp_path / "d.json", raw))
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


def gallery():
    """A scenario of Mem-Gallery's shape; the words are ours."""
    said = {"round": "D1:1", "user": "Look, my boat!", "assistant": "A fine sloop."}
    photos = {"image_id": ["D1:IMG_001", "D1:IMG_002"], "image_caption": ["a red boat", "a quay"]}
    bare = {"round": "D1:2", "user": "", "assistant": "Anything else?"}
    session = {"session_id": "D1", "date": "2024-06-24", "dialogues": [{**said, **photos}, bare]}
    return {"multi_session_dialogues": [session], "human-annotated QAs": []}


@pytest.mark.parametrize("captions", [True, False])
def test_mem_gallerys_photos_are_told_in_the_message_that_shares_them(tmp_path, captions):
    file = write(tmp_path / "Boats.json", gallery())
    assert detect_format(file) == "mem-gallery"
    found = read_mem_gallery(file, captions=captions)
    photos = [": a red boat", ": a quay"] if captions else ["", ""]
    told = " ".join(f"[shares a photo{photo}]" for photo in photos)
    assert [(m["role"], m["content"]) for m in found] == [
        ("user", f"Look, my boat! {told}"),
        ("assistant", "A fine sloop."),
        ("assistant", "Anything else?"),
    ]
    about = {"session": "D1", "round": "D1:1"}
    assert found[0]["metadata"] == {**about, "images": ["D1:IMG_001", "D1:IMG_002"]}
    assert found[1]["metadata"] == about
    assert found[2]["timestamp"] == "2024-06-24T12:00:10.000+00:00"


def test_what_is_no_scenario_of_mem_gallery_is_refused_in_words(tmp_path):
    file = tmp_path / "x.json"
    for sessions in ([5], ["ab"], [None], [[]]):
        with pytest.raises(InputError, match=r"session .*: 'date' is None"):
            read_mem_gallery(write(file, {"multi_session_dialogues": sessions}))
    no_photos = "'D1': image_id or image_caption is no list of texts"
    for change, message in (
        ({"assistant": None}, "'D1': a round lacks one of the texts user, assistant"),
        ({"image_id": 5}, no_photos), ({"image_id": ["x", {}]}, no_photos),
        ({"image_caption": 3}, no_photos), ({"image_caption": {"a": 1}}, no_photos),
    ):  # fmt: skip
        broken = gallery()
        broken["multi_session_dialogues"][0]["dialogues"][1] |= change
        with pytest.raises(InputError, match=message):
            read_mem_gallery(write(file, broken))


def test_the_command_imports_a_scenario_once(tmp_path, run, home):
    file = write(tmp_path / "Boats.json", gallery())
    for imported, skipped in ((3, 0), (0, 3)):
        (row,) = json.loads(run("import", str(file), "--no-infer", "--json").stdout)["results"]
        told = row["format"], row["imported"], row["skipped"]
        assert told == ("mem-gallery", imported, skipped)
    assert "a red boat" in run("search", "boat").stdout
