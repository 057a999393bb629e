"""What the tests of the command line share: running one command inside this process."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import CliRunner, Result

from edgemem.cli import cli

Run = Callable[..., Result]


def invoke(*args: str, input: str | bytes | None = None, code: int = 0) -> Result:
    """The result of a command that ends with that exit code."""
    result = CliRunner().invoke(cli, args, input=input, prog_name="edgemem")
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result
