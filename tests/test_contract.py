"""The walls, the names, and that README and --help say what the program does."""

import ast
import os
import pydoc
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

import edgemem
from edgemem import config, errors

PACKAGE = Path(edgemem.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = [file.relative_to(PACKAGE).as_posix() for file in FILES]
README = PACKAGE.parent / "README.md"
ARCHITECTURE = (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
MAX_LINES = 700

# Who may import what. A name that ends in "/" is a folder.
WALLS = {
    "sqlite3": ["store/"],
    "sqlite_utils": ["store/"],
    "llama_cpp": ["runtime/llama.py", "runtime/vision.py"],
    "llama_cpp.llama_cpp": ["runtime/llama.py"],
    "llama_cpp.mtmd_cpp": ["runtime/vision.py"],  # a wall in two halves: each has its own library
    "onnxruntime": ["runtime/embedder.py"],
    "tokenizers": ["runtime/embedder.py"],
    "hnswlib": ["retrieval/index.py"],
    "edgemem._native": ["kernels/__init__.py"],
    "click": ["cli/"],
    "rich": ["cli/"],
    "prompt_toolkit": ["cli/prompting.py"],
    "edgemem.cli.prompting": ["cli/chatting.py"],
    "platformdirs": ["config.py"],
    "filelock": ["cachefile.py"],
    "apsw": ["store/cipher.py", "store/sync.py"],
    "nacl": ["vault.py"],
    "keyring": ["vault.py"],
    "PIL": ["images/__init__.py"],
    "rapidocr": ["images/__init__.py"],
    "omegaconf": ["images/__init__.py"],
    "snowballstemmer": ["language/en.py"],
    "markdown_it": ["pipeline/passages.py"],
    "threadpoolctl": ["kernels/__init__.py"],
    "pynvml": ["profile/measure.py"],
    "urllib": ["runtime/models.py"],
    "http": ["runtime/models.py", "sync/network.py"],
    "ssl": ["sync/network.py"],
    "cryptography": ["sync/network.py"],
    # Not at all: nothing here needs the checkout, or talks to a network by itself.
    "bench": [],
    "corpus": [],
    "socket": [],
    "requests": [],
    "httpx": [],
    "httpx2": ["cloud/client.py"],
    "openai": [],
    "starlette": ["server/"],
    "uvicorn": ["server/asgi.py"],
    "mcp": ["server/mcp.py"],
    "edgemem.server": ["server/", "cli/tools.py"],
    "gguf": ["training/adapters.py"],
    "torch": ["training/"],
    "ray": ["training/trainer.py"],
    "transformers": ["training/lora.py"],
}


@cache
def imported(file):
    """Every module that a file imports, wherever in it, dotted."""
    return tuple(_imported(file))


def _imported(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else (
                node.func.id if isinstance(node.func, ast.Name) else ""
            )  # fmt: skip
            first = node.args[0]
            if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield str(first.value)


@pytest.mark.parametrize("wanted", WALLS)
def test_only_its_owner_imports_a_dependency(wanted):
    owners = WALLS[wanted]
    found = {
        name
        for file, name in zip(FILES, NAMES, strict=True)
        if any(module == wanted or module.startswith(wanted + ".") for module in imported(file))
    }
    strangers = [n for n in found if not any(n == o or n.startswith(o) for o in owners)]
    assert strangers == [], f"{wanted} belongs to {owners}"
    assert bool(found) == bool(owners)  # a wall around nothing is a mistake in this table


# Each room of ARCHITECTURE.md, and those that it may import.
ROOMS = {
    room: {name.strip() for name in allowed.split(",") if name.strip()}
    for room, allowed in re.findall(r"^\| (\w+) \| [^|]+ \|([^|]*)\|$", ARCHITECTURE, re.M)
    if room != "room"
}
BASE = {"budget", "cachefile", "config", "errors", "inputs", "results", "vault"}


def room_of(module):
    """The room of a dotted module of edgemem, or of a name in one."""
    first = module.split(".")[1] if "." in module else ""
    if first in BASE or first in ("", "__version__"):
        return "base"
    if first.startswith("kernels") or first == "_native":
        return "kernels"
    return first if first in ROOMS else "memory"


def imported_at_run_time(file):
    """The modules of edgemem that a file imports, early or late, but not for types alone."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names = {dotted(name) for name in NAMES}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "edgemem":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in names else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "edgemem")


def dotted(name):
    inner = name.removesuffix(".py").removesuffix("__init__").rstrip("/").replace("/", ".")
    return f"edgemem.{inner}".rstrip(".")


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("__init__.py", "__main__.py")])
def test_a_room_imports_only_what_the_architecture_lets_it(name):
    room = room_of(dotted(name))
    strangers = {
        module
        for module in imported_at_run_time(PACKAGE / name)
        if room_of(module) not in {room, *ROOMS[room]}
    }
    assert strangers == set(), f"{name} is of {room}"


def test_no_two_files_import_each_other():
    imports = {dotted(name): {*imported_at_run_time(PACKAGE / name)} for name in NAMES}
    while free := [m for m, wanted in imports.items() if not wanted & imports.keys() - {m}]:
        for module in free:
            del imports[module]
    assert not imports, "a circle is among these"


@pytest.mark.parametrize("name", NAMES)
def test_no_file_is_too_long_and_each_says_what_it_knows(name):
    text = (PACKAGE / name).read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_LINES, f"{name} has {text.count(chr(10))} lines: split it"
    assert ast.get_docstring(ast.parse(text)), f"{name} has no docstring"


@pytest.mark.parametrize("name", [n for n in NAMES if n != "__main__.py"])
def test_every_module_says_what_is_public_and_has_it(name):
    tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
    defined = [n for n in tree.body if not isinstance(n, ast.Expr | ast.Import | ast.ImportFrom)]
    module = import_module(dotted(name))
    if not defined:
        return  # a package that holds nothing but its docstring
    assert hasattr(module, "__all__"), f"{name} has no __all__"
    assert len(set(module.__all__)) == len(module.__all__)
    assert [n for n in module.__all__ if not hasattr(module, n)] == []


def test_the_tree_of_errors_is_the_one_that_is_drawn():
    drawn: dict[str, str] = {}
    parent = "EdgememError"
    assert f"\n    {parent}\n" in str(errors.__doc__)
    for line in str(errors.__doc__).splitlines():
        names = re.findall(r"[├└] (\w+)", line)
        if names:
            drawn[names[0]] = parent
            drawn.update(dict.fromkeys(names[1:], names[0]))
    classes = {n: getattr(errors, n) for n in errors.__all__}
    assert {n: c.__bases__[0].__name__ for n, c in classes.items() if n != parent} == drawn
    assert classes[parent].__bases__ == (Exception,)
    assert all(c.__doc__ for c in classes.values())
    ours = {n for n, v in vars(errors).items() if isinstance(v, type)}
    assert ours == set(classes)
    elsewhere = {
        made
        for file in FILES
        for made, bases in re.findall(r"^class (\w+)\((.*)\):", file.read_text("utf-8"), re.M)
        if file.name != "errors.py" and classes.keys() & re.findall(r"\w+", bases)
    }
    assert elsewhere == set()


# -- what importing does ---------------------------------------------------------------------


def python(code, **environment):
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_edgemem_loads_no_model_library():
    heavy = "llama_cpp onnxruntime hnswlib tokenizers httpx2 torch transformers click rich"
    heavy = [*heavy.split(), "starlette", "uvicorn", "mcp", "prompt_toolkit", "PIL"]
    # Nor does what the names of `edgemem` stand for, until a model is wanted.
    code = "{}; print([m for m in {} if m in sys.modules])\n"
    first = code.format("import sys, edgemem", [*heavy, "numpy", "sqlite3"])
    assert python(first + code.format("from edgemem import *", heavy)) == "[]\n[]\n"


def test_every_name_of_edgemem_is_there_and_no_other():
    for name in edgemem.__all__:
        assert getattr(edgemem, name) is not None
        assert name in dir(edgemem)
    shown = pydoc.plain(pydoc.render_doc(edgemem))
    assert "class Memory(" in shown and "class Chat(" in shown
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        edgemem.Nonsense  # noqa: B018


NO_NETWORK = """
import socket, sys
def refuse(*args, **more):
    raise SystemExit(f"the network was asked for: {args[1:]}")
for name in ("connect", "connect_ex", "sendto", "bind"):
    setattr(socket.socket, name, refuse)
socket.getaddrinfo = socket.create_connection = refuse
from edgemem import Memory
with Memory(sys.argv[1] if len(sys.argv) > 1 else ":memory:") as memory:
    changes = memory.add("I live in Oslo.", user_id="ana")
    print(len(changes) > 1, len(memory.search("Where does Ana live?", user_id="ana")) > 0)
"""


@pytest.mark.models
def test_nothing_asks_for_the_network_and_no_library_reports_to_its_maker(tmp_path):
    """One that does keeps an id of the device and what is to be sent in the user's folders."""
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home")}
    tested = {"CI": "", "ORT_RUNNING_UNIT_TESTS": ""}  # where they are set, reports are off
    told = python(NO_NETWORK, EDGEMEM_HOME=str(tmp_path / "ours"), **home, **tested)
    assert told == "True True\n" and not (tmp_path / "home").exists()


# -- README and --help -----------------------------------------------------------------------


def readme():
    return README.read_text(encoding="utf-8")


@pytest.mark.models
def test_the_readmes_python_runs(tmp_path, monkeypatch, capsys):
    """All ```python blocks, in order, as one program in an empty folder; it answers rightly."""
    blocks = re.findall(r"^```python\n(.*?)^```", readme(), re.M | re.S)
    assert blocks
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path))
    namespace: dict[str, object] = {"__name__": "readme"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"README.md, python block {number}", "exec"), namespace)
    assert capsys.readouterr().out.splitlines()[-1].startswith("Oslo ")


HELP = re.compile(r"^<!-- help: edgemem *(.*?) *-->\n+```\w*\n(.*?)^```", re.M | re.S)


def test_the_readmes_help_is_the_programs():
    """A block below `<!-- help: edgemem COMMAND -->` is what `edgemem COMMAND --help` prints."""
    from edgemem.cli import cli

    shown = HELP.findall(readme())
    assert len(shown) == readme().count("<!-- help: edgemem")
    for command, text in shown:
        arguments = [*command.removesuffix("--help").split(), "--help"]
        result = CliRunner().invoke(cli, arguments, prog_name="edgemem", terminal_width=100)
        assert result.exit_code == 0, command
        assert text.rstrip() == result.output.rstrip(), f"edgemem {command} --help has changed"


# -- REFERENCE -------------------------------------------------------------------------------

REFERENCE = (PACKAGE.parent / "REFERENCE.md").read_text(encoding="utf-8")


def table(head):
    """The rows of REFERENCE's table that has this head, without the last column and the quotes."""
    rows = REFERENCE.split(f"| {head} |", 1)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in rows]


def test_the_reference_has_every_setting_as_it_is():
    now = config.Settings(db=Path("memory.db")).to_dict()
    told = {key: (values, default) for key, values, default, _ in table("setting | allowed")}
    assert list(told) == list(now)
    for key, value in now.items():
        shown = "" if value in (None, []) else f"{value:g}" if type(value) is float else str(value)
        assert told[key] == (config.allowed(key), shown), key


def test_the_reference_has_every_variable_that_is_read():
    assert tuple(name for name, _ in table("variable")) == config.VARIABLES
    named = {
        name
        for file in FILES
        for name in re.findall(r"\bEDGEMEM_(?!ABI)[A-Z_]*[A-Z]\b", file.read_text(encoding="utf-8"))
    }
    assert named <= {*config.VARIABLES, *map(config.variable, config.Settings(db=Path()).to_dict())}


def test_the_reference_has_every_error_as_its_docstring_tells_it():
    told = {name: (base, about) for name, base, about in table("class | is a")}
    assert told == {
        name: (
            ", ".join(base.__name__ for base in kind.__bases__),
            " ".join(str(kind.__doc__).split()),
        )
        for name in errors.__all__
        for kind in [getattr(errors, name)]
    }
