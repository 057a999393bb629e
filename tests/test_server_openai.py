"""The server as OpenAI's own Python client sees it, unmodified."""

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from fake_engine import FakeEngine
from memorykit import quick, texts
from serverkit import HI, TOKEN, running, slowly, until

from edgemem import Memory
from edgemem.errors import ModelError
from edgemem.results import Scope
from edgemem.runtime.generation import Request
from edgemem.server import Limits, openai_api
from edgemem.stages.generation import NOTHING_FOUND

CAT = "My cat is called Tom."


@pytest.fixture
def fake():
    return FakeEngine(pieces=("Oslo", ", ", "I think."))


@pytest.fixture
def memory(fake):
    with quick(engine=fake) as opened:
        yield opened


def ask(server, text="hi", **more):
    messages = more.pop("messages", [{"role": "user", "content": text}])
    given = {"model": "fake", "messages": messages, **more}
    return server.client().chat.completions.create(**given)


# -- chat ----------------------------------------------------------------------------------------


def test_a_completion_without_user_is_the_models_alone(server, memory, fake):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": t} for t in ("Where", " ", "is it?")],
        },
    ]
    answer = ask(server, messages=messages)
    assert answer.choices[0].message.content == "Oslo, I think."
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (10, 2)
    said = [("system", "Be brief."), ("user", "Where\nis it?")]
    assert fake.prompts == [("server", [{"role": r, "content": t} for r, t in said])]
    assert memory.store.counts()["turns"] == 0


def test_with_user_the_message_is_remembered_and_recalled_in_that_scope_alone(server, memory, fake):
    ask(server, CAT, user="ana")
    answer = ask(server, "What is my cat called?", user="ana")
    assert answer.choices[0].message.content == "Oslo, I think."
    assert CAT in fake.prompts[-1][1]
    stranger = ask(server, "What is my cat called?", user="ben")
    assert stranger.choices[0].message.content == NOTHING_FOUND
    assert CAT in texts(memory.get_all(user_id="ana"))
    assert texts(memory.get_all(user_id="ben")) == []


def test_what_was_said_before_in_the_request_is_shown_with_memory_too(server, fake):
    said = ["I am tired.", "Sleep well.", "What is the capital of Portugal?"]
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    ask(server, messages=messages, user="ana")
    assert [message["content"] for message in fake.prompts[0][1]][1:] == said


def test_a_stream_gives_pieces_then_the_reason_then_the_usage(server):
    events = list(ask(server, stream=True, stream_options={"include_usage": True}))
    assert [e.choices[0].delta.content for e in events[1:4]] == ["Oslo", ", ", "I think."]
    assert events[0].choices[0].delta.role == "assistant"
    assert [e.choices[0].finish_reason for e in events[:-1]] == [None] * 4 + ["stop"]
    assert events[-1].choices == [] and events[-1].usage.total_tokens == 12
    assert len({e.id for e in events}) == 1
    assert all(e.usage is None for e in events[:-1])
    assert all(e.choices for e in ask(server, stream=True))


def test_a_message_is_stored_before_the_stream_begins_and_its_facts_are_taken_later():
    with slowly() as (server, slow, other):
        stream = ask(server, CAT, user="ana", stream=True)
        assert texts(other.get_all(user_id="ana")) == [CAT]  # the model still speaks
        assert slow.ended == 0 and len(other.pending()) == 1
        slow.free.set()
        list(stream)
        until(lambda: not other.pending())


TITLE = (
    "### Task:\nGenerate a concise, 3-5 word title with an emoji for the chat history.\n"
    "### Chat History:\n<chat_history>\nUSER: {}\nASSISTANT: {}\n</chat_history>"
)


def turns_of(memory, user):
    """The stored turns of a user, oldest first."""
    return [turn.content for turn in memory.store.recent_turns(Scope(user), limit=100)]


def test_a_programs_request_about_the_conversation_is_the_models_alone_and_is_not_stored(
    server, memory, fake
):
    said = f"Hello there!\n\n{CAT}"
    answer = ask(server, said, user="ana").choices[0].message.content
    asked = TITLE.format(said.replace("\n\n", " "), answer)
    fake.prompts.clear()
    assert ask(server, asked, user="ana").choices[0].message.content == "Oslo, I think."
    assert fake.prompts == [("server", [{"role": "user", "content": asked}])]
    assert turns_of(memory, "ana") == [said, answer]


def test_a_message_that_does_not_quote_two_turns_of_the_same_user_is_remembered(
    server, memory, fake
):
    fake.pieces = (f'"{CAT}" is what I heard.',)  # so the second turn holds the first one
    answer = ask(server, CAT, user="ana").choices[0].message.content
    own = [f"You said: {answer} Why?", f"{CAT} {answer}", f"Once more: {CAT} He is grey."]
    for text in own:
        ask(server, text, user="ana")
    of_another = TITLE.format(CAT, answer)
    ask(server, of_another, user="ben")
    assert [text for text in turns_of(memory, "ana") if text in own] == own
    assert of_another in turns_of(memory, "ben")


def test_news_beside_two_turns_that_it_quotes_is_stored(server, memory):
    told = ["I moved to Bergen last week.", "My sister Lena is a nurse."]
    for text in told:
        ask(server, text, user="ana")
    news = f"You asked twice: {told[0]} And also: {told[1]} Well, we both moved on to Oslo today."
    ask(server, news, user="ana")
    assert news in turns_of(memory, "ana")


def test_store_false_answers_with_memory_and_remembers_nothing(server, memory, fake):
    ask(server, CAT, user="ana")
    before = turns_of(memory, "ana")
    ask(server, "What is my cat called?", user="ana", store=False)
    assert CAT in fake.prompts[-1][1]
    ask(server, "I live in Oslo.", user="ana", store=False)
    assert turns_of(memory, "ana") == before
    ask(server, "I live in Oslo.", user="ana", store=True)
    assert "I live in Oslo." in turns_of(memory, "ana")


def test_a_message_sent_again_within_the_hour_gets_another_answer_and_is_stored_once(
    server, memory, fake, monkeypatch
):
    question = "What is my cat called?"
    for text in (CAT, question):
        ask(server, text, user="ana")
    fake.pieces = ("Bergen, I think.",)
    answer = ask(server, f"{question}\n", user="ana")
    assert answer.choices[0].message.content == "Bergen, I think."
    assert CAT in fake.prompts[-1][1]
    stored = turns_of(memory, "ana")
    assert stored.count(question) == 1 and stored[-1] == "Bergen, I think."
    ask(server, CAT, user="ana")  # an older message is said anew
    assert turns_of(memory, "ana").count(CAT) == 2
    monkeypatch.setattr(openai_api, "_REPEATED_WITHIN_S", 0)
    ask(server, CAT, user="ana")
    assert turns_of(memory, "ana").count(CAT) == 3


def options_seen(fake):
    """The options of the engine's calls, each with its last value."""
    seen: dict[str, Any] = {}
    answered = fake.stream

    def stream(prompt, **options):
        seen.update(options)
        return answered(prompt, **options)

    fake.stream = stream
    return seen


def test_max_tokens_beyond_the_window_mean_the_windows_end(server, fake):
    seen = options_seen(fake)
    room = fake.n_ctx - fake.count_tokens([{"role": "user", "content": "hi"}])
    for given, wanted in ((room, room), (room + 1, None), (4096, None)):
        ask(server, max_tokens=given)
        assert seen["max_tokens"] == wanted
    fake.n_params = 4_000_000_000  # it converses
    for given in (4096, fake.n_ctx - 1):
        ask(server, "What is the capital of Portugal?", user="ana", max_tokens=given)
        stage, prompt = fake.prompts[-1]
        assert stage == "reply" and seen["max_tokens"] == fake.n_ctx - fake.count_tokens(prompt)


def test_tools_are_taken_and_never_called(server, memory, fake):
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Is it cold?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "4 degrees"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "What is the capital of Portugal?"},
    ]
    read = [m for m in messages if m["role"] != "tool" and m["content"]]
    for choice in ("auto", "none"):
        more = {"tools": [tool], "tool_choice": choice, "parallel_tool_calls": True}
        answer = ask(server, messages=messages, **more)
        assert fake.prompts[-1][1] == read and answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].message.tool_calls is None
    ask(server, messages=messages, tools=[tool], user="ana")
    assert fake.prompts[-1][1][1:] == read
    assert turns_of(memory, "ana")[0] == messages[-1]["content"]


def test_sampling_settings_reach_the_engine(server, fake):
    seen = options_seen(fake)
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    ask(
        server, max_tokens=7, temperature=1, top_p=0.5, seed=3, stop=["\n", "."],
        response_format=wanted,
    )  # fmt: skip
    assert {k: seen[k] for k in ("max_tokens", "temperature", "top_p", "seed", "stop")} == {
        "max_tokens": 7, "temperature": 1, "top_p": 0.5, "seed": 3, "stop": ("\n", "."),
    }  # fmt: skip
    assert seen["schema"] == schema
    ask(server, max_completion_tokens=9, stop="x", response_format={"type": "json_object"})
    assert (seen["max_tokens"], seen["stop"]) == (9, ("x",))
    assert seen["schema"] == {"type": "object"} and seen["temperature"] == 0.0
    first = seen["seed"]
    ask(server)
    assert seen["seed"] != first  # without one, each answer has another


@pytest.mark.parametrize(
    ("more", "param", "message"),
    [
        ({"n": 2}, "n", "n is 2; only 1 is allowed here"),
        ({"tool_choice": "required"}, "tool_choice", "'required'; only 'auto' or 'none' is"),
        ({"tool_choice": {"type": "function", "function": {"name": "f" * 99}}}, "tool_choice",
         "tool_choice is {'type': 'function', 'function': {'name': '" + "f" * 34 + "...; only"),
        ({"function_call": {"name": "f"}}, "function_call", "only 'auto'"),
        ({"logprobs": True}, "logprobs", "only False"),
        ({"presence_penalty": 0.5}, "presence_penalty", "only 0"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": [{"role": "owl", "content": "x"}]}, "messages[0]", "role of system"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0]", "role of system"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]},
         "messages", "ends with a tool's result"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages", "or has no text"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "a text"),
        ({"seed": "x" * 99}, "seed", f"seed is '{'x' * 76}...; it must be"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
         "messages[0].content", "parts of the type text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content", "no data URI"),
        ({"max_tokens": "many"}, "max_tokens", "a whole number"),
        ({"temperature": True}, "temperature", "a number"),
        ({"stop": [1]}, "stop", "a list of texts"),
        ({"seed": -1}, "seed", "0 or more"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
        ({"user": "ana", "response_format": {"type": "json_object"}}, "response_format", "memory"),
        ({"user": "a", "messages": [{"role": "assistant", "content": "x"}]}, "messages",
         "role user"),
        ({"user": " "}, None, "the user_id is empty"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_a_bad_request_that_names_the_field(unchanged, more, param, message):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(unchanged, **more)
    assert caught.value.param == param
    assert message in caught.value.message
    assert caught.value.type == "invalid_request_error"


def test_a_temperature_larger_than_any_float_is_a_bad_request(server, fake):
    answered = fake.stream
    fake.stream = lambda prompt, **options: (Request(**options), answered(prompt, **options))[1]
    with pytest.raises(openai.BadRequestError, match=r"temperature is 1000\d*\.\.\.; it must be 0"):
        ask(server, temperature=10**400)


def test_an_unknown_model_is_not_found(server):
    for call in (
        lambda: ask(server, model="gpt-9"),
        lambda: server.client().embeddings.create(model="fake", input="x"),
        lambda: server.client().models.retrieve("gpt-9"),
    ):
        with pytest.raises(openai.NotFoundError, match="there is no model") as caught:
            call()
        assert caught.value.code == "model_not_found"


def test_a_wrong_token_is_an_authentication_error(server):
    with pytest.raises(openai.AuthenticationError, match="--show-token"):
        server.client(api_key="no").models.list()


def test_a_full_queue_is_a_rate_limit_and_the_client_tries_again_by_itself():
    chats = "/v1/chat/completions"
    with slowly(Limits(queue=1)) as (server, slow, _), server.begin(chats, HI):
        until(lambda: slow.given)
        with server.begin(chats, HI):
            until(lambda: server.service.worker.waiting == 1)
            with pytest.raises(openai.RateLimitError, match="the queue is full") as caught:
                ask(server)
            assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
            assert server.client().models.list().data  # what needs no engine still answers
            server.service.worker._mean_s = 0.1  # so that it is told to come back in one second
            threading.Timer(0.5, slow.free.set).start()
            client = server.client(max_retries=3)
            assert client.chat.completions.create(**HI).choices


def test_an_error_in_the_middle_of_a_stream_reaches_the_client_and_a_fault_tells_no_text(
    server, fake, caplog
):
    def breaking(error):
        def broken():
            raise error

        return broken

    fake.between = breaking(ModelError("the model gave no numbers"))
    with pytest.raises(openai.APIError, match="gave no numbers"):
        list(ask(server, stream=True))
    with pytest.raises(openai.InternalServerError, match="gave no numbers"):
        ask(server)
    fake.between = breaking(KeyError("a secret"))
    with pytest.raises(openai.APIError, match="broke off") as caught:
        list(ask(server, stream=True))
    assert "secret" not in str(caught.value) and "an answer broke off" in caplog.text


def test_a_model_without_a_chat_template_answers_only_with_memory(server, fake):
    fake.has_chat_template = False
    with pytest.raises(openai.BadRequestError, match=r"no chat template.*give `user`"):
        ask(server)
    assert ask(server, CAT, user="ana").choices


# -- models and embeddings -----------------------------------------------------------------------


def test_models_are_listed_and_found_by_each_name_that_calls_accept(server, memory):
    models = server.client().models
    assert [model.id for model in models.list()] == ["fake", "bag"]
    assert models.retrieve("bag").owned_by == "edgemem"
    assert ask(server, model=memory.settings.model).choices
    assert models.retrieve(memory.settings.model).id == "fake"
    assert models.retrieve("bag@1").id == "bag"


@pytest.mark.models
def test_embeddings_are_the_embedders_own(embedder):
    wanted = embedder.embed(["one text", "and another"])
    with quick(engine=FakeEngine(), embedder=embedder) as memory, running(memory) as server:
        create = server.client().embeddings.create
        model = "minilm-l6-v2-int8"
        both = create(model=model, input=["one text", "and another"])  # base64, by its own choice
        assert [e.index for e in both.data] == [0, 1]
        np.testing.assert_array_equal(np.array([e.embedding for e in both.data]), wanted)
        plain = create(model=model, input="one text", encoding_format="float")
        np.testing.assert_allclose(plain.data[0].embedding, wanted[0])
        assert plain.usage.prompt_tokens == embedder.count_tokens("one text")
        for bad, message in (
            ({"input": [1, 2]}, "a list of texts"),
            ({"input": []}, "0 texts"),
            ({"input": ["a", ""]}, "none of them empty"),
            ({"input": "a", "dimensions": 7}, "dimensions is 7"),
            ({"input": "a", "encoding_format": "hex"}, "float or base64"),
        ):
            with pytest.raises(openai.BadRequestError, match=message):
                create(model=model, **bad)


# -- with the bundled model ----------------------------------------------------------------------


@pytest.mark.models
def test_the_bundled_model_answers_and_follows_a_schema(engine, embedder):
    with Memory(":memory:", engine=engine, embedder=embedder) as memory, running(memory) as server:
        assert f'model="{engine.name}"' in client_code()
        answer = ask(server, "Say hello.", model=engine.name, max_tokens=8)
        assert answer.choices[0].finish_reason in ("stop", "length")
        assert answer.usage.completion_tokens <= 8 and answer.choices[0].message.content
        with pytest.raises(openai.BadRequestError, match="n_ctx is 2048") as caught:
            ask(server, "word " * 3000, model=engine.name, max_tokens=4096)
        assert caught.value.code == "context_length_exceeded"
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        made = ask(server, "Fine?", model=engine.name, max_tokens=32, response_format=wanted)
        assert re.fullmatch(
            r'\s*{\s*"ok"\s*:\s*(true|false)\s*}\s*', made.choices[0].message.content
        )


def client_code():
    """The README's block below `<!-- client -->`."""
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"<!-- client -->\n+```py\n(.*?)^```", readme, re.M | re.S)
    return str(code)


def test_the_readmes_client_runs(server, capsys, monkeypatch):
    """With this server in the place of the one it speaks of."""
    monkeypatch.setenv("EDGEMEM_TOKEN", TOKEN)
    there = client_code().replace("8765", str(server.port))
    there = re.sub(r'model="[^"]+"', 'model="fake"', there)
    exec(compile(there, "README.md", "exec"), {})
    assert capsys.readouterr().out == "Oslo, I think.\n"
