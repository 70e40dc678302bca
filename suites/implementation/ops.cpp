#include "suites/implementation/ops.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <utility>

#include "suites/implementation/node.hpp"

namespace suites::implementation {

namespace {

using nsa::Op;

at::Tensor lse_of(const Named& outputs) {
  for (const auto& [name, tensor] : outputs)
    if (name == "lse") return tensor;
  return {};
}

// The implementation, for the calls of one table.
struct Asked {
  std::shared_ptr<Client> client;
  nsa::Call planned;

  [[nodiscard]] bool serves(Op op) const {
    if (op == Op::compress && planned.phi != nsa::Phi::avg) return false;
    return refusal(client->describe(), wanted(op, planned)).empty();
  }

  // What is really called: tables are used for more than they were made for.
  void require(Op op, const Request& request) const {
    const auto& inputs = request.inputs;
    const at::Tensor& first = inputs.front().second;  // [B,S,...] in every function
    Wanted now = wanted(op, planned);
    now.sizes.B = first.size(0);
    now.sizes.S = first.size(1);
    now.sizes.geometry = request.geometry;
    now.dtype = (op == Op::combine ? inputs.back().second : first).scalar_type();  // gates are in a type of their own
    now.device = first.device().type();
    now.packed = op == Op::combine ? planned.packed : request.cu_seqlens.has_value();
    now.gradients = at::GradMode::is_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const auto& input) {
                      return input.second.requires_grad();
                    });
    if (const std::string why = refusal(client->describe(), now); !why.empty()) throw nsa::Unsupported(why);
  }

  Named operator()(Op op, Request request) const {
    require(op, request);
    // A token that sees w + 1 tokens there sees the w of here when it is told w - 1.
    if (client->describe().window == "w+1") request.geometry.w -= 1;
    return call(client, std::move(request));
  }
};

nsa::Compressed compress(const Asked& ask, const nsa::CompressArgs& x) {
  check(x);
  if (x.phi_k || x.phi_v) throw nsa::Unsupported("an implementation compresses by the mean; the call has weights");
  const Named out = ask(Op::compress, {"compress", {{"k", x.k}, {"v", x.v}}, x.geometry, x.cu_seqlens, {}});
  return {named(out, "k_cmp"), named(out, "v_cmp")};
}

nsa::Attended attend_compressed(const Asked& ask, const nsa::AttendCompressedArgs& x) {
  check(x);
  const Named out =
      ask(Op::attend_compressed,
          {"attend_compressed", {{"q", x.q}, {"k_cmp", x.kv.k}, {"v_cmp", x.kv.v}}, x.geometry, x.cu_seqlens, {}});
  return {named(out, "o"), lse_of(out)};
}

at::Tensor select(const Asked& ask, const nsa::SelectArgs& x) {
  check(x);
  const Named out =
      ask(Op::select, {"select", {{"q", x.q.detach()}, {"k_cmp", x.k_cmp.detach()}}, x.geometry, x.cu_seqlens, {}});
  return named(out, "blocks");
}

nsa::Attended attend_selected(const Asked& ask, const nsa::AttendSelectedArgs& x) {
  check(x);
  const Named out = ask(
      Op::attend_selected,
      {"attend_selected", {{"q", x.q}, {"k", x.k}, {"v", x.v}, {"blocks", x.blocks}}, x.geometry, x.cu_seqlens, {}});
  return {named(out, "o"), lse_of(out)};
}

nsa::Attended attend_window(const Asked& ask, const nsa::AttendWindowArgs& x) {
  check(x);
  const Named out =
      ask(Op::attend_window, {"attend_window", {{"q", x.q}, {"k", x.k}, {"v", x.v}}, x.geometry, x.cu_seqlens, {}});
  return {named(out, "o"), lse_of(out)};
}

at::Tensor combine(const Asked& ask, const nsa::CombineArgs& x) {
  check(x);
  const Named inputs = {{"gates", x.gates}, {"o_cmp", x.o_cmp}, {"o_sel", x.o_sel}, {"o_win", x.o_win}};
  return named(ask(Op::combine, {"combine", inputs, ask.planned.geometry, std::nullopt, {}}), "o");
}

at::Tensor attend(const Asked& ask, const nsa::AttendArgs& x) {
  check(x);
  Named inputs = {{"q", x.q},         {"k_cmp", x.kv.k},  {"v_cmp", x.kv.v},  {"k_sel", x.k_sel},
                  {"v_sel", x.v_sel}, {"k_win", x.k_win}, {"v_win", x.v_win}, {"gates", x.gates}};
  if (x.blocks) inputs.emplace_back("blocks", *x.blocks);
  return named(ask(Op::attend, {"attend", std::move(inputs), x.geometry, x.cu_seqlens, {}}), "o");
}

at::Tensor attention(const Asked& ask, const nsa::AttendArgs& x) {
  check(x);
  const Named inputs = {{"q", x.q}, {"k", x.k_sel}, {"v", x.v_sel}, {"gates", x.gates}};
  return named(ask(Op::attend, {"attention", inputs, x.geometry, x.cu_seqlens, {}}), "o");
}

bool is_attention(const nsa::AttendArgs& x) {
  return !x.blocks && x.k_sel.is_same(x.k_win) && x.v_sel.is_same(x.v_win);
}

// In one, where the implementation computes what is asked; else as the table did until now.
nsa::Ops with_attend(const nsa::Ops& ops, const Asked& ask) {
  const Description& d = ask.client->describe();
  const bool any = d.computes_function("attend"), shared = d.computes_function("attention");
  return ops.in_one([ask, any, shared, otherwise = ops.attend](const nsa::AttendArgs& x) {
    if (x.only != nsa::ForcedBranch::none) return otherwise(x);
    if (shared && is_attention(x)) return attention(ask, x);
    return any ? attend(ask, x) : otherwise(x);
  });
}

}  // namespace

nsa::Ops with_implementation(nsa::Ops ops, const std::shared_ptr<Client>& client, const nsa::Call& call) {
  const Asked ask{client, call};
  const auto put = [&](Op op, auto member, auto function) {
    if (ask.serves(op)) ops.replace(member, [ask, function](const auto& x) { return function(ask, x); });
  };
  put(Op::compress, &nsa::Ops::compress, compress);
  put(Op::attend_compressed, &nsa::Ops::attend_compressed, attend_compressed);
  put(Op::select, &nsa::Ops::select, select);
  put(Op::attend_selected, &nsa::Ops::attend_selected, attend_selected);
  put(Op::attend_window, &nsa::Ops::attend_window, attend_window);
  put(Op::combine, &nsa::Ops::combine, combine);
  return ask.serves(Op::attend) ? with_attend(ops, ask) : ops;
}

}  // namespace suites::implementation
