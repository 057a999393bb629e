"""An image is a memory: stored whole or not at all, found by words, kept in exports, erased."""

import asyncio
import io
import json
import os
import signal
from dataclasses import replace

import pytest
from clikit import invoke
from cloudkit import answer, service
from fake_engine import FakeEngine
from imagekit import CAMERA, drawn, exif, noise, opened, part, saved, uri
from mcp import Client
from memorykit import Meanwhile, bytes_beside, quick, texts
from serverkit import running
from storekit import child

from edgemem import Chat, Memory
from edgemem import images as picture
from edgemem.cloud.governor import Governor
from edgemem.config import Settings, load_settings
from edgemem.errors import InputError, StoreCorrupt, StoreFull
from edgemem.inputs import MAX_IMAGES, NO_WORDS
from edgemem.pipeline import image_memories
from edgemem.pipeline.recall import evidence_of
from edgemem.results import Scope
from edgemem.server.mcp import mcp_server
from edgemem.store import images
from edgemem.store.receipts import add_mark

SMALL, LARGE = saved(drawn((80, 60))), noise()
READ = "xyzzyplugh total 12.40"
BIKE = "This is my new bicycle."


def beside(path):
    """The files of the folder of images."""
    folder = images.folder_of(path)
    return sorted(os.listdir(folder)) if folder.exists() else []


def add(memory, *given, said=None, **more):
    """The memories of kind image that these became."""
    more = {"user_id": "ana", "infer": False, **more}
    changes = memory.add(*([] if said is None else [said]), images=given, **more)
    return [memory.get(change.id) for change in changes if change.kind == "image"]


# -- adding and finding ------------------------------------------------------------------------


def test_facts_are_taken_from_a_caption_without_the_messages_before_it():
    engine, payslip = FakeEngine(), "I took my payslip for November."
    with quick(engine=engine, settings=replace(load_settings(), reader="instruct")) as memory:
        memory.add(payslip, user_id="ana", infer=False)
        memory.add(BIKE, user_id="ana", images=[SMALL])
        memory.add("I ride my bicycle to work.", user_id="ana")
    of_caption, after = (str(p) for stage, p in engine.prompts if stage == "extraction")
    assert BIKE in of_caption and payslip not in of_caption
    assert BIKE in after and payslip in after


def test_an_image_with_words_is_a_turn_and_a_memory_of_kind_image():
    message = {
        "role": "user",
        "name": "Ana",
        "content": [{"type": "text", "text": BIKE}, part(SMALL)],
    }
    with quick() as memory:
        turn, photo = memory.add([message], user_id="ana", infer=False)
        assert (turn.kind, turn.memory) == ("turn", BIKE)
        assert (photo.kind, photo.memory) == ("image", f"Photo: {BIKE}")
        assert photo.id in {hit.id for hit in memory.search(BIKE, user_id="ana")}
        found = memory.search("bicycle", user_id="ana", filters={"kind": "image"})[0]
        assert found.id == photo.id and found.image is not None
        shown = found.to_dict()["image"]
        assert (shown["id"], shown["mime"], shown["width"], shown["height"]) == (
            picture.read(SMALL).id, "image/png", 80, 60,
        )  # fmt: skip
        assert (shown["caption"], shown["caption_by"]) == (BIKE, "Ana")
        assert "image" not in memory.search("bicycle", filters={"kind": "turn"})[0].to_dict()
        stored = memory.image(found.image.id)
        assert stored is not None and stored.data == picture.read(SMALL).data
        small = memory.image(found.image.id, thumbnail_only=True)
        assert small is not None and (small.data, small.thumbnail) == (b"", stored.thumbnail)
        assert memory.image("0" * 64) is None


def test_an_image_alone_is_found_by_its_day_and_its_own_caption_goes_first():
    photo = saved(drawn(), "JPEG", exif=exif())
    with quick() as memory:
        (alone,) = add(memory, photo, timestamp="2024-05-01T10:00Z")
        assert alone.memory == "Photo taken on 2 April 2023"
        assert alone.image.taken_at == "2023-04-02T07:00:00.000+00:00"
        assert [t.content for t in memory.source_turns(alone.id)] == [NO_WORDS]
        assert texts(memory.search("April", user_id="ana")) == [alone.memory]
        memory.add(
            {"role": "user", "content": [part(SMALL, caption="A red kite"), part(LARGE)]},
            user_id="ana", infer=False,
        )  # fmt: skip
        assert texts(memory.get_all())[1:] == ["Photo: A red kite", "Photo"]
        assert texts(memory.search("kite", top_k=1)) == ["Photo: A red kite"]


def test_an_image_with_another_text_is_still_found_by_who_sent_it():
    with quick() as memory:
        said = {"role": "user", "name": "Ana", "content": [part(SMALL, caption="A red kite")]}
        memory.add(said, infer=False, timestamp="2024-05-01T10:00Z")
        (item,) = memory.get_all()
        memory.update(item.id, "A blue kite")
        assert memory.store.search_texts() == {item.id: "Ana: A blue kite\n1 May 2024"}


def test_the_place_is_kept_only_where_the_setting_says_so_and_the_bytes_never_tell_it(
    tmp_path,
):
    photo = saved(drawn(), "JPEG", exif=exif())
    for choice, place in (("drop", None), ("keep", "59.91389,10.75222")):
        settings = Settings(db=tmp_path / f"{choice}.db", image_place=choice)
        with quick(settings.db, settings=settings) as memory:
            (found,) = add(memory, photo)
            assert found.image.place == place
        assert CAMERA.encode() not in bytes_beside(settings.db)


def test_an_address_or_a_path_in_a_message_is_never_followed(tmp_path):
    file = tmp_path / "photo.png"
    file.write_bytes(SMALL)
    for url in ("https://example.org/a.png", "http://127.0.0.1/a.png", str(file), file.as_uri()):
        message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
        with quick() as memory, pytest.raises(InputError, match="images are never fetched"):
            memory.add([message])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "is empty"),
        ([{"type": "text", "text": " "}], "is empty"),
        ([{"type": "input_audio"}], "type 'input_audio'"),
        (["hello"], "type None"),
        ([{"type": "image_url"}], "no data URI"),
        ([part(b"%PDF-1.7")], "the image is PDF"),
        ([part(SMALL)] * (MAX_IMAGES + 1), "at most 10"),
    ],
)
def test_parts_that_cannot_be_stored_store_nothing(content, message):
    with quick() as memory, pytest.raises(InputError, match=message):
        memory.add(["hello", {"role": "user", "content": content}])
    with quick() as memory, pytest.raises(InputError):
        memory.add("hello", images=[SMALL, b"GIF89a"])
        assert memory.store.counts()["turns"] == 0


def test_words_read_in_an_image_are_in_all_its_memories_and_in_those_to_come():
    with quick() as memory:
        (first,) = add(memory, SMALL)
        (second,) = add(memory, SMALL, said="The receipt.")
        assert images.unread(memory.store, 9) == [first.image.id]
        boxes = json.dumps([{"text": READ, "confidence": 0.9, "box": [[0, 0], [9, 0], [9, 9]]}])
        image_memories.set_text(memory, first.image.id, "done", READ, boxes)
        assert images.unread(memory.store, 9) == []
        assert memory.get(first.id).memory == f"Photo\nText in it: {READ}"
        assert texts(memory.search("xyzzyplugh", top_k=1)) != []
        (third,) = add(memory, SMALL)
        assert third.memory.endswith(READ) and third.image.ocr_state == "done"
        memory.update(second.id, "Groceries")
        changed = memory.get(second.id)
        assert (changed.memory, changed.image.caption_by) == ("Groceries", "user")
        image_memories.set_text(memory, first.image.id, "done", "milk")
        assert memory.get(second.id).memory == "Photo: Groceries\nText in it: milk"


def test_an_edit_is_not_lost_while_the_text_or_a_caption_of_its_image_is_stored():
    embedder = Meanwhile()
    with quick(embedder=embedder) as memory:
        (read,) = add(memory, SMALL, said="My bike")
        embedder.act = lambda: memory.update(read.id, "My sister's bike")
        image_memories.set_text(memory, read.image.id, "done", READ)
        assert memory.get(read.id).memory == f"Photo: My sister's bike\nText in it: {READ}"
        (seen,) = add(memory, LARGE)
        embedder.act = lambda: memory.update(seen.id, "Grandma's cat")
        image_memories.set_caption(memory, seen.id, "a dog on a sofa", "vlm")
        kept = memory.get(seen.id)
        assert (kept.memory, kept.image.caption_by) == ("Grandma's cat", "user")
        (turn, photo) = memory.add("My boat", images=[SMALL], user_id="ana", infer=False)
        embedder.act = lambda: memory.update(photo.id, "Tom's boat")
        memory.delete(turn.id)
        assert memory.get(photo.id).memory == "Tom's boat"


def test_an_image_that_comes_while_its_text_is_stored_gets_the_text_too():
    embedder = Meanwhile()
    with quick(embedder=embedder) as memory:
        (first,) = add(memory, SMALL)
        embedder.act = lambda: add(memory, SMALL, said="Again")
        image_memories.set_text(memory, first.image.id, "done", READ)
        assert texts(memory.get_all(filters={"kind": "image"})) == [
            f"Photo\nText in it: {READ}",
            f"Photo: Again\nText in it: {READ}",
        ]


def test_nothing_is_stored_of_an_image_that_is_erased_while_its_text_is_embedded():
    embedder = Meanwhile()
    with quick(embedder=embedder) as memory:
        (photo,) = add(memory, SMALL)
        embedder.act = lambda: memory.erase(photo.id)
        image_memories.set_text(memory, photo.image.id, "done", READ)
        (photo,) = add(memory, SMALL)
        embedder.act = lambda: memory.erase(photo.id)
        image_memories.set_caption(memory, photo.id, "a dog", "vlm")
        assert memory.store.counts()["memories"] == 0


def test_a_photo_loses_the_words_of_its_deleted_message_and_keeps_what_was_read_in_it():
    with quick() as memory:
        turn, photo = memory.add("My ticket to Bergen.", images=[SMALL], user_id="ana", infer=False)
        (other,) = add(memory, SMALL, said="My ticket to Bergen.")
        image_memories.set_text(memory, memory.get(photo.id).image.id, "done", READ)
        memory.delete(turn.id)
        left = memory.get(photo.id)
        assert left is not None and left.image is not None
        assert left.memory == f"Photo\nText in it: {READ}"
        assert (left.image.caption, left.image.caption_by) == (None, None)
        assert "Bergen" not in memory.store.search_texts()[photo.id]
        hits = memory.search("ticket to Bergen", filters={"kind": "image"})
        assert hits[0].id == other.id and "Bergen" in hits[0].memory  # another message says it
        image_memories.set_text(memory, left.image.id, "done", "milk")
        assert memory.get(photo.id).memory == "Photo\nText in it: milk"


def test_a_photo_takes_the_new_words_of_its_message_and_keeps_a_caption_of_its_own():
    with quick() as memory:
        words = {"type": "text", "text": "To Bergen. " + "x" * 600}
        parts = [words, part(SMALL), part(LARGE, caption="A red kite")]
        turn, mine, _ = memory.add({"role": "user", "content": parts}, infer=False)
        memory.update(turn.id, "To Oslo.")
        assert texts(memory.get_all()) == ["To Oslo.", "Photo: To Oslo.", "Photo: A red kite"]
        image = memory.get(mine.id).image
        assert image is not None and (image.caption, image.caption_by) == ("To Oslo.", "user")
        memory.delete(turn.id)
        assert texts(memory.get_all()) == ["Photo", "Photo: A red kite"]


def test_no_word_of_a_photos_deleted_message_is_sent_to_a_cloud():
    with quick() as memory, service() as cloud:
        turn, _ = memory.add("My ticket to Bergen.", images=[SMALL], user_id="ana", infer=False)
        memory.delete(turn.id)
        hits = memory.search("ticket photo", user_id="ana")
        for choice in ("off", "on"):
            with Governor(memory, cloud.settings(images=choice)) as governor:
                outgoing = governor.prepare("Which ticket?", hits, scope=Scope("ana"))
                assert b"Bergen" not in outgoing.request.body


def test_a_model_is_shown_what_was_read_and_not_what_was_said_with_it():
    with quick() as memory:
        (photo,) = add(memory, SMALL, said="Look at this.")
        image_memories.set_text(memory, photo.image.id, "done", READ)
        hits = memory.search("xyzzyplugh", filters={"kind": "image"})
        (shown,) = evidence_of(memory, "What did it say?", hits)
        assert READ in shown.text


# -- files beside the store --------------------------------------------------------------------


def test_small_images_lie_in_the_store_and_large_ones_beside_it(tmp_path):
    path = tmp_path / "a.db"
    with quick(path) as memory:
        small, large = add(memory, SMALL, LARGE)
        assert beside(path) == [large.image.id]
        folder = images.folder_of(path)
        assert folder is not None and folder.stat().st_mode & 0o777 == 0o700
        assert (folder / large.image.id).stat().st_mode & 0o777 == 0o600
        for item, data in ((small, SMALL), (large, LARGE)):
            stored = memory.image(item.image.id)
            assert stored is not None and stored.data == picture.read(data).data
        assert memory.doctor()["problems"] == []
        counts = memory.store.counts()
        assert counts["images"] == 2
        assert counts["image_bytes"] == small.image.size_bytes + large.image.size_bytes


def test_doctor_sees_files_that_are_gone_or_changed(tmp_path):
    path = tmp_path / "a.db"
    with quick(path) as memory:
        (item,) = add(memory, LARGE)
        file = tmp_path / "a.db.images" / item.image.id
        file.write_bytes(b"other")
        (problem,) = memory.doctor()["problems"]
        told = f"the image {item.image.id} of the memory {item.id} has other bytes than it had; "
        assert problem.startswith(f"{told}add the photo again")
        file.unlink()
        assert "cannot be read from" in memory.doctor()["problems"][0]
        with pytest.raises(StoreCorrupt, match="cannot be read from"):
            memory.image(item.image.id)
        assert memory.image(item.image.id, thumbnail_only=True) is not None


@pytest.mark.parametrize("harmed", [True, False], ids=["changed", "gone"])
def test_a_photo_whose_bytes_were_lost_is_whole_again_once_it_is_added(tmp_path, harmed):
    with quick(tmp_path / "a.db") as memory:
        (item,) = add(memory, LARGE)
        file = tmp_path / "a.db.images" / item.image.id
        whole = file.read_bytes()
        if harmed:
            file.write_bytes(whole[::-1])
        else:
            file.unlink()
        assert len(memory.doctor()["problems"]) == 1
        memory.add("Again", images=[LARGE], infer=False)
        assert memory.doctor()["problems"] == [] and file.read_bytes() == whole


def test_an_export_goes_on_without_lost_bytes_names_whose_they_were_and_an_import_takes_both(
    tmp_path, caplog
):
    with quick(tmp_path / "a.db") as memory, quick(tmp_path / "b.db") as other:
        (item,) = add(memory, LARGE)
        whole, bare, bobs = io.StringIO(), io.StringIO(), io.StringIO()
        memory.export_jsonl(whole)
        (tmp_path / "a.db.images" / item.image.id).unlink()
        memory.export_jsonl(bobs, user_id="bob")
        assert caplog.messages == []
        memory.export_jsonl(bare)
        assert item.id in caplog.text
        assert other.import_jsonl(bare.getvalue().splitlines()) > 0
        assert other.get(item.id) is not None and len(other.doctor()["problems"]) == 1
        for each in (memory, other):
            assert each.import_jsonl(whole.getvalue().splitlines()) == 1
            assert each.doctor()["problems"] == []
            stored = each.image(item.image.id)
            assert stored is not None and stored.size_bytes == len(stored.data) > 0


def test_an_image_that_cannot_be_written_stores_nothing(tmp_path):
    path = tmp_path / "a.db"
    with quick(path) as memory:
        (tmp_path / "a.db.images").write_text("in the way")
        with pytest.raises(StoreFull, match="an image cannot be written"):
            add(memory, LARGE, said=BIKE)
        assert memory.store.counts()["turns"] == 0


KILLED = """
import os, signal, sys
from imagekit import noise
from memorykit import quick
from edgemem.store import images
memory = quick(sys.argv[1])
real = images._write
def write(folder, name, data):
    if sys.argv[2] == "before":
        os.fsync = lambda _handle: os.kill(os.getpid(), signal.SIGKILL)
    real(folder, name, data)
    os.kill(os.getpid(), signal.SIGKILL)
images._write = write
memory.add("hello", images=[noise()], infer=False)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_between_file_and_commit_neither_half_is_left(tmp_path, when):
    path = tmp_path / "a.db"
    with quick(path) as memory:
        (kept,) = add(memory, noise(seed=1))
    process = child(KILLED, path, when)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    left = beside(path)
    assert len(left) == 2 and sum(name.endswith(".tmp") for name in left) == (when == "before")
    with quick(path) as memory:
        assert beside(path) == [kept.image.id]
        assert memory.store.counts()["turns"] == 1 and memory.doctor()["problems"] == []


# -- erasing -----------------------------------------------------------------------------------


def test_erasing_leaves_nothing_of_an_image_in_any_file(tmp_path):
    path = tmp_path / "a.db"
    with quick(path) as memory:
        add(memory, saved(drawn((80, 60), seed=5)), said="A castle.", user_id="ben")
        gone = add(memory, SMALL, LARGE, said=BIKE)
        traces = [READ.encode(), BIKE.encode()]
        for item in gone:
            image_memories.set_text(memory, item.image.id, "done", READ, json.dumps([READ]))
            stored = memory.image(item.image.id)
            traces += [stored.id.encode(), stored.phash.encode(), stored.thumbnail[20:200]]
            traces += [stored.data[-200:-20]]
        assert all(trace in bytes_beside(path) for trace in traces)
        assert len(memory.erase([item.id for item in gone])) == 3  # the turn is one of them
        assert [trace for trace in traces if trace in bytes_beside(path)] == []
        assert memory.doctor()["problems"] == [] and beside(path) == []
        assert not (tmp_path / "a.db.images").exists()
        assert memory.image(gone[0].image.id) is None
    assert [trace for trace in traces if trace in bytes_beside(path)] == []


def test_an_image_goes_with_its_last_memory_and_each_caption_with_its_own(tmp_path):
    path = tmp_path / "a.db"
    with quick(path) as memory:
        (hers,) = add(memory, LARGE, said="A plugh of mine.")
        (his,) = add(memory, LARGE, said="A castle.", user_id="ben")
        memory.erase(hers.id)
        assert beside(path) == [his.image.id]
        assert b"plugh" not in bytes_beside(path)
        memory.delete(his.id)
        assert memory.image(his.image.id) is None  # no answer shows it, and its history keeps it
        memory.erase(his.id)
        assert beside(path) == []
        add(memory, LARGE)
        memory.reset()
        assert beside(path) == [] and memory.store.counts()["image_bytes"] == 0


# -- exports -----------------------------------------------------------------------------------


def test_an_import_of_an_export_is_equal(tmp_path):
    with quick(tmp_path / "a.db") as one, quick(tmp_path / "b.db") as two:
        small, large = add(one, SMALL, LARGE, said=BIKE)
        add(one, SMALL, user_id="ben")
        image_memories.set_text(one, small.image.id, "done", READ, "[]")
        one.export_jsonl(tmp_path / "a.jsonl")
        rows = (tmp_path / "a.jsonl").read_text()
        assert two.import_jsonl(tmp_path / "a.jsonl") == rows.count("\n")
        out = io.StringIO()
        two.export_jsonl(out)
        assert out.getvalue() == rows
        assert two.import_jsonl(tmp_path / "a.jsonl") == 0
        assert beside(tmp_path / "b.db") == [large.image.id]
        assert two.image(small.image.id) == one.image(small.image.id)
        assert two.get(small.id) == one.get(small.id)


def test_an_image_that_both_stores_have_gets_the_memories_of_both():
    out = io.StringIO()
    with quick() as one, quick() as two:
        (hers,) = add(one, SMALL)
        (his,) = add(two, SMALL, user_id="ben")
        one.export_jsonl(out)
        out.seek(0)
        two.import_jsonl(out)
        assert set(images.shown_by(two.store, his.image.id)) == {
            hers.id, his.id,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mime": "text/html"}, "unknown mime"),
        ({"ocr_state": "soon"}, "unknown mime or ocr_state"),
        ({"data": "AAAA"}, "SHA-256 is not its 'id'"),
        ({"data": "!"}, "no base64 in 'data'"),
        ({"thumbnail": "é"}, "no base64 in 'thumbnail'"),
        ({"memories": None}, "no list of {memory_id"),
        ({"memories": [{"memory_id": 5}]}, "no list of {memory_id"),
        ({"width": -1}, "no count in 'width'"),
        ({"taken_at": "soon"}, "taken_at is 'soon'"),
        ({"extra": 1}, "unknown fields"),
    ],
)
def test_a_row_that_is_no_image_is_refused(change, message):
    with quick() as memory, quick() as other:
        add(memory, SMALL)
        row = next(row for row in memory.store.export_rows() if row["type"] == "image")
        with pytest.raises(InputError, match=message):
            other.import_jsonl(io.StringIO(json.dumps({**row, **change})))
        assert other.import_jsonl(io.StringIO(json.dumps(row))) == 0  # no memory is of it


# -- the cloud ---------------------------------------------------------------------------------


def test_an_image_leaves_only_if_images_may_and_then_small_and_bare(tmp_path):
    photo = saved(drawn((1200, 900)), "JPEG", exif=exif())
    with service() as cloud, quick() as memory:
        cloud.behaviour = lambda call: call.reply(answer())
        (item,) = add(memory, photo, said="My bicycle in the yard.")
        hits = memory.search("bicycle", filters={"kind": "image"})
        for choice in ("off", "on"):
            with Governor(memory, cloud.settings(images=choice)) as governor:
                outgoing = governor.prepare("Which bicycle?", hits, scope=Scope("ana"))
                assert outgoing.images == ((item.image.id,) if choice == "on" else ())
                governor.send(outgoing)
                assert outgoing.request.body == cloud.calls[-1].body
            assert (b"data:image/jpeg" in cloud.calls[-1].body) == (choice == "on")
        content = json.loads(cloud.calls[-1].body)["messages"][1]["content"]
        sent = opened(picture._bytes(content[1]["image_url"]["url"]))
        assert max(sent.size) == 512 and dict(sent.getexif()) == {}
        assert "bicycle in the yard" in content[0]["text"]
        assert CAMERA.encode() not in cloud.received


def test_a_marked_image_stays_with_all_that_is_known_of_it():
    with service() as cloud, quick() as memory:
        (item,) = add(memory, SMALL, said="My bicycle in the yard.")
        image_memories.set_text(memory, item.image.id, "done", READ)
        (free,) = add(memory, LARGE, said="A bicycle of Ben's.")
        with memory.store.transaction() as tx:
            add_mark(tx, pattern=f"image:{item.image.id}")
        hits = memory.search("bicycle", user_id="ana")
        assert item.id in {hit.id for hit in hits}
        with Governor(memory, cloud.settings(images="on")) as governor:
            outgoing = governor.prepare("Which bicycle?", hits, scope=Scope("ana"))
            assert outgoing.images == (free.image.id,)
            body = outgoing.request.body.decode()
            assert "xyzzyplugh" not in body and "yard" not in body


def test_an_image_stays_with_the_line_that_tells_of_it():
    """The pattern matches the line's day, which the memory's own text does not have."""
    with service() as cloud, quick() as memory:
        add(memory, SMALL, said="My bicycle in the yard.", timestamp="2024-05-01T12:00:00+00:00")
        hits = memory.search("bicycle", user_id="ana", filters={"kind": "image"})
        settings = cloud.settings(images="on", never_send=("1 May 2024",))
        with Governor(memory, settings) as governor:
            outgoing = governor.prepare("Which bicycle?", hits, scope=Scope("ana"))
            assert len(hits) == 1 and b"yard" not in outgoing.request.body
            assert outgoing.images == outgoing.receipt.memory_ids == ()


def test_what_was_read_or_seen_in_an_image_stays_unless_images_may_leave():
    with service() as cloud, quick() as memory:
        (mine,) = add(memory, SMALL, said="My receipt of the tent.")
        (seen,) = add(memory, LARGE)
        for item in (mine, seen):
            image_memories.set_text(memory, item.image.id, "done", "CARD ****4417 for a tent")
        image_memories.set_caption(memory, seen.id, "A blue tent on a lawn.", "qwen2.5-vl")
        hits = memory.search("tent", filters={"kind": "image"})
        sent = {}
        for choice in ("off", "on"):
            with Governor(memory, cloud.settings(images=choice)) as governor:
                outgoing = governor.prepare("Which tent?", hits, scope=Scope("ana"))
                sent[choice] = outgoing.request.body.decode()
                assert set(outgoing.receipt.memory_ids) == (
                    {mine.id, seen.id} if choice == "on" else {mine.id}
                )
        assert "My receipt of the tent." in sent["off"]
        assert "4417" not in sent["off"] and "lawn" not in sent["off"]
        assert "4417" in sent["on"] and "lawn" in sent["on"]


def test_what_was_read_in_an_image_is_redacted_as_any_text():
    with service() as cloud, quick() as memory:
        (item,) = add(memory, SMALL, said="A card.")
        image_memories.set_text(memory, item.image.id, "done", "Call 0113 496 0000 for a card")
        hits = memory.search("card", filters={"kind": "image"})
        with Governor(memory, cloud.settings(images="on")) as governor:
            outgoing = governor.prepare("Which card?", hits, scope=Scope("ana"))
            body = outgoing.request.body.decode()
            assert "0113" not in body and "[PHONE_1] for a card" in body


# -- faces -------------------------------------------------------------------------------------


@pytest.mark.models
def test_the_command_line_takes_images_with_and_without_words(empty_home):
    (empty_home / "bike.png").write_bytes(SMALL)
    image = ("--image", str(empty_home / "bike.png"), "--no-infer")
    both = json.loads(invoke("add", BIKE, *image, "--json").stdout)["results"]
    assert [row["kind"] for row in both] == ["turn", "image"]
    alone = invoke("add", *image, "--image", str(empty_home / "bike.png")).stdout.splitlines()
    assert len(alone) == 2 and all(line.endswith("Photo") for line in alone)
    shown = json.loads(invoke("get", both[1]["id"], "--json").stdout)["results"][0]
    assert shown["image"]["id"] == picture.read(SMALL).id
    out = empty_home / "out.png"
    invoke("get", both[1]["id"], "--picture", str(out))
    assert out.read_bytes() == picture.read(SMALL).data
    assert invoke("get", both[1]["id"], "--picture", "-").stdout_bytes == picture.read(SMALL).data
    mixed = invoke("get", both[1]["id"], "--picture", "-", "--json", code=2)
    assert "give --picture a FILE" in mixed.stderr and mixed.stdout == ""
    none = invoke("get", both[0]["id"], "--picture", str(empty_home / "none.png"), code=1)
    assert "has no picture" in none.stderr and not (empty_home / "none.png").exists()
    (empty_home / "note.png").write_text("hello")
    refused = invoke("add", "--image", str(empty_home / "note.png"), code=2)
    assert "of no known kind" in refused.stderr
    marked = invoke("cloud", "never-send", "--image", str(empty_home / "bike.png")).stdout
    assert f"image:{picture.read(SMALL).id}" in marked


def test_a_chat_takes_an_image_with_the_message_or_alone(tmp_path):
    with quick(tmp_path / "a.db", engine=FakeEngine()) as memory:
        chat = Chat(memory, user_id="ana")
        list(chat.send(BIKE, images=[SMALL]))
        (item,) = memory.get_all(filters={"kind": "image"})
        assert item.image is not None and item.image.caption == BIKE
        with pytest.raises(InputError, match="is PDF"):
            chat.send("And this?", images=[b"%PDF"])
        assert memory.store.counts()["images"] == 1


@pytest.mark.models
def test_slash_image_remembers_a_file(empty_home, stand_in):
    stand_in(FakeEngine())
    (empty_home / "my bike.png").write_bytes(SMALL)
    lines = f"/image '{empty_home}/my bike.png'\n/image '{empty_home}/my bike.png' {BIKE}\n"
    result = invoke("chat", input=lines)
    assert result.stderr.count("  + my bike.png") == 2
    with Memory(empty_home / "memory.db") as memory:
        found = memory.get_all(filters={"kind": "image"}, user_id="default")
        assert texts(found) == ["Photo", f"Photo: {BIKE}"]
    assert "needs a FILE" in invoke("chat", input="/image 'a\n", code=1).stderr


def test_the_server_takes_openais_parts_and_gives_images_back():
    said = {"role": "user", "content": [{"type": "text", "text": BIKE}, part(SMALL)]}
    with quick(engine=FakeEngine()) as memory, running(memory) as server:
        asked = {"model": "fake", "messages": [said], "user": "ana"}
        assert server.ok("POST", "/v1/chat/completions", asked)["choices"]
        added = {"messages": [{"role": "user", "content": said["content"][1]}], "user_id": "ben"}
        (row,) = server.ok("POST", "/memories", {**added, "infer": False})["results"]
        assert row["kind"] == "image"
        items = memory.get_all(filters={"kind": "image"})
        assert [item.user_id for item in items] == ["ana", "ben"]
        id = picture.read(SMALL).id
        client = server.client()
        for end, kind in (("", "PNG"), ("/thumbnail", "WEBP")):
            got = client._client.get(
                f"http://127.0.0.1:{server.port}/images/{id}{end}",
                headers={"Authorization": f"Bearer {client.api_key}"},
            )
            assert got.headers["content-type"] == f"image/{kind.lower()}"
            assert got.headers["x-content-type-options"] == "nosniff"
            assert opened(got.content).format == kind
        assert server.call("GET", f"/images/{'0' * 64}")[0] == 404
        alike = server.ok("POST", "/search", {"image": uri(SMALL), "user_id": "ben"})["results"]
        assert [hit["id"] for hit in alike] == [row["id"]] and alike[0]["score"] == 1.0
        status, _, body = server.call("POST", "/search", {"image": "/etc/hosts", "user_id": "ben"})
        assert status in (400, 422) and "give a data URI" in str(body)
        path = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
        for changed, told in (
            ({"user": None}, "give user to have it remembered"),
            ({"messages": [{"role": "user", "content": [path]}]}, "no data URI"),
        ):
            status, _, body = server.call("POST", "/v1/chat/completions", {**asked, **changed})
            assert status == 400 and told in body["error"]["message"]


def test_mcp_takes_a_data_uri():
    async def run(memory):
        async with Client(mcp_server(memory, user_id="ana")) as client:
            given = {"text": BIKE, "image": uri(SMALL), "infer": False}
            return await client.call_tool("add_memory", given)

    with quick() as memory:
        added = asyncio.run(run(memory))
        assert not added.is_error
        assert [item.kind for item in memory.get_all(user_id="ana")] == ["turn", "image"]
