// The store of a group, served by a process that is none of its ranks: the starter. It outlives every rank, so that the
// others can learn of a death; its port is whichever is free, so that two runs do not meet.
#pragma once

#include <memory>
#include <string>

namespace nsa::parallel {

class StoreServer {
 public:
  // On this machine's 127.0.0.1. Throws PortTaken when there is no port. `c10d_speaks`: World's.
  explicit StoreServer(bool c10d_speaks = false);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  [[nodiscard]] int port() const;
  // A rank is gone: "rank 2 was killed by SIGKILL". The others end with PeerDied and this sentence.
  void tell_death(int rank, const std::string& how);

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace nsa::parallel
