"""How long does a search take in a warm process that holds N memories?

    python -m bench.search [--n 5000] [--users 5] [--queries 200] [--seed 0] [--json OUT]
        [--retrieval fast|careful]

Short English messages from a seeded generator are stored as they are (`infer=False`) for several
users. The last hundred are stored by one `Memory.add` each. Then each user's questions go through
`Memory.search`. Reports milliseconds of the search without the query's embedding, of the embedding,
and of one add.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from bench import report
from edgemem import kernels
from edgemem.config import load_settings
from edgemem.memory import Memory
from edgemem.pipeline.importers import BATCH_TURNS

ALONE = 100  # memories added one by one, to time an add
WARM_UP = 10  # searches before the clock runs


def _list(text: str) -> list[str]:
    return [part.strip() for line in text.splitlines() for part in line.split(",")]


PEOPLE = _list(
    """my sister, my brother Ivo, my neighbour, my boss, our daughter Edda, my uncle Rafael
    an old friend, my flatmate Suri, the dentist, my cousin Lotte, our landlord, my piano teacher
    the woman next door, my grandfather, my colleague Bram, our son Milo, my running partner"""
)
DEEDS = _list(
    """bought, sold, repaired, painted, lost, borrowed, found, broke, ordered, cleaned, gave away
    hid, forgot, picked up, finally finished, showed me, wants to rent, promised to bring"""
)
KINDS = _list(
    """red, second-hand, heavy, tiny, broken, wooden, Danish, striped, folding, noisy, blue, huge
    rusty, hand-made, borrowed, yellow, green, cheap, leaking, painted"""
)
THINGS = _list(
    """bicycle, violin, sofa, telescope, tent, canoe, sewing machine, bookshelf, camera, kettle
    greenhouse, lawn mower, suitcase, wedding dress, chess set, coffee machine, quilt, rowing boat
    record player, ladder, wheelbarrow, carpet, microscope, birdhouse, motorbike, raincoat, fridge
    drum kit, pair of skis, map, stamp album, beehive, pottery wheel, hammock, typewriter, freezer
    kite, saxophone"""
)
PLACES = _list(
    """in Porto, in Utrecht, at the market, in Graz, in the garden, in Lyon, in the attic, in Turku
    in a shop by the station, in Aarhus, at the harbour, in Leipzig, in the cellar, in Ghent
    near Siena, at the office, in Bilbao, on the island, at my parents' house, in a barn"""
)
TIMES = _list(
    """last week, on Sunday, in March, this morning, two years ago, before the holidays, yesterday
    in the autumn, on Friday evening, when it rained, after work, in 2019, at the weekend"""
)
LIKES = _list(
    """rye bread, opera, swimming in cold water, crime novels, goat cheese, long train rides
    card games, mint tea, gardening, jazz, mountain huts, lentil soup, old maps, bird watching
    salsa, chess, pickled herring, science fiction, yoga, mushrooms, silent films, rhubarb cake
    badminton, podcasts about history"""
)
JOBS = _list(
    """nurse, carpenter, bus driver, botanist, translator, baker, judge, tailor, pilot, chemist
    librarian, plumber, florist, beekeeper, geography teacher, sound engineer, vet, mason"""
)

MESSAGES = (
    "{person} {deed} a {kind} {thing} {place} {time}.",
    "I saw a {kind} {thing} {place} {time}, it cost {number} euros.",
    "I don't like {like} any more, but {person} still does.",
    "{person} works as a {job} {place} and loves {like}.",
    "We talked about {like} and {other} for {number} minutes {time}.",
    "I keep the {kind} {thing} {place}, beside the {more}.",
    "{time} I met {person}, who {deed} {number} tickets and a {thing}.",
    "The {job} said that {person} spent {number} euros on {like}.",
)
QUESTIONS = (
    "Where did I see the {kind} {thing}?",
    "Who {deed} a {thing} {place}?",
    "What does {person} do for a living?",
    "Who likes {like}?",
    "When did I talk about {like}?",
    "What is beside the {thing}?",
)


def sentences(shapes: Sequence[str], seed: int) -> Iterator[str]:
    """An endless iterator of sentences of these shapes; a seed fixes them."""
    choose = random.Random(seed)
    lists = {
        "person": PEOPLE,
        "deed": DEEDS,
        "kind": KINDS,
        "thing": THINGS,
        "more": THINGS,
        "place": PLACES,
        "time": TIMES,
        "like": LIKES,
        "other": LIKES,
        "job": JOBS,
    }
    while True:
        words = {name: choose.choice(given) for name, given in lists.items()}
        text = choose.choice(shapes).format(number=choose.randint(2, 400), **words)
        yield text[0].upper() + text[1:]


def fill(memory: Memory, n: int, users: int, seed: int) -> list[float]:
    """Store n memories; returns the milliseconds of each one that was added alone."""
    said = sentences(MESSAGES, seed)
    alone = min(n, ALONE)
    for start in report.track(range(0, n - alone, BATCH_TURNS), "storing"):
        batch = [next(said) for _ in range(min(BATCH_TURNS, n - alone - start))]
        memory.add(batch, user_id=f"user {start // BATCH_TURNS % users}", infer=False)
    times = []
    for i in range(alone):
        started = time.perf_counter()
        memory.add(next(said), user_id=f"user {i % users}", infer=False)
        times.append((time.perf_counter() - started) * 1e3)
    return times


def run(
    n: int, users: int, queries: int, seed: int, retrieval: Literal["fast", "careful"]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary, and one row for each user."""
    settings = replace(load_settings(), retrieval=retrieval)
    with (
        tempfile.TemporaryDirectory() as scratch,
        Memory(Path(scratch) / "search.db", settings=settings) as memory,
    ):
        add_ms = fill(memory, n, users, seed)
        asked = sentences(QUESTIONS, seed + 1)
        for _ in range(WARM_UP):
            memory.search(next(asked), user_id="user 0")
        found = [
            (f"user {i % users}", memory.search(next(asked), user_id=f"user {i % users}"))
            for i in report.track(range(queries), "searching")
        ]
        held = {user: len(memory.get_all(user_id=user)) for user in dict(found)}
        peak = report.peak_rss_mb()
        careful = memory.token_embedder is not None
    rows = [
        {"user": user, "memories": held[user], **_times([r for u, r in found if u == user])}
        for user in sorted(held)
    ]
    summary = {
        "n": n,
        "users": users,
        "queries": queries,
        "retrieval": "careful" if careful else "fast",
        **_times([r for _, r in found]),
        "add_ms_p50": round(report.percentile(add_ms, 50), 2),
        "backend": kernels.backend,
        "peak_rss_mb": peak,
    }
    return summary, rows


def _times(results: Sequence[Any]) -> dict[str, float]:
    search = [r.search_ms for r in results]
    return {
        "search_ms_p50": round(report.percentile(search, 50), 2),
        "search_ms_p95": round(report.percentile(search, 95), 2),
        "embed_ms_p50": round(report.percentile([r.embed_ms for r in results], 50), 2),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = report.parser("search", __doc__, to_file=False)
    parser.add_argument("--n", type=int, default=5_000, help="memories to hold")
    parser.add_argument("--users", type=int, default=5)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    report.add_retrieval(parser)
    options = parser.parse_args(argv)
    if min(options.n, options.users, options.queries) < 1:
        parser.error("--n, --users and --queries must be 1 or more")
    given = options.n, options.users, options.queries, options.seed, options.retrieval
    report.write(options.json, *run(*given))


if __name__ == "__main__":
    main()
