"""How long does the worst input of each regular expression in the package take?

    python -m bench.attacks --what patterns [--cases CHARACTERS]

Patterns come from three places: those compiled while every module is imported, those of cached
builders, which are called here, and those in calls of `re` inside functions (where a local variable
is replaced by a fixed word). The worst inputs are built from a pattern's own parse tree. Each
repetition is pumped after the text that must precede it, and the two are also repeated together.
The inputs end in a character that is unlikely to match. Times are CPU times.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import pkgutil
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import edgemem

PACKAGE = Path(edgemem.__file__).parent
FIRST = 65_536  # characters of the first try
_EASY_S = 0.004  # less than this at FIRST means under a second for a million, even if quadratic
_LINEAR = 7  # time is linear enough if a text four times as long takes less than 7 times as long
_GIVEN_UP_S = 1.2
_CALLS = ("search", "match", "fullmatch", "findall", "finditer", "sub", "split", "compile")
_parser = re._parser  # type: ignore[attr-defined]


def patterns() -> tuple[dict[tuple[str, int], str], list[str]]:
    """Every (pattern, flags) with its source place, and the calls that cannot be evaluated."""
    found: dict[tuple[str, int], str] = {}
    compiled = re._compile  # type: ignore[attr-defined]

    def spy(pattern: Any, flags: Any) -> Any:
        made = compiled(pattern, flags)
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") == "re":
            frame = frame.f_back
        file = frame.f_code.co_filename
        if file.startswith(str(PACKAGE)) and isinstance(made.pattern, str):
            where = f"{Path(file).relative_to(PACKAGE)}:{frame.f_lineno}"
            found.setdefault((made.pattern, made.flags), where)
        return made

    re._compile = spy  # type: ignore[attr-defined]
    unknown: list[str] = []
    try:
        for name in [n for n in sys.modules if n.split(".")[0] == "edgemem"]:
            del sys.modules[name]
        for info in pkgutil.walk_packages([str(PACKAGE)], "edgemem."):
            if not info.name.endswith("__main__"):
                module = importlib.import_module(info.name)
                for builder in vars(module).values():
                    if _makes_patterns(builder):
                        builder()
                if str(module.__file__).endswith(".py"):  # the native module has no source
                    unknown += _called(module, found)
    finally:
        re._compile = compiled  # type: ignore[attr-defined]
    return found, unknown


def _makes_patterns(value: Any) -> bool:
    """Whether `value` is a cached function without parameters that compiles patterns."""
    if not hasattr(value, "cache_info") or inspect.signature(value).parameters:
        return False
    return "re.compile" in inspect.getsource(value)


def use_of(where: str) -> str:
    """How the pattern compiled at `where` is used.

    "match" is a match at one position only, "search" stops at the first hit, "finditer" (also for
    an unknown use) finds all hits.
    """
    file, line = where.split(":")
    for node in ast.walk(_tree(PACKAGE / file)):
        if not node_at(node, int(line)):
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("re.match", "re.fullmatch"):
            return "match"
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            inside = [PACKAGE / file] if name.startswith("_") else PACKAGE.rglob("*.py")
            uses = [use for source in inside for use in _uses(_tree(source), name)]
            if uses and set(uses) <= {"match", "search"}:
                return "search" if "search" in uses else "match"
    return "finditer"


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _uses(tree: ast.Module, name: str) -> Iterator[str]:
    """The methods used on a name, and "" for each other use of the name, such as an argument."""
    methods = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == name:
            methods += 1
            if node.attr != "pattern":  # `pattern` is read to build another pattern
                yield node.attr.removeprefix("full")
    loads = sum(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
        for n in ast.walk(tree)
    )
    yield from [""] * (loads - methods)


def node_at(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", 0) or 0)


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        return "ana"  # a local variable


def _called(module: Any, found: dict[tuple[str, int], str]) -> Iterator[str]:
    """Add the patterns in a module's calls of `re` to `found`; yields calls it cannot evaluate."""
    file = Path(module.__file__)
    for node in ast.walk(_tree(file)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if ast.unparse(node.func.value) != "re" or node.func.attr not in _CALLS:
            continue
        where = f"{file.relative_to(PACKAGE)}:{node.lineno}"
        flags = [a for a in node.args[1:] if ast.unparse(a).startswith("re.")]
        code = f"re.compile({ast.unparse(node.args[0])}, {ast.unparse(flags[0]) if flags else 0})"
        try:
            made = eval(code, {}, _Names(vars(module)))
            text = made.pattern
            text = text if isinstance(text, str) else text.decode("latin-1")
            found.setdefault((text, made.flags), where)
        except Exception as exc:
            yield f"{where} {exc!r:.80}"


# -- the worst inputs ------------------------------------------------------------------------------


def _of_set(items: Any) -> list[str]:
    """A few characters that a parsed character set matches."""
    out = []
    for kind, value in items:
        name = str(kind)
        if name == "NEGATE":
            taken = {v for k, v in items if str(k) == "LITERAL"}
            classes = {str(v) for k, v in items if str(k) == "CATEGORY"}
            for c in "a A0 ,-_\n":
                in_class = {
                    "CATEGORY_WORD": c.isalnum() or c == "_",
                    "CATEGORY_NOT_WORD": not (c.isalnum() or c == "_"),
                    "CATEGORY_DIGIT": c.isdigit(),
                    "CATEGORY_SPACE": c.isspace(),
                    "CATEGORY_NOT_SPACE": not c.isspace(),
                }
                if ord(c) not in taken and not any(in_class.get(k) for k in classes):
                    out.append(c)
            return out[:3] or ["é"]
        if name == "LITERAL":
            out.append(chr(value))
        elif name == "RANGE":
            out.append(chr(value[0]))
        elif name == "CATEGORY":
            which = str(value)
            out.append({"DIGIT": "1", "SPACE": " ", "WORD": "a"}.get(which.split("_")[-1], "a"))
            if "NOT" in which:
                out[-1] = {"DIGIT": "a", "SPACE": "a", "WORD": " "}[which.split("_")[-1]]
    return list(dict.fromkeys(out))


def _samples(tree: Any, most: int = 3) -> list[str]:
    """Some texts that a parsed pattern matches."""
    out = [""]
    for kind, value in tree:
        name, parts = str(kind), [""]
        if name == "LITERAL":
            parts = [chr(value)]
        elif name == "NOT_LITERAL":
            parts = ["a" if value != 97 else "b"]
        elif name == "IN":
            parts = _of_set(value)
        elif name == "ANY":
            parts = ["a", " "]
        elif name == "BRANCH":
            parts = [s for branch in value[1][:8] for s in _samples(branch, 1)]
        elif name == "SUBPATTERN":
            parts = _samples(value[3], most)
        elif "REPEAT" in name:
            parts = [s * max(value[0], 1) for s in _samples(value[2], most)]
        elif name == "ATOMIC_GROUP":
            parts = _samples(value, most)
        out = [a + b for a in out for b in parts[:most]][: 2 * most]
    return out


def _pumps(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """(prefix that must precede it, repeated text) of each repetition in a parsed pattern."""
    for kind, value in tree:
        name = str(kind)
        inner: list[Any] = []
        if "REPEAT" in name:
            if value[1] > 8:
                yield from ((before, pump) for pump in _samples(value[2]) if pump)
            inner = [value[2]]
        elif name == "BRANCH":
            inner = value[1]
        elif name in ("SUBPATTERN", "ATOMIC_GROUP"):
            inner = [value[3] if name == "SUBPATTERN" else value]
        elif name in ("ASSERT", "ASSERT_NOT"):
            inner = [value[1]]
        for each in inner:
            yield from _pumps(each, before)
        before += _samples([(kind, value)], 1)[0]


def worst(pattern: str, flags: int, size: int) -> Iterator[str]:
    """Texts of about `size` characters that may be slow for the pattern."""
    tree = _parser.parse(pattern, flags & ~re.DEBUG)
    units = dict.fromkeys(" aA1\n-.,'")
    pumps = dict.fromkeys(_pumps(tree))
    for before, pump in pumps:
        units |= dict.fromkeys((pump, before + pump, f"{before} ", f"{pump} ", f"{before}{pump} "))
        body = pump * (size // len(pump))
        for end in ("\x00", "!", "\n"):
            yield f"{before}{body}{end}"
    whole = _samples(tree, 2)
    units |= dict.fromkeys([*whole[:4], *(f"{w} " for w in whole[:4])])
    units |= dict.fromkeys(w[:-1] for w in whole[:4])
    for unit in units:
        if unit:
            yield unit * (size // len(unit)) + "\x00"


class _TooLong(Exception):
    pass


def _seconds(made: re.Pattern[str], text: str, use: str) -> float:
    """CPU seconds of using a pattern on a text; the run stops after _GIVEN_UP_S."""

    def stop(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, _GIVEN_UP_S)
    started = time.thread_time()
    try:
        if use == "finditer":
            for _ in made.finditer(text):
                pass
        else:
            getattr(made, use)(text), made.fullmatch(text)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)  # in `try`: it may fire as the search ends
    except _TooLong:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return time.thread_time() - started


def slowest(pattern: str, flags: int, size: int, use: str = "finditer") -> tuple[float, str]:
    """The most seconds that a pattern takes on a text of this size, and the text's beginning."""
    made = re.compile(pattern, flags)
    top = (0.0, "")
    for small in worst(pattern, flags, min(FIRST, size)):
        took = _seconds(made, small, use)
        if size > FIRST:
            linear = took < _EASY_S or took < _LINEAR * _seconds(made, _cut(small), use)
            if linear and took * size / FIRST < 0.5:
                took *= size / FIRST
            else:
                took = _seconds(made, _grown(small, size), use)
        top = max(top, (took, small[:60]))
        if took > 1:
            break
    return top


def _cut(text: str) -> str:
    """The first and last eighth of a text of FIRST characters, joined."""
    return text[: FIRST // 8] + text[-(FIRST // 8) :]


def _grown(text: str, size: int) -> str:
    """A text of FIRST characters, lengthened to about `size` by repeating its middle."""
    head, middle, end = text[: FIRST // 8], text[FIRST // 8 : -(FIRST // 8)], text[-(FIRST // 8) :]
    return head + middle * (size // len(middle)) + end


def run(size: int = 1_000_000) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary, and a row for each pattern that takes more than a tenth of a second."""
    started = time.perf_counter()
    found, unknown = patterns()
    rows = []
    for (pattern, flags), where in found.items():
        seconds, text = slowest(pattern, flags, size, use_of(where))
        if seconds > 0.1:
            rows.append({"where": where, "seconds": round(seconds, 2), "begins": text,
                         "pattern": pattern[:300]})  # fmt: skip
    rows.sort(key=lambda row: -row["seconds"])
    summary = {
        "patterns": len(found),
        "not_evaluated": unknown,
        "characters": size,
        "slowest_s": rows[0]["seconds"] if rows else 0.1,
        "over_a_second": sum(row["seconds"] > 1 for row in rows),
        "seconds": round(time.perf_counter() - started, 1),
    }
    return summary, rows


if __name__ == "__main__":
    import json

    print(json.dumps(run(), indent=1, ensure_ascii=False))
