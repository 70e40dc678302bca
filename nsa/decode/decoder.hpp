// Text token by token: prefill of a prompt in one pass, then steps against the caches. Both give the logits that
// LanguageModel::forward gives for the same tokens, within rounding.
//
//   nsa::decode::Decoder decoder(model);
//   const torch::NoGradGuard no_grad;
//   auto logits = decoder.prefill(prompt);                       // [B,P] -> [B,P,vocab]
//   logits = decoder.step(logits.narrow(1, P - 1, 1).argmax(-1));  // [B,1] -> [B,1,vocab]
//
// The model is shared, not copied; its weights, dtype, device and flags must stay while tokens are cached. Not
// thread-safe. Throws ContractError for what it refuses; a pass that throws in the middle leaves the caches unusable,
// which every later call says until reset().
#pragma once

#include <vector>

#include "nsa/decode/step.hpp"
#include "nsa/model/lm.hpp"

namespace nsa::decode {

// Keys that one layer's step read, for each row of the batch and each group.
struct Reads {
  std::int64_t compressed = 0;  // blocks, for selection and attention together
  std::int64_t selected = 0;    // tokens; of our own kernels those that their plan has them read
  std::int64_t window = 0;      // tokens
  [[nodiscard]] std::int64_t total() const { return compressed + selected + window; }
};

struct Options {
  std::int64_t capacity = 256;  // tokens to make room for at once; more come by doubling
  std::int64_t max_tokens = 0;  // refuse to hold more; 0: no limit but memory
  StepOps ops = step_ops();
};

class Decoder {
 public:
  explicit Decoder(LanguageModel model, Options options = {});

  // tokens Long [B,P], P >= 1, into empty caches -> logits [B,P,vocab].
  torch::Tensor prefill(const torch::Tensor& tokens);
  // tokens Long [B,1], with or without a prefill before -> logits [B,1,vocab].
  torch::Tensor step(const torch::Tensor& tokens);
  // The tokens [B,T] by T steps -> logits [B,T,vocab].
  torch::Tensor sequential(const torch::Tensor& tokens);
  void reset();  // forgets all tokens

  [[nodiscard]] std::int64_t length() const { return length_; }             // tokens cached
  [[nodiscard]] std::int64_t bytes() const;                                 // of caches and rotations
  [[nodiscard]] const std::vector<Reads>& reads() const { return reads_; }  // of the last step, a layer each
  [[nodiscard]] const std::vector<LayerCache>& caches() const { return caches_; }
  [[nodiscard]] const LanguageModel& model() const { return model_; }

 private:
  void begin(const char* what, const torch::Tensor& tokens);
  torch::Tensor pass(const torch::Tensor& tokens, bool with_caches);
  // Why attention goes part by part; "" where our own kernels serve the step.
  [[nodiscard]] std::string refusal(const Ops& table, const cuda::DecodeArgs& args) const;
  torch::Tensor attend_in_one(const cuda::DecodeArgs& args, const AttendArgs& shown, Reads& reads,
                              PartRecord& record) const;
  torch::Tensor attend(NsaAttentionImpl& attention, const Ops& table, const Projected& projected, std::size_t layer);
  torch::Tensor rotations(std::int64_t first, std::int64_t count);

  LanguageModel model_;
  Options options_;
  std::vector<LayerCache> caches_;
  std::vector<Reads> reads_;
  torch::Tensor rotations_;
  std::int64_t length_ = 0, batch_ = 0;
  bool broken_ = false;  // a pass began and did not end
};

}  // namespace nsa::decode
