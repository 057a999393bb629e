"""How often is the assistant right, asked as people ask it, after weeks of talk?

    python -m bench.assistant --json OUT [--model NAME] [--experts NAME] [--against plain]
        [--against mem0] [--dev | --frozen] [--second | --third] [--only NAME …] [--kinds KIND …]
        [--questions N] [--one-chat] [--no-infer] [--keep FOLDER]

Each scenario of `bench/scenarios/` goes pair by pair through `Memory.add`; then every question is
asked in a new `Chat`, which stores nothing of it. Each question has patterns that a right answer
must and must not match (bench/scenarios.py). Figures by kind with Wilson's intervals, seconds of an
answer and to its first piece, peak memory.

--against plain: the same model with the eight best memories of `Memory.search` in its system prompt
and nothing else. --against mem0: the same prompt with mem0's eight best (bench/assistant_mem0.py).

--one-chat asks all questions of a scenario in one chat, as people do: each is said after the one
above it, which it has mostly nothing to do with.

Half of the scenarios are frozen: their rows have no texts. They are asked for figures that will be
published, and nothing is changed because of what they show. --dev asks the other half. --second
and --third ask ten and eight more, by nine other hands, in the folders of these names; everybody
may read them. With --keep stores are filled once for each model and write path, and reused
(bench/stores.py).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench import report, stores
from bench.scenarios import FOLDER, KINDS, Question, Scenario, day, is_right, read_all
from edgemem.chat import Chat
from edgemem.config import Settings, load_settings
from edgemem.errors import EdgememError
from edgemem.memory import Memory
from edgemem.results import Hit
from edgemem.runtime import experts, models
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine

OWN = "chat"
AGAINST = ("plain", "mem0")
NOTES = 8
MAX_ANSWER_TOKENS = 200  # of plain and mem0; Chat has its own
_console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. ttft_s: seconds to its first piece. shown: the memories the model was given."""

    text: str
    seconds: float
    ttft_s: float | None
    shown: tuple[str, ...]


Ask = Callable[[Scenario, Question], Answer]
Notes = Callable[[Scenario, str], list[str]]


@dataclass(frozen=True)
class Setup:
    """What all systems share.

    folder: of the filled stores. infer: whether facts are extracted. one_chat: whether a scenario's
    questions are asked in one. server: its URL, for mem0.
    """

    engine: Engine
    embedder: Embedder
    settings: Settings
    folder: Path
    infer: bool = True
    one_chat: bool = False
    server: str = ""

    def memory(self, file: Path) -> Memory:
        return Memory(file, engine=self.engine, embedder=self.embedder, settings=self.settings)

    @contextmanager
    def filled(self, scenario: Scenario) -> Iterator[Memory]:
        """A Memory that holds the scenario's messages."""
        file = stores.filled(
            self.folder,
            scenario,
            self.memory,
            engine=self.engine,
            chosen=self.settings.experts,
            embedder=self.embedder.model_id,
            infer=self.infer,
        )
        with self.memory(file) as memory:
            yield memory


# -- who answers ---------------------------------------------------------------------------------


def ask_chat(begin: Callable[[], Chat], scenario: Scenario, question: Question) -> Answer:
    """Chat's answer to a question, after its answers to the messages before the question."""
    chat = begin()
    for text in question.before:
        for _ in chat.send(text, timestamp=scenario.now, remember=False):
            pass
    started, first = time.perf_counter(), None
    reply = chat.send(question.ask, timestamp=scenario.now, remember=False)
    for _ in reply:
        first = first or time.perf_counter() - started
    seconds = time.perf_counter() - started
    return Answer(
        reply.text, seconds, first, tuple(_note(chat.memory, hit) for hit in reply.context)
    )


def ask_plain(engine: Engine, notes: Notes, scenario: Scenario, question: Question) -> Answer:
    """The model's answer from notes in its system prompt, after answers to the messages before.

    The worst notes are left out until the prompt fits the context window.
    """
    turns: list[dict[str, str]] = []
    answer = Answer("", 0.0, None, ())
    for text in (*question.before, question.ask):
        started, first = time.perf_counter(), None
        found = notes(scenario, text)
        turns.append({"role": "user", "content": text})
        prompt = [{"role": "system", "content": _system(scenario.now, found)}, *turns]
        while found and engine.count_tokens(prompt) + MAX_ANSWER_TOKENS > engine.n_ctx:
            found = found[:-1]
            prompt = [{"role": "system", "content": _system(scenario.now, found)}, *turns]
        pieces = []
        for piece in engine.stream(prompt, max_tokens=MAX_ANSWER_TOKENS, stage="plain"):
            first = first or time.perf_counter() - started
            pieces.append(piece)
        said = "".join(pieces).strip()
        turns.append({"role": "assistant", "content": said})
        answer = Answer(said, time.perf_counter() - started, first, tuple(found))
    return answer


def _system(now: str, notes: Sequence[str]) -> str:
    today = datetime.fromisoformat(now)
    return (
        f"You are a helpful assistant. Today is {today:%A}, {day(now)}. "
        "Notes from earlier conversations with the user:\n" + "\n".join(f"- {n}" for n in notes)
    )


def notes_of(memory: Memory, scenario: Scenario, text: str) -> list[str]:
    """The best memories for a text, best first."""
    hits = memory.search(text, user_id=scenario.user_id, top_k=NOTES)
    return [_note(memory, hit) for hit in hits]


def _note(memory: Memory, hit: Hit) -> str:
    """A memory with its day and who said it."""
    turns = memory.source_turns(hit.id)
    speaker = (turns[0].name or turns[0].role.capitalize()) if turns else "User"
    when = f"{day(hit.valid_from)} " if hit.valid_from else ""
    return f"{when}{speaker}: {' '.join(hit.memory.split())}"


@contextmanager
def opened(system: str, setup: Setup, scenario: Scenario) -> Iterator[Ask]:
    """A function that asks a system in which the scenario is stored."""
    if system == "mem0":
        from bench import assistant_mem0

        model = setup.settings.model
        with assistant_mem0.filled(setup.server, model, setup.embedder, scenario) as notes:
            yield partial(ask_plain, setup.engine, notes)
        return
    with setup.filled(scenario) as memory:
        if system == OWN:
            begin = partial(Chat, memory, user_id=scenario.user_id)
            chat = begin()
            yield partial(ask_chat, (lambda: chat) if setup.one_chat else begin)
        else:
            yield partial(ask_plain, setup.engine, partial(notes_of, memory))


# -- the run -------------------------------------------------------------------------------------


def run(
    scenarios: Sequence[Scenario], systems: Sequence[str], setup: Setup
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and one row for each answer."""
    rows: list[dict[str, Any]] = []
    peaks: dict[str, int | None] = {}
    storing_s = 0.0
    with Progress(console=_console) as progress:
        for scenario in progress.track(scenarios, description="storing"):
            with setup.filled(scenario) as memory:
                storing_s += stores.seconds_of(memory)
        peaks["storing"] = _peak_mb()
        for system in systems:
            total = sum(len(scenario.questions) for scenario in scenarios)
            task = progress.add_task(system, total=total)
            for scenario in scenarios:
                progress.update(task, description=f"{system}: {scenario.name}")
                with opened(system, setup, scenario) as ask:
                    for question in scenario.questions:
                        rows.append(_row(system, scenario, question, ask))
                        progress.advance(task)
            peaks[system] = _peak_mb()
    summary: dict[str, Any] = {
        "model": setup.engine.name,
        "model_sha256": models.known_sha256(setup.engine.path),
        "experts": setup.settings.experts,
        "infer": setup.infer,
        "one_chat": setup.one_chat,
        "n_ctx": setup.engine.n_ctx,
        "embedder": setup.embedder.model_id,
        "scenarios": len(scenarios),
        "messages": sum(len(said) for s in scenarios for said in s.sessions),
        "storing_s": round(storing_s, 1),  # reused stores report the time of their filling
        "peak_rss_mb": peaks,  # of this process, up to the end of each
    }
    for half in ("dev", "frozen"):
        found = [row for row in rows if row["half"] == half]
        if found:
            summary[half] = {
                system: figures([row for row in found if row["system"] == system])
                for system in systems
            }
    return summary, rows


def _peak_mb() -> int | None:
    peak = report.peak_rss_mb()
    return None if peak is None else round(peak)


def _row(system: str, scenario: Scenario, question: Question, ask: Ask) -> dict[str, Any]:
    """The row of one answer; for a frozen scenario it has no texts."""
    error = None
    started = time.perf_counter()
    try:
        answer = ask(scenario, question)
    except EdgememError as exc:
        error = f"{type(exc).__name__}: {exc}"
        answer = Answer("", time.perf_counter() - started, None, ())
    row = {
        "half": "frozen" if scenario.frozen else "dev",
        "system": system,
        "kind": question.kind,
        "right": error is None and is_right(answer.text, question),
        "seconds": round(answer.seconds, 3),
        "ttft_s": None if answer.ttft_s is None else round(answer.ttft_s, 3),
    }
    if scenario.frozen:
        return row
    return row | {
        "scenario": scenario.name,
        "before": list(question.before),
        "question": question.ask,
        "answer": answer.text,
        "shown": list(answer.shown),
        "error": error,
    }


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Right answers in all and by kind, with Wilson's intervals, and the seconds of an answer."""
    seconds = [row["seconds"] for row in rows]
    first = [row["ttft_s"] for row in rows if row["ttft_s"] is not None]
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in KINDS}
    return {
        "all": _share(rows),
        **{kind: _share(some) for kind, some in kinds.items() if some},
        "seconds_p50": round(report.percentile(seconds, 50), 2),
        "seconds_p90": round(report.percentile(seconds, 90), 2),
        "ttft_s_p50": round(report.percentile(first, 50), 2) if first else None,
    }


def _share(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    right, of = sum(row["right"] for row in rows), len(rows)
    low, high = report.wilson(right, of)
    return {
        "right": right,
        "of": of,
        "share": round(right / of, 3),
        "wilson_95": [round(low, 3), round(high, 3)],
    }


def table(half: str, by_system: dict[str, dict[str, Any]]) -> Table:
    """The figures of one half, a line for each kind."""
    shown = Table("kind", *by_system, title=half)
    for kind in ("all", *KINDS):
        cells = [found.get(kind) for found in by_system.values()]
        if any(cells):
            shown.add_row(
                kind,
                *(
                    f"{c['right']}/{c['of']}  {c['share']:.2f} [{c['wilson_95'][0]:.2f}, "
                    f"{c['wilson_95'][1]:.2f}]"
                    if c
                    else ""
                    for c in cells
                ),
            )
    for name in ("seconds_p50", "seconds_p90", "ttft_s_p50"):
        shown.add_row(name, *(str(found[name]) for found in by_system.values()))
    return shown


# -- the command ---------------------------------------------------------------------------------


def chosen(
    scenarios: Sequence[Scenario],
    *,
    half: str | None = None,
    only: Sequence[str] = (),
    kinds: Sequence[str] = (),
    most: int | None = None,
) -> list[Scenario]:
    """The scenarios and questions that the options select. Raises SystemExit if there are none."""
    found = []
    for scenario in scenarios:
        if half is not None and scenario.frozen != (half == "frozen"):
            continue
        if only and scenario.name not in only:
            continue
        asked = tuple(q for q in scenario.questions if not kinds or q.kind in kinds)[:most]
        if asked:
            found.append(replace(scenario, questions=asked))
    if not found:
        names = ", ".join(s.name for s in scenarios)
        raise SystemExit(f"no question is left to ask; the scenarios are: {names}")
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.assistant", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", required=True, metavar="OUT", help="file to write")
    parser.add_argument("--model", help="name or file (default: setting `model`)")
    parser.add_argument("--experts", help="set of experts (default: setting `experts`)")
    parser.add_argument(
        "--against", action="append", choices=AGAINST, default=[], help="may be given twice"
    )
    halves = parser.add_mutually_exclusive_group()
    halves.add_argument("--dev", action="store_const", const="dev", dest="half")
    halves.add_argument("--frozen", action="store_const", const="frozen", dest="half")
    folders = parser.add_mutually_exclusive_group()
    for name in ("second", "third"):
        folders.add_argument(
            f"--{name}", action="store_const", const=name, default="", dest="folder",
            help=f"the scenarios of the {name} folder",
        )  # fmt: skip
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="scenarios")
    parser.add_argument("--kinds", nargs="+", default=[], choices=KINDS, metavar="KIND")
    parser.add_argument("--questions", type=int, metavar="N", help="of each scenario at most N")
    parser.add_argument("--one-chat", action="store_true", help="for all questions of a scenario")
    parser.add_argument("--no-infer", action="store_true", help="store turns, and no facts")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the filled stores")
    options = parser.parse_args(argv)
    scenarios = chosen(
        read_all(FOLDER / options.folder),
        half=options.half,
        only=options.only,
        kinds=options.kinds,
        most=options.questions,
    )
    given = {name: getattr(options, name) for name in ("model", "experts")}
    settings = replace(load_settings(), **{k: v for k, v in given.items() if v is not None})
    systems = [OWN, *dict.fromkeys(options.against)]
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine = stack.enter_context(
            Engine.load(
                settings.model,
                n_ctx=settings.n_ctx,
                n_threads=settings.n_threads,
                n_gpu_layers=settings.n_gpu_layers,
                tuned=settings.tuned == "on",
            )
        )
        experts.load_chosen(engine, settings.experts)
        embedder = Embedder.load(settings.embedder, n_threads=settings.n_threads)
        server = ""
        if "mem0" in systems:
            from bench import assistant_mem0

            server = stack.enter_context(assistant_mem0.serving(settings))
        setup = Setup(
            engine, embedder, settings, folder, not options.no_infer, options.one_chat, server
        )
        summary, rows = run(scenarios, systems, setup)
    report.write(options.json, summary, rows)
    for half in ("dev", "frozen"):
        if half in summary:
            _console.print(table(half, summary[half]))


if __name__ == "__main__":
    main()
