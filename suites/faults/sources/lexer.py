"""Tokens of a C++ source, as far as one must know them to change an expression.

Comments, preprocessor lines and the insides of strings are no tokens. It knows the project's format (clang-format): a binary
operator has blanks on both sides, and the brackets of a template have none.
"""
import dataclasses
import re

_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/)
      |(?P<directive>^[ \t]*\#(?:[^\n\\]|\\.)*)
      |(?P<string>(?:u8|[uUL])?R"(?P<delimiter>[^()\s\\]*)\(.*?\)(?P=delimiter)"|(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')
      |(?P<number>\.?\d(?:[eEpP][+-]|'\w|[\w.])*)
      |(?P<word>[A-Za-z_]\w*)
      |(?P<sign><<=|>>=|<=>|->\*|\.\.\.|::|->|\+\+|--|<<|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE)

_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclasses.dataclass
class Token:
    kind: str  # string, number, word, sign
    text: str
    begin: int  # in the source
    end: int
    partner: int = -1  # number of the bracket that belongs to it
    in_template: bool = False  # between the brackets of a template, or one of them


class Source:
    """The tokens of `text`, with their brackets."""

    def __init__(self, text):
        self.text = text
        self.tokens = [Token(match.lastgroup if match.lastgroup != "delimiter" else "string", match.group(), match.start(), match.end())
                       for match in _TOKEN.finditer(text) if match.lastgroup not in ("blank", "directive")]
        self.tokens.append(Token("end", "", len(text), len(text)))  # stands behind the last and before the first
        self._match_brackets()
        self._match_templates()

    def _match_brackets(self):
        open_ones = []
        for i, token in enumerate(self.tokens):
            if token.kind != "sign":
                continue
            if token.text in _CLOSING:
                open_ones.append(i)
            elif token.text in _CLOSING.values():
                if not open_ones or _CLOSING[self.tokens[open_ones[-1]].text] != token.text:
                    raise ValueError(f"line {self.line(token.begin)}: '{token.text}' closes nothing")
                self._pair(open_ones.pop(), i)
        if open_ones:
            raise ValueError(f"line {self.line(self.tokens[open_ones[-1]].begin)}: '{self.tokens[open_ones[-1]].text}' is never closed")

    def _match_templates(self):
        for i, token in enumerate(self.tokens):
            if token.text != "<" or token.partner >= 0 or i == 0 or self._is_spaced(i) and self.tokens[i - 1].text != "template":
                continue
            end = self._end_of_template(i)
            if end < 0:
                continue
            self._pair(i, end)
            for inside in self.tokens[i:end + 1]:
                inside.in_template = True

    def _end_of_template(self, begin):
        depth, i = 0, begin
        while i < len(self.tokens):
            token = self.tokens[i]
            if token.text == "<":
                depth += 1
            elif token.text == ">":
                depth -= 1
                if depth == 0:
                    return i
            elif token.text in _CLOSING:
                i = token.partner
            elif token.text in (";", ")", "]", "}"):
                return -1
            i += 1
        return -1

    def _pair(self, opening, closing):
        self.tokens[opening].partner, self.tokens[closing].partner = closing, opening

    def _is_spaced(self, i):
        token = self.tokens[i]
        return self.text[token.begin - 1:token.begin].isspace() and self.text[token.end:token.end + 1].isspace()

    def is_binary(self, i):
        """Whether this sign stands between two operands."""
        before = self.tokens[i - 1] if i > 0 else None
        operand = before is not None and (before.kind in ("number", "string") or before.text in (")", "]", "}") or
                                          before.kind == "word" and before.text not in ("return", "case", "throw", "co_return"))
        return operand and not self.tokens[i].in_template and self._is_spaced(i)

    def line(self, position):
        return self.text.count("\n", 0, position) + 1

    def line_text(self, position):
        begin = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        return self.text[begin:end if end >= 0 else len(self.text)].strip()

    def cut(self, first, last):
        """The text from one token to another."""
        return self.text[self.tokens[first].begin:self.tokens[last].end]

    def statement_end(self, i):
        """The `;` that ends what begins at token i."""
        while i < len(self.tokens) and self.tokens[i].text != ";":
            if self.tokens[i].text in (")", "]", "}"):
                return -1
            i = self.tokens[i].partner + 1 if self.tokens[i].text in _CLOSING else i + 1
        return i if i < len(self.tokens) else -1

    def arguments(self, opening):
        """(first, last) tokens of what stands between commas in these brackets."""
        parts, first, i, closing = [], opening + 1, opening + 1, self.tokens[opening].partner
        while i <= closing:
            token = self.tokens[i]
            if i == closing or token.text == ",":
                if first < i:
                    parts.append((first, i - 1))
                first = i + 1
            elif token.partner > i:
                i = token.partner
            i += 1
        return parts
