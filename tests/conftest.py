"""What test files share."""

import os
import time

import pytest
from clikit import invoke
from familykit import write_family
from hypothesis import settings

from edgemem import config
from edgemem.cli import typed
from edgemem.pipeline import image_memories
from edgemem.runtime import experts, generation, machine, models, tune
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine
from edgemem.runtime.prefixes import Prefixes
from edgemem.store import Store

settings.register_profile("untimed", deadline=None)  # speed is measured in bench/
settings.load_profile("untimed")
os.environ["TZ"] = "UTC"  # days are those of the machine's zone
if hasattr(time, "tzset"):  # Windows has none
    time.tzset()
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    # Workers whose threads share cores wait for each other, so each has a core of its own.
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {usable[int(worker.removeprefix("gw")) % len(usable)]})


@pytest.fixture(scope="session", autouse=True)
def untuned():
    """The bundled model is loaded as it is, even where the user has tuned it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "stored", lambda source: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def unread():
    """Images are stored and not read; test_image_search.py does that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(config._EXTRAS, "ocr", ("the text of an image", "not_here"))
        patch.setattr(image_memories, "QUIET_S", 3600.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def unasked():
    """No chat asks whether to encrypt its store, and no test sees the keyring of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEMEM_ENCRYPTION", "off")
        patch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
        yield


@pytest.fixture(autouse=True)
def unopened():
    """No command of this process has opened a store yet."""
    typed._store = typed._vault = typed._whose = None


@pytest.fixture(scope="session", autouse=True)
def unprobed():
    """One child process tries the bundled model out, and none each tiny one."""
    repacked = machine.extra_buffers(models.find(models.DEFAULT_LLM))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "extra_buffers", lambda *_: repacked)
        patch.setattr(machine, "require_projector_runs", lambda *_: None)
        yield


@pytest.fixture(scope="session")
def engine():
    """The bundled model, loaded once."""
    with Engine.load() as loaded:
        yield loaded


@pytest.fixture(scope="session")
def shipped():
    """The bundled model with the experts that ship, loaded once."""
    with Engine.load() as loaded:
        experts.load(loaded, experts.find("open"))
        yield loaded


@pytest.fixture(scope="session")
def small():
    """The same with the smallest window."""
    with Engine.load(n_ctx=256) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def random_llama(tmp_path_factory):
    """A tiny Llama of random weights, for prompts of several batches."""
    file = write_family(tmp_path_factory.mktemp("llama"), "llama")
    with Engine.load(file, n_threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def embedder():
    """The bundled embedder, loaded once."""
    return Embedder.load(n_threads=2)


@pytest.fixture
def store(request, tmp_path):
    """A store in memory, or in a file if a test asks for "file"."""
    in_file = getattr(request, "param", "memory") == "file"
    with Store.open(tmp_path / "a.db" if in_file else ":memory:") as opened:
        yield opened


@pytest.fixture
def logits_seen(monkeypatch):
    """The logits of every choice of a token, in order."""
    seen: list[bytes] = []
    pick = generation.pick

    def chosen(logits, **how):
        seen.append(logits.tobytes())
        return pick(logits, **how)

    monkeypatch.setattr(generation, "pick", chosen)
    return seen


@pytest.fixture
def decoded(monkeypatch):
    """How many tokens each decode computed."""
    counts: list[int] = []
    decode = Prefixes.decode

    def counted(self, tokens, *more):
        counts.append(len(tokens))
        return decode(self, tokens, *more)

    monkeypatch.setattr(Prefixes, "decode", counted)
    return counts


@pytest.fixture
def run():
    """Runs one command: `run("search", "cat", input=None, code=0)`."""
    return invoke


@pytest.fixture
def stand_in(monkeypatch):
    """Makes every command take this in the place of the language model."""
    return lambda engine: monkeypatch.setattr(Engine, "load", classmethod(lambda *_a, **_k: engine))


@pytest.fixture
def empty_home(tmp_path, monkeypatch):
    """A home of its own, with the models as they are."""
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def home(empty_home, monkeypatch, embedder):
    """A home of its own, the embedder loaded once, and no language model unless a test has one."""
    monkeypatch.setattr(Embedder, "load", classmethod(lambda *_a, **_k: embedder))

    def no_model(*_a, **_k):
        raise AssertionError("the language model was loaded")

    monkeypatch.setattr(Engine, "load", classmethod(no_model))
    return empty_home


@pytest.fixture
def server(memory):
    """The application of a test file's own `memory`, behind a real server."""
    from serverkit import running

    with running(memory) as found:
        yield found


@pytest.fixture(scope="module")
def unchanged():
    """A server that nothing is written to."""
    from fake_engine import FakeEngine
    from memorykit import quick
    from serverkit import running

    with quick(engine=FakeEngine()) as memory, running(memory) as found:
        yield found


@pytest.fixture
def cloud():
    """An OpenAI-compatible service on loopback that keeps every byte."""
    from cloudkit import service

    with service() as opened:
        yield opened
