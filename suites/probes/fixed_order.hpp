// A device whose sums come in a fixed order, so that two runs can be compared bit for bit.
#pragma once

namespace suites::probes {

// A GPU's sums in a fixed order for as long as this lives (ATen's deterministic algorithms). Memory is not filled: that
// is StaleMemory's business.
class FixedOrder {
 public:
  // What becomes of an operation whose order ATen cannot fix. Its attention fixes its own under `refused` alone, which
  // is what nsa-train asks for with train.deterministic: c10::Error then.
  enum class Unfixed { warned_about, refused };
  explicit FixedOrder(bool wanted = true, Unfixed unfixed = Unfixed::warned_about);
  ~FixedOrder();
  FixedOrder(const FixedOrder&) = delete;
  FixedOrder& operator=(const FixedOrder&) = delete;

 private:
  bool was_, warned_, filled_;
};

}  // namespace suites::probes
