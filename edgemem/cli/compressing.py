"""`compress`.

Knows files, options and how what was dropped is shown; `compression` knows what to drop.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgemem.cli.output import json_option, note, plural, print_json, read_stdin, working

if TYPE_CHECKING:
    from edgemem.compression.compress import Tokenize

__all__ = ["compress", "print_struck"]


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), default="-")
@click.option("--rate", type=float, metavar="SHARE", help="Keep at most this share of the tokens.")
@click.option("--target-token", type=int, metavar="N", help="Keep at most so many tokens.")
@click.option("--question", metavar="TEXT", default="", help="What the text is to answer.")
@click.option(
    "--exact",
    is_flag=True,
    help="Weigh each word by the model's gradients beside a question: slow.",
)
@click.option("--keep", metavar="TEXT", multiple=True, help="Words that survive. Repeatable.")
@click.option(
    "--tokenizer",
    metavar="FILE",
    help="Count tokens by this tokenizer.json; `estimate`: by an upper estimate for any model.  "
    "[default: the local model's own]",
)
@click.option("--show", is_flag=True, help="Show the whole text, what was dropped struck through.")
@json_option
def compress(
    file: str,
    rate: float | None,
    target_token: int | None,
    question: str,
    exact: bool,
    keep: tuple[str, ...],
    tokenizer: str | None,
    show: bool,
    as_json: bool,
) -> None:
    """Shorten FILE, or standard input, to what tells most within a budget of tokens.

    Whole words go: those of sentences far from the question, or without one those that the model's
    gradients say least of. Each line is a turn, and its date and speaker stay with what is kept of
    it. Without --rate and --target-token: half.
    """
    from edgemem.compression.compress import compress_prompt
    from edgemem.compression.layout import estimated_tokens
    from edgemem.config import load_settings
    from edgemem.runtime.embedder import Embedder, file_tokenizer
    from edgemem.runtime.engine import Engine

    if rate is not None and target_token is not None:
        raise click.UsageError("Give --rate or --target-token, not both.")
    if show and as_json:
        raise click.UsageError("Give --show or --json, not both.")
    text = read_stdin() if file == "-" else _read(file)
    settings = load_settings()
    if tokenizer == "estimate":
        count: Tokenize | None = estimated_tokens
    else:
        count = file_tokenizer(tokenizer) if tokenizer is not None else None
    with ExitStack() as opened:
        opened.enter_context(working("Compressing …"))
        engine = None
        if count is None or exact or not question.strip():
            engine = opened.enter_context(
                Engine.load(
                    settings.model,
                    n_ctx=settings.n_ctx,
                    n_threads=settings.n_threads,
                    n_gpu_layers=settings.n_gpu_layers,
                )
            )
        found = compress_prompt(
            text,
            question,
            target_token=target_token,
            rate=0.5 if rate is None and target_token is None else rate,
            keep=keep,
            engine=engine,
            exact=exact,
            embedder=Embedder.load(settings.embedder) if question.strip() else None,
            tokenizer=count,
        )
    if as_json:
        print_json(found.to_dict())
        return
    if show:
        print_struck(text, [(span.start, span.end) for span in found.spans])
    else:
        click.echo(found.compressed_prompt)
    note(
        f"{plural(found.compressed_tokens, 'token')} of {found.origin_tokens} "
        f"({found.rate:.0%}) in {found.seconds:.1f} s"
    )


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise click.UsageError(
            f"{file} is not UTF-8 text: byte {exc.start} is {exc.object[exc.start]:#04x}. "
            "Convert it to UTF-8 first."
        ) from exc


def print_struck(text: str, kept: Sequence[tuple[int, int]]) -> None:
    """The text with what lies outside the kept spans struck through and dim."""
    from rich.console import Console
    from rich.text import Text

    shown, at = Text(), 0
    for start, end in [*kept, (len(text), len(text))]:
        shown.append(text[at:start], "strike dim")
        shown.append(text[start:end])
        at = end
    Console(highlight=False).print(shown, soft_wrap=True)
