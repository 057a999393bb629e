"""JSON that was cut short, for instance by max_tokens, closed where it is whole.

Knows JSON's grammar; knows no schema, so what is closed may lack keys that one requires.
"""

from __future__ import annotations

import json
import re

__all__ = ["close_json"]

# Strings come first, whole or cut: a bracket in one is no bracket. A number is whole once something
# follows it: "12" may be the beginning of "123".
_TOKEN = re.compile(
    r'(?P<whole>"(?:[^"\\]|\\.)*"|[][{}]|\b(?:true|false|null)\b|-?\d[\d.eE+-]*(?=[\s,\]}]))|"',
    re.DOTALL,
)
_CLOSES = {"[": "]", "{": "}"}
_MAX_DEPTH = 100  # Python reads about a thousand


def close_json(text: str) -> str | None:
    """The longest beginning of `text` that is JSON once its brackets are closed, so closed.

    text: the beginning of a JSON text, such as an answer under a schema whose finish_reason is not
    "stop". A whole one is given back as it is. A string, number or pair that is not whole is left
    out, and so is all from the first character on that cannot be JSON, or lies in more than 100
    brackets. None if nothing is whole, not even an opened object or array.
    """
    try:
        json.loads(text)
        return text
    except (ValueError, RecursionError):
        pass
    open_brackets, beginnings = "", []
    for token in _TOKEN.finditer(text):
        if token["whole"] is None:
            break
        if token[0] in _CLOSES:
            open_brackets = _CLOSES[token[0]] + open_brackets
        elif token[0] in ("]", "}"):
            open_brackets = open_brackets[1:]
        if len(open_brackets) > _MAX_DEPTH:
            break
        beginnings.append((token.end(), open_brackets))
    for end, closing in reversed(beginnings):
        closed = text[:end] + closing
        try:
            json.loads(closed)
        except (ValueError, RecursionError):  # a key without its value, or what is no JSON
            continue
        return closed
    return None
