"""A desktop chat with memory, in one window: python desktop_chat.py [STORE]

Needs `pip install "edgemem-runtime[models]" PySide6-Essentials`.
"""

import sys
from threading import Thread

from PySide6.QtCore import Signal
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QApplication, QLineEdit, QTextEdit, QVBoxLayout, QWidget

from edgemem import Chat, EdgememError, Memory


class Window(QWidget):
    piece, ended = Signal(str), Signal()

    def __init__(self, memory: Memory) -> None:
        super().__init__(windowTitle="edgemem")
        self.chat, self.answering = Chat(memory), Thread()
        self.page, self.line = QTextEdit(readOnly=True), QLineEdit(placeholderText="Say something")
        layout = QVBoxLayout(self)
        layout.addWidget(self.page)
        layout.addWidget(self.line)
        self.line.returnPressed.connect(self.ask)
        self.piece.connect(self.write)
        self.ended.connect(self.wait)

    def ask(self) -> None:
        self.line.setEnabled(False)  # until the answer has ended, and what was said is stored
        self.write(f"you: {self.line.text()}\n")
        # In a thread of its own, so that the window never waits for the model.
        self.answering = Thread(target=self.answer, args=(self.line.text(),))
        self.answering.start()

    def answer(self, text: str) -> None:
        try:
            for piece in self.chat.send(text):
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

    def closeEvent(self, event: object) -> None:
        if self.answering.ident is not None:
            self.answering.join()  # an answer under way ends first, so that it is remembered


if __name__ == "__main__":
    app = QApplication(sys.argv)
    with Memory(sys.argv[1] if len(sys.argv) > 1 else None) as memory:
        window = Window(memory)
        window.show()
        app.exec()
