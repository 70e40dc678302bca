"""A request as it stands on the wire: one line of JSON. Every mistake here is the client's."""

from __future__ import annotations

import json
from typing import Any

from .errors import Failure


class Request:
    """One request; reads its fields with their types."""

    def __init__(self, fields: dict):
        self._fields = fields
        self.id = fields.get("id")
        self.do = fields.get("do")

    def get(self, key: str, *types: type) -> Any:
        """A field that must be there, of one of these types. True and false are no numbers."""
        if key not in self._fields:
            raise Failure("request", f"{key} is missing")
        value = self._fields[key]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            allowed = " or ".join("null" if t is type(None) else t.__name__ for t in types)
            raise Failure("request", f"{key} = {json.dumps(value)}: allowed is {allowed}")
        return value

    def optional(self, key: str, *types: type) -> Any:
        """The same for a field that may be missing or null."""
        return None if self._fields.get(key) is None else self.get(key, *types)


def parse(line: bytes) -> Request:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise Failure("request", f"not a line of JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Failure("request", f"a request is an object, not {type(fields).__name__}")
    return Request(fields)
