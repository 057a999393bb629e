"""What is told as it was said: the user's turns, and who the user is."""

import pytest
from fake_engine import FakeEngine

from edgemem.chat import Chat
from edgemem.language import turn_asked
from edgemem.memory import Memory
from edgemem.stages.generation import NOTHING_FOUND

pytestmark = pytest.mark.models

WHO, FIRST, LAST = "Who am I?", "What was my first message?", "What did I just tell you?"
NOOR, PRIYA = "I'm Noor, a nurse in London.", "My colleague Priya is a vet in Leeds."
FACTS = {NOOR: "{} is Noor, a nurse in London", PRIYA: "{}'s colleague Priya is a vet in Leeds"}


@pytest.fixture
def memory():
    wants = dict.fromkeys((WHO, FIRST, LAST), "recall")
    with Memory(":memory:", engine=FakeEngine(facts=FACTS, wants=wants)) as opened:
        yield opened


def say(chat, *texts, remember=True):
    """The last answer; of a list the items without their days."""
    for text in texts:
        answer = "".join(chat.send(text, timestamp="2026-11-30T09:00:00Z", remember=remember))
    return answer.partition("\n- ")[2].partition(": ")[2] or answer


@pytest.mark.parametrize("remember", [True, False])
def test_what_i_said_first_and_last_is_answered_from_the_turns(memory, remember):
    chat = Chat(memory)
    assert say(chat, NOOR, PRIYA, LAST, LAST, remember=remember) == PRIYA
    assert say(chat, FIRST, remember=remember) == NOOR


def test_what_i_said_last_may_be_of_the_chat_before(memory):
    say(Chat(memory), NOOR, PRIYA)
    assert say(Chat(memory), LAST) == PRIYA
    assert say(Chat(memory), FIRST) == NOTHING_FOUND


def test_a_deleted_message_is_not_told_again(memory):
    chat = Chat(memory)
    say(chat, NOOR, PRIYA)
    (turn,) = [m for m in memory.get_all(user_id="default") if m.memory == NOOR]
    memory.delete(turn.id)
    assert say(chat, FIRST) == PRIYA


@pytest.mark.parametrize(
    "question", ["What did I say about Ana?", "What was my first car?", "What did you just say?"]
)
def test_no_other_question_asks_for_a_turn(question):
    assert turn_asked(question) is None


def test_who_i_am_is_answered_from_what_is_told_of_me_alone(memory):
    """It was answered with a colleague's name."""
    chat = Chat(memory)
    say(chat, PRIYA)
    memory.process_pending()
    assert say(chat, WHO) == NOTHING_FOUND
    say(chat, NOOR)
    memory.process_pending()
    assert say(chat, WHO) == NOOR
