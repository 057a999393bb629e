"""Stage 3, generation: a question and recalled memories in, a short answer out.

A base model completes a text: two worked examples with short answers, whose KV is cached in a file
for other processes, then what was said and when, the most relevant last. Its answer must be a run
of words of what was shown.
An expert has learned the task: it needs no examples, reads whole turns, and answers in its words.
One of its likeliest answers is taken, by its probability and by how near the question is to the
words around the answer in the memories.
`reply` has small talk and the answers of an instruct model.

Knows memories as evidence; knows nothing of the store or of how they were found.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import replace
from functools import partial

from edgemem import language
from edgemem.config import cache_dir
from edgemem.results import Evidence, local_time
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine, Generation, Prompt, Stream
from edgemem.runtime.generation import Options
from edgemem.stages.evidence import day_of, line, own_words, shown_text

__all__ = ["ABOUT_ITSELF", "BEARING", "CHECK_THIS", "DOES_NOTHING", "DOES_NOTHING_BUT_KEEPS"]
__all__ += ["ERASES_NOTHING", "FOR_A_TEXT", "GREETED", "KEEPS_AND_ERASES_NOTHING", "NEAREST"]
__all__ += ["NOTHING_FOUND", "NOT_KNOWN", "NO_MEMORY", "OF_PHOTO", "TOLD", "TOO_SMALL", "answer"]
__all__ += ["confirms", "expert_prompt", "expert_target", "quoted", "reliable", "unseen", "unsure"]

NOTHING_FOUND = "I don't know: I found no answer to that in my memory."

ABOUT_ITSELF = (
    "I'm your AI assistant, a program on this device and not a person. I remember what you tell me "
    "in a file on this device, and nothing leaves it unless you allow it."
)
"""The answer to who the assistant is, and who sees what it is told. A small model would take on any
name in the question."""

GREETED = "All is well here, thank you. And how are you?"
"""The answer to "How are you?"."""

ERASES_NOTHING = (
    "I erase nothing myself: find what I should forget where the app shows memories, and erase it "
    "there (in the terminal: /forget)."
)
KEEPS_AND_ERASES_NOTHING = f"I did not keep this message. {ERASES_NOTHING}"
"""The answers to a request to forget, as no message alone erases anything. ERASES_NOTHING is for a
message that is kept because it also tells something."""

DOES_NOTHING = "I can't do that: I only talk and remember."
DOES_NOTHING_BUT_KEEPS = f"{DOES_NOTHING} I'll keep it in mind, so you can ask me."
"""The answers to a request for a timer, a call or a booking, which a model would claim to do."""

OF_PHOTO = "I can't do that here. You see the photo where the app shows memories. It tells:"
"""The head of what is known of a photo that a deed is asked for: "Show me the receipt"."""

NO_MEMORY = "None of your memories is behind my last answer."
"""The answer to what the last answer rests on, if no memory is near the question before it."""

CHECK_THIS = "I know little of the world, so check what matters."
"""The caution below a small model's answer from general knowledge: most are wrong."""

_UNSURE = "I'm not sure."
TOLD = "This is what you told me:"
BEARING = "This is what you told me that may matter here:"
TOO_SMALL = "I'm too small a model to write that well."
FOR_A_TEXT = f"{TOO_SMALL} This is what you told me that may go into it:"
NEAREST = "The nearest to it that you told me:"
"""Heads of quoted memories: as an answer, under advice, in place of a text, under a refusal.
TOO_SMALL alone replaces a text for which nothing was told, or an edit."""
_OF_REPLIES = {TOLD: "This is what was said:", NEAREST: "The nearest to it that was said:"}
"""The same heads if an assistant said some of it."""

NOT_KNOWN = "Not known"
"""What an expert answers when the memories hold no answer."""

EXPERT_PROMPT = (
    "Answer the question from the memories, in as few words as you can. "
    f"If they do not tell, answer: {NOT_KNOWN}"
)
_INSTRUCTION = f" {' '.join(language.words(EXPERT_PROMPT))} "
_REPEATED = 4  # words of the instruction that are no answer
_CHECK_PROMPT = (
    "Answer the user's question from the notes, in as few words as you can. "
    f"If they do not tell, answer: {NOT_KNOWN}"
)
SURE = 0.5
"""The least probability of `NOT_KNOWN` at which an expert refuses; below, it must answer."""
_RELIABLE = 0.4
"""The least probability at which an expert's answer stands alone; below, with what was told."""
_GUESSED, _VERDICT = 0.2, 0.6
"""Below these probabilities what was told replaces the answer. _VERDICT is for a yes or no."""

MAX_ANSWER_TOKENS = 24  # of a quotation
EXPERT_ANSWER_TOKENS = 64
"""More than of a quotation: an expert answers a question for a reason with a sentence."""
_BRANCHES = 4  # answers of an expert that are compared
_AROUND = 12  # words to each side of an answer in a memory
_NEAR = 8.0  # of the cosine, beside the logarithm of an answer's probability
_PLACES = 6  # of an answer in the memories; more are a common word
_EARLIER_CHARS = 150  # of the previous message, and of its answer
_EXAMPLES = """On 3 March 2024, User said: "I moved from Ghent to Antwerp because of the new job."
On 9 April 2024, User said: "I drink green tea now, coffee keeps me awake."

Question to User: What do I drink these days?
User's short answer: Green tea

On 2 May 2024, User said: "My nephew Jonas plays the trumpet in a school band."
On 14 June 2024, User said: "I finished the blue scarf, it took three weeks."

Question to User: Which instrument does Jonas play?
User's short answer: The trumpet

"""
_ITEM = re.compile(r"[^,]+")
_MARKS = re.compile(r"\W")


def answer(
    engine: Engine,
    question: str,
    memories: Sequence[Evidence],
    *,
    speaker: str,
    before: tuple[str, str] | None = None,
    asked_at: str | None = None,
    refusal: str = NOTHING_FOUND,
    quotes: Callable[[], Sequence[Evidence]] | None = None,
    guesses: bool = True,
    ended: bool = False,
    embedder: Embedder | None = None,
) -> Stream:
    """Answer a question from memories, the most relevant last in the sequence.

    speaker: who asks. The other arguments are for an expert:
    before: the previous message of the conversation and its answer. asked_at: ISO time of the
    question. refusal: the answer if the memories hold none. quotes: returns the evidence that
    stands below an answer that is not reliable, or in its place; None: nothing does. guesses:
    whether an answer that is hardly probable counts as one. ended: whether something that the
    memories tell no longer holds; the question then says "now", or the expert takes the older of
    two turns that contradict each other. embedder: ranks the likeliest answers; None takes the one
    that the expert writes first.
    Memories that do not fit the context window beside more relevant ones are left out. Raises
    ContextOverflow when the question alone does not fit.
    """
    expert = engine.expert("generation")
    asked = question
    if expert:  # an expert names a day well, and counts the days until then badly
        asked = language.counts_down(question) or question
        asked = language.as_of_now(asked) if ended else asked
    form = partial(expert_prompt, before=before, asked_at=asked_at) if expert else _prompt
    write = partial(form, asked, speaker=speaker)
    most = EXPERT_ANSWER_TOKENS if expert else MAX_ANSWER_TOKENS
    shown = _fitting(engine, write, memories, most)
    prompt = write(shown)
    # Without the file, each process computes the KV at its first answer: much of a cold start.
    beginning = f"{EXPERT_PROMPT}\n\n" if expert else _EXAMPLES
    engine.warm("generation", beginning, folder=cache_dir() / "prefixes")
    options: Options = {"max_tokens": most, "stop": ("\n",), "stage": "generation"}
    if not expert:
        options["within"] = [shown_text(memory) for memory in shown] or None
        return engine.stream(prompt, **options)
    options["fork"] = expert_target(None), expert_target("Yes"), SURE
    denied = _denied(shown, question)
    if embedder is not None:
        told = [shown_text(memory) for memory in shown]
        options["branches"] = _BRANCHES
        options["choose"] = partial(_best, embedder, asked, told, denied)
    stream = engine.stream(prompt, **options)
    checked = partial(_checked, stream, question, asked_at, prompt, refusal, quotes, denied)
    return Stream(checked(guesses=guesses))


def _fitting(
    engine: Engine,
    write: Callable[[Sequence[Evidence]], Prompt],
    memories: Sequence[Evidence],
    most: int,
) -> list[Evidence]:
    """The memories that fit the window in a prompt beside `most` tokens, in their order.

    The last ones take precedence.
    """
    shown: list[Evidence] = []
    for memory in reversed(memories):
        if engine.count_tokens(write([memory, *shown])) + most <= engine.n_ctx:
            shown.insert(0, memory)
    return shown


def confirms(engine: Engine, question: str, memories: Sequence[Evidence], answer: str) -> bool:
    """Whether an instruct model finds an expert's answer from memories likelier than NOT_KNOWN.

    The likeliest spelling counts: as it was told ("mill road"), with one or all words capitalised,
    or without weekdays. A length of time until a day is computed, and always confirmed.
    """
    if language.counts_down(question):
        return True

    def write(shown: Sequence[Evidence]) -> Prompt:
        notes = "\n".join(map(line, shown))
        asked = f"Notes:\n{notes}\n\nQuestion of the user: {' '.join(question.split())}"
        return [{"role": "system", "content": _CHECK_PROMPT}, {"role": "user", "content": asked}]

    prompt = write(_fitting(engine, write, memories, EXPERT_ANSWER_TOKENS))
    as_told = " ".join(answer.split())
    title = " ".join(word[:1].upper() + word[1:] for word in as_told.split())
    spellings = {as_told, as_told[:1].upper() + as_told[1:], title, language.unnamed_days(title)}

    def log_p(text: str) -> float:
        return float(engine.log_probs(prompt, text).sum())

    return max(map(log_p, spellings)) >= log_p(NOT_KNOWN)


def _denied(memories: Sequence[Evidence], question: str) -> set[str]:
    """The values that a memory of what is asked denies ("240 pots, not 200"), and no later one
    tells; none for a question about the past."""
    if language.asks_for_past(question):
        return set()
    asked = {*language.content_words(question)}
    return {
        value
        for memory in memories
        if any(language.same_word(word, asked) for word in language.content_words(memory.text))
        for value in language.values_denied(memory.text)
        if not any(
            (other.when or "") > (memory.when or "") and language.asserts(other.text, {value})
            for other in memories
        )
    }


def _best(
    embedder: Embedder,
    question: str,
    told: Sequence[str],
    denied: Collection[str],
    answers: Sequence[tuple[str, float]],
) -> int:
    """The index of the best of the likeliest answers (text, logarithm of its probability).

    An answer scores by its probability, and by how near the question is to the words around the
    answer in the memories. An answer that nobody told, such as "yes", counts as the farthest of the
    others. Whether to refuse was decided before, so only the first answer may refuse. An answer
    that cannot be right, or that a memory denies, is passed over.
    """
    allowed = [i for i, (text, _) in enumerate(answers) if i == 0 or not _refuses(text)]
    allowed = [i for i in allowed if not _cannot_be_right(answers[i][0], question)] or [0]
    allowed = [i for i in allowed if not language.asserts(answers[i][0], denied)] or allowed
    contexts = [_places(told, answers[i][0]) for i in allowed]
    texts = [text for of_answer in contexts for text in of_answer]
    if len(allowed) == 1 or not texts:
        return allowed[0]
    vectors = embedder.embed([question, *texts])
    cosines = iter((vectors[1:] @ vectors[0]).tolist())
    nearest = [max((next(cosines) for _ in of_answer), default=None) for of_answer in contexts]
    farthest = min(cosine for cosine in nearest if cosine is not None)
    scores = [
        answers[i][1] + _NEAR * (farthest if cosine is None else cosine)
        for i, cosine in zip(allowed, nearest, strict=True)
    ]
    return allowed[scores.index(max(scores))]


def _cannot_be_right(answer: str, question: str) -> bool:
    """Whether an answer has a date with a wrong weekday, names a day where the question asks for
    somebody, or is a label or the instruction of the prompt."""
    prompts = answer.strip(" .") in ("User", "Assistant") or _instructs(answer)
    return prompts or language.wrong_weekday(answer) or language.names_nobody(answer, question)


def _instructs(answer: str) -> bool:
    """Whether an answer repeats the instruction: "yes, in as few words as you can"."""
    said = language.words(answer)
    runs = (said[i : i + _REPEATED] for i in range(len(said) - _REPEATED + 1))
    return any(f" {' '.join(run)} " in _INSTRUCTION for run in runs)


def _refuses(answer: str) -> bool:
    return answer.strip(" .").lower() in ("", NOT_KNOWN.lower()) or _instructs(answer)


def _places(told: Sequence[str], answer: str) -> list[str]:
    """The words around the first occurrences of the answer in the memories."""
    sought = [_bare(word) for word in answer.split()]
    found: list[str] = []
    for text in told if sought else ():
        said = text.split()
        bare = [_bare(word) for word in said]
        for i in range(len(said) - len(sought) + 1):
            if bare[i : i + len(sought)] == sought and len(found) < _PLACES:
                found.append(" ".join(said[max(0, i - _AROUND) : i + len(sought) + _AROUND]))
    return found


def _bare(word: str) -> str:
    """A word in lower case, without marks."""
    return _MARKS.sub("", word.lower())


def quoted(memories: Sequence[Evidence], head: str = TOLD) -> str:
    """An answer without a model: the memories in their own words as a list, under a head.

    memories: oldest first. A speaker other than the user is named.
    """
    replies = any(memory.is_reply for memory in memories)
    lines = [_OF_REPLIES.get(head, head) if replies else head]
    for memory in memories:
        speaker = None if memory.speaker == "User" else memory.speaker
        told = ", ".join(part for part in (day_of(memory), speaker) if part)
        over = " (no longer so)" if memory.over else ""
        lines.append(f"- {told}{': ' if told else ''}{own_words(memory)}{over}")
    return "\n".join(lines)


def unseen(caption: str, *, text: bool, read: bool) -> str:
    """The answer about an image that no vision model has looked at.

    caption: "" if it has none. text: whether there is text in it. read: whether that was read yet.
    """
    named = f'the photo "{caption}"' if caption else "that photo"
    known = [*(["the caption"] if caption else []), *(["the text"] if text else [])]
    told = f"I have only {' and '.join(known)} of {named}, and found no answer there."
    if not known:
        told = "I can't see what that photo shows, and there is no text in it."
        return told if read else f"{told.partition(',')[0]}, and I have not read its text yet."
    return told if read else f"{told} I have not read its text yet."


def unsure(memories: Sequence[Evidence]) -> str:
    """The answer in place of a guess: the memories, as `quoted` lists them."""
    return f"{_UNSURE}\n\n{quoted(memories)}"


def reliable(answer: str, log_p: float, question: str) -> bool:
    """Whether an expert's answer stands alone. log_p: logarithm of its probability."""
    least = _VERDICT if language.is_verdict(answer.strip()) else _RELIABLE
    return math.exp(log_p) >= least and not language.names_nobody(answer, question)


def _checked(
    stream: Stream,
    question: str,
    asked_at: str | None,
    prompt: str,
    unknown: str,
    quotes: Callable[[], Sequence[Evidence]] | None,
    denied: Collection[str],
    *,
    guesses: bool,
) -> Generator[str, None, Generation]:
    """An expert's answer in one piece.

    An answer that is hardly probable, that a memory denies, that names a day where somebody is
    asked for, or that counts how often where nobody told a count, is a guess.
    A refusal (`NOT_KNOWN` or nothing) is replaced by `unknown`, and so is a guess unless `guesses`.
    Guesses, and a yes or no that is not reliable, are replaced by `quotes`. Below any other answer
    that is not reliable the quotes are added, and below a length of time until a day; if there are
    none, that day is of something else.
    """
    result = stream.whole()
    told = language.in_asked_form(_without_loops(result.text, prompt), question)
    named, day = told, asked_at and local_time(asked_at)
    told = language.counted_down(told, question, day) if day else told
    length = told != named or language.counts_down(question) is not None
    verdict = language.is_verdict(told.strip())
    unlikely = math.exp(result.log_p) < _GUESSED and not verdict
    unlikely = unlikely or language.asserts(told, denied)
    counted = language.counts_times(question) and not _places([prompt], told)
    guessed = unlikely or counted or language.names_nobody(told, question)
    sure = not (unlikely or counted or length) and reliable(told, result.log_p, question)
    shown = () if sure or _refuses(told) or quotes is None else quotes()
    unfounded = not shown and (counted or (length and quotes is not None))
    if _refuses(told) or (guessed and not guesses) or unfounded:
        told = unknown
    elif shown:
        head = "" if verdict else f"{told}\n\n"
        told = unsure(shown) if guessed and not verdict else head + quoted(shown)
    yield told
    return replace(result, text=told)


def _without_loops(text: str, shown: str) -> str:
    """An answer up to where it repeats an item of its list, has a name not in `shown`, or loops."""
    known = set(language.words(shown))
    said: list[set[str]] = []
    for item in _ITEM.finditer(text):
        new = set(language.words(item[0]))
        names = language.words(" ".join(w for w in item[0].split() if w[0].isupper()))
        invented = not all(language.same_word(name, known) for name in names)
        if said and new and (invented or any(new <= old for old in said)):
            return text[: item.start()].rstrip(" ,")
        said.append(new)
    runs: dict[tuple[str, ...], int] = {}
    found = list(re.finditer(r"\S+", text))
    for i in range(len(found) - 2):
        run = tuple(m[0].strip(",.").lower() for m in found[i : i + 3])
        if runs.setdefault(run, i) <= i - 3:
            return text[: found[i].start()].rstrip(" ,")
    return text.rstrip(",")


def expert_prompt(
    question: str,
    memories: Sequence[Evidence],
    speaker: str,
    before: tuple[str, str] | None = None,
    asked_at: str | None = None,
) -> str:
    """An expert's prompt. memories: the most relevant last. speaker: who asks.

    before: the previous message and its answer, to which "and when?" refers. asked_at: ISO time of
    the question, up to which "how long have I been here?" asks.
    """
    lines = "".join(f"{line(m)}\n" for m in memories)
    earlier = ""
    if before:
        said, answered = (" ".join(text.split()) for text in before)
        answered = answered[:_EARLIER_CHARS]
        earlier = f"{speaker} asks: {said[-_EARLIER_CHARS:]}\nAnswer: {answered}\n"
    question = " ".join(question.split())
    asked = f"{language.on_day(asked_at and local_time(asked_at))}{speaker} asks: {question}"
    return f"{EXPERT_PROMPT}\n\n{lines}\n{earlier}{asked}\nAnswer:"


def expert_target(answer: str | None) -> str:
    """The text that an expert answers with, without its end-of-turn token. None: not known."""
    return f" {' '.join((answer or NOT_KNOWN).split())}"


def _prompt(question: str, memories: Sequence[Evidence], speaker: str) -> str:
    lines = "".join(f"{line(m)}\n" for m in memories)
    question = " ".join(question.split())
    return f"{_EXAMPLES}{lines}\nQuestion to {speaker}: {question}\n{speaker}'s short answer:"
