"""Where a C++ source can be changed, and how: each site says what is inserted before and behind which part of it.

A mutant is written with the functions of switch.hpp and tensors.hpp around a part of an expression, so that the program holds
the expression as it was and as it is mutated. What does not compile so (a pointer, a constant expression, two arguments of
different types) is not told from the tokens: refused.txt lists it.
"""
import dataclasses
import hashlib
import re

KINDS = ("boundary", "equality", "condition", "offset", "dropped", "index", "swapped", "constant", "detached", "dtype", "statement")

_CALL = "::nsa::mutant::"
_PRECEDENCE = {"*": 9, "/": 9, "%": 9, "+": 8, "-": 8, "<<": 7, ">>": 7, "<": 6, "<=": 6, ">": 6, ">=": 6, "==": 5, "!=": 5, "&": 4, "^": 3, "|": 2,
               "&&": 1, "||": 0, "=": -1, "+=": -1, "-=": -1, "*=": -1, "/=": -1}
_ENDS = (",", ";", ")", "]", "}", "?", ":")
_COMPARISONS = {"<": ("boundary", "Less", "<="), "<=": ("boundary", "LessEqual", "<"), ">": ("boundary", "Greater", ">="),
                ">=": ("boundary", "GreaterEqual", ">")}
_EQUALITIES = {"==": "!=", "!=": "=="}
# What ends up in a message or is no expression of the running program: words, and calls with all their arguments.
_WORDS_ONLY = ("format", "refuse", "static_assert", "ContractError", "Unsupported", "tell", "logic_error", "invalid_argument", "runtime_error")
_NO_STATEMENT = ("alignas", "break", "case", "catch", "class", "const", "constexpr", "continue", "default", "delete", "do", "else", "enum", "explicit",
                 "for", "goto", "if", "inline", "namespace", "operator", "private", "protected", "public", "return", "static", "struct", "switch",
                 "template", "thread_local", "throw", "try", "typedef", "union", "using", "virtual", "void", "while")
_PLACES = ("diff", "flatten", "gather", "index_add_", "index_fill_", "index_select", "mean", "narrow", "scatter_", "select", "size", "slice", "squeeze",
           "sum", "unflatten", "unfold", "unsqueeze")  # a method whose first argument is a dimension
_ORDERS = ("permute", "transpose")  # whose arguments all are
_RANGES = ("arange", "narrow", "positions", "select", "slice")  # whose arguments behind the dimension are places
_SYMMETRIC = ("equal", "logical_and", "logical_or", "max", "maximum", "min", "minimum")
_TENSOR = re.compile(r"\b(?:at|torch)::\w+\(|\.(?:narrow|transpose|reshape|flatten|unflatten|permute|to|sum|mean|matmul|masked_fill|index_select|expand)\(|"
                     r"\b(?:attend\w*|rotate|pool|rows_to_heads|heads_to_rows|norm|mlp|head|embedding|forward|layer|term)\(")
_NO_GRADIENT = re.compile(r"\bk(?:Long|Int|Bool)\b|\.(?:lt|le|gt|ge|eq|ne|logical_\w+|size|sizes|item|scalar_type|options|tril|remainder)\b|\b(?:positions|arange|"
                          r"isfinite|TensorOptions|AutoGradMode|Options)\b|\[&?\]|\[=?\w*\]\(")
_NAMED = re.compile(r"constexpr (?:double|float|int|std::(?:size_t|u?int\d+_t)) (k[A-Z]\w*) =")


@dataclasses.dataclass
class Site:
    kind: str
    begin: int  # of what is changed, in the source
    end: int
    pieces: list  # (first byte, last byte, text before, text behind); "@" in a text stands for the mutant's number
    words: str  # the mutation
    file: str = ""
    line: int = 0
    name: str = ""


class Finder:
    def __init__(self, source, file):
        self.source, self.tokens, self.file = source, source.tokens, file
        self.constants = set(_NAMED.findall(source.text))
        self.closed = self._closed()
        self.sites = []

    def find(self):
        for i in range(len(self.tokens)):
            if self.closed[i]:
                continue
            for look in (self._operator, self._literal, self._call, self._braces, self._condition, self._value, self._type, self._statement):
                look(i)
        self._name()
        return self.sites

    def _closed(self):
        """Tokens in which nothing is changed."""
        closed = [token.in_template for token in self.tokens]

        def close(first, last):
            closed[first:last + 1] = [True] * (last + 1 - first)

        for i, token in enumerate(self.tokens):
            following = self.tokens[i + 1] if i + 1 < len(self.tokens) else None
            if token.text in ("throw", "constexpr", "using", "static_assert", "case", "namespace", "enum"):
                end = i
                while self.tokens[end].text not in (";", ":", "{"):
                    end += 1
                close(i, end)
                if token.text in ("throw", "constexpr"):
                    end = self.source.statement_end(i)
                    close(i, end if end >= 0 else i)
            elif token.text in _WORDS_ONLY and following is not None and following.text == "(":
                close(i, following.partner)
            elif token.text == "[" and self._is_lambda(i):
                close(i, token.partner)
        return closed

    def _is_lambda(self, i):
        before = self.tokens[i - 1]
        return not (before.kind == "word" and before.text not in ("return", "case") or before.text in (")", "]") or before.kind == "string")

    # ---- sites

    def _operator(self, i):
        token = self.tokens[i]
        if token.kind != "sign" or not self.source.is_binary(i):
            return
        if token.text in _COMPARISONS:
            kind, between, mutated = _COMPARISONS[token.text]
            text = f" {_CALL}{between}(@) {token.text}"
            self._add(kind, i, i, [(token.end, token.end, text, "")], f"`{token.text}` becomes `{mutated}` in `{self._around(i, i)}`")
            return
        last = self._operand_end(i)
        if token.text in _EQUALITIES:
            if last > i:
                words = f"`{token.text}` becomes `{_EQUALITIES[token.text]}` in `{self._around(i, i)}`"
                self._wrap("equality", self._operand_begin(i), last, "negated", words)
            return
        if last <= i or any(t.kind == "string" for t in self.tokens[i - 1:last + 1]):
            return
        operand = self.source.cut(i + 1, last)
        if token.text in ("+", "-"):
            self._wrap("offset", i + 1, last, "shifted", f"`{token.text} {operand}` takes one more in `{self._around(i, last)}`")
            self._wrap("dropped", i + 1, last, "without_term", f"the term `{token.text} {operand}` is dropped")
        elif token.text in ("*", "/"):
            self._wrap("dropped", i + 1, last, "without_factor", f"the factor `{token.text} {operand}` is dropped")
        elif token.text in ("&&", "||"):
            before = f"({_CALL}dropped(@) || (" if token.text == "&&" else f"({_CALL}keep(@) && ("
            begin, end = self.tokens[i + 1].begin, self.tokens[last].end
            self._add("dropped", i + 1, last, [(begin, end, before, "))")], f"the condition `{token.text} {operand}` is dropped")

    def _literal(self, i):
        token, before = self.tokens[i], self.tokens[i - 1]
        minus = before.text == "-" and not self.source.is_binary(i - 1)
        first = i - 1 if minus else i
        if token.text in ("true", "false"):
            self._wrap("constant", i, i, "other", f"`{token.text}` becomes `{'false' if token.text == 'true' else 'true'}` in `{self._around(i, i)}`")
        elif token.kind == "number" or token.text in self.constants:
            what = self.source.cut(first, i)
            if self._is_place(first, i):
                self._wrap("index", first, i, "neighbour", f"dimension or place {what} becomes the one beside it in `{self._around(first, i)}`")
            else:
                real = re.search(r"\d(?:\.|e-)", what) is not None and not what.startswith("0x")
                change = "is a tenth more" if real else "is one more (a tenth, where it is no whole number)" if token.kind == "word" else "is one more"
                self._wrap("constant", first, i, "other", f"the constant {what} {change} in `{self._around(first, i)}`")

    def _is_place(self, first, last):
        """Whether the tokens are a dimension of a tensor, or a subscript."""
        before, behind = self.tokens[first - 1], self.tokens[last + 1]
        if before.text == "[" and behind.text == "]":
            return True
        if before.text not in ("(", "{", ",") or behind.text not in (")", "}", ","):
            return False
        opening = first - 1
        while self.tokens[opening].text not in ("(", "{") or self.tokens[opening].partner < last:
            opening -= 1
        if self.tokens[opening].text == "{" and self.tokens[opening - 1].text == "(":
            opening -= 1
        name = self.tokens[opening - 1].text
        return name in _ORDERS or name in _PLACES and before.text == "(" and self.tokens[opening].text == "("

    def _call(self, i):
        """Arguments that are places in a range, and two that may change places."""
        token = self.tokens[i]
        if token.text != "(" or self.tokens[i - 1].kind != "word":
            return
        name = self.tokens[i - 1].text
        parts = self.source.arguments(i)
        if name in _RANGES:
            for first, last in parts[0 if name in ("arange", "positions") else 1:]:
                if not self._is_literal(first, last) and self.tokens[first].text not in ("{", "["):
                    self._wrap("offset", first, last, "shifted", f"the argument `{self.source.cut(first, last)}` is one more in `{self._around(first, last)}`")
        if name not in _SYMMETRIC:
            self._swaps(parts)

    def _braces(self, i):
        if self.tokens[i].text == "{" and self.tokens[i - 1].text in ("(", "{", ",", "return", "=", ">") or \
                self.tokens[i].text == "{" and self.tokens[i - 1].kind == "word" and self.tokens[i].partner < self.source.statement_end(i):
            self._swaps(self.source.arguments(i))

    def _swaps(self, parts):
        for (a, b), (c, d) in zip(parts, parts[1:]):
            left, right = self.source.cut(a, b), self.source.cut(c, d)
            if left == right or not self._is_name(a, b) or not self._is_name(c, d):
                continue
            pieces = [(self.tokens[a].begin, self.tokens[b].end, f"{_CALL}either(@, ", f", {right})"),
                      (self.tokens[c].begin, self.tokens[d].end, f"{_CALL}either(@, ", f", {left})")]
            self._add("swapped", a, d, pieces, f"`{left}` and `{right}` change places in `{self._around(a, d)}`")

    def _condition(self, i):
        if self.tokens[i].text == "if" and self.tokens[i + 1].text == "(":
            first, last = i + 2, self.tokens[i + 1].partner - 1
            if not any(t.text in (";", "=") for t in self.tokens[first:last + 1]):
                self._negate(first, last, f"the condition `{self.source.cut(first, last)}` is negated")
        elif self.tokens[i].text == "?":
            first = self._operand_begin(i)
            if first < i:
                self._negate(first, i - 1, f"the condition `{self.source.cut(first, i - 1)}` is negated")

    def _negate(self, first, last, words):
        begin, end = self.tokens[first].begin, self.tokens[last].end
        self._add("condition", first, last, [(begin, end, f"{_CALL}negated(@, static_cast<bool>(", "))")], words)

    def _value(self, i):
        """A tensor that gets a name or is returned: detached, or rounded."""
        if self.tokens[i].text == "return":
            first = i + 1
        elif self.tokens[i].text == "=" and self.tokens[i - 1].kind == "word" and self.tokens[i - 2].text in ("auto", "Tensor"):
            first = i + 1
        else:
            return
        last = self._operand_end(i, lowest=-1)
        if last < first or self.tokens[last + 1].text not in (";", ","):
            return
        text = self.source.cut(first, last)
        if not _TENSOR.search(text) or _NO_GRADIENT.search(text):
            return
        self._wrap("detached", first, last, "detached", f"`{_short(text)}` is cut from the graph")
        self._wrap("dtype", first, last, "rounded", f"`{_short(text)}` is rounded to bf16")

    def _type(self, i):
        token = self.tokens[i]
        if token.text == "accumulation_type" and self.tokens[i + 1].text == "(" and self.tokens[i - 1].text not in ("ScalarType",):
            self._wrap("dtype", i, self.tokens[i + 1].partner, "narrower", "the type of sums is the next narrower one")
        elif token.text in ("kFloat", "kDouble") and self.tokens[i - 1].text == "::":
            beside = (self.tokens[i - 3].text, self.tokens[i + 1].text)
            if not any(sign in ("==", "!=", "case", ":") for sign in beside):
                self._wrap("dtype", i - 2, i, "narrower", f"{token.text} is the next narrower type")

    def _statement(self, i):
        """A call or an assignment that stands for itself."""
        token = self.tokens[i]
        if self.tokens[i - 1].text not in (";", "{", "}") or token.kind != "word" and token.text not in ("++", "--") or token.text in _NO_STATEMENT:
            return
        end = self.source.statement_end(i)
        chain = i + 1 if token.kind != "word" else i
        while chain + 2 < len(self.tokens) and self.tokens[chain + 1].text in ("::", ".", "->"):
            chain += 2
        following = self.tokens[chain + 1].text
        if end < 0 or following not in ("(", "[", "=", "+=", "-=", "*=", "/=", "++", "--", ";") or following == ";" and token.kind == "word":
            return
        if self.tokens[end - 1].text in ("delete", "default") or self.tokens[end + 1].text == "else":
            return
        words = f"`{_short(self.source.cut(i, end))}` is left out"
        self._add("statement", i, end, [(token.begin, token.begin, f"if ({_CALL}keep(@)) ", "")], words)

    # ---- helpers

    def _operand_end(self, i, lowest=None):
        """The last token of what stands to the right of the operator i."""
        level = _PRECEDENCE.get(self.tokens[i].text, -1) if lowest is None else lowest
        last, at = i, i + 1
        while at < len(self.tokens):
            token = self.tokens[at]
            if token.partner < 0 and token.text in _ENDS and not (lowest is not None and token.text in ("?", ":")) or 0 <= token.partner < at:
                break
            if token.text in _PRECEDENCE and self.source.is_binary(at) and _PRECEDENCE[token.text] <= level:
                break
            last = at = token.partner if token.partner > at else at
            at += 1
        return last

    def _around(self, first, last, most=24):
        """What stands there, with a little before and behind it."""
        begin, end = self.tokens[first].begin, self.tokens[last].end
        before, behind = self.source.text[:begin].rsplit("\n", 1)[-1].lstrip(), self.source.text[end:].split("\n", 1)[0]
        return before[-most:] + _short(self.source.text[begin:end]) + behind[:most]

    def _operand_begin(self, i):
        """The first token of what stands to the left of the operator i."""
        level, first = _PRECEDENCE.get(self.tokens[i].text, -1), i
        while True:
            before = self.tokens[first - 1]
            if before.kind == "end" or before.partner < 0 and before.text in (*_ENDS, "return", "else") or before.partner >= first:
                break
            if before.text in _PRECEDENCE and self.source.is_binary(first - 1) and _PRECEDENCE[before.text] <= level:
                break
            first = before.partner if 0 <= before.partner < first else first - 1
        return first

    def _is_literal(self, first, last):
        return first == last and self.tokens[first].kind in ("number", "string") or last == first + 1 and self.tokens[first].text == "-"

    def _is_name(self, first, last):
        """a, a.b->c_: names alone."""
        tokens = self.tokens[first:last + 1]
        return all((t.kind == "word" and t.text not in ("true", "false", "nullptr", "this")) if n % 2 == 0 else t.text in (".", "->", "::")
                   for n, t in enumerate(tokens)) and len(tokens) % 2 == 1

    def _wrap(self, kind, first, last, function, words):
        piece = (self.tokens[first].begin, self.tokens[last].end, f"{_CALL}{function}(@, ", ")")
        self._add(kind, first, last, [piece], words)

    def _add(self, kind, first, last, pieces, words):
        if any(self.closed[first:last + 1]) and kind not in ("boundary", "equality", "condition", "detached", "dtype", "dropped", "offset", "statement"):
            return
        site = Site(kind, self.tokens[first].begin, self.tokens[last].end, pieces, " ".join(words.split()), self.file)
        site.line = self.source.line(site.begin)
        self.sites.append(site)

    def _name(self):
        """A name by file, kind, line and place in it: it stays while other lines and files change."""
        seen = {}
        short = "-".join(self.file.removeprefix("nsa/").removesuffix(".cpp").replace("_", "-").split("/"))
        for site in self.sites:
            key = (site.kind, self.source.line_text(site.begin), site.words)
            seen[key] = seen.get(key, 0) + 1
            digest = hashlib.sha256("\0".join((self.file, *key, str(seen[key]))).encode()).hexdigest()
            site.name = f"{short}-{site.kind}-{digest[:6]}"


def _short(text, most=80):
    text = " ".join(text.split())
    return text if len(text) <= most else text[:most - 3] + "..."


def write(source, numbered):
    """The text of a source with these sites in it: (number, Site) each."""
    opens, closes, points = {}, {}, {}
    for number, site in numbered:
        for begin, end, before, behind in site.pieces:
            before, behind = before.replace("@", str(number)), behind.replace("@", str(number))
            if begin == end:
                points.setdefault(begin, []).append(before + behind)
            else:
                opens.setdefault(begin, []).append((-end, number, before))
                closes.setdefault(end, []).append((-begin, -number, behind))
    text, at = [], 0
    for place in sorted({*opens, *closes, *points}):
        text.append(source.text[at:place])
        text += [behind for *_, behind in sorted(closes.get(place, ()))]
        text += points.get(place, ())
        text += [before for *_, before in sorted(opens.get(place, ()))]
        at = place
    return "".join(text) + source.text[at:]
