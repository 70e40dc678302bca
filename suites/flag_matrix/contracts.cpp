// What the attention kernels must never be given. On a GPU each of these is an illegal access, a floating-point trap or
// garbage inside a kernel, and the message comes later, from somewhere else; so each must be refused by name before a
// single operation runs.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/text.hpp"
#include "nsa/call.hpp"
#include "nsa/route.hpp"
#include "suites/codes.hpp"
#include "suites/flag_matrix/checks.hpp"
#include "suites/probes/op_trace.hpp"

namespace suites::flag_checks {

namespace {

using flag_execution::Plan;

// Sound arguments of the three attentions and of all of them: a packed batch of every awkward document, or
// one without documents.
struct Sound {
  nsa::AttendWindowArgs window;
  nsa::AttendCompressedArgs compressed;
  nsa::AttendSelectedArgs selected;
  nsa::AttendArgs attend;
};

class Draw {
 public:
  explicit Draw(const Plan& plan) : plan_(plan), generator_(at::make_generator<at::CPUGeneratorImpl>(plan.seed)) {}
  at::Tensor operator()(at::IntArrayRef shape) {
    return at::randn(shape, generator_, at::kFloat).to(plan_.device, nsa::storage_type(plan_.precision));
  }

 private:
  const Plan& plan_;
  at::Generator generator_;
};

Sound sound(const Plan& plan, bool packed) {
  const nsa::ModelConfig& m = plan.model;
  const std::int64_t S = plan.S, G = m.n_kv_groups;
  const nsa::CuSeqlens cu = packed ? nsa::CuSeqlens(flag_execution::documents_of(S)) : std::nullopt;
  const std::int64_t blocks = nsa::compressed_blocks(m.nsa, cu, S);
  Draw draw(plan);
  const at::Tensor q = draw({1, S, m.n_heads, m.d_k}), k = draw({1, S, G, m.d_k}), v = draw({1, S, G, m.d_k});
  const nsa::Compressed compressed{draw({1, blocks, G, m.d_k}), draw({1, blocks, G, m.d_k})};
  at::Tensor chosen = at::full({1, S, G, m.nsa.n_sel}, -1, at::kInt);
  chosen.select(-1, 0).zero_();  // block 0 of the row's document
  chosen = chosen.to(plan.device);
  nsa::AttendArgs attend{q, compressed, k, v, k, v, at::sigmoid(draw({1, S, G, 3})), m.nsa, cu};
  attend.blocks = chosen;
  return {{q, k, v, m.nsa, cu}, {q, compressed, m.nsa, cu}, {q, k, v, chosen, m.nsa, cu}, attend};
}

// A call that must be refused, and what the refusal must name.
struct Violation {
  std::string name;
  std::vector<std::string> words;
  std::function<void(const nsa::Ops&)> call;
};

// cu_seqlens that break their contract, each on the three attentions and on all of them.
void add_offsets(std::vector<Violation>& all, const Plan& plan) {
  const auto end = static_cast<int>(plan.S);
  struct Bad {
    std::string name;
    at::Tensor value;
    std::vector<std::string> words;
  };
  std::vector<Bad> bad = {
      {"int64", at::tensor({std::int64_t{0}, plan.S}, at::kLong), {"Long"}},
      {"floating", at::tensor({0.F, static_cast<float>(end)}, at::kFloat), {"Float"}},
      {"does not start at 0", at::tensor({1, end}, at::kInt), {"[0] = 1"}},
      {"decreases", at::tensor({0, 9, 4, end}, at::kInt), {"[2] = 4", "[1] = 9"}},
      {"ends before the total", at::tensor({0, 5, end - 1}, at::kInt), {fmt::to_string(end - 1), fmt::to_string(end)}},
      {"ends after the total", at::tensor({0, 5, end + 1}, at::kInt), {fmt::to_string(end + 1), fmt::to_string(end)}},
      {"was never filled", at::full({3}, 0x7f7f7f7f, at::kInt), {fmt::to_string(0x7f7f7f7f)}},
      {"is negative", at::tensor({0, -3, end}, at::kInt), {"-3"}},
      {"one number", at::tensor({0}, at::kInt), {"[1]"}},
      {"two dimensions", at::zeros({2, 2}, at::kInt), {"[2, 2]"}},
      {"undefined", at::Tensor(), {"undefined"}}};
  if (plan.device.is_cuda()) bad.push_back({"on the GPU", at::tensor({0, end}, at::kInt).to(plan.device), {"cuda"}});
  const Sound base = sound(plan, true);
  for (const Bad& b : bad) {
    std::vector<std::string> words = b.words;
    words.emplace_back("cu_seqlens");
    const auto add = [&](const char* op, std::function<void(const nsa::Ops&)> call) {
      all.push_back({fmt::format("{}: cu_seqlens {}", op, b.name), words, std::move(call)});
    };
    add("window", [args = base.window, value = b.value](const nsa::Ops& ops) mutable {
      args.cu_seqlens = value;
      (void)ops.attend_window(args);
    });
    add("compressed", [args = base.compressed, value = b.value](const nsa::Ops& ops) mutable {
      args.cu_seqlens = value;
      (void)ops.attend_compressed(args);
    });
    add("selected", [args = base.selected, value = b.value](const nsa::Ops& ops) mutable {
      args.cu_seqlens = value;
      (void)ops.attend_selected(args);
    });
    add("attend", [args = base.attend, value = b.value](const nsa::Ops& ops) mutable {
      args.cu_seqlens = value;
      (void)ops.attend(args);
    });
  }
}

// Shapes, types, devices and layouts, on the window; the other attentions share its checks (nsa/tests proves each).
void add_tensors(std::vector<Violation>& all, const Plan& plan) {
  const nsa::ModelConfig& m = plan.model;
  const std::int64_t S = plan.S, Hq = m.n_heads, G = m.n_kv_groups, D = m.d_k;
  Draw draw(plan);
  const nsa::AttendWindowArgs base = sound(plan, false).window;
  const auto add = [&](const std::string& name, std::vector<std::string> words, nsa::AttendWindowArgs args) {
    all.push_back(
        {"window: " + name, std::move(words), [args](const nsa::Ops& ops) { (void)ops.attend_window(args); }});
  };
  const auto with = [&](auto change) {
    nsa::AttendWindowArgs args = base;
    change(args);
    return args;
  };
  add("q undefined", {"q", "undefined"}, with([](auto& a) { a.q = at::Tensor(); }));
  add("q sparse", {"q", "dense"}, with([](auto& a) { a.q = a.q.to_sparse(); }));
  add("q of three dimensions", {"q"}, with([](auto& a) { a.q = a.q.squeeze(0); }));
  add("no token", {"q", "empty"}, with([](auto& a) {
        for (at::Tensor* t : {&a.q, &a.k, &a.v}) *t = t->narrow(1, 0, 0);
      }));
  add("head width 0", {"q", "empty"}, with([](auto& a) { a.q = a.q.narrow(3, 0, 0); }));
  add("integers", {"q", "Long"}, with([](auto& a) { a.q = a.q.to(at::kLong); }));
  add("k of another dtype", {"k", "Double"}, with([](auto& a) { a.k = a.k.to(at::kDouble); }));
  add("v of another dtype", {"v", "Double"}, with([](auto& a) { a.v = a.v.to(at::kDouble); }));
  add("k shorter than q", {"k", fmt::to_string(S - 1)}, with([&](auto& a) { a.k = a.k.narrow(1, 0, S - 1); }));
  add("k wider than q", {"k", "Dk"}, with([&](auto& a) { a.k = draw({1, S, G, D + 8}); }));
  add("v of another group count", {"v", "G"}, with([&](auto& a) { a.v = draw({1, S, G + 1, D}); }));
  add("heads no multiple of the groups", {"q", "multiple"}, with([&](auto& a) { a.q = draw({1, S, Hq + 1, D}); }));
  add("window of no token", {"w=0"}, with([](auto& a) { a.geometry.w = 0; }));
  add("a packed batch of two", {"B"}, with([&](auto& a) {
        for (at::Tensor* t : {&a.q, &a.k, &a.v}) *t = at::cat({*t, *t});
        a.cu_seqlens = flag_execution::documents_of(S);
      }));
  if (plan.device.is_cuda()) add("k on the CPU", {"k", "cpu"}, with([](auto& a) { a.k = a.k.cpu(); }));
}

// `attend` computes part by part or in one: whatever it is that only its last part would refuse, nothing runs before.
void add_attend(std::vector<Violation>& all, const Plan& plan) {
  const std::int64_t S = plan.S;
  const nsa::AttendArgs base = sound(plan, false).attend;
  const auto add = [&](const std::string& name, std::vector<std::string> words, auto change) {
    nsa::AttendArgs args = base;
    change(args);
    all.push_back({"attend: " + name, std::move(words), [args](const nsa::Ops& ops) { (void)ops.attend(args); }});
  };
  add("q undefined", {"q", "undefined"}, [](auto& a) { a.q = at::Tensor(); });
  add("compressed values shorter than keys", {"v_cmp"}, [](auto& a) { a.kv.v = a.kv.v.narrow(1, 0, 1); });
  add("k_sel of another dtype", {"k_sel", "Double"}, [](auto& a) { a.k_sel = a.k_sel.to(at::kDouble); });
  add("v_sel of another group count", {"v_sel", "G"}, [](auto& a) { a.v_sel = at::cat({a.v_sel, a.v_sel}, 2); });
  add("k_win shorter than q", {"k_win", fmt::to_string(S - 1)},
      [&](auto& a) { a.k_win = a.k_win.narrow(1, 0, S - 1); });
  add("v_win undefined", {"v_win", "undefined"}, [](auto& a) { a.v_win = at::Tensor(); });
  add("two gates", {"gates", "3"}, [](auto& a) { a.gates = a.gates.narrow(3, 0, 2); });
  add("blocks of int64", {"blocks", "Long"}, [](auto& a) { a.blocks = a.blocks->to(at::kLong); });
  add("blocks of another number", {"blocks", "Int"}, [](auto& a) { a.blocks = a.blocks->narrow(3, 0, 2); });
  if (plan.device.is_cuda()) add("gates on the CPU", {"gates", "cpu"}, [](auto& a) { a.gates = a.gates.cpu(); });
}

// What FlashAttention-2 itself does not serve; only a GPU gets as far as to be refused for it.
void add_flash_limits(std::vector<Violation>& all, const Plan& plan) {
  if (!plan.device.is_cuda()) return;
  const nsa::ModelConfig& m = plan.model;
  const std::int64_t S = plan.S, Hq = m.n_heads, G = m.n_kv_groups;
  Draw draw(plan);
  const auto add = [&](const std::string& name, std::vector<std::string> words, std::int64_t Dk, std::int64_t Dv,
                       at::ScalarType type) {
    const nsa::AttendWindowArgs args{draw({1, S, Hq, Dk}).to(type), draw({1, S, G, Dk}).to(type),
                                     draw({1, S, G, Dv}).to(type), m.nsa, std::nullopt};
    all.push_back(
        {"flash window: " + name, std::move(words), [args](const nsa::Ops& ops) { (void)ops.attend_window(args); }});
  };
  add("head width 12", {"head width 12"}, 12, 12, at::kBFloat16);
  add("head width 264", {"head width 264"}, 264, 264, at::kBFloat16);
  add("Dk and Dv differ", {"d_k 64", "d_v 32"}, 64, 32, at::kBFloat16);
  add("fp32", {"fp32", "bf16"}, 64, 64, at::kFloat);
  add("fp64", {"fp64", "bf16"}, 64, 64, at::kDouble);
}

void check_refused(Context& context, const std::string& backend, const nsa::Ops& ops, const Violation& violation) {
  context.progress();
  std::string refusal, other;
  probes::OpCounts ran;
  {
    const probes::OpTrace trace;
    try {
      violation.call(ops);
    } catch (const nsa::ContractError& error) {
      refusal = base::first_line(error.what());
    } catch (const nsa::Unsupported& error) {
      refusal = base::first_line(error.what());
    } catch (const std::exception& error) {
      other = base::first_line(error.what());
    }
    ran = trace.all();
  }
  std::vector<std::string> lacking;
  for (const std::string& word : violation.words)
    if (refusal.find(word) == std::string::npos) lacking.push_back(word);
  const std::string name = fmt::format("{} refuses {}", backend, violation.name);
  const Json evidence = {{"backend", backend}, {"violation", violation.name},  {"refusal", refusal},
                         {"other", other},     {"must_name", violation.words}, {"operations_before", ran}};
  std::string what = refusal.empty() ? "the call was accepted" : "";
  if (!other.empty()) what = "it failed elsewhere: " + other;
  if (!refusal.empty() && !lacking.empty())
    what = fmt::format("the refusal does not name {}: {}", fmt::join(lacking, ", "), refusal);
  else if (!ran.empty())
    what += fmt::format("; {} ran before it", ran.begin()->first);
  context.expect(name, !refusal.empty() && lacking.empty() && ran.empty(), name + ": " + what,
                 codes::kContractNotEnforced, evidence);
}

// The same arguments without the violation must be served: a product that refuses everything proves nothing.
void check_served(Context& context, const std::string& backend, const nsa::Ops& ops, const Plan& plan) {
  for (const bool packed : {false, true}) {
    const Sound args = sound(plan, packed);
    std::string failure;
    try {
      (void)ops.attend_window(args.window);
      (void)ops.attend_compressed(args.compressed);
      (void)ops.attend_selected(args.selected);
      (void)ops.attend(args.attend);
    } catch (const std::exception& error) {
      failure = base::first_line(error.what());
    }
    context.expect(fmt::format("{} serves sound arguments, {}", backend, packed ? "packed" : "dense"), failure.empty(),
                   fmt::format("{} refused sound arguments: {}", backend, failure), codes::kContractNotEnforced,
                   {{"backend", backend}, {"packed", packed}, {"failure", failure}});
  }
}

// Rows whose last dimension is not dense, and keys that are one head seen several times: served, with the same result.
void check_strides(Context& context, const std::string& backend, const nsa::Ops& ops, const Plan& plan) {
  nsa::AttendWindowArgs dense = sound(plan, false).window;
  dense.k = dense.k.narrow(2, 0, 1).expand_as(dense.k).contiguous();
  nsa::AttendWindowArgs strided = dense;
  strided.q = dense.q.transpose(2, 3).contiguous().transpose(2, 3);
  strided.k = dense.k.narrow(2, 0, 1).expand_as(dense.k);
  strided.v = dense.v.transpose(1, 3).contiguous().transpose(1, 3);
  const auto wide = [&](const nsa::AttendWindowArgs& args) { return ops.attend_window(args).o.to(at::kDouble); };
  const double error = (wide(strided) - wide(dense)).abs().max().item<double>();
  // Another order of additions is all that strides may change: values of size 1.
  const double bound = plan.precision == nsa::Precision::bf16 ? 1.0 / 64 : 1e-5;
  context.expect_at_most(backend + ": strides change nothing", error, bound, "1", codes::kContractNotEnforced,
                         {{"backend", backend}});
}

}  // namespace

void contracts(const Subject& subject, Context& context, const flag_execution::Plan& plan) {
  const at::NoGradGuard no_grad;
  context.phase("capability table");
  capabilities(context, plan);
  const nsa::Call call = nsa::call_of(plan.model, 1, plan.S, plan.precision, plan.device);
  std::vector<Violation> any;
  add_offsets(any, plan);
  add_tensors(any, plan);
  add_attend(any, plan);
  std::size_t calls = 0;
  for (const nsa::Backend backend : nsa::kAllBackends) {
    const std::string name(nsa::to_string(backend));
    context.phase(name);
    const nsa::Ops ops = subject.ops(backend, call);
    std::vector<Violation> violations = any;
    if (backend == nsa::Backend::flash) add_flash_limits(violations, plan);
    for (const Violation& violation : violations) check_refused(context, name, ops, violation);
    calls += violations.size();
    if (backend == nsa::Backend::flash) {
      if (!plan.device.is_cuda()) continue;  // it refuses the CPU as such
    } else if (const std::string why = nsa::refusal(backend, call, nsa::Op::attend_selected); !why.empty()) {
      context.fact(name + ".not_served", why);
      continue;
    }
    check_served(context, name, ops, plan);
    check_strides(context, name, ops, plan);
  }
  context.metric("violated_calls", static_cast<double>(calls), "1");
}

}  // namespace suites::flag_checks
