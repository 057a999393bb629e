"""What the tests of a terminal share: a program on a pseudo-terminal, and the screen it draws."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte

import edgemem

PATH = os.pathsep.join([str(Path(edgemem.__file__).parent.parent), str(Path(__file__).parent)])
DEADLINE_S = 60

# The pseudo-terminal becomes the program's own: a Ctrl-C that is typed there interrupts it. A test
# run in the background of a shell ignores that, and its children with it.
OWN_TERMINAL = """
import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


class _Screen(pyte.Screen):
    answer: Callable[[bytes], None] | None = None

    def write_process_input(self, data):
        """What a terminal answers when it is asked where its cursor is."""
        if self.answer is not None:
            self.answer(data.encode())


class Terminal:
    """A Python program on a screen of its own. raw: every byte that it has written.

    answers: whether the terminal tells where its cursor is.
    """

    def __init__(
        self,
        code,
        *arguments,
        columns=80,
        rows=24,
        answers=True,
        **environment,
    ):
        self._master, slave = pty.openpty()
        self._screen = _Screen(columns, rows)
        if answers:
            self._screen.answer = self.type
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self.resize(columns, rows)
        inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
        given = {"PYTHONPATH": PATH, "TERM": "xterm-256color", "PYTHONUTF8": "1", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL + code, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**inherited, **given},
            start_new_session=True,
        )
        os.close(slave)

    def type(self, keys):
        os.write(self._master, keys.encode() if isinstance(keys, str) else keys)

    def resize(self, columns, rows):
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)  # the kernel tells the program
        self._screen.resize(rows, columns)

    @property
    def lines(self):
        return [line.rstrip() for line in self._screen.display]

    @property
    def current(self):
        """The line that the cursor is on."""
        return self.lines[self._screen.cursor.y]

    def is_reversed(self, row):
        return self._screen.buffer[row][0].reverse

    def wait_until(self, true):
        """Read on until what the screen shows makes this true."""
        deadline = time.monotonic() + DEADLINE_S
        while not true():
            assert time.monotonic() < deadline, self.seen()
            if not select.select([self._master], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other end has closed
                data = b""
            assert data, self.seen()
            self.raw += data
            self._stream.feed(data)

    def wait_for(self, text):
        """Until some line of the screen has it."""
        self.wait_until(lambda: any(text in line for line in self.lines))

    def ended(self):
        """The exit code of a program that is about to end."""
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:  # it may wait for its output to be read
            assert time.monotonic() < deadline, self.seen()
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.raw += os.read(self._master, 65536)
                except OSError:
                    break
        return self.process.wait(DEADLINE_S)

    def seen(self):
        return "\n".join(["the screen:", *self.lines, f"the last bytes: {self.raw[-400:]!r}"])

    def __enter__(self):
        return self

    def __exit__(
        self,
        exc_type,
        exc,
        traceback,
    ):
        self.process.kill()
        self.process.wait()
        os.close(self._master)
