#include "suites/distributed/record.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <iterator>
#include <sstream>
#include <stdexcept>

namespace suites::distributed_ranks {

namespace {

double real_at(const Json& line, const char* key) {
  const auto value = reports::as_number(line.at(key));
  if (!value) throw std::runtime_error(fmt::format("'{}' is no number", key));
  return *value;
}

Json to_json(const ParameterSeen& seen) {
  return Json::array({seen.name, seen.bits, reports::number(seen.own_norm), seen.arrivals, seen.finite});
}

ParameterSeen parameter_of(const Json& row) {
  const auto norm = reports::as_number(row.at(2));
  if (!norm) throw std::runtime_error("a parameter's norm is no number");
  return {row.at(0).get<std::string>(), row.at(1).get<std::string>(), *norm, row.at(3).get<int>(),
          row.at(4).get<bool>()};
}

void take(const Json& line, RankRecord& record) {
  if (line.contains("pid")) {
    if (line.at("rank") != record.rank || line.at("size") != record.size)
      throw std::runtime_error(fmt::format("of rank {} of {}, not of rank {} of {}", line.at("rank").dump(),
                                           line.at("size").dump(), record.rank, record.size));
    record.pid = line.at("pid").get<std::int64_t>();
    record.clock_s = real_at(line, "clock_s");
    record.shared_memory_bytes = real_at(line, "shared_memory_bytes");
  }
  if (line.contains("at"))
    record.moments.push_back(line.at("at").get<std::string>());
  else if (line.contains("step"))
    record.steps.push_back(step_of(line));
  else if (line.contains("error"))
    record.error =
        RankError{line.at("error").get<std::string>(), line.at("message").get<std::string>(), line.at("details")};
  else if (line.contains("done")) {
    record.done = line.at("done").get<bool>();
    record.figures = line.at("figures");
  } else {
    throw std::runtime_error("none of the known kinds");
  }
}

}  // namespace

Json to_json(const StepSeen& seen) {
  Json parameters = Json::array();
  for (const ParameterSeen& parameter : seen.parameters) parameters.push_back(to_json(parameter));
  return {{"step", seen.step},
          {"loss", reports::number(seen.loss)},
          {"norm", reports::number(seen.norm)},
          {"lr", reports::number(seen.lr)},
          {"tokens", seen.tokens},
          {"seconds", seen.seconds},
          {"stop", seen.stop},
          {"anomaly", seen.anomaly},
          {"culprit", seen.culprit},
          {"rows", seen.rows},
          {"parameters", parameters},
          {"reduced_elements", seen.reduced_elements},
          {"own_seconds", seen.own_seconds},
          {"reduction_s", seen.reduction_s},
          {"overlapped_s", seen.overlapped_s}};
}

StepSeen step_of(const Json& line) {
  StepSeen seen;
  seen.step = line.at("step").get<std::int64_t>();
  seen.loss = real_at(line, "loss");
  seen.norm = real_at(line, "norm");
  seen.lr = real_at(line, "lr");
  seen.tokens = line.at("tokens").get<std::int64_t>();
  seen.seconds = real_at(line, "seconds");
  seen.stop = line.at("stop").get<std::string>();
  seen.anomaly = line.at("anomaly").get<std::string>();
  seen.culprit = line.at("culprit").get<int>();
  seen.rows = line.at("rows").get<std::vector<std::string>>();
  for (const Json& row : line.at("parameters")) seen.parameters.push_back(parameter_of(row));
  seen.reduced_elements = line.at("reduced_elements").get<std::int64_t>();
  seen.own_seconds = real_at(line, "own_seconds");
  seen.reduction_s = real_at(line, "reduction_s");
  seen.overlapped_s = real_at(line, "overlapped_s");
  return seen;
}

RecordWriter::RecordWriter(const std::filesystem::path& file, int rank, int size)
    : file_(file), stream_(file, std::ios::trunc), rank_(rank), size_(size) {
  if (!stream_) throw std::runtime_error(fmt::format("{}: cannot be written", file.string()));
}

void RecordWriter::line(const Json& line) {
  stream_ << reports::dump(line) << '\n' << std::flush;
  if (!stream_) throw std::runtime_error(fmt::format("{}: cannot be written to", file_.string()));
}

void RecordWriter::launched(double clock_s, double shared_memory_bytes) {
  line({{"at", "launched"},
        {"rank", rank_},
        {"size", size_},
        {"pid", getpid()},
        {"clock_s", clock_s},
        {"shared_memory_bytes", shared_memory_bytes}});
}
void RecordWriter::at(const std::string& moment) { line({{"at", moment}}); }
void RecordWriter::step(const StepSeen& seen) { line(to_json(seen)); }
void RecordWriter::error(const RankError& error) {
  line({{"error", error.kind}, {"message", error.message}, {"details", error.details}});
}
void RecordWriter::done(const Json& figures) { line({{"done", true}, {"figures", figures}}); }

RankRecord read_record(const std::filesystem::path& file, int rank, int size) {
  RankRecord record;
  record.rank = rank;
  record.size = size;
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  std::size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // it was being written
    try {
      take(Json::parse(text.substr(begin, end - begin)), record);
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("{}:{}: {}", file.string(), number, error.what()));
    }
    begin = end + 1;
  }
  return record;
}

}  // namespace suites::distributed_ranks
