// Smaller sizes with the same failure: halving towards the smallest, one change after another, keeping what still fails
// in the same way. Pure: what a try is, and how it ends, is the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace harness {

struct Size {
  std::string key;
  std::int64_t smallest = 1;
  bool list = false;
  std::vector<std::int64_t> value;  // one element where it is no list
  friend bool operator==(const Size&, const Size&) = default;
};
[[nodiscard]] std::string to_string(const Size& size);  // as `--set` takes its value: "512", "[128, 512]"

enum class Tried {
  same,     // it fails in the same way: kept
  other,    // it passes, or fails in another way
  refused,  // sizes that do not go together: nothing was run
  stop      // no more tries: the limit, an interrupt
};

class Minimiser {
 public:
  // `change` says in words what is new: "nsa.w 512 -> 256".
  using Try = std::function<Tried(const std::vector<Size>& sizes, const std::string& change)>;
  Minimiser(std::vector<Size> start, Try attempt) : best_(std::move(start)), attempt_(std::move(attempt)) {}

  // The smallest that was found. No combination is tried twice.
  std::vector<Size> run();
  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  bool attempt(std::vector<Size> sizes, const std::string& change);
  bool halve(const std::string& what, const std::function<bool(const Size&)>& which);
  bool drop_elements(std::size_t size);
  bool shrink(std::size_t size, std::size_t element);
  bool set(std::size_t size, std::size_t element, std::int64_t value);

  std::vector<Size> best_;
  Try attempt_;
  std::set<std::string> seen_;
  bool stopped_ = false;
  bool bisect_ = true;  // in the first round; later ones do so where the half was good
};

}  // namespace harness
