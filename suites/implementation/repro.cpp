#include "suites/implementation/repro.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numbers>
#include <stdexcept>

#include "harness/repro.hpp"
#include "harness/suite.hpp"
#include "nsa/flags.hpp"
#include "nsa/reference/reference.hpp"
#include "suites/implementation/arena.hpp"

namespace suites::implementation {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostPairs = std::int64_t{1} << 26;  // of heads and two tokens: 512 MiB each time in fp64

at::ScalarType storage_of(const Request& request) {
  for (const auto& [name, tensor] : request.inputs)
    if (name != "gates" && tensor.is_floating_point()) return tensor.scalar_type();
  throw ImplementationError("request", request.function + ": no input is floating");
}

std::int64_t pairs_of(const Request& request) {
  for (const auto& [name, q] : request.inputs)
    if (name == "q") return q.size(0) * q.size(2) * q.size(1) * q.size(1);
  return 0;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The inputs in fp64; those that gradients are wanted of are leaves.
Named in_fp64(const Request& request, bool gradients) {
  Named inputs = request.inputs;
  for (auto& [name, tensor] : inputs)
    if (tensor.is_floating_point())
      tensor = tensor.detach()
                   .to(at::kDouble, /*non_blocking=*/false, /*copy=*/true)
                   .requires_grad_(gradients && contains(request.gradients, name));
  return inputs;
}

// By the reference, under the names of the function's outputs.
Named outputs_by_reference(const Request& request, const Named& inputs, const nsa::Geometry& g) {
  const nsa::Ops ops = nsa::reference::ops();
  const auto& documents = request.cu_seqlens;
  const auto x = [&](const char* name) { return named(inputs, name); };
  const auto both = [](const nsa::Attended& attended) { return Named{{"o", attended.o}, {"lse", attended.lse}}; };
  const std::string& function = request.function;
  if (function == "compress") {
    const nsa::Compressed c = ops.compress({x("k"), x("v"), g, documents, {}, {}});
    return {{"k_cmp", c.k}, {"v_cmp", c.v}};
  }
  if (function == "attend_compressed")
    return both(ops.attend_compressed({x("q"), {x("k_cmp"), x("v_cmp")}, g, documents}));
  if (function == "select") return {{"blocks", ops.select({x("q"), x("k_cmp"), g, documents})}};
  if (function == "attend_selected")
    return both(ops.attend_selected({x("q"), x("k"), x("v"), x("blocks"), g, documents}));
  if (function == "attend_window") return both(ops.attend_window({x("q"), x("k"), x("v"), g, documents}));
  if (function == "combine") return {{"o", ops.combine({x("gates"), x("o_cmp"), x("o_sel"), x("o_win")})}};
  if (function == "attention") {  // one K and V for every branch
    const nsa::Compressed c = ops.compress({x("k"), x("v"), g, documents, {}, {}});
    return {{"o", ops.attend({x("q"), c, x("k"), x("v"), x("k"), x("v"), x("gates"), g, documents})}};
  }
  nsa::AttendArgs args{
      x("q"), {x("k_cmp"), x("v_cmp")}, x("k_sel"), x("v_sel"), x("k_win"), x("v_win"), x("gates"), g, documents};
  for (const auto& [name, tensor] : inputs)
    if (name == "blocks") args.blocks = tensor;
  return {{"o", ops.attend(args)}};
}

void add_gradients(Named& expected, const Made& call, const Named& inputs, const Named& outputs) {
  std::vector<at::Tensor> carriers, cotangents, wanted;
  for (const auto& [name, cotangent] : call.cotangents) {
    if (!named(outputs, name).requires_grad()) continue;
    carriers.push_back(named(outputs, name));
    cotangents.push_back(cotangent.to(carriers.back().scalar_type()));
  }
  if (carriers.empty()) return;
  const auto& names = call.request->gradients;
  for (const std::string& name : names) wanted.push_back(named(inputs, name));
  const auto found = torch::autograd::grad(carriers, wanted, cotangents, /*retain_graph=*/false,
                                           /*create_graph=*/false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < names.size(); ++i)
    expected.emplace_back("gradient of " + names[i], found[i].defined() ? found[i] : at::zeros_like(wanted[i]));
}

std::int64_t bytes_of(const Named& tensors) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors)
    if (tensor.defined()) bytes += tensor.numel() * static_cast<std::int64_t>(tensor.itemsize());
  return bytes;
}

// A convenience of the script: it says something without it too.
Named expected_or_nothing(const Made& call, const Description& description) {
  try {
    return expected_of(call, description);
  } catch (const std::exception&) {  // no memory; inputs that the reference refuses
    return {};
  }
}

// A folder of the run's own. A link would lead to what is somebody else's.
fs::path made_folder(const fs::path& run_folder, const fs::path& relative) {
  fs::path folder = run_folder;
  for (const fs::path& part : relative) {
    folder /= part;
    if (fs::is_symlink(fs::symlink_status(folder)))
      throw std::runtime_error(fmt::format("{} is a link", folder.string()));
    fs::create_directory(folder);
  }
  return folder;
}

// With the variables that adapters read.
std::string command_for(const std::string& python, const fs::path& script) {
  std::string command;
  for (const auto& [name, value] : nsa::read_environment())
    if (name.starts_with("NSA_ADAPTER_")) command += fmt::format("{}={} ", name, harness::shell_quote(value));
  return fmt::format("{}{} {}", command, harness::shell_quote(python), harness::shell_quote(script.string()));
}

}  // namespace

std::string words(const Made& call) {
  const Request& request = *call.request;
  std::vector<std::string> arguments;
  for (const auto& [name, tensor] : request.inputs)
    arguments.push_back(
        fmt::format("{} [{}] {}", name, fmt::join(tensor.sizes(), ", "), wire_name(tensor.scalar_type())));
  if (request.cu_seqlens) arguments.push_back(fmt::format("{} documents", request.cu_seqlens->numel() - 1));
  if (request.function != "combine") {
    const nsa::Geometry& g = request.geometry;
    arguments.push_back(fmt::format("l = {}, d = {}, l_sel = {}, n_sel = {}, w = {}", g.l, g.d, g.l_sel, g.n_sel, g.w));
  }
  return fmt::format("{}({}){}", request.function, fmt::join(arguments, ", "),
                     call.cotangents.empty() ? "" : " and its gradients");
}

Named expected_of(const Made& call, const Description& description) {
  const Request& request = *call.request;
  if (!call.answered || pairs_of(request) > kMostPairs) return {};
  nsa::Geometry geometry = request.geometry;
  if (description.window == "w+1") geometry.w += 1;  // ops.cpp has told it one less
  const bool gradients = !call.cotangents.empty();
  const at::AutoGradMode mode(gradients);
  const Named inputs = in_fp64(request, gradients), outputs = outputs_by_reference(request, inputs, geometry);
  Named expected = outputs;
  if (gradients) add_gradients(expected, call, inputs, outputs);
  const at::ScalarType type = nsa::accumulation_type(storage_of(request));
  for (auto& [name, tensor] : expected) {
    if (name == "lse") {
      if (description.lse == LseBase::none) tensor.reset();
      if (description.lse == LseBase::two) tensor = tensor / std::numbers::ln2;
    }
    if (tensor.defined() && tensor.is_floating_point()) tensor = tensor.detach().to(type);
  }
  return expected;
}

Json write_repro(Client& client, const fs::path& run_folder, const std::string& case_id) {
  const std::optional<Made> call = client.last_call();
  if (!call) throw std::runtime_error("nothing was called");
  if (!call->as_it_was()) throw std::runtime_error("the inputs of the last call were written to since");
  const std::int64_t bytes = bytes_of(call->request->inputs) + bytes_of(call->cotangents);
  if (bytes > kMostSaved)
    return {{"not_written", fmt::format("its inputs have {} MiB, more than {}", bytes >> 20, kMostSaved >> 20)},
            {"call", words(*call)}};
  const Description& description = client.describe();
  Named expected = expected_or_nothing(*call, description);
  if (bytes + bytes_of(expected) > kMostSaved) expected.clear();
  const fs::path folder = fs::path("artifacts") / harness::case_slug(case_id), script = folder / "repro.py";
  const std::string title =
      fmt::format("{}: {}, as {} called it. It needs torch, the adapter, and inputs.pt beside it.", description.name,
                  words(*call), case_id);
  client.save(*call, expected, made_folder(fs::absolute(run_folder), folder), title);
  return {{"script", script.string()},
          {"command", command_for(description.executable, fs::absolute(run_folder) / script)},
          {"call", words(*call)}};
}

}  // namespace suites::implementation
