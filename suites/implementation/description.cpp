#include "suites/implementation/description.hpp"

#include <c10/core/Device.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "suites/implementation/error.hpp"
#include "suites/implementation/place.hpp"

namespace suites::implementation {

namespace {

constexpr const char* kWhere = "description";

bool lists(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

LseBase lse_base(const Fields& fields) {
  if (!fields.has("lse")) return LseBase::none;
  const std::string base = fields.text("lse");
  if (base == "e") return LseBase::e;
  if (base == "2") return LseBase::two;
  fields.refuse("lse", "\"e\", \"2\" or null");
}

std::string text_or_nothing(const Fields& fields, const char* key) { return fields.has(key) ? fields.text(key) : ""; }

std::optional<Description::Forced> forced(const Fields& fields) {
  if (!fields.has("forced")) return std::nullopt;
  const Fields blocks = fields.object("forced");
  return Description::Forced{blocks.integer("first"), blocks.integer("last")};
}

void refuse_mistakes(const Fields& answer) {
  std::vector<std::string> mistakes;
  for (const Json& mistake : answer.at("mistakes")) {
    const Fields told(mistake, "a mistake of the description");
    mistakes.push_back(fmt::format("{}: {} = {}; allowed: {}", told.text("where"), told.text("key"), told.text("value"),
                                   told.text("allowed")));
  }
  if (!mistakes.empty()) throw ImplementationError("description", fmt::format("{}", fmt::join(mistakes, "\n")));
}

std::string only(const std::vector<std::string>& list) { return fmt::format("{}", fmt::join(list, ", ")); }

at::ScalarType type_of(nsa::Precision precision) {
  switch (precision) {
    case nsa::Precision::fp64:
      return at::kDouble;
    case nsa::Precision::fp32:
      return at::kFloat;
    case nsa::Precision::bf16:
      return at::kBFloat16;
  }
  return at::kFloat;
}

}  // namespace

Json differences(const Json& before, const Json& now) {
  Json found = Json::object();
  const auto look = [&](const Json& keys_of) {
    for (const auto& [key, value] : keys_of.items()) {
      const Json was = before.value(key, Json()), is = now.value(key, Json());
      if (was != is) found[key] = {{"was", was}, {"is", is}};
    }
  };
  look(before);
  look(now);
  return found;
}

std::string words_of(const Json& differences) {
  std::vector<std::string> all;
  for (const auto& [key, both] : differences.items())
    all.push_back(fmt::format("{} = {}, it was {}", key, reports::dump(both["is"]), reports::dump(both["was"])));
  return fmt::format("{}", fmt::join(all, "; "));
}

bool Description::computes_function(std::string_view function) const { return lists(computes, function); }

bool Description::claims(nsa::Op op) const {
  return computes_function(nsa::to_string(op)) || (op == nsa::Op::attend && computes_function("attention"));
}

Description description_from(const Json& answer) {
  const Fields told(answer, "answer to describe");
  refuse_mistakes(told);
  const Fields fields(told.at("description"), kWhere);
  Description d;
  d.name = fields.text("name");
  d.version = fields.text("version");
  d.computes = fields.texts("computes");
  d.devices = fields.texts("device");
  d.dtypes = fields.texts("dtypes");
  d.layouts = fields.texts("layouts");
  d.gradients = fields.truth("gradients");
  d.window = text_or_nothing(fields, "window");
  d.forced = forced(fields);
  d.ties = text_or_nothing(fields, "ties");
  d.importance = text_or_nothing(fields, "importance");
  if (fields.has("blocks")) d.own_block = fields.text("blocks") == "own";
  if (fields.has("documents")) d.empty_documents = fields.text("documents") == "any";
  d.shared_kv = fields.truth("shared_kv");
  d.lse = lse_base(fields);
  if (fields.has("repeatable")) d.repeatable = fields.truth("repeatable");
  if (fields.has("limits")) d.limits = limits_from(fields.object("limits"));
  d.python = told.text("python");
  d.torch = told.text("torch");
  d.executable = told.text("executable");
  d.file = told.text("file");
  d.cuda = told.truth("cuda");
  return d;
}

Wanted wanted(nsa::Op op, const nsa::Call& call) {
  return {op,
          {call.B, call.S, call.Hq, call.G, call.Dk, call.Dv, call.geometry},
          type_of(call.precision),
          call.cuda ? at::kCUDA : at::kCPU,
          call.packed,
          call.training};
}

std::string refusal(const Description& d, const Wanted& call) {
  if (!d.claims(call.op))
    return fmt::format("{} does not compute {}; it computes {}", d.name, nsa::to_string(call.op), only(d.computes));
  const std::string device = call.device == at::kCUDA ? "cuda" : c10::DeviceTypeName(call.device, /*lower_case=*/true);
  const std::string dtype(wire_name(call.dtype)), layout = call.packed ? "packed" : "batched";
  std::vector<std::string> reasons;
  const auto require = [&](bool good, const std::string& reason) {
    if (!good) reasons.push_back(reason);
  };
  require(lists(d.devices, device), fmt::format("the call is on {}; it computes on {}", device, only(d.devices)));
  require(device != "cuda" || !lists(d.devices, device) || d.cuda, "its torch sees no GPU");
  require(lists(d.dtypes, dtype),
          fmt::format("dtype {}; it takes {}", dtype.empty() ? c10::toString(call.dtype) : dtype, only(d.dtypes)));
  require(call.op == nsa::Op::combine || lists(d.layouts, layout),
          fmt::format("a {} batch; it takes {}", layout, only(d.layouts)));
  require(d.gradients || !call.gradients || call.op == nsa::Op::select, "gradients are needed, and it has none");
  for (std::string& reason : d.limits.broken_by(call.sizes)) reasons.push_back(std::move(reason));
  return reasons.empty() ? "" : fmt::format("{}: {}", d.name, fmt::join(reasons, "; "));
}

}  // namespace suites::implementation
