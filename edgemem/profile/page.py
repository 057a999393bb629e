"""A profile as one HTML page: readable without a network, without a script, light and dark.

The page is well-formed XML too, so that any parser can check it. A table beside each plot has the
same figures, for readers who cannot see the plot.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from html import escape
from itertools import cycle, pairwise

from edgemem.profile.report import NO_GPU, NOT_REPORTED, UNKNOWN, Growth, Part, Profile, Timing
from edgemem.retrieval.search import reliability

__all__ = ["render"]

WIDTH = 720
_LEFT, _RIGHT = 90, 150  # room for the names and the figures of a row
_ROW = 26
_COLOURS = {
    "weights": "#2563c9",
    "embedder": "#7c4fc4",
    "token_embedder": "#a2478f",
    "libraries": "#5d6673",
    "kv": "#0b7f75",
    "compute": "#96650a",
    "prefixes": "#c04a30",
    "tokenizer": "#4d7c0f",
    "index": "#b0357f",
    "adapters": "#3f4f96",
    "output": "#87919e",
}
_SOFT = ' class="soft"'
_STEPS = ("#5d6673", "#3f4f96")
_STYLE = """
:root { color-scheme: light dark; --ground: #fbfbfa; --ink: #1d2127; --soft: #5b636e;
  --line: #d9dce0; --mark: #2563c9; --far: #c04a30; --panel: #ffffff }
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --ink: #e8eaed;
  --soft: #a2abb6; --line: #343a42; --mark: #74a7f7; --far: #f09277; --panel: #1b1f25 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 60rem; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.05rem; margin: 2.5rem 0 .5rem }
p { margin: .3rem 0; max-width: 46rem } .soft { color: var(--soft) }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0 0; padding: 0 }
.tiles div { background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  padding: .6rem .9rem; min-width: 9rem; flex: 1 } .tiles dt { color: var(--soft);
  font-size: .85rem } .tiles dd { margin: 0; font-size: 1.35rem; font-weight: 600 }
ul { margin: .3rem 0; padding-left: 1.2rem }
svg { display: block; width: 100%; height: auto; margin: .5rem 0; overflow: visible }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif } svg .soft { fill: var(--soft) }
.grid { stroke: var(--line) } .dot { fill: var(--mark); opacity: .35 }
.p50 { stroke: var(--mark); stroke-width: 3 } .p95 { stroke: var(--far); stroke-width: 2 }
.l50 { fill: none; stroke: var(--mark); stroke-width: 2 } .e50 { fill: var(--mark) }
.l95 { fill: none; stroke: var(--far); stroke-width: 2 } .e95 { fill: var(--far) }
.on { fill: #ffffff } .rest { fill: none; stroke: var(--soft); stroke-dasharray: 3 3 }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1.5rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .9rem } th { text-align: left }
th, td { padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line) }
th { font-weight: 600 } td.n { text-align: right; font-variant-numeric: tabular-nums }
th.n { text-align: right } td:first-child { white-space: nowrap }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px;
  margin-right: .45em }
.no { font-weight: 600; color: var(--far) }
"""


def render(profile: Profile) -> str:
    """The HTML page of a profile."""
    machine = profile.machine
    cores = f"{machine['cores']} cores" if machine.get("cores") else None
    about = [profile.model, machine.get("processor"), cores, machine.get("system")]
    about.append(f"{profile.backend} vectors")
    shown = ("edgemem", "python", "llama-cpp-python", "onnxruntime")
    about.append(", ".join(f"{n} {profile.versions[n]}" for n in shown if n in profile.versions))
    body = [
        "<h1>edgemem profile</h1>",
        f'<p class="soft">{escape(" · ".join(str(a) for a in about if a))}</p>',
        _tiles(profile),
        _verdicts(profile),
        "<h2>Memory</h2>",
        _memory_note(profile),
        _memory_bar(profile),
        _memory_table(profile),
        "<h2>Latency of each stage</h2>",
        "<p>Milliseconds, on a logarithmic scale. Each round is a dot; the thick mark is the "
        "median, the thin one the 95th percentile.</p>",
        _latencies(profile.stages),
        _stage_table(profile.stages),
        "<h2>Cold start</h2>",
        "<p>From the start of a process to the first token of an answer with memory, the disk's "
        "cache being warm.</p>",
        _cold_start(profile),
    ]
    if profile.growth:
        body += ["<h2>Growth with the number of memories</h2>", _growth(profile.growth)]
    body += ["<h2>How far to trust a score</h2>", _reliability()]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>edgemem profile</title><style>{_STYLE}</style></head>\n"
        f"<body><main>{chr(10).join(body)}</main></body></html>\n"
    )


def _tiles(profile: Profile) -> str:
    by_name = {timing.name: timing for timing in profile.stages}
    speed = by_name["decode"].tokens_per_s if "decode" in by_name else None
    first = profile.cold_start_to_first_token_s
    joules = NOT_REPORTED if profile.joules is None else f"{profile.joules:.0f} J"
    figures = {
        "Resident memory": _or_unknown(profile.rss_mb, "{:.0f} MB"),
        "VRAM": _vram(profile),
        "Cold start to first token": _or_unknown(first, "{:.2f} s"),
        "Decoding": _or_unknown(speed, "{:.0f} tokens/s"),
        "Energy of the stages": joules,
    }
    tiles = "".join(f"<div><dt>{n}</dt><dd>{escape(v)}</dd></div>" for n, v in figures.items())
    return f'<dl class="tiles">{tiles}</dl>'


def _vram(profile: Profile) -> str:
    if not profile.gpus:
        return NO_GPU
    gpu = profile.gpus[0]
    return f"{_or_unknown(gpu['process_mb'], '{:.0f}')} of {gpu['total_mb']:.0f} MB"


def _verdicts(profile: Profile) -> str:
    rows = [(verdict.fits, verdict.sentence()) for verdict in profile.verdicts]
    if profile.plan:
        limit, down = profile.plan["limit_mb"], ", ".join(profile.plan["turned_down"]) or "nothing"
        rows.append((True, f"memory limit {limit:.0f} MB: turned down {down}"))
    if not rows:
        return ""
    items = "".join(
        f"<li>{escape(text)}</li>" if fits else f'<li class="no">{escape(text)}</li>'
        for fits, text in rows
    )
    return f"<h2>Does it fit?</h2><ul>{items}</ul>"


# -- memory ------------------------------------------------------------------------------------


def _memory_note(profile: Profile) -> str:
    if profile.rss_mb is None or profile.explained is None:
        return f"<p>What the process takes is {UNKNOWN}: this system does not tell it.</p>"
    said = [f"The parts explain {profile.explained:.0%} of the {profile.rss_mb:.0f} MB resident."]
    if profile.pss_mb is not None:
        said.append(f"With pages that other processes use too divided: {profile.pss_mb:.0f} MB.")
    if profile.peak_rss_mb is not None:
        said.append(f"At the most it was {profile.peak_rss_mb:.0f} MB.")
    return f"<p>{' '.join(said)}</p>"


def _memory_bar(profile: Profile) -> str:
    rest = max(0.0, profile.unexplained_mb or 0.0)
    parts = [(part.name, part.mb, _colour(part.name)) for part in _largest_first(profile)]
    parts += [("not explained", rest, "")] if rest else []
    total = (profile.sum_mb + rest) or 1.0
    return _svg(40, "Memory by part", _strip(parts, total, "{:.1f} MB", "{:.0f} MB"))


def _memory_table(profile: Profile) -> str:
    rows = []
    for part in _largest_first(profile):
        swatch = f'<span class="swatch" style="background:{_colour(part.name)}"></span>'
        rows.append((swatch + escape(part.name), f"{part.mb:.1f}", escape(part.basis)))
    if profile.unexplained_mb is not None:
        rows.append(("not explained", f"{profile.unexplained_mb:.1f}", "RSS less the parts"))
    return _table(("Part", "MB", "What the figure is based on"), rows, numbers={1})


def _largest_first(profile: Profile) -> list[Part]:
    return sorted(profile.parts, key=lambda part: -part.mb)


def _colour(name: str) -> str:
    return _COLOURS.get(name, "#87919e")


# -- times -------------------------------------------------------------------------------------


def _latencies(stages: Sequence[Timing]) -> str:
    run = [timing for timing in stages if timing.times_ms]
    if not run:
        return "<p>No stage was run.</p>"
    every = [max(ms, 1e-3) for timing in run for ms in timing.times_ms]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    high = max(high, low + 1)
    wide = WIDTH - _LEFT - _RIGHT

    def x(ms: float) -> float:
        return _LEFT + (math.log10(max(ms, 1e-3)) - low) / (high - low) * wide

    bottom = len(run) * _ROW
    out = []
    for power in range(low, high + 1):
        at = x(10.0**power)
        out.append(f'<path class="grid" d="M{at:.1f} 0V{bottom}"/>')
        out.append(_tick(at, bottom + 16, "middle", _plain_ms(10.0**power)))
    for row, timing in enumerate(run):
        y = row * _ROW + _ROW / 2
        out.append(f'<text x="0" y="{y + 4:.1f}">{escape(timing.name)}</text>')
        out += [f'<circle class="dot" cx="{x(v):.1f}" cy="{y}" r="4"/>' for v in timing.times_ms]
        p50, p95 = timing.p50_ms or 0.0, timing.p95_ms or 0.0
        out.append(f'<path class="p95" d="M{x(p95):.1f} {y - 8}V{y + 8}"/>')
        out.append(f'<path class="p50" d="M{x(p50):.1f} {y - 8}V{y + 8}"/>')
        figures = f"{_plain_ms(p50)} / {_plain_ms(p95)}"
        out.append(f'<text x="{WIDTH - _RIGHT + 14}" y="{y + 4:.1f}">{figures}</text>')
    return _svg(bottom + 20, "Times of each stage: median / 95th percentile", out)


def _stage_table(stages: Sequence[Timing]) -> str:
    rows = []
    for timing in stages:
        figures = (timing.p50_ms, timing.p95_ms, timing.ttft_ms, timing.tokens_per_s)
        n = str(len(timing.times_ms))
        rows.append((escape(timing.name), *map(_number, figures), n, escape(timing.note)))
    heads = ("Stage", "p50 ms", "p95 ms", "first token ms", "tokens/s", "rounds", "")
    return _table(heads, rows, numbers={1, 2, 3, 4, 5})


def _cold_start(profile: Profile) -> str:
    marks = profile.cold_start_s
    total = max(marks.values(), default=0.0)
    if not total:
        return f"<p>{UNKNOWN}</p>"
    spent = [at - before for before, at in pairwise([0.0, *marks.values()])]
    steps = zip(marks, spent, cycle(_STEPS))
    rows = [
        (escape(name), f"{s:.2f}", f"{at:.2f}")
        for (name, at), s in zip(marks.items(), spent, strict=True)
    ]
    table = _table(("Up to", "s", "s since the start"), rows, numbers={1, 2})
    bar = _strip(steps, total, "{:.2f} s", "{:.2f} s")
    return _svg(40, "Cold start by step", bar) + table


def _growth(growth: Sequence[Growth]) -> str:
    n = [g.memories for g in growth]
    search = {"50": [g.p50_ms for g in growth], "95": [g.p95_ms for g in growth]}
    rows = [
        (f"{g.memories:,}", f"{g.p50_ms:.2f}", f"{g.p95_ms:.2f}", f"{g.index_mb:.1f}")
        for g in growth
    ]
    heads = ("Memories", "p50 ms", "p95 ms", "index MB")
    return (
        '<p class="soft">Invented memories; the search without embedding the query.</p>'
        '<div class="pair"><div><p>A search, ms (median, and 95th percentile above)</p>'
        f"{_lines(n, search, 'Time of a search')}</div><div><p>The index in memory, MB</p>"
        f"{_lines(n, {'50': [g.index_mb for g in growth]}, 'Memory of the index')}</div></div>"
        + _table(heads, rows, numbers={0, 1, 2, 3})
    )


_CORPORA = {"locomo": ("LoCoMo", "50"), "written": ("invented conversations", "95")}


def _reliability() -> str:
    """Reliability diagrams of the weights that ship."""
    rows, plots = [], []
    for retrieval, corpora in reliability().items():
        series = {}
        for corpus, found in corpora.items():
            name, style = _CORPORA[corpus]
            series[name, style] = [(row["score"], row["evidence"]) for row in found]
            rows += [
                (
                    f"{retrieval}, {name}",
                    f"{row['score']:.4f}",
                    f"{row['evidence']:.4f}",
                    f"{row['memories']:,.0f}",
                )
                for row in found
            ]
        plots.append(f"<div><p>{retrieval.capitalize()}</p>{_diagonal(series)}</div>")
    heads = ("Search", "mean score", "share that answers", "memories")
    return (
        '<p class="soft">A score is the probability that a memory answers the question. Across: '
        "the score; up: the share of memories that did, in conversations that the weights have "
        "not seen.</p>"
        f'<div class="pair">{"".join(plots)}</div>' + _table(heads, rows, numbers={1, 2, 3})
    )


def _diagonal(series: dict[tuple[str, str], list[tuple[float, float]]]) -> str:
    """Lines in a unit square, with its diagonal. series: points by name and style."""
    size, left = 220, 38
    out = [f'<path class="rest" d="M{left} {size}L{left + size} 0"/>']
    for tick in (0, 0.5, 1):
        x, y = left + tick * size, (1 - tick) * size
        out.append(f'<path class="grid" d="M{left} {y:g}H{left + size}"/>')
        out.append(_tick(left - 6, y + 4, "end", f"{tick:g}"))
        out.append(_tick(x, size + 18, "middle", f"{tick:g}"))
    for line, ((name, style), points) in enumerate(series.items()):
        y = 16 + 16 * line
        out.append(f'<circle class="e{style}" cx="{left + 12}" cy="{y - 4}" r="3"/>')
        out.append(f'<text class="soft" x="{left + 20}" y="{y}">{name}</text>')
        out += _curve(style, [(left + x * size, (1 - y) * size) for x, y in points], radius=3)
    return _svg(size + 24, "Score and share that answers", out, width=size + left + 20)


def _lines(n: Sequence[int], series: dict[str, list[float]], label: str) -> str:
    """Lines over a logarithmic axis of memories; values start at 0. series: values by style."""
    width, height, left = 340, 170, 38
    most = max(max(values) for values in series.values()) or 1.0
    step = 10.0 ** math.floor(math.log10(most))
    step = next(s for s in (step / 2, step, step * 2, step * 5) if most / s <= 4.5)
    top = math.ceil(most / step) * step
    low, high = math.log10(min(n)), math.log10(max(n))
    span = (high - low) or 1.0

    def point(count: int, value: float) -> tuple[float, float]:
        across = (math.log10(count) - low) / span if high > low else 0.5
        return left + across * (width - left - 24), height * (1 - value / top)

    out = []
    for i in range(round(top / step) + 1):
        _, y = point(n[0], i * step)
        out.append(f'<path class="grid" d="M{left} {y:.1f}H{width}"/>')
        out.append(_tick(left - 6, y + 4, "end", f"{i * step:g}"))
    out += [_tick(point(count, 0)[0], height + 18, "middle", f"{count:,}") for count in n]
    for style, values in series.items():
        out += _curve(style, [*map(point, n, values)], radius=4)
    return _svg(height + 24, label, out, width=width)


# -- pieces ------------------------------------------------------------------------------------


def _svg(height: float, label: str, inside: Iterable[str], width: int = WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height:g}" role="img" aria-label="{escape(label)}">'
        f"{''.join(inside)}</svg>"
    )


def _tick(x: float, y: float, anchor: str, label: str) -> str:
    """The label of a tick on an axis."""
    return f'<text class="soft" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{label}</text>'


def _curve(style: str, points: Sequence[tuple[float, float]], radius: int) -> list[str]:
    """A line with a dot at each of its points. style: 50 or 95."""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dots = (f'<circle class="e{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in points)
    return [f'<path class="l{style}" d="M{path}"/>', *dots]


def _strip(
    pieces: Iterable[tuple[str, float, str]], total: float, title: str, shown: str
) -> list[str]:
    """Rectangles side by side, as wide as their share of the total; names where they fit.

    pieces: name, figure, colour; without a colour, an outline. title, shown: format strings for
    the figure.
    """
    at, out = 0.0, []
    for name, figure, colour in pieces:
        wide, look = figure / total * WIDTH, f'fill="{colour}"' if colour else 'class="rest"'
        out.append(
            f'<rect x="{at:.1f}" y="0" width="{max(0.0, wide - 2):.1f}" height="40" rx="3" '
            f"{look}><title>{escape(name)}: {title.format(figure)}</title></rect>"
        )
        if colour and wide > 9 * len(name):
            out.append(f'<text class="on" x="{at + 6:.1f}" y="17">{escape(name)}</text>')
            out.append(f'<text class="on" x="{at + 6:.1f}" y="32">{shown.format(figure)}</text>')
        at += wide
    return out


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[int]) -> str:
    """A table of cells that are HTML. numbers: the columns with figures; all others but the first
    have remarks."""

    def row(cells: Sequence[str], tag: str, remark: str = "") -> str:
        looks = (' class="n"' if i in numbers else remark if i else "" for i in range(len(cells)))
        return "".join(f"<{tag}{a}>{c}</{tag}>" for a, c in zip(looks, cells, strict=True))

    body = "".join(f"<tr>{row(cells, 'td', _SOFT)}</tr>" for cells in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{row(heads, "th")}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _plain_ms(ms: float) -> str:
    if ms >= 1000:
        return f"{ms / 1000:.3g} s"
    return f"{ms:.3g} ms" if ms >= 1 else f"{ms * 1000:.3g} µs"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value < 1 else f"{value:.1f}"


def _or_unknown(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else form.format(value)
