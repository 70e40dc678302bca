"""Answers in the server's place where torch cannot be imported."""

from __future__ import annotations

from .errors import Failure
from .requests import parse


class Torchless:
    """Every answer is the reason why there is no server, until the client leaves."""

    exit_code = 0

    def __init__(self, reason: Failure):
        self._reason = reason
        self.finished = False

    def answer(self, line: bytes) -> dict:
        try:
            request = parse(line)
        except Failure as failure:
            return {"id": None, "error": failure.answer}
        if request.do == "leave":
            self.finished = True
            return {"id": request.id, "ok": {}}
        return {"id": request.id, "error": self._reason.answer}
