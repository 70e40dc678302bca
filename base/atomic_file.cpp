#include "base/atomic_file.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace base {

namespace {

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path target, Folder folder)
    : target_(std::move(target)),
      temporary_(target_.string() + std::string(kTemporary)),
      own_folder_(folder == Folder::own ? open_own_folder(folder_of(target_), O_RDONLY)
                                        : ::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
      folder_(own_folder_.get()) {
  if (folder_ < 0) throw FileError("cannot create", temporary_, errno);
  open();
}

AtomicFile::AtomicFile(int folder, std::filesystem::path target)
    : target_(std::move(target)), temporary_(target_.string() + std::string(kTemporary)), folder_(folder) {
  open();
}

void AtomicFile::open() {
  file_ = Fd(open_within(folder_, temporary_.filename(), O_WRONLY | O_CREAT | O_TRUNC, 0666));
  if (file_.get() < 0) throw FileError("cannot create", temporary_, errno);
  is_there_ = true;
}

AtomicFile::~AtomicFile() {
  if (is_there_) ::unlinkat(folder_, temporary_.filename().c_str(), 0);
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  if (const int error = write_fully(file_.get(), data, bytes); error != 0)
    throw FileError("cannot write", temporary_, error);
}

void AtomicFile::commit(bool synced) {
  if (synced && ::fsync(file_.get()) != 0) throw FileError("cannot sync", temporary_, errno);
  if (::close(file_.release()) != 0) throw FileError("cannot write", temporary_, errno);  // a disk elsewhere tells now
  if (::renameat(folder_, temporary_.filename().c_str(), folder_, target_.filename().c_str()) != 0)
    throw FileError("cannot rename to", target_, errno);
  is_there_ = false;
  // EINVAL: a file system that has no such thing.
  if (synced && ::fsync(folder_) != 0 && errno != EINVAL) throw FileError("cannot sync", folder_of(target_), errno);
}

void write_whole(const std::filesystem::path& target, std::string_view text, AtomicFile::Folder folder) {
  AtomicFile file(target, folder);
  file.write(text);
  file.commit();
}

}  // namespace base
