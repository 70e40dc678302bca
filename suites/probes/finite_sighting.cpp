#include "suites/probes/finite_sighting.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "suites/codes.hpp"

namespace suites::probes {

void NonFinite::place(const RowMap& map, std::int64_t count) {
  if (rows.empty()) return;
  row = rows.front();
  if (count == map.S && map.cu_seqlens) {
    const RowMap::Place where = map.place(row);
    document = where.document;
    row_in_document = where.row;
  }
  allowed_keys = map.allowed(stage, count, row);
  only_empty_rows =
      std::all_of(rows.begin(), rows.end(), [&](std::int64_t t) { return map.allowed(stage, count, t) == 0; });
}

std::string NonFinite::describe() const {
  const std::string where = !stage.name.empty()  ? stage.name
                            : !parameter.empty() ? "parameter " + parameter
                                                 : std::string("no observed stage");
  std::string text =
      fmt::format("{} first appears in the {} pass at {}{}", value.empty() ? "a non-finite value" : value,
                  backward ? "backward" : "forward", backward ? "the gradient of " : "", where);
  if (row >= 0) text += fmt::format(", row {}", row);
  if (row_in_document >= 0) text += fmt::format(" (row {} of document {})", row_in_document, document);
  if (head >= 0) text += fmt::format(", head {}", head);
  if (allowed_keys >= 0) text += fmt::format(" ({} keys allowed in branch {})", allowed_keys, stage.branch);
  if (rows.size() > 1) text += fmt::format(", {} rows from {} to {}", rows.size(), rows.front(), rows.back());
  if (!ops_watched) return text;
  text += op.empty() ? "; no operation was caught making it from finite inputs" : "; made by " + op;
  if (!node.empty()) text += " in " + node;
  if (!forward_op.empty()) text += fmt::format(" (backward of {} on the way to {})", forward_op, forward_stage);
  return text;
}

reports::Json NonFinite::evidence() const {
  reports::Json json = {{"direction", backward ? "backward" : "forward"},
                        {"stage", stage.name},
                        {"layer", stage.layer},
                        {"branch", stage.branch},
                        {"row", row},
                        {"head", head},
                        {"allowed_keys", allowed_keys},
                        {"value", value},
                        {"operation", op},
                        {"bad_rows", rows.size()}};
  constexpr std::size_t kShown = 16;
  json["first_bad_rows"] =
      std::vector(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(std::min(rows.size(), kShown)));
  if (row_in_document >= 0) {
    json["document"] = document;
    json["row_in_document"] = row_in_document;
  }
  if (!parameter.empty()) json["parameter"] = parameter;
  if (!backward) return json;
  json["autograd_node"] = node;
  json["forward_operation"] = forward_op;
  json["forward_stage"] = forward_stage;
  return json;
}

std::string_view code_of(const NonFinite& found) {
  if (found.only_empty_rows) return codes::kEmptyRowNan;
  return found.backward ? codes::kNonFiniteBackward : codes::kNonFiniteForward;
}

}  // namespace suites::probes
