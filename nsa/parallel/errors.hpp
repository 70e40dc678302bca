// How processes that train together can fail one another. what() is one sentence that names ranks, and for a
// collective its sequence number and name.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace nsa::parallel {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, std::vector<int> culprits = {})
      : std::runtime_error(what), ranks(std::move(culprits)) {}
  std::vector<int> ranks;  // whose fault it is, as far as that is known
};

// Before the group stands.
class Unreachable : public Error {  // the store
  using Error::Error;
};
class PortTaken : public Error {  // rank 0 cannot serve the store there
  using Error::Error;
};
class RankAbsent : public Error {  // did not arrive within the timeout
  using Error::Error;
};
class RankTwice : public Error {  // two processes say that they are one rank
  using Error::Error;
};
class NotBuilt : public Error {  // this build has no backend for this device, or the machine lacks what it needs
  using Error::Error;
};

// The ranks do not do the same: facts, signature of a collective, weights.
class Disagreement : public Error {
 public:
  Disagreement(const std::string& what, std::vector<int> culprits, std::string on_what)
      : Error(what, std::move(culprits)), subject(std::move(on_what)) {}
  std::string subject;  // the fact; "collective"; the parameter
};

// The same tensors, but other bits in them.
class WeightsDiffer : public Disagreement {
  using Disagreement::Disagreement;
};

// Of a collective that did not end in time.
class Timeout : public Error {
 public:
  Timeout(const std::string& what, std::vector<int> culprits, std::uint64_t number, std::string of)
      : Error(what, std::move(culprits)), sequence(number), name(std::move(of)) {}
  std::uint64_t sequence;
  std::string name;
};

class PeerDied : public Error {  // a process is gone, or ended with an error of its own
  using Error::Error;
};

}  // namespace nsa::parallel
