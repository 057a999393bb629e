"""`edgemem profile`: sums, keys, verdicts, the page; and that real parts explain real memory."""

import json
import mmap
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from edgemem import profile
from edgemem.budget import Choice
from edgemem.config import load_settings
from edgemem.errors import InputError, ModelError
from edgemem.pipeline import parts
from edgemem.profile import measure
from edgemem.profile.report import Growth, Part, Profile, Timing, parse_budget, render, verdict

KEYS = {
    "parts_mb", "parts_basis", "rss_mb", "pss_mb", "peak_rss_mb", "unexplained_mb", "explained",
    "vram", "stages", "cold_start_to_first_token_s", "cold_start_s", "growth", "reliability",
    "energy_joules", "budgets", "memory_limit", "model", "machine", "versions", "backend",
}  # fmt: skip
STAGES = {
    "embed", "search", "re-rank", "compress", "prefill", "decode", "switch", "extract", "update",
    "generate",
}  # fmt: skip
PARTS = (
    Part(name="libraries", mb=80.0, basis="RSS after imports"),
    Part(name="weights", mb=100.0, basis="resident pages"),
    Part(name="kv", mb=48.0, basis="reported"),
    Part(name="compute", mb=24.0, basis="grown"),
    Part(name="index", mb=20.0, basis="reported"),
    Part(name="embedder", mb=100.0, basis="reported"),
    Part(name="prefixes", mb=8.0, basis="reported"),
)
MADE = Profile(
    parts=PARTS,
    rss_mb=400.0,
    pss_mb=300.0,
    peak_rss_mb=450.0,
    stages=(
        Timing(name="search", times_ms=(1.0, 2.0, 3.0)),
        Timing(name="decode", times_ms=(20.0,), tokens_per_s=50.0, note="a token"),
        Timing(name="switch", note="skipped: no <adapters> & none"),
    ),
    cold_start_s={"python": 0.1, "imports": 0.5, "first token": 1.25},
    growth=(
        Growth(memories=1000, p50_ms=1.0, p95_ms=2.0, index_mb=3.0),
        Growth(memories=10_000, p50_ms=2.0, p95_ms=3.0, index_mb=20.0),
    ),
    gpus=(),
    joules=None,
    verdicts=(),
    plan=None,
    model="tiny",
    machine={"system": "Linux", "cores": 2},
    versions={"edgemem": "0.1.0", "python": "3.11"},
    backend="native",
)
RESERVED = {"weights": 100_000_000, "kv": 48_000_000, "compute": 52_000_000, "adapters": 0}
CHOICE = Choice(n_ctx=2048, vectors="float32", prefix_bytes=64_000_000)


def told(choice):
    return {
        "kv": choice.n_ctx * 1000,
        "compute": choice.n_ctx * 100 + 51_200,
        "index": 40 if choice.vectors == "float32" else 10,
        "prefixes": choice.prefix_bytes,
    }


# -- sums and keys -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rss", "rest", "explained"), [(400.0, 20.0, 0.95), (342.0, -38.0, 1 - 38 / 342)]
)
def test_what_no_part_claims_or_too_many_do_lowers_what_is_explained(rss, rest, explained):
    made = replace(MADE, rss_mb=rss)
    assert made.sum_mb == 380.0 and made.unexplained_mb == pytest.approx(rest)
    assert made.explained == pytest.approx(explained)


def test_the_json_has_its_keys_and_only_json():
    found = json.loads(json.dumps(MADE.to_dict()))
    assert found.keys() == KEYS
    assert found["parts_mb"]["kv"] == 48.0 and found["parts_basis"]["kv"] == "reported"
    assert (found["rss_mb"], found["explained"]) == (400.0, 0.95)
    search = found["stages"]["search"]
    assert (search["p50_ms"], search["p95_ms"], search["n"]) == (2.0, 2.9, 3)
    assert found["stages"]["switch"]["p50_ms"] is None
    assert found["cold_start_to_first_token_s"] == 1.25


def test_what_is_not_there_is_said_and_never_zero():
    found = MADE.to_dict()
    assert found["vram"] == "no GPU" and found["energy_joules"] == "not reported"
    unknown = replace(MADE, rss_mb=None, pss_mb=None, cold_start_s={}).to_dict()
    for key in ("rss_mb", "unexplained_mb", "explained", "cold_start_to_first_token_s"):
        assert unknown[key] is None


# -- verdicts ------------------------------------------------------------------------------------


def asked(budget, made=MADE):
    return verdict(parse_budget(budget), made, RESERVED, CHOICE, told)


@pytest.mark.parametrize(
    ("budget", "kind", "size"),
    [
        ("1GB-ram", "ram", 10**9),
        ("8GB-vram", "vram", 8 * 10**9),
        ("512MiB-RAM", "ram", 2**29),
        ("1 GB ram", "ram", 10**9),
        *((wrong, None, 0) for wrong in ("", "1GB", "ram", "much-ram", "1GB-disk", "0GB-ram")),
    ],
)
def test_a_budget_is_a_size_of_ram_or_vram(budget, kind, size):
    if kind is None:
        with pytest.raises(InputError, match="is no budget; give a size and what of"):
            parse_budget(budget)
    else:
        assert (parse_budget(budget).kind, parse_budget(budget).bytes) == (kind, size)


def test_careful_retrieval_is_turned_down_where_it_does_not_fit():
    def predicted(choice):
        return told(choice) | {"token_embedder": 40_000_000 if choice.careful else 0}

    tokens = Part(name="token_embedder", mb=40.0, basis="grown")
    made = replace(MADE, rss_mb=440.0, parts=(*PARTS, tokens))
    smallest = Choice(n_ctx=512, vectors="int8", careful=True)
    found = verdict(parse_budget("410MB-ram"), made, RESERVED, smallest, predicted)
    assert not found.fits and found.turn_down == ("retrieval fast",) and found.then_mb == 400.0


def test_a_budget_that_is_enough_turns_nothing_down():
    found = asked("400MB-ram")
    assert found.fits and found.turn_down == () and found.then_mb is None
    assert found.sentence() == "400MB-ram: fits (400 of 400 MB, measured)"


@pytest.mark.parametrize(
    ("budget", "turn_down", "then"),
    [
        # 2048 → 1024 halves kv (48 → 24); compute's part that follows the window too.
        ("399MB-ram", ("n_ctx 1024",), 366.4),
        ("360MB-ram", ("n_ctx 1024", "n_ctx 512"), 349.6),
        ("340MB-ram", ("n_ctx 1024", "n_ctx 512", "vectors int8"), 334.6),
        ("330MB-ram", ("n_ctx 1024", "n_ctx 512", "vectors int8", "one prefix"), 326.6),
    ],
)
def test_what_to_turn_down_follows_the_ladder(budget, turn_down, then):
    found = asked(budget)
    assert not found.fits and found.turn_down == turn_down
    assert found.then_mb == pytest.approx(then, abs=0.11)


def test_when_nothing_helps_the_verdict_says_so():
    found = asked("200MB-ram")
    assert not found.fits and found.then_mb is None
    assert found.turn_down[-1] == "one prefix"
    assert "does not fit even with n_ctx 1024" in found.sentence()
    assert "use a smaller model" in found.sentence()


def test_vram_is_foretold_without_a_gpu_and_measured_with_one():
    found = asked("200MB-vram")
    assert found.fits and found.needs_mb == 200.0
    assert found.basis == "foretold for all layers on a GPU"
    card = {"name": "x", "total_mb": 8000.0, "used_mb": 900.0, "process_mb": 700.0}
    measured = asked("600MB-vram", replace(MADE, gpus=(card,)))
    assert (measured.needs_mb, measured.basis, measured.fits) == (700.0, "measured", False)


def test_ram_that_the_system_does_not_tell_is_unknown():
    found = asked("1GB-ram", replace(MADE, rss_mb=None))
    assert not found.fits and found.needs_mb is None and "unknown" in found.sentence()


# -- the page ------------------------------------------------------------------------------------


VERDICTS = tuple(asked(budget) for budget in ("1GB-ram", "360MB-ram", "8GB-vram"))
CARD = {"name": "card", "total_mb": 8000.0, "used_mb": 900.0, "process_mb": None}
PAGES = [
    MADE,
    replace(MADE, verdicts=VERDICTS, joules=12.0, gpus=(CARD,)),
    replace(MADE, plan={"limit_mb": 500.0, "turned_down": ["n_ctx 1024"]}),
    replace(MADE, rss_mb=None, pss_mb=None, peak_rss_mb=None, growth=(), cold_start_s={}),
    replace(MADE, parts=(), stages=(), growth=MADE.growth[:1]),
]


@pytest.mark.parametrize("made", PAGES)
def test_the_page_is_well_formed_asks_for_nothing_and_is_light_and_dark(made):
    page = render(made)
    assert page.startswith("<!DOCTYPE html>\n") and "prefers-color-scheme: dark" in page
    root = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    assert root.find("body/main/h1").text == "edgemem profile"
    assert not re.search(r"https?:|//|url\(|@import|<script|<link|<img|src=|nan|None", page)


def test_the_page_shows_what_the_profile_says():
    class Text(HTMLParser):
        said = ""

        def handle_data(self, data):
            self.said += f"{data}|"

    page = Text()
    page.feed(render(replace(MADE, verdicts=VERDICTS)))
    for expected in ("no GPU", "not reported", "1.25 s", "400 MB", "not explained", "embedder"):
        assert expected in page.said
    assert "skipped: no <adapters> & none" in page.said
    assert all(found.sentence() in page.said for found in VERDICTS)


def test_the_parts_of_the_bar_are_as_wide_as_they_are_large():
    page = render(replace(MADE, growth=(), stages=()))
    widths = [float(w) for w in re.findall(r'<span style="width:([\d.]+)%', page)][: len(PARTS)]
    shares = sorted((part.mb / 4 for part in PARTS), reverse=True)
    assert widths == pytest.approx(shares, abs=0.01)


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def profiled(monkeypatch):
    """What the command was asked for; it finds MADE."""
    seen: list[dict] = []

    def stand_in(**how):
        seen.append(how)
        return replace(MADE, verdicts=tuple(asked(b) for b in how["budgets"]))

    monkeypatch.setattr(profile, "profile", stand_in)
    return seen


def test_the_command_prints_the_json(run, profiled):
    out = run("profile", "--json", "--budget", "1GB-ram", "--rounds", "2", "--memory-limit", "1GB")
    assert json.loads(out.stdout)["budgets"][0]["fits"] is True
    assert profiled[0]["rounds"] == 2 and profiled[0]["budgets"] == ("1GB-ram",)
    assert profiled[0]["settings"].memory_limit == "1GB"
    profiled[0]["on_progress"](1, 6)


def test_a_budget_that_is_too_small_is_the_exit_code(run, profiled):
    out = run("profile", "--budget", "1GB-ram", "--budget", "360MB-ram", code=1)
    assert "✓ 1GB-ram: fits" in out.stdout
    assert "✗ 360MB-ram: does not fit as it is" in " ".join(out.stdout.split())


def test_the_table_says_no_gpu_in_every_row_of_vram(run, profiled, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    lines = run("profile").stdout.splitlines()
    rows = [line for line in lines if any(f" {part.name} " in line for part in PARTS)]
    assert len(rows) == len(PARTS) and all("no GPU" in row for row in rows)
    assert any("not explained" in line and "20.0" in line for line in lines)
    assert "Energy: not reported" in lines


def test_the_page_is_written_where_it_was_asked_for(run, profiled, tmp_path):
    run("profile", "--html", str(tmp_path / "p.html"))
    assert (tmp_path / "p.html").read_text(encoding="utf-8") == render(MADE)


def test_a_page_that_cannot_be_written_costs_no_figures(run, profiled, tmp_path, monkeypatch):
    told = run("profile", "--html", str(tmp_path / "no" / "p.html"), code=1)
    assert "Cannot write" in told.stderr
    assert not profiled  # nothing was measured
    refuse = OSError(28, "No space left on device")
    monkeypatch.setattr(
        "edgemem.profile.report.render", lambda found: (_ for _ in ()).throw(refuse)
    )
    out = run("profile", "--html", str(tmp_path / "p.html"), code=1)
    assert "Cannot write" in out.stderr and "Energy" in out.stdout


# -- the system ------------------------------------------------------------------------------------


def test_energy_is_read_of_packages_and_not_where_it_is_forbidden(tmp_path):
    assert measure.energy_joules(tmp_path) is None
    for name, used in (("intel-rapl:0", 5_000_000), ("intel-rapl:0:0", 1), ("intel-rapl:1", 10)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{used}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("100000000\n")
    found = measure.energy_joules(tmp_path)
    assert found == {"intel-rapl:0": (5.0, 100.0), "intel-rapl:1": (1e-5, 100.0)}


def test_a_counter_that_began_anew_is_counted_on():
    before, after = {"a": (90.0, 100.0), "b": (1.0, 100.0)}, {"a": (10.0, 100.0), "b": (3.0, 100.0)}
    assert measure.joules_between(before, after) == pytest.approx(22.0)


def test_what_nvml_tells_of_a_gpu_and_that_there_is_none(monkeypatch):
    class NVMLError(Exception):
        pass

    def fail():
        raise NVMLError

    ours = SimpleNamespace(pid=os.getpid(), usedGpuMemory=3_000_000)
    other = SimpleNamespace(pid=-1, usedGpuMemory=9_000_000)
    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetMemoryInfo=lambda h: SimpleNamespace(total=8_000_000_000, used=12_000_000),
        nvmlDeviceGetComputeRunningProcesses=lambda h: [other, ours],
        nvmlDeviceGetName=lambda h: b"card",
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    row = {"name": "card", "total_mb": 8000.0, "used_mb": 12.0, "process_mb": 3.0}
    assert measure.gpus() == [row]
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda h: [other]
    assert measure.gpus() == [row | {"process_mb": None}]
    nvml.nvmlInit = fail
    assert measure.gpus() == []


def test_a_mapped_file_is_found_with_its_resident_pages(tmp_path):
    file = tmp_path / "mapped"
    file.write_bytes(b"x" * 8 * mmap.PAGESIZE)
    if measure.mapped_bytes(file) is None:
        pytest.skip("this system tells nothing of mappings")
    with file.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert data[:] == file.read_bytes()
        assert list(measure.mapped_bytes(file).values()) == [8 * mmap.PAGESIZE]
    assert measure.mapped_bytes(file) == {}


# -- the processes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"cold_starts": 0}, {"sizes": (10, 0)}])
def test_a_number_below_one_is_refused(wrong):
    with pytest.raises(InputError, match="must be at least 1"):
        profile.profile(**wrong)


def test_what_goes_wrong_in_the_process_is_told_and_no_file_of_this_folder_runs(
    monkeypatch, tmp_path
):
    (tmp_path / "json.py").write_text("raise SystemExit('a file of this folder has run')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path))
    monkeypatch.setenv("EDGEMEM_MODEL", "no-such-model")
    with pytest.raises(ModelError, match=r"nothing was profiled: .*no-such-model"):
        profile.profile(rounds=1, sizes=())


def test_a_profile_tells_how_many_of_its_processes_have_ended(monkeypatch):
    def ask(kind, **_):
        if kind == "growth":
            raise ModelError("the last one")
        return {"first token": 1.0} if kind == "cold_start" else {"vectors": "float32"}

    monkeypatch.setattr(profile, "_ask", ask)
    told = []
    with pytest.raises(ModelError, match="the last one"):
        profile.profile(cold_starts=2, on_progress=lambda *at: told.append(at))
    assert told == [(ended, 5) for ended in range(5)]


def test_growth_is_of_that_many_memories(tmp_path):
    few, many = measure.growth(str(tmp_path), [50, 400], "float32", 3)
    assert (few["memories"], many["memories"]) == (50, 400)
    assert 0 < few["p50_ms"] <= few["p95_ms"] and few["index_mb"] < many["index_mb"]


@pytest.mark.models
@pytest.mark.slow
def test_the_parts_explain_what_the_process_takes(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path))
    monkeypatch.setenv("EDGEMEM_N_THREADS", "1")  # more wait for each other where others work
    made = profile.profile(rounds=1, sizes=(200,), cold_starts=1, budgets=["9GB-ram"])
    found = made.to_dict()
    assert found["stages"].keys() == STAGES
    assert all(timing.times_ms and timing.p50_ms > 0 for timing in made.stages)
    assert list(made.cold_start_s)[-1] == "first token"
    assert list(made.cold_start_s.values()) == sorted(made.cold_start_s.values())
    assert [g.memories for g in made.growth] == [200] and made.verdicts[0].fits
    if made.rss_mb is None:
        pytest.skip("this system does not tell what a process takes")
    assert made.explained >= 0.85, found["parts_mb"]
    assert found["parts_mb"]["adapters"] > 6  # those of the set `open`
    foretold = parts.predict(load_settings(), {"vectors": 101}, 384)(Choice(n_ctx=2048))
    for name in ("libraries", "embedder", "tokenizer", "weights", "kv"):
        assert foretold[name] == pytest.approx(found["parts_mb"][name] * 1e6, rel=0.2), name
