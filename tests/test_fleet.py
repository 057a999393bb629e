"""A local Ray cluster of two nodes computes what this process does, and goes on after a stop."""

import json
import os
import signal
from pathlib import Path

import pytest
from locomokit import write_locomo

from bench.spread import spread
from edgemem.errors import ConfigError, EdgememError, InputError
from edgemem.training import trainer as fleet

pytestmark = [pytest.mark.fleet, pytest.mark.slow]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Of a cluster of two nodes with one CPU each, which ends with the tests."""
    pytest.importorskip("ray", reason="needs edgemem-runtime[fleet]")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    here = str(Path(__file__).parent)
    paths = [here, str(Path(here).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # of the workers
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        yield cluster.address
    finally:
        cluster.shutdown()


def halved(item):
    """Work whose process dies, or which fails, as long as a file says so."""
    sign = Path(item["sign"])
    if item["n"] == 2 and sign.exists():
        kind = sign.read_text()
        sign.unlink()
        if kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        raise InputError("an odd conversation")
    with open(item["log"], "a") as log:
        log.write(f"{item['n']}\n")
    return {"half": item["n"] / 2, "by": os.getpid()}


def items(folder):
    return [{"n": n, "sign": str(folder / "sign"), "log": str(folder / "log")} for n in range(4)]


def test_work_is_spread_over_processes_and_a_killed_one_is_replaced(address, tmp_path):
    (tmp_path / "sign").write_text("die")
    found = spread(halved, items(tmp_path), tmp_path / "kept", address=address)
    assert [r["half"] for r in found] == [0, 0.5, 1, 1.5]
    assert os.getpid() not in {r["by"] for r in found}
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("where", ["here", "cluster"])
def test_what_was_done_before_a_stop_is_not_done_again(address, tmp_path, where):
    at = address if where == "cluster" else None
    (tmp_path / "sign").write_text("fail")
    with pytest.raises(InputError, match="an odd conversation"):
        spread(halved, items(tmp_path), tmp_path / "kept", address=at)
    # A cluster may have computed more than was kept when the error came.
    kept = [json.loads(f.read_text())["half"] * 2 for f in (tmp_path / "kept").glob("*.json")]
    (tmp_path / "log").write_text("")
    found = spread(halved, items(tmp_path), tmp_path / "kept", address=at)
    after = (tmp_path / "log").read_text().split()
    assert [r["half"] for r in found] == [0, 0.5, 1, 1.5]
    assert "2" in after and not {f"{n:.0f}" for n in kept} & set(after)
    assert where == "cluster" or sorted(kept) == [0, 1]


@pytest.mark.models
def test_locomos_figures_on_a_cluster_are_those_of_one_store_after_another(address, tmp_path):
    from bench.locomo import run

    one = write_locomo(tmp_path)
    other = json.loads(one.read_text()) | {"sample_id": "conv-1"}
    (tmp_path / "conv-1.json").write_text(json.dumps(other))
    files = sorted(tmp_path.glob("*.json"))
    here, rows = run(files, [1, 5], apart=True, kept=tmp_path / "kept")
    there, distributed = run(files, [1, 5], apart=True, kept=tmp_path / "kept", ray=address)
    assert distributed == rows and here["n"] == 4
    timed = ("_ms_", "per_s", "peak")
    assert {k: v for k, v in there.items() if not any(t in k for t in timed)} == {
        k: v for k, v in here.items() if not any(t in k for t in timed)
    }


@pytest.mark.train
def test_an_expert_of_a_cluster_is_the_one_of_this_process(address, tmp_path, run):
    for needed in ("torch", "transformers", "gguf"):
        pytest.importorskip(needed, reason="needs edgemem-runtime[train]")
    from trainkit import write_base

    from edgemem.training import examples as files

    base, lines = write_base(tmp_path / "tiny.gguf"), tmp_path / "d.jsonl"
    learn = [
        files.Example("extraction", f"Say it twice.\n{c * 40}\n", c * 2, f"g{n % 3}")
        for n in range(24)
        for c in ["abcdefgh"[n % 8]]
    ]
    files.write(lines, learn)
    command = (
        "train", "run", "extraction", "--data", str(lines), "--model", str(base), "--threads", "1",
        "--batch", "16", "--every", "2", "--lr", "0.02", "--precision", "float32", "--json",
    )  # fmt: skip
    outs = [tmp_path / "here.gguf", tmp_path / "there.gguf"]
    for out, where in zip(outs, ((), ("--ray", address)), strict=True):
        run(*command, "--out", str(out), "--epochs", "2")  # and stopped
        run(*command, "--out", str(out), "--epochs", "4", "--resume", *where)
    here, there = (json.loads(Path(f"{out}.json").read_text()) for out in outs)
    assert here["best_loss"] < here["first_loss"]
    assert there["best_loss"] == pytest.approx(here["best_loss"], rel=1e-5)
    assert outs[1].read_bytes() == outs[0].read_bytes()
    assert " --ray " in there["command"]


def test_a_missing_cluster_or_extra_says_what_to_do(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="needs edgemem-runtime[fleet]")
    with (
        pytest.raises(EdgememError, match=r"no Ray cluster at 'nonsense'.*`ray start --head`"),
        fleet.cluster("nonsense"),
    ):
        pass
    monkeypatch.setattr("edgemem.config.find_spec", lambda name: None)
    with (
        pytest.raises(ConfigError, match=r'--ray needs ray.*"edgemem-runtime\[fleet\]"'),
        fleet.cluster("auto"),
    ):
        pass
