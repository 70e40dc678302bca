// Standard output and error that are closed, full or broken: of a file here, of the whole program in lost_output_test.
#include "harness/streams.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>

#include "harness/process.hpp"
#include "harness/tests/support/fake_run.hpp"

namespace {

using harness::Fd;
using harness::tests::TempFolder;

TEST(Streams, WhatCannotBeWrittenShowsWithoutWriting) {
  const TempFolder temp;
  EXPECT_EQ(harness::unwritable(987), "Bad file descriptor");
  EXPECT_EQ(harness::unwritable(Fd(open("/dev/null", O_RDONLY)).get()), "Bad file descriptor");
  EXPECT_EQ(harness::unwritable(Fd(open("/dev/full", O_WRONLY)).get()), "No space left on device");
  EXPECT_EQ(harness::unwritable(Fd(open("/dev/null", O_WRONLY)).get()), std::nullopt);
  EXPECT_EQ(harness::unwritable(Fd(open(temp.write("f", "").c_str(), O_WRONLY)).get()), std::nullopt);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Fd write_end(ends[1]);
  EXPECT_EQ(harness::unwritable(write_end.get()), std::nullopt);
  close(ends[0]);
  EXPECT_EQ(harness::unwritable(write_end.get()), "Broken pipe");
}

TEST(Streams, LostOutputStaysKnown) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> full(std::fopen("/dev/full", "w"), std::fclose);
  EXPECT_EQ(harness::lost(full.get()), std::nullopt) << "nothing was said yet";
  harness::write_to(full.get(), "something");
  EXPECT_EQ(harness::lost(full.get()), "No space left on device");
  EXPECT_EQ(harness::lost(full.get()), "No space left on device");
  harness::write_to(full.get(), std::string(1 << 20, 'x'));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> fine(std::fopen("/dev/null", "w"), std::fclose);
  harness::write_to(fine.get(), "something");
  EXPECT_EQ(harness::lost(fine.get()), std::nullopt);
}

}  // namespace
