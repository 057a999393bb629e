"""The C ABI from C: its tests, its example and its fuzzer, plainly and under sanitizers."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parent.parent / "native"

pytestmark = pytest.mark.skipif(
    not (shutil.which("c++") and shutil.which("cc")), reason="no compiler"
)

WARNINGS = ["-Wall", "-Wextra", "-Werror"]
BUILDS = {
    "plain": ["-O2"],
    "sanitized": [
        *("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
        "-fno-omit-frame-pointer",
    ],
}


@pytest.fixture(scope="module", params=BUILDS)
def build(request, tmp_path_factory):
    """A function that runs one of native's C programs in one of the builds."""
    folder = tmp_path_factory.mktemp(request.param)
    flags = [*BUILDS[request.param], *WARNINGS, f"-I{NATIVE / 'include'}"]
    sources = sorted(str(source) for source in (NATIVE / "src").glob("*.cpp"))
    subprocess.run(["c++", "-std=c++17", *flags, "-c", *sources], cwd=folder, check=True)
    library = sorted(str(built) for built in folder.glob("*.o"))

    def run(program, *arguments):
        c_object, path = str(folder / "program.o"), str(folder / Path(program).stem)
        source = str(NATIVE / program)
        standard = ["-std=c99", "-pedantic"]
        subprocess.run(["cc", *standard, *flags, "-c", source, "-o", c_object], check=True)
        subprocess.run(["c++", *flags, *library, c_object, "-o", path], check=True)
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield run


@pytest.mark.parametrize("program", ["abi_test", "metric_test", "candidates_test"])
def test_every_function_and_error_of_the_abi(build, program):
    assert build(f"tests/{program}.c").startswith("ok ")


def test_odd_inputs_of_all_sizes(build):
    assert build("tests/fuzz.c", "3000", "1") == "ok 3000 rounds\n"


def test_the_example_finds_what_it_asked_about(build):
    output = build("examples/memory_search.c")
    asked = re.search(r"^asked about topic (\d+)$", output, re.M)
    assert re.findall(r"^memory \d+ of topic (\d+): ", output, re.M) == [asked[1]] * 5
