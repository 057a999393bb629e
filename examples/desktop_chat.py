"""A desktop chat with memory, in one window: python desktop_chat.py [STORE]

A photo dropped on the window is remembered together with the next message. What is not stored
stays to be sent again.
Needs `pip install "edgemem-runtime[models,images]" PySide6-Essentials`.
"""

import sys
from pathlib import Path
from threading import Thread

from PySide6.QtCore import Signal
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QTextCursor
from PySide6.QtWidgets import QApplication, QLineEdit, QTextEdit, QVBoxLayout, QWidget

from edgemem import Chat, EdgememError, Memory
from edgemem import images as picture


class Window(QWidget):
    piece, ended = Signal(str), Signal(bool)

    def __init__(self, memory: Memory) -> None:
        super().__init__(windowTitle="edgemem")
        self.chat, self.answering = Chat(memory), Thread()
        self.images: list[bytes] = []
        self.setAcceptDrops(True)
        self.page, self.line = QTextEdit(readOnly=True), QLineEdit(placeholderText="Say something")
        for each in (self.page, self.line):  # the window handles drops on them
            each.setAcceptDrops(False)
        layout = QVBoxLayout(self)
        layout.addWidget(self.page)
        layout.addWidget(self.line)
        self.line.returnPressed.connect(self.ask)
        self.piece.connect(self.write)
        self.ended.connect(self.wait)

    def ask(self) -> None:
        self.line.setEnabled(False)  # until the answer has ended and the exchange is stored
        self.write(f"you: {self.line.text()}\n")
        self.sent = len(self.images)
        # In a thread of its own, so that the window never waits for the model.
        self.answering = Thread(target=self.answer, args=(self.line.text(), self.images[:]))
        self.answering.start()

    def answer(self, text: str, images: list[bytes]) -> None:
        stored = False
        try:
            reply = self.chat.send(text, images=images)
            stored = True
            for piece in reply:
                self.piece.emit(piece)
        except EdgememError as exc:
            self.piece.emit(f"({exc})")
        except Exception as exc:
            self.piece.emit(f"(it failed: {exc!r})")
            raise  # the terminal shows where
        finally:
            self.ended.emit(stored)

    def write(self, text: str) -> None:
        self.page.moveCursor(QTextCursor.MoveOperation.End)
        self.page.insertPlainText(text)

    def wait(self, stored: bool) -> None:
        self.write("\n\n")
        if stored:
            self.line.clear()
            del self.images[: self.sent]  # others may have been dropped since
        self.line.setEnabled(True)
        self.line.setFocus()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if event.mimeData().hasUrls():
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        for file in [url.toLocalFile() for url in event.mimeData().urls() if url.isLocalFile()]:
            try:
                picture.read(file)  # refuses what is no photo, or of a kind like HEIC
                self.images.append(Path(file).read_bytes())
                self.write(f"photo: {file}\n")
            except (EdgememError, OSError) as exc:
                self.write(f"no photo: {file} ({exc})\n")

    def closeEvent(self, event: object) -> None:
        if self.answering.ident is not None:
            self.answering.join()  # let a running answer finish, so that it is stored


if __name__ == "__main__":
    app = QApplication(sys.argv)
    with Memory(sys.argv[1] if len(sys.argv) > 1 else None) as memory:
        window = Window(memory)
        window.show()
        app.exec()
