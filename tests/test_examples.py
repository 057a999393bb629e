"""The examples run as they are: a window that is typed into, and its answer on the page."""

import runpy
import threading
import time
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from imagekit import drawn, saved

from edgemem import Memory

DESKTOP = Path(__file__).parent.parent / "examples" / "desktop_chat.py"


@pytest.fixture(scope="module")
def qt():
    """The one QApplication that a process may have, without a screen."""
    widgets = pytest.importorskip(
        "PySide6.QtWidgets", reason="PySide6-Essentials is not installed (.ci/run installs it)"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QT_QPA_PLATFORM", "offscreen")
        yield widgets.QApplication.instance() or widgets.QApplication([])


def until(qt, happened):
    ends = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < ends, "it has not happened in a minute"
        qt.processEvents()
        time.sleep(0.005)


def say(window, text):
    window.line.setText(text)
    window.line.returnPressed.emit()


@pytest.mark.models
def test_the_desktop_chat_answers_and_remembers(qt, tmp_path, embedder):
    with Memory(tmp_path / "m.db", engine=FakeEngine(), embedder=embedder) as memory:
        window = runpy.run_path(str(DESKTOP))["Window"](memory)
        window.show()
        say(window, "I moved to Oslo.")
        until(qt, window.line.isEnabled)
        say(window, "Where did I move to?")
        until(qt, window.line.isEnabled)
        assert window.page.toPlainText().split("\n") == [
            "you: I moved to Oslo.", "Oslo, I think.", "",
            "you: Where did I move to?", "Oslo, I think.", "", "",
        ]  # fmt: skip
        assert window.line.text() == ""
        window.close()
        assert "I moved to Oslo." in [item.memory for item in memory.get_all(user_id="default")]


def drop(window, *addresses):
    from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
    from PySide6.QtGui import QDropEvent

    mime = QMimeData()
    mime.setUrls([QUrl(address) for address in addresses])
    left, copied = Qt.MouseButton.LeftButton, Qt.DropAction.CopyAction
    none = Qt.KeyboardModifier.NoModifier
    window.dropEvent(QDropEvent(QPointF(9, 9), copied, mime, left, none))


@pytest.mark.models
def test_a_photo_that_is_dropped_is_remembered_with_what_is_said_next(qt, tmp_path, embedder):
    file, other = tmp_path / "bike.png", tmp_path / "bike.heic"
    file.write_bytes(saved(drawn()))
    other.write_bytes(b"\0\0\0\x18ftypheic")
    with Memory(tmp_path / "m.db", engine=FakeEngine(), embedder=embedder) as memory:
        window = runpy.run_path(str(DESKTOP))["Window"](memory)
        window.show()
        drop(window, file.as_uri(), other.as_uri(), "https://example.org/a.png")
        taken, refused = window.page.toPlainText().splitlines()
        assert taken == f"photo: {file}"
        assert refused.startswith(f"no photo: {other} (the image is HEIC; give a PNG")
        say(window, "My new bike.")
        until(qt, window.line.isEnabled)
        window.close()
        (photo,) = memory.get_all(user_id="default", filters={"kind": "image"})
        assert photo.memory == "Photo: My new bike."


@pytest.mark.models
def test_a_window_closed_in_the_middle_of_an_answer_remembers_it(qt, tmp_path, embedder):
    begun, go_on = threading.Event(), threading.Event()

    def between():
        begun.set()
        go_on.wait(60)

    engine = FakeEngine(between=between)
    with Memory(tmp_path / "m.db", engine=engine, embedder=embedder) as memory:
        window = runpy.run_path(str(DESKTOP))["Window"](memory)
        say(window, "I moved to Oslo.")
        until(qt, begun.is_set)
        threading.Timer(0.05, go_on.set).start()
        window.close()
        assert "I moved to Oslo." in [item.memory for item in memory.get_all(user_id="default")]


@pytest.mark.models
def test_an_error_is_shown_and_the_window_stays_usable(qt, tmp_path, embedder):
    memory = Memory(tmp_path / "m.db", engine=FakeEngine(), embedder=embedder)
    window = runpy.run_path(str(DESKTOP))["Window"](memory)
    memory.close()
    say(window, "Hello.")
    until(qt, window.line.isEnabled)
    assert "(" in window.page.toPlainText() and "closed" in window.page.toPlainText()
    assert window.line.text() == "Hello."
    window.close()


@pytest.mark.models
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_could_not_be_stored_stays_with_its_photo_to_be_sent_again(qt, tmp_path, embedder):
    file = tmp_path / "bike.png"
    file.write_bytes(saved(drawn()))
    with Memory(tmp_path / "m.db", engine=FakeEngine(), embedder=embedder) as memory:
        window = runpy.run_path(str(DESKTOP))["Window"](memory)
        drop(window, file.as_uri())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(window.chat, "send", lambda *_args, **_more: [][0])
            say(window, "My new bike.")
            until(qt, window.line.isEnabled)
        assert "(it failed: IndexError" in window.page.toPlainText()
        window.line.returnPressed.emit()
        until(qt, window.line.isEnabled)
        window.close()
        assert window.line.text() == "" and window.images == []
        (photo,) = memory.get_all(user_id="default", filters={"kind": "image"})
        assert photo.memory == "Photo: My new bike."
