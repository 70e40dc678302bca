// Times of other people's implementations, from a CSV file: an optional first line "# where they were measured", then
// the header "index,config,Hq,Hkv,Dqk,Dv,implementation,what,mode,S,ms" (columns in any order, others are ignored).
#pragma once

#include <filesystem>
#include <istream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace nsa::bench {

// The file cannot be read or is malformed; says where ("peers.csv:7: ...").
class PeersInvalid : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Peer {
  std::string index;  // what the queries chose: "random", "drift"
  std::string config, implementation, what, mode;
  std::int64_t S = 0;
  double ms = 0;
};

// What our own measurement is compared with. An empty `index` takes rows of any.
struct PeerKey {
  std::string config, what, mode, index;
  std::int64_t S = 0;
};

inline constexpr const char* kDense = "full causal attention";  // `what` of attention that is not sparse at all

class Peers {
 public:
  Peers() = default;
  [[nodiscard]] static Peers read(const std::filesystem::path& file);
  [[nodiscard]] static Peers parse(std::istream& text, const std::string& name);

  [[nodiscard]] const std::string& origin() const { return origin_; }  // the comment, "" without one
  // Whether the comment names this GPU ("one NVIDIA H200, torch 2.11"): times of two GPUs are not compared.
  [[nodiscard]] bool measured_on(const std::string& gpu) const;
  [[nodiscard]] const std::vector<Peer>& rows() const { return rows_; }
  // The fastest implementation of exactly this; nothing when nobody was measured.
  [[nodiscard]] std::optional<Peer> fastest(const PeerKey& key) const;

 private:
  std::string origin_;
  std::vector<Peer> rows_;
};

}  // namespace nsa::bench
