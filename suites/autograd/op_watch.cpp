#include "suites/autograd/op_watch.hpp"

#include <utility>

namespace suites::autograd_cases {

namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

Named inputs_of(const nsa::CompressArgs& a) { return {{"k", a.k}, {"v", a.v}}; }
Named inputs_of(const nsa::AttendCompressedArgs& a) { return {{"q", a.q}, {"k", a.kv.k}, {"v", a.kv.v}}; }
Named inputs_of(const nsa::AttendSelectedArgs& a) { return {{"q", a.q}, {"k", a.k}, {"v", a.v}, {"blocks", a.blocks}}; }
Named inputs_of(const nsa::AttendWindowArgs& a) { return {{"q", a.q}, {"k", a.k}, {"v", a.v}}; }
Named inputs_of(const nsa::CombineArgs& a) {
  return {{"gates", a.gates}, {"o_cmp", a.o_cmp}, {"o_sel", a.o_sel}, {"o_win", a.o_win}};
}
Named inputs_of(const nsa::AttendArgs& a) {
  return {{"q", a.q},         {"k_cmp", a.kv.k},  {"v_cmp", a.kv.v},  {"k_sel", a.k_sel},
          {"v_sel", a.v_sel}, {"k_win", a.k_win}, {"v_win", a.v_win}, {"gates", a.gates}};
}
Named outputs_of(const nsa::Compressed& c) { return {{"k", c.k}, {"v", c.v}}; }
Named outputs_of(const nsa::Attended& a) { return {{"o", a.o}}; }
Named outputs_of(const at::Tensor& o) { return {{"o", o}}; }

struct Watched {
  std::int64_t layer;
  std::string op, name;
  at::Tensor tensor;
  std::int64_t version;  // before the op
  std::int64_t after_op;
};

}  // namespace

struct OpWatch::State {
  std::int64_t layer = -1;
  std::vector<Watched> watched;
  std::vector<Break> breaks;

  template <typename Result, typename Args>
  nsa::OpFunction<Result, Args> watch(const char* op, nsa::OpFunction<Result, Args> inner,
                                      const std::shared_ptr<State>& self) {
    return [op, inner = std::move(inner), self, at_layer = layer](const Args& args) {
      const Named inputs = inputs_of(args);
      bool differentiable = false;
      const std::size_t first = self->watched.size();
      for (const auto& [name, tensor] : inputs) {
        self->watched.push_back({at_layer, op, "input " + name, tensor, tensor._version(), 0});
        differentiable = differentiable || tensor.requires_grad();
      }
      Result result = inner(args);
      for (std::size_t i = first; i < self->watched.size(); ++i) {
        self->watched[i].after_op = self->watched[i].tensor._version();
      }
      for (const auto& [name, tensor] : outputs_of(result)) {
        self->watched.push_back({at_layer, op, "output " + name, tensor, tensor._version(), tensor._version()});
        if (differentiable && !tensor.requires_grad()) self->breaks.push_back({at_layer, op, name});
      }
      return result;
    };
  }
};

OpWatch::OpWatch(nsa::Runtime& runtime) : runtime_(runtime), before_(runtime.ops), state_(std::make_shared<State>()) {
  runtime_.ops = [inner = before_, state = state_](const nsa::Call& call) {
    ++state->layer;  // one call a layer and pass
    nsa::Ops ops = inner(call);
    const auto watch = [&](auto member, const char* op) { ops.replace(member, state->watch(op, ops.*member, state)); };
    watch(&nsa::Ops::compress, "compress");
    if (ops.way == nsa::AttendWay::in_one) {  // as it trains: its parts are nobody's to look at
      watch(&nsa::Ops::attend, "attend");
      return ops;
    }
    watch(&nsa::Ops::attend_compressed, "attend_compressed");
    watch(&nsa::Ops::attend_selected, "attend_selected");
    watch(&nsa::Ops::attend_window, "attend_window");
    watch(&nsa::Ops::combine, "combine");
    return ops;
  };
}

OpWatch::~OpWatch() { runtime_.ops = before_; }

std::vector<OpWatch::Written> OpWatch::written() const {
  std::vector<Written> all;
  for (const Watched& w : state_->watched) {
    const std::int64_t now = w.tensor._version();
    if (now == w.version) continue;
    all.push_back(
        {w.layer, w.op, w.name, w.version, now, w.after_op != w.version ? "by the op itself" : "after the op"});
  }
  return all;
}

std::vector<OpWatch::Break> OpWatch::breaks() const { return state_->breaks; }

}  // namespace suites::autograd_cases
