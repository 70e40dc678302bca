#include "nsa/train/run/records.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <thread>

#include "base/stamp.hpp"
#include "build_info.hpp"
#include "nsa/train/run/heartbeat.hpp"

namespace nsa::train {

namespace {

using nlohmann::json;

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

json device_record(at::Device device) {
  json record = {
      {"type", device.str()}, {"torch_threads", at::get_num_threads()}, {"cores", std::thread::hardware_concurrency()}};
  if (!device.is_cuda()) return record;
  const cudaDeviceProp* properties = at::cuda::getDeviceProperties(device.index());
  std::string driver;
  std::getline(std::ifstream("/sys/module/nvidia/version") >> std::ws, driver);
  int runtime = 0, supported = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&supported);
  record.update({{"name", properties->name},
                 {"compute_capability", fmt::format("{}.{}", properties->major, properties->minor)},
                 {"bytes", properties->totalGlobalMem},
                 {"driver", driver.empty() ? json(nullptr) : json(driver)},
                 {"driver_supports_cuda", supported},
                 {"cuda_runtime", runtime}});
  return record;
}

json flag_record(const EffectiveFlags& flags) {
  json record = json::object();
  for (const auto& [name, value] : flatten(flags))
    record[name] = {{"value", value}, {"origin", origin_of(flags, name).text}};
  return record;
}

}  // namespace

json start_record(const std::vector<std::string>& arguments, at::Device device, const EffectiveFlags& flags,
                  const Environment& environment) {
  json unknown = json::array();
  for (const auto& flag : unknown_flags(environment))
    unknown.push_back({{"name", flag.name}, {"nearest", flag.nearest}, {"remark", flag.remark}});
  return {{"time", base::timestamp()},
          {"pid", ::getpid()},
          {"host", host_name()},
          {"arguments", arguments},
          {"build",
           {{"id", build_info::kBuildId},
            {"version", build_info::kVersion},
            {"type", build_info::kBuildType},
            {"compiler", build_info::kCompiler}}},
          {"torch", {{"version", TORCH_VERSION}, {"cuda", CUDART_VERSION}}},
          {"device", device_record(device)},
          {"flags", flag_record(flags)},
          {"environment", environment},
          {"unknown_flags", unknown}};
}

std::vector<std::string> descriptions(const std::vector<UnknownFlag>& unknown) {
  std::vector<std::string> all;
  for (const UnknownFlag& flag : unknown)
    all.push_back(fmt::format("{} is no flag of this program{}{}", flag.name,
                              flag.nearest.empty() ? "" : "; did you mean " + flag.nearest + "?",
                              flag.remark.empty() ? "" : ": " + flag.remark));
  return all;
}

std::vector<std::string> changes_since(const json& before, const json& now) {
  std::vector<std::string> changes;
  const auto compare = [&](const char* pointer, const std::string& what) {
    const json::json_pointer at(pointer);
    const json there = before.contains(at) ? before[at] : json(), here = now.contains(at) ? now[at] : json();
    if (there != here)
      changes.push_back(fmt::format("{} was {} and is {} now: results may differ in their last bits", what,
                                    there.dump(), here.dump()));
  };
  compare("/build/id", "the build");
  compare("/torch/version", "torch");
  compare("/device/type", "the device");
  compare("/device/name", "the GPU");
  compare("/device/torch_threads", "the number of threads");
  if (before.contains("ranks")) compare("/ranks/count", "the number of ranks");
  for (const auto& [name, flag] : now.at("flags").items())
    compare(("/flags/" + name + "/value").c_str(), "flag " + name);
  return changes;
}

std::string dtype_report(const LanguageModelImpl& model, const TrainConfig& config) {
  std::map<std::string, std::int64_t> elements;
  std::int64_t all = 0;
  std::string lines;
  for (const auto& parameter : model.named_parameters()) {
    const at::Tensor& value = parameter.value();
    const bool narrow = value.element_size() < 4;
    const std::string dtype = c10::toString(value.scalar_type());
    const std::string state = narrow && config.master_weights ? "Float, with a Float copy" : dtype;
    elements[dtype] += value.numel();
    all += value.numel();
    lines +=
        fmt::format("PARAM {} [{}] {} optimizer {}\n", parameter.key(), fmt::join(value.sizes(), ","), dtype, state);
  }
  std::string text = fmt::format("# DTYPE SUMMARY (elements): {} in all, train.precision {}, train.master_weights {}\n",
                                 all, to_string(config.precision), config.master_weights);
  for (const auto& [dtype, count] : elements)
    text +=
        fmt::format("{} {} {:.2f} %\n", dtype, count, 100.0 * static_cast<double>(count) / static_cast<double>(all));
  return text + lines;
}

}  // namespace nsa::train
