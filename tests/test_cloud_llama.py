"""The cloud's client and governor against llama-cpp-python's own OpenAI-compatible server."""

import socket
import threading

import pytest
import uvicorn
from llama_cpp.server.app import create_app
from llama_cpp.server.settings import ModelSettings, ServerSettings
from memorykit import quick
from serverkit import until

from edgemem.cloud.governor import Governor
from edgemem.config import CloudSettings
from edgemem.errors import CloudRejected
from edgemem.results import Hit, Scope
from edgemem.runtime import machine
from edgemem.runtime.models import find
from edgemem.store.receipts import receipts

pytestmark = [pytest.mark.models, pytest.mark.slow]

KEY = "sk-of-this-test"


@pytest.fixture(scope="module")
def base_url():
    file = find("smollm2-135m-instruct-q4_1")
    if not machine.extra_buffers(file):
        pytest.skip("that server repacks weights, of which llama.cpp as compiled here dies")
    model = ModelSettings(model=str(file), model_alias="small", n_ctx=1024, verbose=False)
    key = ServerSettings(api_key=KEY, disable_ping_events=True)
    app = create_app(server_settings=key, model_settings=[model])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        until(lambda: server.started, 60)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        server.should_exit = True
        thread.join(20)


def test_a_real_server_answers_from_what_was_sent(base_url, monkeypatch):
    monkeypatch.setenv("EDGEMEM_TEST_KEY", KEY)
    settings = CloudSettings(
        base_url=base_url, model="small", api_key_env="EDGEMEM_TEST_KEY", max_tokens=24
    )
    with quick() as memory:
        memory.add("My sister Ingrid lives in Leeds.", user_id="ada", infer=False)
        hits = [Hit(**vars(item), score=0.9) for item in memory.get_all()]
        with Governor(memory, settings) as governor:
            found = governor.ask("Where does Ingrid live?", hits, scope=Scope("ada"))
        assert found.text and "[PERSON_1]" not in found.text
        (receipt,) = receipts(memory.store)
        assert receipt.outcome == "answered"
        assert 0 < (receipt.completion_tokens or 0) <= 24 < (receipt.prompt_tokens or 0)


def test_a_real_server_refuses_a_wrong_key(base_url, monkeypatch):
    monkeypatch.setenv("EDGEMEM_TEST_KEY", "sk-another")
    settings = CloudSettings(base_url=base_url, model="small", api_key_env="EDGEMEM_TEST_KEY")
    with quick() as memory, Governor(memory, settings) as governor:
        with pytest.raises(CloudRejected, match="refused the key"):
            governor.ask("Hello?", scope=Scope("ada"))
        assert receipts(memory.store)[0].outcome == "refused"
