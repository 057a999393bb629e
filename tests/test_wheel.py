"""The wheel, installed into an empty environment outside the checkout, works by itself."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="links the dependencies with symbolic links"),
]


def run(*command, env=None, cwd=ROOT, timeout=600):
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def build_wheel(folder, **environment):
    """Build with what is installed here, or let pip fetch the build tools if they are not."""
    packages = all(importlib.util.find_spec(name) for name in ("scikit_build_core", "nanobind"))
    tools = packages and all(shutil.which(name) for name in ("cmake", "ninja"))
    isolation = ["--no-build-isolation", "--no-index"] if tools else []
    environment = {**os.environ, **environment}
    pip = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", *isolation]
    done = run(*pip, "--wheel-dir", folder, ROOT, env=environment)
    (wheel,) = folder.glob("*.whl")
    return wheel, done.stdout + done.stderr


def empty_environment(folder, wheel):
    """A virtual environment with the wheel and links to the dependencies, without this edgemem."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    found = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    packages = Path(found.stdout.strip())
    for name in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(name).iterdir():
            ours = entry.name.lower().replace("-", "_").startswith(("edgemem", "__editable__"))
            if not ours and entry.suffix != ".pth" and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    run(*pip, wheel)
    return python


def clean(home):
    """Variables without this checkout, with a folder of its own for data."""
    dropped = ("PYTHONPATH", "EDGEMEM_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    return {**env, "EDGEMEM_HOME": str(home)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))[0]


@pytest.fixture(scope="module")
def installed(tmp_path_factory, wheel):
    return empty_environment(tmp_path_factory.mktemp("environment") / "venv", wheel)


# What only training reads.
TRAINING = ("chats", "conversations", "facts", "halves", "material", "pairs", "replies")


def test_the_wheel_holds_what_the_package_needs(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    in_package = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "edgemem").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    weights = (".gguf", ".onnx")
    models = {
        "edgemem/_models/" + file.relative_to(ROOT / "models").as_posix()
        for file in (ROOT / "models").rglob("*")
        if file.is_file()
        and (file.suffix not in weights or "adapters" in file.parts)
        and not {"__pycache__", *TRAINING} & set(file.parts)
    }
    assert not any(f"/{folder}/" in name for name in names for folder in TRAINING)
    assert in_package - names == set()
    assert models - names == set() and "edgemem/_models/minilm/tokenizer.json" in models
    assert "edgemem/py.typed" in names
    info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"} <= names
    assert {name.split("/")[0] for name in names} == {"edgemem", info}


def test_the_installed_package_is_native_and_its_own(installed, tmp_path):
    code = (
        "import edgemem, json; from edgemem import kernels, _native\n"
        "print(json.dumps([edgemem.__file__, _native.__file__, kernels.backend]))"
    )
    done = run(installed, "-c", code, env=clean(tmp_path), cwd=tmp_path)
    package, module, backend = json.loads(done.stdout)
    environment = str(installed.parent.parent)
    assert backend == "native"
    assert package.startswith(environment) and module.startswith(environment)


def test_the_installed_command_tells_its_version(installed, tmp_path):
    done = run(installed, "-m", "edgemem", "--version", env=clean(tmp_path), cwd=tmp_path)
    assert "0.1.0" in done.stdout and "native" in done.stdout


@pytest.mark.models
def test_the_installed_command_adds_and_finds(installed, tmp_path):
    edgemem = installed.parent / "edgemem"
    options = {"env": clean(tmp_path / "home"), "cwd": tmp_path}
    said = ("I keep bees on the roof.", "My sister lives in Oslo.")
    run(edgemem, "add", "--no-infer", *said, **options)
    done = run(edgemem, "search", "Where does my sister live?", "--json", **options)
    results = json.loads(done.stdout)["results"]
    assert results[0]["memory"] == "My sister lives in Oslo."
    assert (tmp_path / "home").is_dir()


def test_without_a_compiler_the_wheel_is_built_and_numpy_answers(tmp_path):
    folder = tmp_path / "wheel"
    folder.mkdir()
    wheel, output = build_wheel(folder, CC="/bin/false", CXX="/bin/false")
    assert "built WITHOUT its native module" in output
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if "_native" in name]
    python = empty_environment(tmp_path / "venv", wheel)
    code = (
        "import numpy as np; from edgemem import kernels as k\n"
        "rows = np.eye(3, dtype=np.float32)\n"
        "print(k.backend, k.scan_topk(rows, rows[1], 1)[0].tolist(), k.backend_detail)"
    )
    done = run(python, "-c", code, env=clean(tmp_path), cwd=tmp_path)
    assert done.stdout.startswith("numpy [1] ") and "_native" in done.stdout
