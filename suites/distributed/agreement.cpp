#include "suites/distributed/agreement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/statistics.hpp"
#include "suites/codes.hpp"

namespace suites::distributed_ranks {

namespace {

std::size_t common_steps(const Records& records) {
  std::size_t steps = records.empty() ? 0 : records.front().steps.size();
  for (const RankRecord& record : records) steps = std::min(steps, record.steps.size());
  return steps;
}

std::vector<int> ranks_of(const Records& records, const std::vector<int>& places) {
  std::vector<int> ranks;
  ranks.reserve(places.size());
  for (const int place : places) ranks.push_back(records[static_cast<std::size_t>(place)].rank);
  return ranks;
}

// The values of all ranks, by rank, for the evidence.
Json by_rank(const Records& records, const std::vector<std::string>& values) {
  Json all = Json::object();
  for (std::size_t i = 0; i < records.size(); ++i) all[std::to_string(records[i].rank)] = values[i];
  return all;
}

template <typename Value>
std::vector<std::string> each(const Records& records, Value value) {
  std::vector<std::string> all;
  for (const RankRecord& record : records) all.push_back(value(record));
  return all;
}

std::string bits_of(double value) { return fmt::format("{:a}", value); }

}  // namespace

std::vector<int> odd_ones(const std::vector<std::string>& values) {
  std::map<std::string, int> times;
  for (const std::string& value : values) ++times[value];
  std::string usual = values.empty() ? "" : values.front();
  for (const auto& [value, count] : times)
    if (count > times[usual]) usual = value;
  std::vector<int> odd;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != usual) odd.push_back(static_cast<int>(i));
  return odd;
}

std::string ranks_in_words(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  const std::vector<int> first(ranks.begin(), ranks.end() - 1);
  return fmt::format("ranks {} and {}", fmt::join(first, ", "), ranks.back());
}

Disagreements parameters_agree(const Records& records) {
  const auto counts = each(records, [](const RankRecord& r) { return std::to_string(r.steps.size()); });
  for (std::size_t s = 0; s < common_steps(records); ++s) {
    const auto names = each(records, [&](const RankRecord& r) {
      std::string all;
      for (const ParameterSeen& parameter : r.steps[s].parameters) all += parameter.name + " ";
      return all;
    });
    if (const auto odd = odd_ones(names); !odd.empty() || names.front().empty())
      return {{codes::kRanksDrift,
               fmt::format("step {}: {} {} other parameters than the others, or none", s,
                           ranks_in_words(ranks_of(records, odd)), odd.size() == 1 ? "has" : "have"),
               {{"step", s}, {"ranks", ranks_of(records, odd)}, {"parameters", by_rank(records, names)}}}};
    std::size_t differ = 0;
    Disagreements first;
    for (std::size_t p = 0; p < records.front().steps[s].parameters.size(); ++p) {
      const auto bits = each(records, [&](const RankRecord& r) { return r.steps[s].parameters[p].bits; });
      const auto odd = odd_ones(bits);
      if (odd.empty()) continue;
      const std::string& name = records.front().steps[s].parameters[p].name;
      if (++differ == 1)
        first = {
            {codes::kRanksDrift,
             fmt::format("after step {} {} of {} has other bits than the others' (the first parameter that differs)", s,
                         name, ranks_in_words(ranks_of(records, odd))),
             {{"step", s}, {"ranks", ranks_of(records, odd)}, {"parameter", name}, {"bits", by_rank(records, bits)}}}};
    }
    if (differ == 0) continue;
    first.front().evidence["parameters_that_differ"] = differ;
    return first;
  }
  if (const auto odd = odd_ones(counts); !odd.empty() || counts.empty() || counts.front() == "0")
    return {{codes::kRanksDrift,
             fmt::format("the ranks made other numbers of steps, or none: {}", fmt::join(counts, ", ")),
             {{"ranks", ranks_of(records, odd)}, {"steps", by_rank(records, counts)}}}};
  return {};
}

Disagreements figures_agree(const Records& records) {
  for (std::size_t s = 0; s < common_steps(records); ++s) {
    const auto look = [&](const char* what, std::string_view code, auto value) -> Disagreements {
      const auto values = each(records, [&](const RankRecord& r) { return bits_of(value(r.steps[s])); });
      const auto odd = odd_ones(values);
      if (odd.empty()) return {};
      return {
          {code,
           fmt::format(
               "step {}: {} {} another {} than the others: {}", s, ranks_in_words(ranks_of(records, odd)),
               odd.size() == 1 ? "tells" : "tell", what,
               fmt::join(each(records, [&](const RankRecord& r) { return fmt::format("{:.9g}", value(r.steps[s])); }),
                         ", ")),
           {{"step", s}, {"what", what}, {"ranks", ranks_of(records, odd)}, {"values", by_rank(records, values)}}}};
    };
    Disagreements all = look("loss", codes::kRankLoss, [](const StepSeen& x) { return x.loss; });
    for (Disagreements more :
         {look("norm", codes::kRankNorm, [](const StepSeen& x) { return x.norm; }),
          look("learning rate", codes::kRankUpdate, [](const StepSeen& x) { return x.lr; }),
          look("number of tokens", codes::kRankLoss, [](const StepSeen& x) { return static_cast<double>(x.tokens); })})
      all.insert(all.end(), more.begin(), more.end());
    if (!all.empty()) return all;
  }
  return {};
}

Disagreements rows_complete(const Records& records, const RankRecord& wanted) {
  for (std::size_t s = 0; s < std::min(common_steps(records), wanted.steps.size()); ++s) {
    // A step that stops for a value that is not finite is computed again, to find whose it was.
    if (records.front().steps[s].stop != "none") continue;
    std::map<std::string, int> left;
    for (const std::string& row : wanted.steps[s].rows) ++left[row];
    if (left.empty()) return {{codes::kRankRows, fmt::format("step {}: no row was seen in one process", s)}};
    std::set<int> guilty;
    std::vector<std::string> twice, foreign, missing;
    for (const RankRecord& record : records)
      for (const std::string& row : record.steps[s].rows) {
        const auto known = left.find(row);
        if (known != left.end() && known->second-- > 0) continue;
        (known == left.end() ? foreign : twice).push_back(row);
        guilty.insert(record.rank);
      }
    for (const auto& [row, count] : left)
      for (int i = 0; i < count; ++i) missing.push_back(row);
    if (twice.empty() && foreign.empty() && missing.empty()) continue;
    Json shares = Json::object();
    for (const RankRecord& record : records) shares[std::to_string(record.rank)] = record.steps[s].rows;
    const std::vector<int> ranks(guilty.begin(), guilty.end());
    const std::string who = ranks.empty() ? "" : ", " + ranks_in_words(ranks) + " first";
    return {{foreign.empty() ? codes::kRankRows : codes::kRankData,
             fmt::format("step {}: of the batch's {} rows {} are read by nobody, {} twice, and {} are no rows of it{}",
                         s, wanted.steps[s].rows.size(), missing.size(), twice.size(), foreign.size(), who),
             {{"step", s},
              {"ranks", ranks},
              {"missing", missing},
              {"twice", twice},
              {"foreign", foreign},
              {"rows", shares}}}};
  }
  return {};
}

Disagreements no_parameter_skipped(const Records& records) {
  for (std::size_t s = 0; s < common_steps(records); ++s)
    for (std::size_t p = 0; p < records.front().steps[s].parameters.size(); ++p) {
      std::vector<int> without, with;
      for (const RankRecord& record : records) {
        if (p >= record.steps[s].parameters.size()) return {};  // parameters_agree() tells it
        if (record.steps[s].rows.empty()) continue;
        (record.steps[s].parameters[p].arrivals == 0 ? without : with).push_back(record.rank);
      }
      if (without.empty() || with.empty()) continue;
      const std::string& name = records.front().steps[s].parameters[p].name;
      return {{codes::kRankSkipsParameter,
               fmt::format("step {}: no gradient of {} arrives on {}, one does on {}", s, name, ranks_in_words(without),
                           ranks_in_words(with)),
               {{"step", s}, {"ranks", without}, {"parameter", name}}}};
    }
  return {};
}

Disagreements finite_everywhere(const Records& records) {
  for (std::size_t s = 0; s < common_steps(records); ++s) {
    std::vector<int> ill;
    std::string parameter;
    for (const RankRecord& record : records)
      for (const ParameterSeen& seen : record.steps[s].parameters) {
        if (seen.finite) continue;
        if (ill.empty()) parameter = seen.name;
        ill.push_back(record.rank);
        break;
      }
    const StepSeen& told = records.front().steps[s];
    const int culprit = told.culprit;
    if (ill.empty() && told.stop.starts_with("nonfinite"))
      return {{codes::kRankNotFinite,
               fmt::format("step {} stopped ({}: {}), and each rank's own share is finite", s, told.stop, told.anomaly),
               {{"step", s}, {"ranks", Json::array()}, {"told", culprit}}}};
    if (ill.empty() || ill.size() == records.size()) continue;
    const Json evidence = {{"step", s}, {"ranks", ill}, {"parameter", parameter}, {"told", culprit}};
    Disagreements found = {{codes::kRankNotFinite,
                            fmt::format("step {}: the gradient of {} is not finite on {} and finite elsewhere", s,
                                        parameter, ranks_in_words(ill)),
                            evidence}};
    if (std::find(ill.begin(), ill.end(), culprit) == ill.end())
      found.push_back({codes::kRankNotTold,
                       fmt::format("step {}: the stop names rank {} for a value that is not finite on {}", s, culprit,
                                   ranks_in_words(ill)),
                       evidence});
    return found;
  }
  return {};
}

Disagreements clocks_agree(const Records& records, double seconds) {
  std::vector<double> clocks;
  for (const RankRecord& record : records) clocks.push_back(record.clock_s);
  const double usual = records.size() > 2 ? base::median(clocks) : clocks.empty() ? 0 : clocks.front();
  for (const RankRecord& record : records) {
    const double off = record.clock_s - usual;
    if (std::abs(off) <= seconds) continue;
    return {{codes::kRankClock,
             fmt::format("the clock of rank {} is {:.1f} s {} those of the others; {} s are allowed", record.rank,
                         std::abs(off), off > 0 ? "ahead of" : "behind", seconds),
             {{"ranks", Json::array({record.rank})}, {"off_s", reports::number(off)}}}};
  }
  return {};
}

Disagreements reduced_once(const Records& records, std::int64_t elements) {
  for (const RankRecord& record : records)
    for (const StepSeen& step : record.steps) {
      if (step.stop != "none" || step.reduced_elements == elements) continue;
      return {{codes::kRankReductions,
               fmt::format("step {}: rank {} took part in reducing {} elements of gradients; the model has {}",
                           step.step, record.rank, step.reduced_elements, elements),
               {{"step", step.step},
                {"ranks", Json::array({record.rank})},
                {"reduced", step.reduced_elements},
                {"elements", elements}}}};
    }
  return {};
}

Disagreements losses_agree(const RankRecord& record, const RankRecord& wanted, double relative, std::string_view code) {
  const std::size_t steps = std::min(record.steps.size(), wanted.steps.size());
  for (std::size_t s = 0; s < steps; ++s) {
    const double loss = record.steps[s].loss, right = wanted.steps[s].loss;
    if (std::abs(loss - right) <= relative * std::abs(right)) continue;
    const double factor = loss / right;
    Json evidence = {{"step", s},
                     {"loss", reports::number(loss)},
                     {"wanted", reports::number(right)},
                     {"bound", relative},
                     {"ranks", Json::array({record.rank})}};
    if (std::abs(factor - record.size) <= relative * record.size)
      evidence["as_if"] = "the loss were multiplied by the number of ranks";
    if (std::abs(factor * record.size - 1) <= relative)
      evidence["as_if"] = "the loss were divided by the number of ranks once too often";
    return {
        {code,
         fmt::format("step {}: {} ranks tell a loss of {:.9g}, one tells {:.9g}: they differ by {:.2g} of it, {:.2g} "
                     "is allowed",
                     s, record.size, loss, right, std::abs(factor - 1), relative),
         std::move(evidence)}};
  }
  if (record.steps.size() != wanted.steps.size() || steps == 0)
    return {{code,
             fmt::format("{} ranks made {} steps, one made {}", record.size, record.steps.size(), wanted.steps.size()),
             {{"steps", record.steps.size()}, {"wanted_steps", wanted.steps.size()}}}};
  return {};
}

Straggler straggler(const Records& records) {
  std::vector<double> own;
  for (const RankRecord& record : records) {
    std::vector<double> steps;
    for (std::size_t s = 1; s < record.steps.size(); ++s) steps.push_back(record.steps[s].own_seconds);
    own.push_back(base::median(steps));
  }
  const auto slowest = std::max_element(own.begin(), own.end());
  if (slowest == own.end()) return {0, std::nan(""), std::nan("")};
  const auto place = slowest - own.begin();
  std::vector<double> others = own;
  others.erase(others.begin() + place);
  return {records[static_cast<std::size_t>(place)].rank, *slowest, base::median(others)};
}

}  // namespace suites::distributed_ranks
