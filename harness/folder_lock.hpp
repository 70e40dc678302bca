// One process at a time in a run's folder, however that process ends. A run holds the lock from its first file to its
// last, `report` while it writes. The file `.run.lock` stays in the folder: removing it would let two processes hold
// locks on two files of the same name.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "harness/process.hpp"

namespace harness {

class FolderLock {
 public:
  static constexpr const char* kName = ".run.lock";

  // Who holds the lock of `folder` now ("run X, process N on HOST"); nullopt: nobody. Takes and changes nothing.
  [[nodiscard]] static std::optional<std::string> holder(const std::filesystem::path& folder);

  // Tries to take the lock; `who` is what others are told meanwhile. Look at state() for what came of it.
  FolderLock(const std::filesystem::path& folder, const std::string& who);

  enum class State {
    held,
    busy,        // somebody else has it; why() says who
    unwritable,  // the lock's file cannot be made; why() is the system's reason
    foreign,     // a link, a folder, a pipe has its name, and is left alone; why() says which and what to do
    unlockable,  // a file system without locks; why() is the system's reason
  };
  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  Fd fd_;
  State state_ = State::held;
  std::string why_;
};

}  // namespace harness
