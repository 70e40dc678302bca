#include "reports/html_page.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include "reports/html_text.hpp"

namespace reports::html {

namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --text: #1c2128; --soft: #59636e; --page: #ffffff; --card: #f6f8fa; --line: #d1d9e0;
        --good: #1a7f37; --mild: #9a6700; --bad: #cf222e; --none: #8c959f; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --soft: #9198a1; --page: #0d1117; --card: #161b22; --line: #3d444d;
          --good: #3fb950; --mild: #d29922; --bad: #f85149; --none: #6e7681; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 70rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; }
nav a { margin-right: 1rem; } a { color: inherit; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
.cells { line-height: 1.35; } .cell { display: inline-block; width: 1.2em; margin: 0 2px 2px 0; text-align: center; text-decoration: none; border: 1px solid; border-radius: 3px; font-size: 12px; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--page); border: 1px solid var(--line); padding: .5rem; overflow-x: auto; white-space: pre-wrap; }
.card, .banner { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--none); border-radius: 4px; padding: .5rem 1rem; margin: 1rem 0; }
.good { color: var(--good); } .mild { color: var(--mild); } .bad { color: var(--bad); } .none { color: var(--none); }
.card.mild, .banner { border-left-color: var(--mild); color: inherit; } .card.bad { border-left-color: var(--bad); color: inherit; }
svg.chart { display: block; max-width: 100%; height: auto; font: 12px system-ui, sans-serif; } svg.chart text { fill: var(--soft); }
svg.chart path { fill: none; } .axis { stroke: var(--soft); } .grid { stroke: var(--line); } svg.chart path.bad { stroke: var(--bad); stroke-width: 2; }
.c0 { --c: #0969da; } .c1 { --c: #bc4c00; } .c2 { --c: #1a7f37; } .c3 { --c: #8250df; } .c4 { --c: #bf3989; } .c5 { --c: #6e7781; }
.c0, .c1, .c2, .c3, .c4, .c5 { fill: var(--c); } .line { stroke: var(--c); stroke-width: 1.5; }
.soft { color: var(--soft); } summary { cursor: pointer; }
figure { margin: 1rem 0; }
:target { outline: 2px solid var(--mild); }
@media (max-width: 40rem) { body { margin: 1rem auto; } }
@media print { body { max-width: none; margin: 0; font-size: 11px; } code, pre { font-size: 10px; } nav { display: none; } .wide, pre { overflow: visible; } .card, tr { break-inside: avoid; } }
)";

// Where a table has no room its rows become lines of text, each cell behind its column's name: every table on a phone,
// those of many columns on paper.
constexpr std::size_t kManyColumns = 5;
std::string rows_as_lines(const char* table, const char* narrower_than) {
  return fmt::format(R"(@media (max-width: {1}) {{
  {0}, {0} tbody, {0} tr {{ display: block; }} {0} thead {{ display: none; }}
  {0} tr {{ padding: .25rem 0; border-bottom: 1px solid var(--line); }} {0} td {{ display: inline; padding: 0; border: none; }}
  {0} td + td::before {{ content: " \b7  " attr(data-head) " "; color: var(--soft); }} }}
)",
                     table, narrower_than);
}

}  // namespace

const char* tone(Status status) {
  switch (status) {
    case Status::pass:
      return "good";
    case Status::inconclusive:
    case Status::blocked:
    case Status::not_run:
    case Status::cancelled:
      return "mild";
    case Status::fail:
    case Status::error:
    case Status::crash:
    case Status::hang:
    case Status::infra_error:
      return "bad";
    case Status::skip:
      return "none";
  }
  return "bad";
}

const char* tone(Severity severity) {
  switch (severity) {
    case Severity::info:
      return "none";
    case Severity::warn:
    case Severity::degrade:
      return "mild";
    case Severity::block:
    case Severity::isolate:
      return "bad";
  }
  return "bad";
}

const char* tone(Verdict verdict) {
  switch (verdict) {
    case Verdict::ready:
      return "good";
    case Verdict::conditional:
      return "mild";
    case Verdict::not_ready:
      return "bad";
  }
  return "bad";
}

void Html::begin(const std::string& title) {
  line(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
  line("<title>{}</title><style>{}{}{}</style></head><body>", esc(title), kStyle, rows_as_lines("table", "40rem"),
       rows_as_lines("table.many", "48rem"));
}

void Html::table(const std::vector<std::string>& head) {
  head_ = head;
  line("<div class=\"wide\"><table{}><thead><tr><th>{}</th></tr></thead><tbody>",
       head.size() >= kManyColumns ? " class=\"many\"" : "", fmt::join(head, "</th><th>"));
}

void Html::row(const std::vector<std::string>& cells) {
  std::string text;
  for (std::size_t i = 0; i < cells.size(); ++i)
    text += fmt::format("<td{}>{}</td>", i > 0 && head_.size() > 2 ? " data-head=\"" + head_[i] + '"' : "", cells[i]);
  line("<tr>{}</tr>", text);
}

void Html::end_table() { line("</tbody></table></div>"); }

std::string Html::end() {
  line("</body></html>");
  return take();
}

std::string breakable(const std::string& text) {
  constexpr std::size_t kLongestWord = 24;
  std::string out;
  std::size_t run = 0;
  for (const char c : text) {
    const bool begins = (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // a character of UTF-8
    if (begins && run++ == kLongestWord) {
      out += "<wbr>";
      run = 1;
    }
    out += esc({c});
    const bool mark = std::string_view("/,=._:(").find(c) != std::string_view::npos;
    if (mark) out += "<wbr>";
    if (mark || c == ' ') run = 0;
  }
  return out;
}

std::string code_element(const std::string& text) { return "<code>" + breakable(text) + "</code>"; }

std::string status_word(Status status) {
  return fmt::format("<b class=\"{}\">{}</b>", tone(status), to_string(status));
}

const char* mark(Status status) {
  switch (status) {
    case Status::pass:
      return "\u2713";
    case Status::fail:
      return "\u2717";
    case Status::error:
    case Status::crash:
    case Status::hang:
    case Status::infra_error:
      return "!";
    case Status::inconclusive:
      return "?";
    case Status::blocked:
    case Status::not_run:
    case Status::cancelled:
      return "\u2026";
    case Status::skip:
      return "\u2013";
  }
  return "!";
}

}  // namespace reports::html
