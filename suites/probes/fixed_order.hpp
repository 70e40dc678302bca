// A device whose sums come in a fixed order, so that two runs can be compared bit for bit.
#pragma once

namespace suites::probes {

// A GPU's sums in a fixed order for as long as this lives (ATen's deterministic algorithms); what cannot be fixed is
// warned about, not refused. Memory is not filled: that is StaleMemory's business.
class FixedOrder {
 public:
  explicit FixedOrder(bool wanted = true);
  ~FixedOrder();
  FixedOrder(const FixedOrder&) = delete;
  FixedOrder& operator=(const FixedOrder&) = delete;

 private:
  bool was_, warned_, filled_;
};

}  // namespace suites::probes
