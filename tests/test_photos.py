"""What is told from the text in a photo: its days, its lines, and when the photo is meant."""

from dataclasses import replace

import pytest

pytest.importorskip("PIL")

from fake_engine import FakeEngine
from imagekit import drawn, saved
from memorykit import quick

from edgemem import Chat
from edgemem import images as ocr
from edgemem.config import load_settings
from edgemem.pipeline import image_memories, recall
from edgemem.pipeline.bearing import bearing
from edgemem.pipeline.passages import amount, asks_whole, head_of, lines_of, one_line, price
from edgemem.pipeline.plan import Request, plan_answer
from edgemem.pipeline.told import of_photo, read_out, refusal_of
from edgemem.results import ImageLine, Scope
from edgemem.stages import evidence
from edgemem.stages.generation import NOTHING_FOUND, OF_PHOTO
from edgemem.stages.intent import Intent

CARD = ("Smile Dental", "Appointment for Tom Linden", "Thursday 10 December 2026 09:20",
        "Dr Adeyemi, root canal")  # fmt: skip
RECEIPT = ("BRIGHTSIDE GARAGE LTD", "Invoice 40817 14/11/2026", "2 front brake pads 86.40",
           "TOTAL 128.40", "Next service due 14/05/2027")  # fmt: skip
PIZZA = ("NAPOLI EXPRESS", "Order 2231 27/11/2026", "1 Margherita 9.50", "1 Diavola 12.50",
         "2 Cola 4.00", "Delivery 2.90", "TOTAL 28.90", "Paid by card")  # fmt: skip


class Eyes:
    """Stands in for the OCR: finds these lines in any picture."""

    lines: tuple[str, ...] = ()
    seen = 0

    def read(self, _pixels):
        self.seen += 1
        box = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
        return [ImageLine(line, 0.9, box) for line in self.lines]


@pytest.fixture
def memory():
    settings = replace(load_settings(), image_text="off")
    with quick(settings=settings, engine=FakeEngine()) as opened:
        yield opened


@pytest.fixture
def send(memory, monkeypatch):
    """Sends a photo with these lines of text, and lets it be read."""

    eyes, sent = Eyes(), []
    monkeypatch.setattr(ocr.Ocr, "load", lambda **_: eyes)

    def send(caption, *lines, at="2026-11-20T12:00:00Z"):
        sent.append(at)
        photo, eyes.lines = saved(drawn(seed=len(sent))), lines
        memory.add(caption or (), images=[photo], user_id="default", timestamp=at, infer=False)
        memory.read_images()

    return send


def listed(memory, question, at="2026-11-30T09:00:00Z"):
    """The answer; if it is a list, its items without their days."""
    answer = "".join(Chat(memory).send(question, timestamp=at, remember=False))
    if ":\n- " not in answer:
        return [answer]
    return [item.split(": ", 1)[1] for item in answer.split("\n- ")[1:]]


# -- days ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "question",
    ["What do I have on 10 December?", "Anything on Thursday 10 December?", "What's coming up?"],
)
def test_the_day_on_a_photographed_card_is_listed_with_its_line_and_the_photo(
    memory, send, question
):
    send("My dentist appointment.", *CARD)
    line = "Appointment for Tom Linden; Thursday 10 December 2026 09:20"
    assert listed(memory, question) == [f"Photo: My dentist appointment: {line}"]
    assert listed(memory, "What do I have on 11 December?") == [NOTHING_FOUND]


def test_a_card_without_a_caption_is_listed_too(memory, send):
    send(None, "Detention: 2 Dec, 15:30 room 14", at="2026-11-26T16:30:00Z")
    told = ["Photo: Detention: 2 Dec, 15:30 room 14"]
    assert listed(memory, "What do I have on 2 December?") == told


def test_the_day_of_a_receipt_is_no_plan_and_its_next_service_is(memory, send):
    send("Receipt from the garage.", *RECEIPT, at="2026-11-14T17:30:00Z")
    noon = "2026-11-14T12:00:00Z"
    for question in ("What do I have today?", "What's on this week?", "What have I got on 14/11?"):
        assert listed(memory, question, at=noon) == [NOTHING_FOUND]
    due = ["Photo: Receipt from the garage: Next service due 14/05/2027"]
    assert listed(memory, "What's coming up?") == due
    send("Lunch.", "CAFE ROMA", "19 Nov 12:10", "Soup 6.50", at="2026-11-20T09:00:00Z")
    later = listed(memory, "What do I have on 19 November?", at="2027-11-01T12:00:00Z")
    assert later == [NOTHING_FOUND]


def test_a_question_about_the_past_lists_what_a_receipt_says_of_its_day(memory, send):
    send("The garage.", *RECEIPT, at="2026-11-16T17:30:00Z")
    asked = "What did I do on 14 November?"
    assert listed(memory, asked) == ["Photo: The garage: Invoice 40817 14/11/2026"]
    send("Today the brakes of the Skoda were mended.", "INVOICE 14/11/2026", at="2026-11-14T20:00Z")
    assert [*filter(lambda told: "INVOICE" in told, listed(memory, asked))] == []


def test_days_that_a_photo_counts_from_a_day_of_its_own_are_not_listed(memory, send):
    send("The shop.", "Open Monday to Friday", "Tomorrow we close early", "Yoga every Tuesday")
    at = "2026-11-20T13:00:00Z"
    for question in ("What do I have tomorrow?", "What's on next week?", "anything on tuesday?"):
        assert listed(memory, question, at=at) == [NOTHING_FOUND]


def test_a_plan_of_a_photo_that_is_called_off_is_listed_with_what_calls_it_off(memory, send):
    send("My dentist appointment.", *CARD)
    off = "The dentist appointment is cancelled."
    memory.add(off, user_id="default", timestamp="2026-11-25T12:00:00Z", infer=False)
    assert listed(memory, "What do I have on 10 December?")[1:] == [off]


def test_a_relative_day_that_is_printed_on_a_photo_is_not_counted_from_the_day_it_was_sent(
    memory, send
):
    send("Maya's party is in 2 weeks.", "Party tomorrow 10 December 2026", "Call us next week")
    printed = "Party tomorrow 10 December 2026"
    (told,) = listed(memory, "What do I have on 10 December?")
    assert told == f"Photo: Maya's party is in the week of 30 November 2026: {printed}"
    (hit,) = memory.search("party", user_id="default", filters={"kind": "image"})
    (whole,) = recall.evidence_of(memory, None, [hit])
    assert printed in evidence.plain(whole) and "next week" in evidence.plain(whole)


# -- whether the photo is meant ------------------------------------------------------------------


def test_what_only_eyes_could_tell_of_a_photo_is_said_to_be_unseen_and_names_the_photo(
    memory, send
):
    send("My new bike.")
    send(None, "Guest WiFi", "Network: LindenNest")
    memory.add("I work at the harbour.", user_id="default", infer=False)
    for question, known in (
        ("Which colour has my new bike?", 'the caption of the photo "My new bike"'),
        ("What is the guest wifi called?", "the text of that photo"),
    ):
        told = refusal_of(memory, question, memory.search(question, user_id="default"))
        assert told == f"I have only {known}, and found no answer there."
    for other in ("Where do I work at the harbour?", "Giraffes?"):
        told = refusal_of(memory, other, memory.search(other, user_id="default"))
        assert told == NOTHING_FOUND


@pytest.mark.parametrize(
    "question",
    ["What is my name?", "What did mum earn?", "Who am I?", "Can anyone else read my photos?"],
)
def test_a_question_that_has_nothing_of_a_photo_is_refused_without_it(memory, send, question):
    send("Pizza on Friday night.", "NAPOLI EXPRESS", "1 Margherita 9.50", "TOTAL 28.90")
    (hit,) = memory.search("Pizza", user_id="default", filters={"kind": "image"})
    best = replace(memory.search(question, user_id="default"), items=(replace(hit, score=0.5),))
    assert refusal_of(memory, question, best) == NOTHING_FOUND
    assert recall.near_misses(memory, question, best) == ()


# -- its lines ------------------------------------------------------------------------------------


def quotes(memory, question):
    hits = memory.search(question, user_id="default")
    return [e.text for e in recall.near_misses(memory, question, hits)]


def test_below_a_refusal_stand_the_lines_of_a_photo_that_may_answer(memory, send):
    send("Pizza on Friday night.", *PIZZA)
    for question in ("How much was the pizza?", "What did the pizza cost?"):
        (told,) = quotes(memory, question)
        name, _, lines = told.partition(": ")[2].partition(": ")
        assert name == "Pizza on Friday night" and lines.endswith("TOTAL 28.90")
        assert 2 <= len(lines.split("; ")) <= 3 and "Order" not in lines and "card" not in lines
    (told,) = quotes(memory, "How was the pizza delivery paid?")
    assert "Paid by card" in told and told.count(";") == 2


def test_the_cash_that_was_handed_over_is_not_quoted_as_the_price(memory, send):
    send("Pizza on Friday night.", *PIZZA[:-1], "Cash 50.00", "Change 21.10")
    (told,) = quotes(memory, "How much was the pizza?")
    assert told.endswith("TOTAL 28.90") and "50.00" not in told


@pytest.mark.parametrize(
    ("amounts", "place"),
    [([0, 950, 1940, 2890, 0, 5000, 2110], 3), ([2890, 2890, 5000, 2110], 1),  # change is given
     ([950, 1940, 2890, 3000], 2), ([1400, 200, 1600, 2000], 2),  # no change is printed
     ([2408, 482, 2890, 0], 2), ([2000, 3000, 5000, 833], 2), ([1070, 1284, 214], 1),  # no cash
     ([400, 2890], 1), ([2890], 0), ([500, 0, 500, 1000, 200, 1200], 5)],
)  # fmt: skip
def test_the_price_among_amounts_is_the_largest_that_is_no_cash(amounts, place):
    assert price(amounts) == place


def test_a_photo_without_a_text_is_quoted_by_its_caption(memory, send):
    send("The new sofa.")
    assert quotes(memory, "Which colour has the sofa?") == ["Photo: The new sofa"]


def test_all_of_somebody_has_a_photo_without_its_caption_again(memory, send):
    send("Posy in her purple wellingtons with Walter.")
    memory.add("Posy loves otters.", user_id="default", timestamp="2026-11-21T12:00:00Z")
    photo = "Photo: Posy in her purple wellingtons with Walter."
    assert listed(memory, "Who is Posy?") == [photo, "Posy loves otters."]


@pytest.mark.parametrize(
    ("line", "hundredths"),
    [("2 Cola 4.00", 400), ("Net pay GBP 3,412.77", 341277), ("1 234,50 EUR", 123450),
     ("Invoice 40817 14/11/2026", 0), ("Due 14.05.2027", 0), ("2 x 1.15 2.30", 230),
     ("Table 12 104.50", 10450), ("Room 14", 0), ("Tel. 030 12.12.44", 0)],
)  # fmt: skip
def test_an_amount_is_known_by_its_digits(line, hundredths):
    assert amount(line) == hundredths


@pytest.mark.parametrize(
    "question",
    ["What did the receipt from the garage say?", "What's written on the garage receipt?",
     "what does my brakes receipt say"],
)  # fmt: skip
def test_a_question_for_what_a_photo_says_is_answered_with_its_text(memory, send, question):
    send("Receipt from the garage, brakes on the Skoda.", *RECEIPT)
    whole = f"Photo: Receipt from the garage, brakes on the Skoda: {'; '.join(RECEIPT)}"
    assert listed(memory, question) == [whole]


@pytest.mark.parametrize(
    "question",
    ["What did the garage receipt cost?", "Where is the receipt from the garage?",
     "What did the doctor say?", "When is the next service due?"],
)  # fmt: skip
def test_a_question_for_less_than_its_text_is_not(memory, send, question):
    send("Receipt from the garage, brakes on the Skoda.", *RECEIPT)
    assert read_out(memory, question, memory.search(question, user_id="default")) == ()


def test_a_question_for_what_the_photo_says_is_answered_with_the_newest_that_has_a_text(
    memory, send
):
    send("Receipt from the garage.", *RECEIPT, at="2026-11-21T12:00:00Z")
    send("Pizza on Friday night.", *PIZZA, at="2026-11-20T12:00:00Z")
    send("The new sofa.", at="2026-11-22T12:00:00Z")
    assert listed(memory, "What does the photo say?") == [
        f"Photo: Receipt from the garage: {'; '.join(RECEIPT)}"
    ]


def test_a_question_for_the_text_of_the_photo_names_nothing_else(embedder):
    with quick(embedder=embedder) as memory:
        for question in ("What does the picture say?", "What does the last photo say?"):
            assert asks_whole(memory, question)
        for question in ("What does the photo of the sofa say?", "What did I say about the photo?"):
            assert not asks_whole(memory, question)


def test_a_photo_of_which_nothing_is_known_is_not_quoted(memory, send):
    send(None)
    hits = memory.search("photo", user_id="default")
    assert [hit.memory for hit in hits] == ["Photo"]
    best = [replace(hit, score=0.9) for hit in hits]
    assert recall.quotes(memory, "Is there a photo?", best) == ()
    assert recall.overview(memory, "Which photos are there?", best, most=5) == ()


@pytest.mark.parametrize(
    "request_", ["Show me the photo", "Can I see the receipt?", "Show me the receipt"]
)
def test_a_photo_that_is_to_be_shown_is_told_with_where_it_can_be_seen(memory, send, request_):
    """It was refused as a deed."""
    send("Receipt from the garage.", *RECEIPT)
    hits = memory.search(request_, user_id="default")
    (shown,) = of_photo(memory, request_, hits)
    assert shown.text == f"Photo: Receipt from the garage: {'; '.join(RECEIPT)}"
    for deed in ("Book a table for two", "Remind me to call the garage tomorrow at 9"):
        assert of_photo(memory, deed, hits) == ()


def test_the_answer_to_show_me_the_photo_quotes_it(memory, send):
    send("The new sofa.")
    memory.engine.wants["Show me the photo"] = "act"
    answer = "".join(Chat(memory).send("Show me the photo", remember=False))
    assert answer.startswith(OF_PHOTO) and answer.endswith("Photo: The new sofa")


def test_of_a_long_text_the_beginning_is_read_out(memory, send):
    send("The letter from the council.", *(f"Paragraph {n} of this." for n in range(100)))
    (told,) = listed(memory, "What does the letter from the council say?")
    assert told.endswith(" …") and 700 < len(told) < 900


# -- advice ---------------------------------------------------------------------------------------


def test_advice_and_letters_are_shown_no_photo_that_does_not_bear_on_them(memory, send):
    send("My payslip for November.", "PAYSLIP November 2026", "Net pay GBP 3,412.77")
    send("Pizza on Friday night.", "NAPOLI EXPRESS", "1 Margherita 9.50", "TOTAL 28.90")
    send("Receipt from the garage, brakes on the Skoda.", *RECEIPT)
    memory.add("I am allergic to nuts.", user_id="default", infer=False)

    def shown(task):
        scope, hits = Scope("default"), memory.search(task, user_id="default")
        told = bearing(memory, scope, task, hits, most=5, advice=True)
        return [e.text for e in told if e.photo]

    assert shown("What shall I cook on Sunday?") == []
    assert shown("Which book should I read next?") == []
    (garage,) = shown("Write a note to the garage about the brakes on my Skoda.")
    name = "Photo: Receipt from the garage, brakes on the Skoda: "
    assert garage.startswith(name) and garage.count("; ") == 2


@pytest.mark.parametrize("task", ["What cake should I bake?", "What should I cook tonight?"])
def test_advice_is_shown_no_photo_or_caption_that_has_no_word_of_the_request(memory, send, task):
    send("My new passport.", "PASSPORT 533380006", "LINDEN TOM")
    send("wifi: hunter2. PIN 4411")
    memory.add("I am allergic to nuts.", user_id="default", infer=False)
    found = memory.search("passport wifi allergic", user_id="default")
    hits = [replace(hit, score=0.05) for hit in found]
    told = bearing(memory, Scope("default"), task, hits, most=8, advice=True)
    assert [e.text for e in told] == ["I am allergic to nuts."]


def test_of_a_long_text_advice_is_shown_the_lines_that_are_near(memory, send):
    send(
        "My wallet.",
        *(f"Card {n}" for n in range(9)),
        "Gym until May",
        *"ABC",
        "Library until June",
    )
    task = "Should I renew the gym card in my wallet?"
    hits = memory.search("wallet gym", user_id="default")
    told = bearing(memory, Scope("default"), task, hits, most=8, advice=True)
    (photo,) = [e.text for e in told if e.photo]
    assert "Gym until May" in photo and "Library" not in photo


# -- a photo that comes with its question --------------------------------------------------------


@pytest.fixture
def eyes(monkeypatch):
    made = Eyes()
    monkeypatch.setattr(ocr.Ocr, "load", lambda **_: made)
    return made


@pytest.fixture
def reading():
    """A memory that reads photos, with one of a dentist's card."""
    settings = replace(load_settings(), image_text="on")
    with quick(
        settings=settings, engine=FakeEngine(wants=dict.fromkeys(ASKED, "recall"))
    ) as opened:
        opened.add("My dentist appointment.", images=[PHOTO], user_id="default", infer=False)
        yield opened


ASKED = (
    "What does this photo say?",
    "What is the password?",
    "Who is this?",
    "What does it say here?",
)
PHOTO, ANOTHER = saved(drawn(seed=98)), saved(drawn(seed=99))
WIFI = ("Guest WiFi", "Network: LindenNest", "Password: plum-otter-73")


@pytest.mark.parametrize("remember", [True, False])
def test_a_question_is_answered_from_the_photo_that_comes_with_it(reading, eyes, remember):
    eyes.lines = CARD
    reading.read_images()
    eyes.lines = WIFI
    chat = Chat(reading)
    said = "".join(chat.send("What does this photo say?", images=[ANOTHER], remember=remember))
    assert said.endswith(f"Photo: {'; '.join(WIFI)}") and said.count("\n- ") == 1
    plan = chat.send("What is the password?", images=[ANOTHER], remember=remember)
    assert [hit.memory for hit in plan.context] == ["\n".join(["Photo", *told(WIFI)])]


def told(lines):
    return [f"Text in it: {lines[0]}", *lines[1:]]


def test_a_photo_that_was_read_for_its_question_is_stored_with_its_text(reading, eyes):
    eyes.lines = WIFI
    reading.read_images()
    reply = Chat(reading).send("Who is this?", images=[ANOTHER])
    "".join(reply)
    assert reply.changes is not None and [c.kind for c in reply.changes] == ["image"]
    assert "plum-otter" in reading.get_all(user_id="default")[-1].memory
    assert reading.read_images() == 0 and eyes.seen == 2


def test_a_photo_that_tells_nothing_of_its_question_is_said_to_be_unseen(reading, eyes):
    said = "".join(Chat(reading).send("What does it say here?", images=[ANOTHER], remember=False))
    assert said == "I can't see what that photo shows, and there is no text in it."


def test_a_photo_that_cannot_be_read_yet_is_said_to_be_unread(memory, eyes):
    said = "".join(Chat(memory).send("What does it say here?", images=[ANOTHER]))
    assert said == "I can't see what that photo shows, and I have not read its text yet."
    assert eyes.seen == 0  # `image_text` is off


def test_below_a_refusal_stand_the_lines_of_the_photo_that_came_with_the_question(reading, eyes):
    eyes.lines = PIZZA
    chat, asked, now = Chat(reading), "How much was it?", "2026-11-30T09:00:00Z"
    sent = image_memories.sent_with(reading, [ANOTHER], None, now)
    asks = Intent("recall", tells=False)
    request = Request(asked, asked, asked, now, asks, images=[ANOTHER], sent=sent)
    plan = plan_answer(chat._talk, request)
    assert "TOTAL 28.90" in chat._text_below(plan, plan.refusal)


def test_what_is_asked_with_a_photo_is_not_its_name(memory, send):
    send("This is the garage bill. What is the total?", *RECEIPT)
    (hit,) = memory.search("garage", user_id="default", filters={"kind": "image"})
    assert head_of(hit) == "Photo: This is the garage bill"


def test_a_text_runs_on_alike_as_lines_and_in_one_line(memory, send):
    letter = ("Dear Tom, the council has decided that", "Your bins are collected by the firm",
              "Greenleaf from the first week of May")  # fmt: skip
    send("A letter.", *letter)
    (hit,) = memory.search("letter", user_id="default", filters={"kind": "image"})
    (whole,) = lines_of(hit)
    assert one_line(hit.memory) == f"Photo: A letter. Text in it: {whole}"
