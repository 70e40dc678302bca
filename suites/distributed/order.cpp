#include "suites/distributed/order.hpp"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace suites::distributed_ranks {

using reports::Json;

std::filesystem::path Order::record_of(int rank) const { return folder / fmt::format("rank_{}.jsonl", rank); }
std::filesystem::path Order::tensors_of(int rank) const { return folder / fmt::format("rank_{}.safetensors", rank); }
std::filesystem::path Order::output_of(int rank) const { return folder / fmt::format("rank_{}.log", rank); }

void write_order(const Order& order) {
  std::filesystem::create_directories(order.folder);
  const Json all = {{"config", order.config},
                    {"device", order.device},
                    {"timeout_s", order.timeout_s},
                    {"check_always", order.check_always},
                    {"keep_first_step", order.keep_first_step},
                    {"resume_from", order.resume_from.string()},
                    {"save_to", order.save_to.string()},
                    {"stop_after", order.stop_after},
                    {"reduce_elements", order.reduce_elements},
                    {"threads", order.threads},
                    {"planted", order.planted},
                    {"run_folder", order.run_folder.string()},
                    {"run_id", order.run_id}};
  std::ofstream stream(order.file());
  stream << reports::dump(all, 1) << '\n' << std::flush;
  if (!stream) throw std::runtime_error(fmt::format("{}: cannot be written", order.file().string()));
}

Order read_order(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) throw std::runtime_error(fmt::format("{}: cannot be read", file.string()));
  try {
    const Json all = Json::parse(std::string{std::istreambuf_iterator<char>(stream), {}});
    Order order;
    order.folder = file.parent_path();
    order.config = all.at("config").get<std::map<std::string, std::string>>();
    order.device = all.at("device").get<std::string>();
    order.timeout_s = all.at("timeout_s").get<double>();
    order.check_always = all.at("check_always").get<bool>();
    order.keep_first_step = all.at("keep_first_step").get<bool>();
    order.resume_from = all.at("resume_from").get<std::string>();
    order.save_to = all.at("save_to").get<std::string>();
    order.stop_after = all.at("stop_after").get<std::int64_t>();
    order.reduce_elements = all.at("reduce_elements").get<std::vector<std::int64_t>>();
    order.threads = all.at("threads").get<int>();
    order.planted = all.at("planted").get<std::vector<std::string>>();
    order.run_folder = all.at("run_folder").get<std::string>();
    order.run_id = all.at("run_id").get<std::string>();
    return order;
  } catch (const reports::Json::exception& error) {
    throw std::runtime_error(fmt::format("{}: {}", file.string(), error.what()));
  }
}

}  // namespace suites::distributed_ranks
