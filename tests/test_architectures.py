"""Tiny models of several architectures: what is reused is right to the bit, or is not reused.

And what their chat templates have of their own: thoughts, and a system role that is refused.
"""

import random
import re

import pytest
from familykit import ALWAYS_THINKS, CHATML, FAMILIES, WINDOW, write_family
from hypothesis import given
from hypothesis import strategies as st

import edgemem.runtime.generation as generation_module
from edgemem.errors import ModelError
from edgemem.inputs import THOUGHT_TAGS, without_thoughts
from edgemem.runtime.engine import Engine
from edgemem.runtime.generation import held_back

HEAD = "The office in Lisbon opens at nine. " * 4
SHORT = "Be brief. "  # whose tokens a sliding window can hold


@pytest.fixture(scope="module", params=FAMILIES)
def file(request, tmp_path_factory):
    return write_family(tmp_path_factory.mktemp("family"), request.param)


@pytest.fixture(scope="module")
def engine(file):
    with Engine.load(file, n_threads=1, n_ctx=1024) as loaded:
        yield loaded


def user(text):
    return [{"role": "user", "content": text}]


PROMPTS = [
    ("a", HEAD + "Ana moved to Oslo, she said."),
    ("a", HEAD + "Ana moved to Oslo, she said. And then Tom came, who plays chess well."),
    ("a", HEAD[:50]),
    ("a", HEAD[:50] + "nobody knows why they would not come at all."),
    ("a", "Another text, which has nothing in common with the others."),
    ("b", user(HEAD + "Where is it?")),
    ("b", [*user(HEAD + "Where is it?"), {"role": "assistant", "content": "In Lisbon."},
           *user("And when?")]),
    ("b", user(SHORT)),
    ("c", SHORT + "Who?"),
    ("c", SHORT + HEAD * 3),  # more than a batch
]  # fmt: skip


def answers(engine, logits_seen, number):
    stage, prompt = PROMPTS[number]
    logits_seen.clear()
    done = engine.generate(prompt, max_tokens=4, stage=stage)
    return done.text, list(logits_seen), done.cached_tokens


@pytest.mark.parametrize("prefix_bytes", [64_000_000, 0])
def test_stages_that_take_turns_have_a_cold_engines_logits(file, logits_seen, prefix_bytes):
    """Prompts grow, shrink, part in the middle; beginnings are computed ahead in between."""
    cold = []
    with Engine.load(file, n_threads=1, n_ctx=1024) as engine:
        for number in range(len(PROMPTS)):
            engine.drop_prefixes()
            *found, cached = answers(engine, logits_seen, number)
            assert cached == 0
            cold.append(found)
    cached = 0
    with Engine.load(file, n_threads=1, n_ctx=1024, prefix_bytes=prefix_bytes) as engine:
        chance = random.Random(3)
        for number in [*range(len(PROMPTS)), *(chance.randrange(len(PROMPTS)) for _ in range(40))]:
            if chance.random() < 0.3:
                engine.warm(chance.choice("abc"), chance.choice([HEAD, SHORT]))
            *found, reused = answers(engine, logits_seen, number)
            assert found == cold[number]
            cached += reused
    assert cached > 0


def test_branches_leave_the_context_as_it_was(engine, logits_seen):
    """A recurrent state cannot go back to where they part, so such a model takes one branch."""
    engine.drop_prefixes()
    *cold, _ = answers(engine, logits_seen, 0)
    _, prompt = PROMPTS[0]
    best = engine.generate(prompt, max_tokens=4, stage="a", branches=16)
    one = engine.generate(prompt, max_tokens=4, stage="a")
    assert best.log_p >= one.log_p
    if engine.notes and "recurrent" in engine.notes[0]:
        assert best.text == one.text
    *again, _ = answers(engine, logits_seen, 0)
    assert again == cold


def test_a_beginning_computed_ahead_is_reused_to_the_bit(engine, logits_seen):
    """By every prompt that goes on from it, whatever the stage or another one did meanwhile."""
    prompts = [HEAD + end for end in ("Where?", "When does it open?")]
    cold = []
    for prompt in prompts:
        engine.drop_prefixes()
        logits_seen.clear()
        engine.generate(prompt, max_tokens=4)
        cold.append(list(logits_seen))
    engine.drop_prefixes()
    held = engine.warm("a", HEAD)
    for prompt, logits in zip(prompts * 2, cold * 2, strict=True):
        logits_seen.clear()
        done = engine.generate(prompt, max_tokens=4, stage="a")
        assert logits_seen == logits
        assert held - 2 <= done.cached_tokens < done.prompt_tokens
        engine.generate("Once upon a time", max_tokens=4, stage="b")


@pytest.mark.parametrize("text", [HEAD, SHORT])
def test_a_beginning_in_a_file_gives_another_process_the_same_logits(
    file, tmp_path, logits_seen, decoded, text
):
    prompts = [text + "Where?", text + "When does it open? " * 6, text[:-7]]
    found: list[list[bytes]] = []
    for folder in (None, tmp_path, tmp_path):
        with Engine.load(file, n_threads=1, n_ctx=1024) as engine:
            logits = []
            if folder is not None:
                decoded.clear()
                held = engine.warm("a", text, folder=folder)
                assert sum(decoded) == (held if len(found) == 1 else 0)
            for prompt in prompts:
                if folder is None:
                    engine.drop_prefixes()
                logits_seen.clear()
                done = engine.generate(prompt, max_tokens=3, stage="a")
                logits += logits_seen
                if folder is not None and prompt == prompts[0]:
                    assert done.cached_tokens >= held - 2
            found.append(logits)
    assert found[0] == found[1] == found[2]
    assert len(list(tmp_path.glob("*.kv"))) == 1


def test_no_state_is_kept_that_llama_cpp_would_bring_back_in_part(engine):
    """Of a sliding window it saves the last tokens only, and takes that without a complaint."""
    prefixes, window = engine._prefixes, engine.path.stem == "gemma3"
    tokens = engine.tokenize(HEAD)
    for count in (2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW):
        prefixes.clear()
        prefixes.decode(tokens[:count])
        state = prefixes.state()
        prefixes.clear()
        assert prefixes.restore(tokens[:count], state) == (not window or count <= WINDOW)
        assert len(prefixes.held) in (0, count)
    assert not prefixes.restore(tokens[: WINDOW + 1], prefixes.state())


def test_a_refused_cut_is_never_trusted(engine, logits_seen):
    """llama.cpp may say that a tail is gone which is not, or keep one that it was to remove."""
    engine.drop_prefixes()
    engine.generate(PROMPTS[0][1], max_tokens=4)
    expected = list(logits_seen)
    lib, cuts = engine._lib, []

    class Refusing:
        def __init__(self, answer):
            self.answer = answer

        def __getattr__(self, name):
            return getattr(lib, name)

        def llama_memory_seq_rm(self, *_):
            cuts.append(self.answer)
            return self.answer

    for answer in (False, True):
        engine.generate(PROMPTS[1][1], max_tokens=4)
        engine._prefixes._lib = Refusing(answer)
        logits_seen.clear()
        assert engine.generate(PROMPTS[0][1], max_tokens=4).cached_tokens == 0
        assert logits_seen == expected
        engine._prefixes._lib = lib
    assert {True, False} <= set(cuts)


def test_the_memory_of_the_context_is_told(engine):
    assert engine.memory()["kv"] > 0


def test_an_engine_says_what_it_turns_off_and_why(engine):
    recurrent = ["unless it goes on where .* ends: the model's state is recurrent"]
    expected = {
        "qwen3": ["told not to think"],
        "gemma3": [
            f"first {WINDOW} tokens .* are kept .*: the model has a sliding window",
            "system message is said at the head of the next turn: .* refuses",
        ],
        "mamba": recurrent,
        "lfm2": recurrent,
        "qwen35": [*recurrent, "told not to think"],
    }.get(engine.path.stem, [])
    assert len(engine.notes) == len(expected)
    for note, pattern in zip(engine.notes, expected, strict=True):
        assert re.search(pattern, note)


# -- thoughts --------------------------------------------------------------------------------


def family(folder, name, **how):
    return Engine.load(write_family(folder, name, **how), n_threads=1, n_ctx=512)


def scripted(engine, monkeypatch, text):
    """Let the model write a text, tags as their own tokens if it has such; how many tokens."""
    tokens = engine.tokenize(text, special=True)
    script = iter([*tokens, *engine.tokenize("<|im_end|>", special=True)])
    monkeypatch.setattr(generation_module, "pick", lambda *_, **__: next(script))
    return len(tokens)


SAID = [
    ("<think>\nIt may be\n\nOslo.\n</think>\n\nOslo.", "Oslo."),
    ("<think>\n\n</think>\n\nOslo.", "Oslo."),
    ("Well, <think>hm</think> Oslo. <think>or", "Well, Oslo. "),
    ("</think>\n\nOslo.", "Oslo."),
    ("<think>in a thought < b, </thin", ""),
    ("a <b> or <thin, </ think>", "a <b> or <thin, </ think>"),
    ("", ""),
]


@pytest.fixture(scope="module", params=["added", "control", "text"])
def tags(request):
    return str(request.param)


@pytest.fixture(scope="module")
def thinker(tags, tmp_path_factory):
    with family(tmp_path_factory.mktemp("thinker"), "qwen3", tags=tags) as loaded:
        yield loaded


@pytest.mark.parametrize(("written", "shown"), SAID)
def test_a_thought_is_never_shown(thinker, tags, monkeypatch, written, shown):
    tokens = scripted(thinker, monkeypatch, written)
    assert tokens < len(written) or tags == "text" or "think>" not in written
    stream = thinker.stream(user("Where?"), max_tokens=200, stop="\n\n")
    assert "".join(stream) == shown and stream.result is not None
    assert stream.result.text == shown
    assert (stream.result.finish_reason, stream.result.completion_tokens) == ("stop", tokens)


def test_a_thought_that_is_cut_off_leaves_no_text(thinker, monkeypatch):
    scripted(thinker, monkeypatch, "<think>It may be Oslo, or é</think>Oslo.")
    tokens = len(thinker.tokenize("<think>It may be Oslo, or é", special=True))
    done = thinker.generate(user("Where?"), max_tokens=tokens - 1)
    assert (done.text, done.finish_reason) == ("", "length")


def test_what_follows_a_schema_may_speak_of_the_tags(tmp_path, monkeypatch):
    schema = {"type": "array", "items": {"type": "string"}}
    with family(tmp_path, "qwen3", tags="text") as engine:
        scripted(engine, monkeypatch, '["<think> opens a thought"]')
        done = engine.generate(user("What is it?"), schema=schema)
        assert done.text == '["<think> opens a thought"]'


@given(st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "<", ">", " ", "a"])))
def test_shown_text_only_grows_and_has_no_tag(pieces):
    sent = ""
    for end in range(len(pieces) + 1):
        text = without_thoughts("".join(pieces[:end]))
        assert text.startswith(sent)
        assert not any(tag in text for tag in THOUGHT_TAGS)
        sent = text[: len(text) - held_back(text, THOUGHT_TAGS)]


# -- chat templates --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "template", "end"),
    [
        ("qwen3", None, "assistant\n<think>\n\n</think>\n\n"),
        ("qwen2", ALWAYS_THINKS, "assistant\n<think>\n\n</think>\n\n"),
        ("qwen2", CHATML, "<|im_start|>assistant\n"),
    ],
)
def test_an_answer_begins_behind_the_thought(tmp_path, name, template, end):
    with family(tmp_path, name, template=template) as engine:
        assert engine._vocabulary._rendered(user("Where?"), []).endswith(end)
        assert bool(engine.notes) == ("think" in end)


def test_a_second_turn_has_the_tokens_of_the_first_with_its_thought_or_without(
    tmp_path,
):
    with family(tmp_path, "qwen3") as engine:
        first = engine._vocabulary.prompt_tokens(user("Where is it?"))
        thought = engine.tokenize("<think>\n\n</think>\n\n", special=True)
        turns = [
            [*user("Where is it?"), {"role": "assistant", "content": content}, *user("And when?")]
            for content in ("In Oslo.", "<think>\nHm.\n</think>\n\nIn Oslo.")
        ]
        second, same = map(engine._vocabulary.prompt_tokens, turns)
        assert second == same
        shared = first[: len(first) - len(thought)]
        assert second[: len(shared)] == shared and first[len(shared) :] == thought
        engine.generate(user("Where is it?"), max_tokens=4, stage="a")
        cached = engine.generate(turns[0], max_tokens=4, stage="a").cached_tokens
        assert cached >= len(shared)


SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "In Oslo."}


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        ([SYSTEM, *user("Hi.")], ["user\nBe brief.\n\nHi."]),
        (
            [SYSTEM, *user("Hi."), ANSWER, *user("When?")],
            ["user\nBe brief.\n\nHi.", "model\nIn Oslo.", "user\nWhen?"],
        ),
        ([SYSTEM, ANSWER, *user("When?")], ["user\nBe brief.", "model\nIn Oslo.", "user\nWhen?"]),
        ([SYSTEM], ["user\nBe brief."]),
    ],
)
def test_a_refused_system_message_is_the_users(tmp_path, messages, turns):
    with family(tmp_path, "gemma3") as engine:
        text = "".join(f"<start_of_turn>{turn}<end_of_turn>\n" for turn in turns)
        rendered = engine._vocabulary._rendered(messages, [])
        assert rendered == f"<bos>{text}<start_of_turn>model\n"
        assert engine._vocabulary.prompt_tokens(messages).count(2) == 1  # <bos>
        assert engine.generate(messages, max_tokens=2).completion_tokens > 0


def test_messages_that_a_template_refuses_are_an_error_that_says_why(tmp_path):
    with family(tmp_path, "gemma3") as engine, pytest.raises(ModelError, match="must alternate"):
        engine.generate([*user("Hi."), *user("Hello?")])
