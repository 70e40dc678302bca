#!/usr/bin/env python3
"""The lexer, the mutations and the sample, on small sources and on those of the tree; and that mutations mean what they say."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import lexer  # noqa: E402
import mutants  # noqa: E402
import sites  # noqa: E402


def find(text, kind=None):
    found = sites.Finder(lexer.Source(text), "nsa/model/x.cpp").find()
    return [site for site in found if kind in (None, site.kind)]


def mutated(text, kind):
    """The text with each site of this kind, one at a time."""
    source = lexer.Source(text)
    return [sites.write(source, [(7, site)]).replace("::nsa::mutant::", "") for site in find(text, kind)]


class Lexer(unittest.TestCase):
    def words(self, text):
        return [token.text for token in lexer.Source(text).tokens[:-1]]

    def test_comments_and_directives_are_no_tokens(self):
        self.assertEqual(self.words("#include <a>\n#define X \\\n  1 + 2\na /* 1 < 2 */ + b;  // c < d\n"), ["a", "+", "b", ";"])

    def test_strings_are_one_token(self):
        self.assertEqual(self.words('f("a < \\"b\\" + 1", \'"\', R"(x " y)", u8"z");'),
                         ["f", "(", '"a < \\"b\\" + 1"', ",", "'\"'", ",", 'R"(x " y)"', ",", 'u8"z"', ")", ";"])

    def test_numbers(self):
        self.assertEqual(self.words("1e-6 0x9E37U 1'000 .5 1.0f a1"), ["1e-6", "0x9E37U", "1'000", ".5", "1.0f", "a1"])

    def test_brackets_find_each_other_or_are_refused(self):
        tokens = lexer.Source("f(a[1], {2})").tokens
        self.assertEqual(tokens[1].partner, len(tokens) - 2)
        self.assertEqual(tokens[3].partner, 5)
        for bad in ("f(a]", "}", "{ ("):
            with self.assertRaises(ValueError):
                lexer.Source(bad)

    def test_a_template_is_no_comparison(self):
        source = lexer.Source("std::pair<int, std::vector<A>> p; bool x = a < b && c > d; template <typename T> f();")
        inside = [token.text for token in source.tokens if token.in_template]
        self.assertEqual(inside[:3], ["<", "int", ","])
        self.assertIn("typename", inside)
        self.assertNotIn("b", inside)

    def test_a_unary_sign_is_no_operator(self):
        source = lexer.Source("return -1; x = a * b; T* p; f(-a, &b); c && d; auto&& e = 1;")
        binary = [t.text for i, t in enumerate(source.tokens) if t.kind == "sign" and t.text in "*-&&" and source.is_binary(i)]
        self.assertEqual(binary, ["*", "&&"])


class Mutations(unittest.TestCase):
    def test_comparisons_keep_their_operands(self):
        self.assertEqual(mutated("bool x = a + 1 < f(b);", "boundary"), ["bool x = a + 1 < Less(7) < f(b);"])
        self.assertEqual(mutated("bool x = a != b;", "equality"), ["bool x = negated(7, a != b);"])
        self.assertEqual(mutated("return c && f(a) + 1 == b.c[2] || d;", "equality"), ["return c && negated(7, f(a) + 1 == b.c[2]) || d;"])
        self.assertEqual(mutated("g(x, !a == T{1} ? b : c);", "equality"), ["g(x, negated(7, !a == T{1}) ? b : c);"])

    def test_operands_end_where_the_language_says(self):
        self.assertEqual(mutated("x = a + b * c - d;", "offset"), ["x = a + shifted(7, b * c) - d;", "x = a + b * c - shifted(7, d);"])
        self.assertEqual(mutated("x = a * f(b + 1)[c].d / e;", "dropped")[0], "x = a * without_factor(7, f(b + 1)[c].d) / e;")
        self.assertEqual(mutated("x = a && b == c || d;", "dropped"),
                         ["x = a && (dropped(7) || (b == c)) || d;", "x = a && b == c || (keep(7) && (d));"])

    def test_a_minus_belongs_to_its_number(self):
        self.assertEqual(mutated("at::softmax(x, -1);", "constant"), ["at::softmax(x, other(7, -1));"])

    def test_dimensions_are_places(self):
        self.assertEqual(mutated("x.size(2);", "index"), ["x.size(neighbour(7, 2));"])
        self.assertEqual(mutated("x.permute({0, 2});", "index"), ["x.permute({neighbour(7, 0), 2});", "x.permute({0, neighbour(7, 2)});"])
        self.assertEqual(mutated("x.narrow(1, 0, n);", "index"), ["x.narrow(neighbour(7, 1), 0, n);"])
        self.assertEqual(mutated("y = saved[3];", "index"), ["y = saved[neighbour(7, 3)];"])

    def test_arguments_change_places(self):
        self.assertEqual(mutated("g(x.k, x.v, 1);", "swapped"), ["g(either(7, x.k, x.v), either(7, x.v, x.k), 1);"])
        self.assertEqual(find("at::minimum(a, b);", "swapped"), [])
        self.assertEqual(find("g(a, std::move(b));", "swapped"), [])

    def test_conditions(self):
        self.assertEqual(mutated("if (a.b()) c();", "condition"), ["if (negated(7, static_cast<bool>(a.b()))) c();"])
        self.assertEqual(find("if (const auto x = f(); x) c();", "condition"), [])
        self.assertEqual(mutated("y = a == 1 ? b : c;", "condition"), ["y = negated(7, static_cast<bool>(a == 1)) ? b : c;"])

    def test_values_of_tensors(self):
        text = "const auto o = at::matmul(p, v.to(wide));"
        self.assertEqual(mutated(text, "detached"), ["const auto o = detached(7, at::matmul(p, v.to(wide)));"])
        self.assertEqual(mutated(text, "dtype"), ["const auto o = rounded(7, at::matmul(p, v.to(wide)));"])
        self.assertEqual(mutated("auto w = accumulation_type(q.scalar_type());", "dtype"), ["auto w = narrower(7, accumulation_type(q.scalar_type()));"])
        self.assertEqual(find("bool x = t.scalar_type() == at::kFloat;", "dtype"), [])

    def test_statements(self):
        self.assertEqual(mutated("{ reset(); x.y = 2; }", "statement"), ["{ if (keep(7)) reset(); x.y = 2; }", "{ reset(); if (keep(7)) x.y = 2; }"])
        for text in ("{ return f(); }", "{ T x = 1; }", "{ const T y(1); }", "{ T(const T&) = delete; }", "{ if (a) b(); }", "{ break; }"):
            self.assertEqual(find(text, "statement"), [], text)

    def test_nothing_where_no_program_runs(self):
        for text in ('throw E("a" + f(1 + b));', "constexpr int k = 1 + a;", "static_assert(a < b);", "using A = B<1>;", 'fmt::format("{}", a + 1);',
                     "switch (a) { case 1: f; }", "auto g = [a, b](int c) {};", "std::array<int, 3> a;"):
            self.assertEqual([s.words for s in find(text)], [], text)

    def test_what_is_named_in_the_file_is_a_constant(self):
        self.assertEqual(mutated("constexpr double kBeta = 0.9;\ny = f(kBeta);", "constant"), ["constexpr double kBeta = 0.9;\ny = f(other(7, kBeta));"])

    def test_mutants_nest(self):
        text = "x = a + b * f(c - 1);"
        source = lexer.Source(text)
        everything = sites.write(source, list(enumerate((s for s in find(text) if s.kind != "swapped"), 1)))
        self.assertEqual(everything.count("("), everything.count(")"))
        self.assertEqual(re.sub(r"::nsa::mutant::\w+\(\d+, ", "(", everything).replace("(", "").replace(")", ""), text.replace("(", "").replace(")", ""))

    def test_without_sites_the_text_is_the_same(self):
        text = "int f(int a) { return a + 1; }  // a\n"
        self.assertEqual(sites.write(lexer.Source(text), []), text)


class Names(unittest.TestCase):
    TEXT = "void f() {\n  g(a < b);\n  h(a < b);\n  g(a < b);\n}\n"

    def test_a_name_stays_when_other_lines_change(self):
        before = [s.name for s in find(self.TEXT, "boundary")]
        after = [s.name for s in find("int more = 1;\n// and more\n" + self.TEXT, "boundary")]
        self.assertEqual(before, after)
        self.assertEqual(len(set(before)), 3, "the same line twice is two mutants")

    def test_names_are_folders(self):
        for site in find(self.TEXT):
            self.assertRegex(site.name, r"^[a-z0-9-]+-[0-9a-f]{6}$")


class OfTheTree(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.catalogue = mutants.Catalogue()

    def test_two_hundred_over_all_rooms_and_kinds(self):
        self.assertEqual(len(self.catalogue.mutants), 200)
        self.assertEqual({s.kind for s in self.catalogue.mutants}, set(sites.KINDS))
        for room, (count, _) in mutants.ROOMS.items():
            self.assertEqual(sum(s.file in self.catalogue.files[room] for s in self.catalogue.mutants), count, room)
        self.assertEqual(len({s.name for s in self.catalogue.mutants}), 200)

    def test_the_oracle_is_not_mutated(self):
        self.assertFalse([file for file in self.catalogue.sources if "reference" in file])

    def test_the_same_again(self):
        self.assertEqual([s.name for s in mutants.Catalogue().mutants], [s.name for s in self.catalogue.mutants])

    def test_what_was_refused_is_not_chosen_again(self):
        name = self.catalogue.mutants[0].name
        self.assertNotIn(name, [s.name for s in mutants.Catalogue(refused=mutants.read_refused() | {name}).mutants])

    def test_a_copy_without_its_mutants_is_the_source(self):
        for file, source in self.catalogue.sources.items():
            self.assertEqual(sites.write(source, []), source.text)
            copy = self.catalogue.copy(file)
            self.assertEqual(copy.count("::nsa::mutant::") > 0, any(s.file == file for s in self.catalogue.mutants))
            self.assertLessEqual(copy.count("\n") - source.text.count("\n"), 1, "lines stay where they are")

    def test_every_mutant_stands_in_the_table_and_in_its_copy(self):
        table = self.catalogue.table()
        for number, site in self.catalogue.numbered:
            self.assertIn(f'{{{number}, "{site.name}", ', table)
            self.assertRegex(self.catalogue.copy(site.file), rf"::nsa::mutant::\w+\({number}[,)]")


@unittest.skipUnless(shutil.which("c++"), "no compiler here")
class Compiled(unittest.TestCase):
    """Each function of switch.hpp, with its mutant in force and without."""

    PROGRAM = """
#include <cstddef>
#include <cstdio>
#include <string>
#include "suites/faults/sources/switch.hpp"
namespace m = nsa::mutant;
static int told = 0;
static int failed = 0;
static void tell() { ++told; }
static void expect(const char* what, bool off, bool mutated) {
  if (off && mutated) return;
  std::printf("%s: %d %d\\n", what, off, mutated);
  failed = 1;
}
template <typename Test>
void both(const char* what, Test test) {
  m::planted = 0;
  const auto off = test();
  m::planted = 7;
  const auto on = test();
  expect(what, off.first, on.second);
}
#define BOTH(what, expression, off, on) both(what, [&] { const auto value = (expression); return std::pair{value == (off), value == (on)}; })
int main() {
  m::reached = tell;
  const std::size_t three = 3;
  const long one = 1;
  const double x = 2.0;
  const std::string text = "a";
  BOTH("<", 3 < m::Less(7) < three, false, true);
  BOTH("<=", one <= m::LessEqual(7) <= 1, true, false);
  BOTH(">", x > m::Greater(7) > 2, false, true);
  BOTH(">=", 1 + one >= m::GreaterEqual(7) >= 2, true, false);
  BOTH("<", text < m::Less(7) < "a", false, true);
  BOTH("negated", m::negated(7, true), true, false);
  BOTH("keep", m::keep(7), true, false);
  BOTH("dropped", m::dropped(7), false, true);
  BOTH("shifted", m::shifted(7, one), 1L, 2L);
  BOTH("other", m::other(7, 32), 32, 33);
  BOTH("other", m::other(7, 0.5), 0.5, 0.5 * 1.1);
  BOTH("other", m::other(7, 0.0), 0.0, 0.1);
  BOTH("other", m::other(7, true), true, false);
  BOTH("neighbour", m::neighbour(7, 0), 0, 1);
  BOTH("neighbour", m::neighbour(7, 2), 2, 1);
  BOTH("neighbour", m::neighbour(7, -1), -1, -2);
  BOTH("term", m::without_term(7, x), 2.0, 0.0);
  BOTH("factor", m::without_factor(7, one), 1L, 1L);
  BOTH("factor", m::without_factor(7, x), 2.0, 1.0);
  BOTH("either", m::either(7, 1, 2), 1, 2);
  BOTH("another", m::other(8, 1), 1, 1);
  if (told != 20) std::printf("told %d\\n", told), failed = 1;
  return failed;
}
"""

    def test_mutants_are_what_they_say(self):
        with tempfile.TemporaryDirectory() as folder:
            source, program = pathlib.Path(folder) / "x.cpp", pathlib.Path(folder) / "x"
            source.write_text(self.PROGRAM)
            subprocess.run(["c++", "-std=c++20", "-Wall", "-Wextra", "-Wshadow", "-Werror", f"-I{mutants.ROOT}", source, "-o", program], check=True)
            done = subprocess.run([program], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (0, ""))


class Errors(unittest.TestCase):
    def test_the_compilers_words_are_read(self):
        at = {"caret": {"line": 5, "file": "/out/nsa/ops.cpp"}}
        deep = {"kind": "error", "message": "no match", "locations": [{"caret": {"line": 9, "file": "switch.hpp"}}],
                "children": [{"locations": [at]}]}
        warned = {"kind": "warning", "message": "w", "locations": [{"caret": {"line": 2, "file": "/out/nsa/ops.cpp"}}]}

        self.assertEqual(mutants.lines_with_errors(json.dumps([deep, warned]), "nsa/ops.cpp"), {4: "no match"})
        self.assertEqual(mutants.lines_with_errors("", "nsa/ops.cpp"), {})

    def test_a_command_writes_nothing(self):
        words = mutants.command_for({"command": "c++ -O2 -o x.o -c /a/x.cpp"}, "/copy/x.cpp")
        self.assertEqual(words[:4], ["c++", "-O2", "-c", "/copy/x.cpp"])
        self.assertIn("-fsyntax-only", words)


if __name__ == "__main__":
    unittest.main()
