"""A desktop chat with memory, in one window: python desktop_chat.py [STORE]

A photo dropped on the window is remembered together with the next message.
Needs `pip install "edgemem-runtime[models,images]" PySide6-Essentials`.
"""

import sys
from threading import Thread

from PySide6.QtCore import Signal
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QTextCursor
from PySide6.QtWidgets import QApplication, QLineEdit, QTextEdit, QVBoxLayout, QWidget

from edgemem import Chat, EdgememError, Memory


class Window(QWidget):
    piece, ended = Signal(str), Signal()

    def __init__(self, memory: Memory) -> None:
        super().__init__(windowTitle="edgemem")
        self.chat, self.answering = Chat(memory), Thread()
        self.images: list[str] = []
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
        # In a thread of its own, so that the window never waits for the model.
        self.answering = Thread(target=self.answer, args=(self.line.text(), self.images))
        self.images = []
        self.answering.start()

    def answer(self, text: str, images: list[str]) -> None:
        try:
            for piece in self.chat.send(text, images=images):
                self.piece.emit(piece)
        except EdgememError as exc:
            self.piece.emit(f"({exc})")
        self.ended.emit()

    def write(self, text: str) -> None:
        self.page.moveCursor(QTextCursor.MoveOperation.End)
        self.page.insertPlainText(text)

    def wait(self) -> None:
        self.write("\n\n")
        self.line.clear()
        self.line.setEnabled(True)
        self.line.setFocus()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if event.mimeData().hasUrls():
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        files = [url.toLocalFile() for url in event.mimeData().urls() if url.isLocalFile()]
        self.images += files
        self.write("".join(f"photo: {file}\n" for file in files))

    def closeEvent(self, event: object) -> None:
        if self.answering.ident is not None:
            self.answering.join()  # let a running answer finish, so that it is stored


if __name__ == "__main__":
    app = QApplication(sys.argv)
    with Memory(sys.argv[1] if len(sys.argv) > 1 else None) as memory:
        window = Window(memory)
        window.show()
        app.exec()
