"""A model is tried out by a child process before it is loaded; children are killed on purpose."""

import ctypes
import gc
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edgemem.errors import ModelError
from edgemem.runtime import llama, machine
from edgemem.runtime.engine import Engine
from edgemem.runtime.machine import extra_buffers, summary
from edgemem.runtime.models import DEFAULT_LLM, find
from edgemem.store import Store

pytestmark = pytest.mark.skipif(os.name == "nt", reason="children are killed by Unix signals")

LIVE = "pass"
DIE = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
ILLEGAL = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
STOPPED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture(autouse=True)
def nothing_known(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(machine, "_known", {})
    monkeypatch.setattr(machine, "extra_buffers", extra_buffers)
    monkeypatch.setattr(machine, "processor", lambda: ("Ryzen", "fpu avx2"))
    machine._machine_digest.cache_clear()
    yield
    machine._machine_digest.cache_clear()


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "some.gguf"
    file.write_bytes(b"GGUF" + bytes(100))
    return file


@pytest.fixture
def children(monkeypatch):
    """Stand-ins for the child with extra buffers and the one without; what was started."""

    def stand_in(with_extra, without=LIVE):
        started: list[bool] = []

        def child(_module, _file, _n_gpu_layers, extra):
            started.append(extra)
            return [sys.executable, "-I", "-S", "-c", with_extra if extra else without]

        monkeypatch.setattr(machine, "_child_command", child)
        return started

    return stand_in


@pytest.fixture
def another_process(monkeypatch):
    return lambda: monkeypatch.setattr(machine, "_known", {})


def test_a_child_is_given_no_passphrase(tmp_path, model, monkeypatch):
    told = tmp_path / "told"
    look = f"import os, pathlib; pathlib.Path({str(told)!r}).write_text(' '.join(os.environ))"
    monkeypatch.setattr(
        machine, "_child_command", lambda *_: [sys.executable, "-I", "-S", "-c", look]
    )
    for name in ("EDGEMEM_PASSPHRASE", "EDGEMEM_IMPORT_PASSPHRASE"):
        monkeypatch.setenv(name, "correct horse")
    assert extra_buffers(model)
    assert "EDGEMEM_HOME" in told.read_text() and "PASSPHRASE" not in told.read_text()


def test_a_model_is_tried_once_and_never_again(model, children, another_process):
    started = children(LIVE)
    assert extra_buffers(model) and extra_buffers(model)
    another_process()
    assert extra_buffers(model) and started == [True]
    assert summary() == "computes as llama.cpp was compiled"


@pytest.mark.parametrize("death", [DIE, ILLEGAL])
def test_a_child_that_dies_turns_extra_buffers_off(model, children, another_process, caplog, death):
    started = children(death)
    assert not extra_buffers(model)
    assert "pip install --force-reinstall" in caplog.text and "llama-cpp-python==" in caplog.text
    another_process()
    caplog.clear()
    assert not extra_buffers(model) and started == [True, False] and not caplog.text
    assert "without repacked weights" in summary() and "pip install" in summary()


def test_a_model_that_kills_both_children_is_refused_each_time(model, children):
    started = children(DIE, ILLEGAL)
    for _ in range(2):
        with pytest.raises(ModelError, match=r"dies \(SIGILL\).*--no-binary llama-cpp-python"):
            extra_buffers(model)
    assert started == [True, False] * 2


def test_on_amx_the_advice_compiles_without_it(model, children, monkeypatch):
    monkeypatch.setattr(machine, "processor", lambda: ("Xeon", "fpu amx_tile avx2"))
    children(DIE)
    assert not extra_buffers(model)
    assert "CMAKE_ARGS=" in summary() and "-mno-amx-tile" in summary()


@pytest.mark.parametrize("end", ["import sys; sys.exit(1)", STOPPED])
def test_a_child_that_ends_for_another_reason_teaches_nothing(model, children, end):
    started = children(end)
    assert extra_buffers(model) and extra_buffers(model) and started == [True, True]
    assert "not yet tried" in summary()


def test_a_child_that_takes_too_long_is_stopped(model, children, monkeypatch):
    monkeypatch.setattr(machine, "TIMEOUT_S", 0.2)
    started = children("import time; time.sleep(30)")
    assert extra_buffers(model) and extra_buffers(model) and started == [True]


@pytest.mark.parametrize("program", ["", "/opt/app/notes", "/no/such/python3"])
def test_a_program_that_is_no_python_loads_untried(model, monkeypatch, program):
    monkeypatch.setattr(sys, "executable", program)
    assert extra_buffers(model)
    assert "not yet tried" in summary()


def test_each_processor_library_and_form_is_tried(model, children, monkeypatch):
    started = children(LIVE)
    extra_buffers(model)
    extra_buffers(model, 1)
    model.write_bytes(model.read_bytes() + bytes(1 << 20))
    extra_buffers(model)
    other = bytearray(model.read_bytes())
    other[-1] = 1  # far in the header, as of a damaged vocabulary
    model.write_bytes(other)
    extra_buffers(model)
    monkeypatch.setattr(machine, "processor", lambda: ("Xeon", "fpu"))
    machine._machine_digest.cache_clear()
    extra_buffers(model)
    assert len(started) == 5


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a b": 3}', "\x00"])
def test_a_damaged_file_of_verdicts_is_written_anew(model, children, another_process, text):
    file = Path(os.environ["EDGEMEM_HOME"]) / "processors.json"
    file.parent.mkdir()
    file.write_text(text)
    started = children(LIVE)
    assert extra_buffers(model)
    another_process()
    assert extra_buffers(model) and started == [True]
    assert list(json.loads(file.read_text()).values()) == [True]
    assert os.listdir(file.parent) == [file.name]


def test_a_folder_that_cannot_be_written_is_no_error(model, children, tmp_path):
    (tmp_path / "home").write_text("a file")
    started = children(LIVE)
    assert extra_buffers(model) and extra_buffers(model) and started == [True]


def test_threads_wait_for_one_child(model, children):
    started = children("import time; time.sleep(0.1)")
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(extra_buffers, [model] * 8)) == [True] * 8
    assert started == [True]


def test_the_real_child_survives_the_bundled_model(monkeypatch):
    file = find(DEFAULT_LLM)
    ends = [
        subprocess.run(
            machine._child_command("llama", str(file), 0, extra) or (), check=False
        ).returncode
        for extra in (True, False)
    ]
    repacked = ends[0] == 0  # not on AMX by GCC 12
    assert ends[1] == 0 and extra_buffers(file) == repacked
    assert ("computes as llama.cpp was compiled" in summary()) == repacked


def test_the_child_computes_the_tokens_that_it_gives(random_llama, monkeypatch):
    lib, decode, given = llama.library(), llama.library().llama_decode, []

    def spy(context, batch):
        gc.collect()
        taken = [(ctypes.c_int32 * batch.n_tokens)(*[-1] * batch.n_tokens) for _ in range(99)]
        given.append({batch.token[i] for i in range(batch.n_tokens)})
        return decode(context, batch) if taken else 1

    monkeypatch.setattr(lib, "llama_decode", spy)
    llama.try_out(str(random_llama.path), 0, False)
    assert given == [{0}, {0}]


def test_a_child_that_computes_nothing_says_so(random_llama, monkeypatch):
    monkeypatch.setattr(llama.library(), "llama_decode", lambda *_: -1)
    with pytest.raises(ModelError, match="status -1"):
        llama.try_out(str(random_llama.path), 0, False)


@pytest.mark.parametrize("flags", ["fpu avx2", "fpu amx_tile avx2"])
def test_without_a_child_a_model_is_repacked_but_on_amx(model, monkeypatch, flags):
    monkeypatch.setattr(machine, "processor", lambda: ("Xeon", flags))
    monkeypatch.setattr(sys, "executable", "/opt/app/notes")
    assert extra_buffers(model) == ("amx" not in flags)


def test_the_real_child_leaves_a_damaged_model_to_whoever_loads_it(model):
    with pytest.raises(ModelError, match=r"some\.gguf"):
        Engine.load(model)


def test_a_model_answers_without_extra_buffers(engine, children):
    started = children(DIE)
    with Engine.load(n_ctx=256) as plain:
        assert started == [True, False]
        asked = "The capital of France is"
        assert plain.generate(asked, max_tokens=4).text == engine.generate(asked, max_tokens=4).text


def test_version_and_doctor_say_what_was_found(run, model, children, tmp_path):
    children(DIE)
    extra_buffers(model)
    assert "processor: llama.cpp as it was compiled here dies" in run("--version").output
    Store.open(tmp_path / "a.db").close()
    assert "without repacked weights" in run("doctor", "--db", str(tmp_path / "a.db")).output


def test_the_peak_of_a_process_is_its_own_and_not_its_parents():
    held = bytearray(os.urandom(1 << 20) * 300)  # the child must not be charged with these
    code = "from edgemem.runtime.machine import peak_rss_mb; print(peak_rss_mb())"
    peak = float(subprocess.check_output([sys.executable, "-c", code], text=True))
    assert 10 < peak < len(held) / 1e6
    assert machine.peak_rss_mb() > len(held) / 1e6
