// One process at a time in a folder, however that process ends. The lock's file stays there: removing it would let two
// processes hold locks on two files of the same name.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/fd.hpp"

namespace base {

class FolderLock {
 public:
  // Who holds the lock `file` now ("run X, process N on HOST"); nullopt: nobody. Takes and changes nothing.
  [[nodiscard]] static std::optional<std::string> holder(const std::filesystem::path& file);

  // Tries to take the lock; `who` is what others are told meanwhile. Look at state() for what came of it.
  FolderLock(std::filesystem::path file, const std::string& who);

  enum class State {
    held,
    busy,        // somebody else has it; why() says who
    unwritable,  // the lock's file cannot be made; why() is the system's reason
    foreign,     // a link, a folder, a pipe has its name, and is left alone; why() says which and what to do
    unlockable,  // a file system without locks; why() is the system's reason
  };
  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] const std::string& why() const { return why_; }
  [[nodiscard]] int error() const { return error_; }  // errno's, where the system refused
  // What has become of the file since (base::taken_away()): "" while others see this lock.
  [[nodiscard]] std::string lost() const;

 private:
  std::filesystem::path file_;
  Fd fd_;
  State state_ = State::held;
  std::string why_;
  int error_ = 0;
};

}  // namespace base
