"""What the tests of the command line share: running one command inside this process."""

from collections.abc import Callable

from click.testing import CliRunner, Result

from corpus.__main__ import cli as corpus
from edgemem.cli import cli

Run = Callable[..., Result]


def invoke(*args, input=None, code=0):
    """The result of a command that ends with that exit code."""
    return _ended(CliRunner().invoke(cli, args, input=input, prog_name="edgemem"), code)


def run_corpus(*args, code=0):
    """The result of `python -m corpus` that ends with that exit code."""
    return _ended(CliRunner().invoke(corpus, args, prog_name="python -m corpus"), code)


def _ended(result, code):
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result
