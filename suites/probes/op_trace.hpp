// The witness of what really ran: every ATen operation that the dispatcher executes while a trace lives,
// counted by name. It sees the operations themselves (RecordFunction), so no record that the product keeps of
// itself can deceive it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace suites::probes {

class OpTap;

using OpCounts = std::map<std::string, std::int64_t>;  // "aten::copy_", "aten::add.Tensor" -> times

class OpTrace {
 public:
  OpTrace();  // throws std::logic_error while another trace lives: the process has one
  ~OpTrace();
  OpTrace(const OpTrace&) = delete;
  OpTrace& operator=(const OpTrace&) = delete;

  // While it lives, this thread's operations are counted under `name` (the innermost section wins).
  class Section {
   public:
    explicit Section(std::string name);
    ~Section();
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;

   private:
    std::string outer_;
  };

  // Of all threads, the autograd engine's included; "" holds what ran outside of every section.
  [[nodiscard]] std::map<std::string, OpCounts> by_section() const;
  [[nodiscard]] OpCounts all() const;

 private:
  std::unique_ptr<OpTap> tap_;
};

}  // namespace suites::probes
