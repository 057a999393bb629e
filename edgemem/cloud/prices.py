"""What a call costs, and whether compressing first pays.

Knows the price table (`data/prices.toml`, and the user's own before it); must not know what is
sent.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgemem.config import config_dir
from edgemem.errors import ConfigError

__all__ = ["OWN_PRICES", "Price", "compression_pays", "load_prices"]

OWN_PRICES = "prices.toml"
_PACKAGED = Path(__file__).parent.parent / "data" / OWN_PRICES


@dataclass(frozen=True, slots=True)
class Price:
    """Of a token, in the table's currency: those that are read (input) and written (output)."""

    input: float
    output: float


def load_prices(own: Path | None = None) -> dict[str, Price]:
    """The price of each known model, per token.

    own: the user's table, which goes first; None means `prices.toml` in the configuration folder,
    which need not exist. Raises ConfigError on a table that cannot be read.
    """
    out: dict[str, Price] = {}
    for file in (_PACKAGED, own or config_dir() / OWN_PRICES):
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (ValueError, OSError) as exc:
            raise ConfigError(f"The price table {file} cannot be read ({exc}).") from exc
        out |= {model: _price(model, row, file) for model, row in table.items()}
    return out


def _price(model: str, row: object, file: Path) -> Price:
    table = row if isinstance(row, Mapping) else {}
    read, written = _number(table.get("input")), _number(table.get("output"))
    if read is None or written is None:
        raise ConfigError(
            f"The price of {model!r} in {file} is {row!r}; give input and output, numbers from 0 "
            "up, per million tokens."
        )
    return Price(read / 1e6, written / 1e6)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        return None
    return float(value)


def compression_pays(
    tokens: int,
    target: int,
    *,
    price: Price | None,
    rate_s: float | None,
    second_price: float,
) -> bool:
    """Whether compressing `tokens` to `target` saves more than it costs.

    rate_s: seconds a token took lately, None if that was never measured: then it is tried. What is
    saved is the price of tokens not sent (none without a price); what it costs is the user's wait,
    at second_price a second. What the service saves in reading time is not counted: it is not known
    here.
    """
    if tokens <= target:
        return False
    if rate_s is None or price is None:
        return True
    return (tokens - target) * price.input >= tokens * rate_s * second_price
