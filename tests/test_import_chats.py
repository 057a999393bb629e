"""The exports of chat programs become messages: ChatGPT, Claude, Telegram, OpenAI and WhatsApp."""

import json
import zipfile
from typing import get_args

import pytest
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from memorykit import quick, texts

from edgemem import Memory
from edgemem.errors import InputError, StoreFull
from edgemem.inputs import messages_of
from edgemem.pipeline import importers
from edgemem.pipeline.chat_exports import Program
from edgemem.pipeline.importers import detect_format, read_chat_log, read_conversations
from edgemem.sync import pairing_code, sync


def saved(path, value):
    text = value if isinstance(value, str) else json.dumps(value)
    path.write_text(text, encoding="utf-8")
    return path


def told(path, number=0):
    log = read_conversations(path, detect_format(path))[number]
    return [(m["role"], m.get("name"), m["content"], m.get("timestamp")) for m in log.messages]


# -- ChatGPT -------------------------------------------------------------------------------------


def node(parent, role, *parts, time=None, **more):
    content = {"content_type": "text", "parts": list(parts)}
    message = {"author": {"role": role}, "create_time": time, "content": content, **more}
    return {"message": message, "parent": parent, "children": []}


def chatgpt():
    hidden = {"is_visually_hidden_from_conversation": True}
    return {
        "title": "Boats",
        "create_time": 1714557600.0,
        "current_node": "h",
        "mapping": {
            "a": {"message": None, "parent": None, "children": ["b"]},
            "b": node("a", "system", ""),
            "c": node("b", "user", "My profile.", metadata=hidden),
            "d": node("c", "user", "I have a red boat.", time=1714557601.5),
            "old": node("d", "assistant", "An answer that was made anew.", time=1714557602),
            "e": node("d", "assistant", "search('boats')", time=1714557603, recipient="web"),
            "f": node("e", "tool", "boats.example", time=1714557604),
            "g": node("f", "assistant", "A fine", "boat.", time=1714557605),
            "h": node("g", "user", {"content_type": "image_asset_pointer"}, "Thanks!"),
        },
    }


def test_chatgpts_branch_of_the_current_node_is_read_without_system_and_tools(
    tmp_path,
):
    second = {**chatgpt(), "current_node": "old"}
    file = saved(tmp_path / "conversations.json", [chatgpt(), second])
    assert detect_format(file) == "chatgpt"
    said = ("user", None, "I have a red boat.", "2024-05-01T10:00:01.500+00:00")
    assert told(file) == [
        said,
        ("assistant", None, "A fine\nboat.", "2024-05-01T10:00:05.000+00:00"),
        ("user", None, "Thanks!", "2024-05-01T10:00:05.000+00:00"),  # the time before it
    ]
    assert told(file, 1)[1][2] == "An answer that was made anew."
    log = read_conversations(file, "chatgpt")[0]
    assert log.dated and log.left_out == 4
    assert log.messages[0]["metadata"] == {"conversation": "Boats"}


def test_what_a_user_wrote_about_themselves_in_chatgpts_settings_is_read_once(
    tmp_path,
):
    about = {"user_context_message_data": {"about_user_message": "I am vegetarian."}}
    hidden = node("b", "user", metadata={**about, "is_visually_hidden_from_conversation": True})
    one, later = chatgpt(), {**chatgpt(), "create_time": 1714657600.0}
    for row in (one, later):
        row["mapping"]["c"] = hidden
    file = saved(tmp_path / "conversations.json", [later, one])
    plain = saved(tmp_path / "plain.json", [{**chatgpt(), "create_time": 1714657600.0}, chatgpt()])
    assert told(file, 2) == [("user", None, "I am vegetarian.", "2024-05-01T10:00:00.000+00:00")]
    assert [told(file, n) for n in (0, 1)] == [told(plain, n) for n in (0, 1)]
    assert len(read_conversations(plain, "chatgpt")) == 2


def test_the_conversations_of_an_export_are_told_in_the_order_of_their_time(tmp_path, run):
    def one(day, text):
        mapping = {"a": node(None, "user", text, time=1714557600.0 + day * 86400)}
        return {"create_time": 1714557600.0 + day * 86400, "current_node": "a", "mapping": mapping}

    rows = [one(9, "I moved to Leeds."), one(0, "I live in York."), one(4, "I found a flat.")]
    run("import", "--no-infer", str(saved(tmp_path / "conversations.json", rows)))
    listed = run("list").stdout
    places = [listed.index(text) for text in ("live in York", "found a flat", "moved to Leeds")]
    assert places == sorted(places)


def test_one_conversation_without_times_is_read_without_times(tmp_path):
    one = chatgpt()
    del one["create_time"], one["current_node"]
    one["mapping"] = {"a": node(None, "user", "Hi"), "b": node("a", "assistant", "Hello")}
    file = saved(tmp_path / "one.json", json.dumps(one, indent=2))
    assert told(file) == [("user", None, "Hi", None), ("assistant", None, "Hello", None)]
    assert not read_conversations(file, "chatgpt")[0].dated


def test_a_branch_that_is_a_circle_ends(tmp_path):
    one = {"mapping": {"a": node("b", "user", "Hi"), "b": node("a", "user", "Ho")}}
    assert [said[2] for said in told(saved(tmp_path / "c.json", [one]))] == ["Hi", "Ho"]


# -- Claude, Telegram, OpenAI ----------------------------------------------------------------------


def claude():
    tool = [{"type": "tool_use", "input": {}}, {"type": "text", "text": "A fine boat."}]
    return {
        "name": "Boats",
        "chat_messages": [
            {"sender": "human", "text": "I have a red boat.", "content": [],
             "created_at": "2024-05-01T10:00:00.123456Z"},
            {"sender": "assistant", "text": "(not shown)\nA fine boat.", "content": tool,
             "created_at": "2024-05-01T10:00:05Z"},
            {"sender": "human", "text": "", "content": []},
        ],
    }  # fmt: skip


def test_claudes_export_has_the_users_words_and_the_assistants(tmp_path):
    file = saved(tmp_path / "conversations.json", [claude()])
    assert detect_format(file) == "claude"
    assert told(file) == [
        ("user", None, "I have a red boat.", "2024-05-01T10:00:00.123456Z"),
        ("assistant", None, "A fine boat.", "2024-05-01T10:00:05Z"),
    ]
    assert read_conversations(file, "claude")[0].left_out == 1


def telegram():
    bold = ["I have a ", {"type": "bold", "text": "red"}, " boat."]
    return {
        "name": "Nia",
        "type": "personal_chat",
        "id": 7,
        "messages": [
            {"type": "service", "date": "2024-05-01T09:00:00", "action": "phone_call"},
            {"type": "message", "date": "2024-05-01T10:00:00", "from": "Nia", "text": bold},
            {"type": "message", "date": "2024-05-01T12:01:00", "date_unixtime": "1714557660",
             "from": None, "from_id": "user12", "text": "Nice!"},
            {"type": "message", "date": "2024-05-01T10:02:00", "from": "Nia", "text": "",
             "photo": "photos/1.jpg"},
        ],
    }  # fmt: skip


def test_people_in_telegram_are_named_speakers(tmp_path):
    file = saved(tmp_path / "result.json", json.dumps(telegram(), indent=1))
    assert detect_format(file) == "telegram"
    expected = [
        ("user", "Nia", "I have a red boat.", "2024-05-01T10:00:00"),
        ("user", "user12", "Nice!", "2024-05-01T10:01:00.000+00:00"),
    ]
    assert told(file) == expected
    whole = saved(tmp_path / "all.json", {"about": "…", "chats": {"list": [telegram()] * 2}})
    assert told(whole, 1) == expected
    assert read_conversations(whole, "telegram")[0].left_out == 2


OPENAI = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "I have a red boat."}]},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "assistant", "content": "A fine boat."},
]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"messages": OPENAI}),
        json.dumps([{"messages": OPENAI}], indent=2),
        json.dumps({"messages": OPENAI}) + "\n\n" + json.dumps({"messages": OPENAI}) + "\n",
        json.dumps(OPENAI),
        "\n".join(map(json.dumps, OPENAI)),
    ],
)
def test_openais_messages_are_read_as_json_and_as_lines_of_it(tmp_path, text):
    file = saved(tmp_path / "messages.json", text)
    assert detect_format(file) == "openai"
    expected = [("user", None, "I have a red boat."), ("assistant", None, "A fine boat.")]
    assert [said[:3] for said in told(file)] == expected
    logs = read_conversations(file, "openai")
    assert len(logs) == (2 if "\n\n" in text else 1) and logs[0].left_out == 2


@pytest.mark.parametrize(
    ("program", "value", "message"),
    [
        ("chatgpt", [chatgpt(), {"mapping": []}], "conversation 2 of .* has no object 'mapping'"),
        ("claude", {"chat_messages": {}}, "conversation 1 of .* has no list 'chat_messages'"),
        ("claude", ["x"], "conversation 1 of .* has no list 'chat_messages'"),
        ("telegram", {"chats": {"list": 5}}, "conversation 1 of .* has no list 'messages'"),
        ("openai", {"messages": [{"role": "tool", "content": "x"}]}, "no message of a person or"),
        ("openai", [], "no message of a person or an assistant that has words"),
        ("chatgpt", {**chatgpt(), "create_time": "soon"}, "message of the time 'soon'; it must be"),
        ("openai", '{"messages": []}\n{"messages', "line 2 of .* is not JSON"),
        ("claude", '[\n{"chat_messages', "x.json is not JSON: .* Correct it"),
    ],
)
def test_an_export_of_another_shape_says_which_conversation(tmp_path, program, value, message):
    with pytest.raises(InputError, match=message):
        read_conversations(saved(tmp_path / "x.json", value), program)


HOSTILE = st.sampled_from([None, 5, -1, 1e300, float("nan"), True, "", "\ud800\0", [], [[]], {}])


@given(st.data())
def test_a_damaged_export_is_read_or_refused_and_what_is_read_can_be_stored(tmp_path_factory, data):
    def mangled(value):
        if data.draw(st.integers(0, 14)) == 0:
            return data.draw(HOSTILE)
        if isinstance(value, dict):
            return {key: mangled(held) for key, held in value.items()}
        return [mangled(held) for held in value] if isinstance(value, list) else value

    sound = data.draw(st.sampled_from([chatgpt(), claude(), telegram(), {"messages": OPENAI}]))
    file = saved(tmp_path_factory.getbasetemp() / "mangled.json", [mangled(sound)])
    try:
        program = detect_format(file)
        for log in read_conversations(file, program) if program in get_args(Program) else ():
            assert not log.messages or messages_of(log.messages, None)
    except InputError:
        pass


# -- WhatsApp --------------------------------------------------------------------------------------


LOG = "[01/05/2024, 10:00:00] Nia: I have a red boat.\n"


def archive(path, files, packing=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", packing) as out:
        for name, data in files.items():
            out.writestr(name, data)
    return path


@pytest.mark.parametrize("name", ["_chat.txt", "WhatsApp Chat mit Nia.txt", "Nia/_chat.txt"])
def test_the_text_in_whatsapps_zip_is_read_and_its_media_are_not(tmp_path, name):
    media = {"PHOTO-1.jpg": b"\xff\xd8\xff" * 99, "notes.txt": b"Bo: no chat"}
    file = archive(tmp_path / "chat.zip", {**media, name: LOG.encode()})
    assert detect_format(file) == "chat"
    (message,) = read_chat_log(file).messages
    assert (message["name"], message["content"]) == ("Nia", "I have a red boat.")


def test_the_zip_of_chatgpt_is_read_too(tmp_path):
    data = json.dumps([chatgpt()]).encode()
    file = archive(tmp_path / "export.zip", {"conversations.json": data, "user.json": b"{}"})
    assert detect_format(file) == "chatgpt" and len(told(file)) == 3


@pytest.mark.parametrize(
    ("files", "packing", "message"),
    [
        ({"a.jpg": b"x"}, zipfile.ZIP_STORED, "^/.* holds 0 chats where one is expected"),
        ({"a.txt": b"x", "b.txt": b"x"}, zipfile.ZIP_STORED, "holds 2 chats .* Unpack it"),
        ({"_chat.txt": b"A: x\n" * 999}, zipfile.ZIP_DEFLATED, "^_chat.txt in .* more than 999 "),
        ({"_chat.txt": b"A: x\n" * 999}, zipfile.ZIP_BZIP2, "^/.* cannot be unpacked"),
        ({"_chat.txt": b"A: caf\xe9"}, zipfile.ZIP_STORED, "is not UTF-8 text: byte 6"),
    ],
)
def test_a_zip_that_cannot_be_read_says_what_to_do(
    tmp_path, files, packing, message,
    monkeypatch,
):  # fmt: skip
    monkeypatch.setattr(importers, "MAX_ZIPPED_BYTES", 999)
    with pytest.raises(InputError, match=message):
        read_chat_log(archive(tmp_path / "chat.zip", files, packing))


@given(st.integers(0), st.binary(min_size=1, max_size=8))
def test_a_damaged_zip_is_read_or_refused(tmp_path_factory, place, put):
    file = archive(tmp_path_factory.getbasetemp() / "chat.zip", {"_chat.txt": LOG.encode() * 9})
    data = file.read_bytes()
    at = place % len(data)
    file.write_bytes(data[:at] + put + data[at + len(put) :])
    try:
        detect_format(file)
        read_chat_log(file)
    except InputError:
        pass


def written(tmp_path, *texts):
    lines = [f"[01/05/2024, 10:00:00] Nia: {text}\n" for text in texts]
    log = read_chat_log(saved(tmp_path / "_chat.txt", "".join([*lines, LOG])))
    assert log.left_out == len(texts) + 1 - len(log.messages)
    return [message["content"] for message in log.messages[:-1]]


@pytest.mark.parametrize(
    "text",
    [
        "\u200eMessages and calls are end-to-end encrypted. No one can read them.",
        "Messages and calls are end-to-end encrypted. No one can read them.",
        "\u200eNia hat die Gruppe erstellt",
        "\u200eimage omitted",
        "\u200eBild weggelassen",
        "\u200e<attached: 0001-PHOTO.jpg>",
        "image omitted",
        "<Media omitted>",
        "<Medien ausgeschlossen>",
        "<Multimedia omitido>",
        "<Médias omis>",
        "<メディアは含まれていません>",
        "IMG-20231224-WA0001.jpg (file attached)",
        "\u200eIMG-20231224-WA0001.jpg (файл добавлен)",
        "Our plan.pdf (Datei angehängt)",
        "Our plan.pdf • \u200e3 pages \u200edocument omitted",
        "This message was deleted",
        "You deleted this message.",
        "Du hast diese Nachricht gelöscht",
        "Missed voice call",
        "null",
        "This message was deleted by admin Tom",
        "Diese Nachricht wurde von Admin Tom gelöscht.",
        "Waiting for this message. This may take a while.",
        "Warte auf diese Nachricht. Dies kann etwas dauern.",
    ],
)
def test_what_whatsapp_itself_says_is_left_out(tmp_path, text):
    assert written(tmp_path, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "I missed a voice call",
        "This message was deleted by whom?",
        "the value is null",
        "I am waiting for this message",
        "Warte auf diese Nachricht von Oma, sie kommt am Freitag",
        'He said "soon": and left',
        "NULL",
        "I <3 you",
        "<br>",
        "see plan.pdf (the new one)",
        "Are messages and calls end-to-end encrypted?",
        "a <b",
        "if a < b and the message was edited > c",
    ],
)
def test_what_a_person_says_about_it_is_kept(tmp_path, text):
    assert written(tmp_path, text) == [text]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("See you at 5 <This message was edited>", "See you at 5"),
        ("Bis 5 \u200e<Diese Nachricht wurde bearbeitet>", "Bis 5"),
        ("Hasta las 5 <Se editó este mensaje.>", "Hasta las 5"),
        ("Our boat \u200e<attached: 0002-PHOTO.jpg>", "Our boat"),
        ("IMG-20231224-WA0001.jpg (file attached)\nOur boat", "Our boat"),
        ("<Media omitted>\nOur boat", "Our boat"),
        ("\u200ePOLL:\nLunch?\n\u200eOPTION: Pizza (\u200e2 votes)",
         "Lunch?\nOPTION: Pizza"),
        ("POLL:\nLunch?\nOPTION: Pizza (2 votes)", "Lunch?\nOPTION: Pizza"),
        ("UMFRAGE:\nWer?\nOPTION: Ruth (3 Stimmen)", "Wer?\nOPTION: Ruth"),
    ],
)  # fmt: skip
def test_what_whatsapp_adds_to_a_message_is_cut_off(tmp_path, text, kept):
    assert written(tmp_path, text) == [kept]


@pytest.mark.parametrize(
    "notice",
    [
        'created group "Brandts: family"',
        'changed the group name from "Brandts" to "Brandts: family"',
        'changed the group name from "Brandts: family" to "Home"',
        "created group “Brandts: family”",
        "hat die Gruppe „Brandts: Familie“ erstellt.",
        "hat den Gruppennamen von „Brandts: Familie“ zu „Wir“ geändert",
        "a créé le groupe « Brandts : famille »",
    ],
)
def test_a_group_whose_name_has_a_colon_is_no_person(tmp_path, notice):
    text = f"1/1/24, 9:00 AM - Ruth {notice}\n1/1/24, 9:01 AM - Ruth: Hello\n"
    log = read_chat_log(saved(tmp_path / "_chat.txt", text))
    assert [m["name"] for m in log.messages] == ["Ruth"] and log.left_out == 1


@pytest.mark.parametrize("name", ["Dave 6'4\"", 'Dave "Tall"', "Ann «Nana", 'Tom "Nana'])
def test_a_person_whose_name_has_quotation_marks_is_no_notice(tmp_path, name):
    said = 'He said "come", and »yes«, and "my plans changed" on Friday'
    log = read_chat_log(saved(tmp_path / "_chat.txt", f"1/1/24, 9:00 AM - {name}: {said}\n"))
    assert [(m["name"], m["content"]) for m in log.messages] == [(name, said)]


def test_chatgpts_citations_are_cut_off(tmp_path):
    one = chatgpt()
    marked = "A sloop \ue200cite\ue202turn0search1\ue201 has one mast【4†source】."
    one["mapping"]["g"] = node("f", "assistant", marked, time=1714557605)
    file = saved(tmp_path / "conversations.json", [one])
    assert told(file)[1][2] == "A sloop has one mast."


@pytest.mark.usefixtures("home")
def test_a_file_that_was_cut_off_is_called_so(tmp_path, run):
    cut = saved(tmp_path / "conversations.json", json.dumps([chatgpt()])[:400])
    log = saved(tmp_path / "_chat.txt", LOG)
    told = run("import", "--no-infer", str(log), str(cut), code=2).stderr
    assert "begins as JSON, but is not" in told and "It may have been cut off" in told
    assert "There is no store" in run("list", code=1).stderr


@pytest.mark.usefixtures("home")
def test_a_folder_of_notes_gets_no_advice_about_vectors(tmp_path, run):
    (tmp_path / "notes" / "2021").mkdir(parents=True)
    saved(tmp_path / "notes" / "2021" / "garden.md", "Dug.")
    told = run("import", str(tmp_path / "notes"), code=2).stderr
    assert "is a folder of texts, such as garden.md" in told and "chroma" not in told


# -- the command -----------------------------------------------------------------------------------


def row_of(result):
    (row,) = json.loads(result.stdout)["results"]
    return dict(row)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("make", [chatgpt, claude, telegram])
def test_an_export_of_a_program_is_imported_once(tmp_path, run, make):
    file = saved(tmp_path / "conversations.json", [make()])
    row = row_of(run("import", "--no-infer", str(file), "--json"))
    assert row["format"] == make.__name__ and row["imported"] >= 2 and row["skipped"] == 0
    again = row_of(run("import", "--no-infer", str(file), "--json"))
    assert (again["imported"], again["skipped"]) == (0, row["imported"])
    assert "I have a red boat." in run("list").stdout


@pytest.mark.usefixtures("home")
def test_no_fact_is_taken_from_what_a_model_said(tmp_path, run, stand_in):
    facts = {"I have a red boat.": "{} has a red boat", "A fine boat.": "{} is fine"}
    stand_in(FakeEngine(facts=facts))
    run("import", str(saved(tmp_path / "conversations.json", [claude()])))
    listed = run("list").stdout
    assert "User has a red boat" in listed and "is fine" not in listed


@pytest.mark.usefixtures("home")
def test_an_import_gives_the_same_ids_on_every_device(tmp_path, run, stand_in):
    stand_in(FakeEngine(facts={"I have a red boat.": "{} has a red boat"}))
    file = str(saved(tmp_path / "conversations.json", [claude()]))

    def ids(db, *option):
        run("import", file, "--db", str(tmp_path / db), *option)
        rows = json.loads(run("list", "--db", str(tmp_path / db), *option, "--json").stdout)
        return [row["id"] for row in rows["results"]]

    here = ids("a.db")
    assert here == ids("b.db") and len(here) == 3
    assert not set(here) & set(ids("a.db", "--user-id", "bo"))


@pytest.mark.usefixtures("home")
def test_two_devices_that_import_one_file_have_it_once_and_erase_it_for_both(
    tmp_path, run, stand_in
):
    stand_in(FakeEngine(facts={"I have a red boat.": "{} has a red boat"}))
    file = str(saved(tmp_path / "conversations.json", [claude()]))
    a, b, folder = (str(tmp_path / name) for name in ("a.db", "b.db", "shared"))
    for db in (a, b):
        run("import", file, "--db", db)
    run("sync", folder, "--db", a)
    code = run("sync", "--show-code", "--db", a).stdout.strip()
    run("sync", folder, "--db", b, "--code", code)
    run("sync", folder, "--db", a)
    listed = run("list", "--db", a).stdout
    assert listed == run("list", "--db", b).stdout and len(listed.splitlines()) == 3
    run("erase", listed.split("\t")[0], "--yes", "--db", a)
    run("sync", folder, "--db", a)
    run("sync", folder, "--db", b)
    left = run("list", "--db", b).stdout
    assert "left out that you erased" in run("import", file, "--db", b).stderr
    assert run("list", "--db", b).stdout == left and len(left.splitlines()) < 3


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda fact, memory: None, ["User lives in Oslo"]),
        (
            lambda fact, memory: memory.update(fact, "User lives in Bergen"),
            ["User lives in Bergen"],
        ),
        (lambda fact, memory: memory.delete(fact), []),
    ],
    ids=["as it was", "edited", "deleted"],
)
def test_facts_that_another_device_took_of_an_import_are_no_news(tmp_path, change, left):
    told = {"I live in Oslo.": "{} lives in Oslo", "I sail on Sundays.": "{} sails on Sundays"}
    said = {"role": "user", "content": "I live in Oslo.", "metadata": {"import_id": "ab" * 16}}
    a, b = (quick(tmp_path / f"{name}.db", engine=FakeEngine(facts=told)) for name in "ab")
    with a, b:
        for memory in (a, b):
            (turn,) = memory.add(said, user_id="ana", infer="later", imported=True)
            assert turn.id == "e063e1cd-1cd3-538f-b036-536212622c54"  # of an earlier edgemem, too
        (fact,) = a.process_pending()
        assert fact.id == "2f72d75b-ab16-595f-9740-f9d5c71d1299"
        change(fact.id, a)
        sync(a, tmp_path / "shared")
        sync(b, tmp_path / "shared", code=pairing_code(a))
        assert texts(b.add("I sail on Sundays.", user_id="ana")) == [
            "I sail on Sundays.",
            "User sails on Sundays",
        ]
        assert list(b.process_pending()) == [] and b.pending() == []
        facts = texts(b.get_all(filters={"kind": "fact"}))
        assert sorted(facts) == sorted([*left, "User sails on Sundays"])


@pytest.mark.usefixtures("home")
def test_what_was_erased_does_not_come_back_with_a_longer_export(tmp_path, run):
    file = saved(tmp_path / "log.txt", LOG)
    run("import", "--no-infer", str(file))
    first, *_ = run("list").stdout.splitlines()
    run("erase", first.split("\t")[0], "--yes")
    saved(file, LOG + "[02/05/2024, 10:00:00] Mara: One more.")
    again = run("import", "--no-infer", str(file))
    assert "1 turn imported" in again.stderr and "1 turn left out that you erased" in again.stderr
    assert first not in run("list").stdout and "One more." in run("list").stdout


@pytest.mark.usefixtures("home")
def test_a_log_whose_order_of_day_and_month_is_settled_later_is_imported_once(tmp_path, run):
    text = "5/1/24, 10:00 - Ana: hi\n5/2/24, 10:05 - Bo: hello\n"
    file = saved(tmp_path / "_chat.txt", text)
    run("import", "--no-infer", str(file))
    saved(file, f"{text}5/13/24, 10:00 - Bo: ok\n")
    row = row_of(run("import", "--no-infer", str(file), "--json"))
    assert (row["imported"], row["skipped"]) == (1, 2)


@pytest.mark.usefixtures("home")
def test_whoever_is_me_becomes_the_user(tmp_path, run):
    file = saved(tmp_path / "log.txt", "Mara: I sail.\nTom Lee: I row.\n")
    assert "said by Mara, Tom Lee. With --me" in run("import", "--no-infer", str(file)).stderr
    other = ("--db", str(tmp_path / "o.db"))
    run("import", "--no-infer", "--me", "tom lee", str(file), *other)
    told = [line.split("\t")[2] for line in run("list", *other).stdout.splitlines()]
    assert told == ["Mara: I sail.", "I row."]
    again = row_of(run("import", "--no-infer", str(file), *other, "--json"))
    assert again["imported"] == 0
    wrong = run("import", "--me", "Ana", str(file), *other, code=2).stderr
    assert "nobody in" in wrong and "it has Mara, Tom Lee." in wrong


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("text", ['{"neither": "nor"}', '[{"type": "FeatureCollection"}]', "words"])
@pytest.mark.parametrize("option", [(), ("--no-infer",)])
def test_a_file_of_no_form_says_which_forms_are_read(tmp_path, run, text, option):
    result = run("import", *option, str(saved(tmp_path / "x.json", text)), code=2)
    assert "conversations.json of ChatGPT or Claude; Telegram's result.json" in result.stderr


@pytest.mark.usefixtures("home")
def test_an_import_says_for_whom_it_stored(tmp_path, run):
    lines = '{"memory": "I have a boat", "user_id": "tom"}\n{"memory": "I sail", "user_id": "ana"}'
    file = saved(tmp_path / "m.jsonl", lines)
    told = "stored for user_id 'ana', 'tom'. The commands show those of 'default', unless they"
    assert told in run("import", str(file)).stderr
    export = tmp_path / "out.jsonl"
    run("export", str(export))
    other = ("--db", str(tmp_path / "other.db"))
    assert told in run("import", str(export), *other).stderr
    assert "stored for" not in run("import", str(export), *other).stderr  # nothing was new
    log = saved(tmp_path / "log.txt", LOG)
    assert "stored for" not in run("import", "--no-infer", str(log)).stderr
    stderr = run("import", "--no-infer", str(log), "--user-id", "bo").stderr
    assert "stored for user_id 'bo'." in stderr


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("error", "option", "failing", "stored"),
    [
        (KeyboardInterrupt(), (), 4, 8),  # after the turns are stored, while facts are taken
        (StoreFull("the disk is full"), (), 4, 8),
        (KeyboardInterrupt(), ("--no-infer",), 2, 64),
    ],
)
def test_a_stopped_import_says_how_many_turns_are_stored_and_goes_on(
    tmp_path, run, monkeypatch,
    error, option, failing, stored,
):  # fmt: skip
    lines = [
        f"[2024-05-01 10:{n % 60:02}] {'Ana' if n % 2 else 'Bo'}: turn {n}\n" for n in range(70)
    ]
    file = saved(tmp_path / "log.txt", "".join(lines))
    add, calls = Memory.add, []

    def stopped(self, messages, **kwargs):
        calls.append(1)
        fails = len(calls) == failing
        if not (fails and option):
            added = add(self, messages, **{**kwargs, "infer": False})
        if fails:
            raise error
        return added

    with monkeypatch.context() as patch:
        patch.setattr(Memory, "add", stopped)
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        stderr = run("import", *option, str(file), code=code).stderr
    assert f"{file}: stopped with {stored} of 70 turns stored; the same command goes on" in stderr
    row = row_of(run("import", "--no-infer", str(file), "--json"))
    assert (row["imported"], row["skipped"]) == (70 - stored, stored)
    assert len(json.loads(run("list", "--json").stdout)["results"]) == 70
