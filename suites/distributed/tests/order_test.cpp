// An order is read as it was written, and a broken one is told with its file.
#include "suites/distributed/order.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace suites::distributed_ranks {
namespace {

TEST(Order, IsReadAsItWasWritten) {
  Order order;
  order.folder = std::filesystem::temp_directory_path() / ("order_test-" + std::to_string(getpid()));
  order.config = {{"model.dim", "64"}, {"train.lr", "0.003"}};
  order.device = "cuda";
  order.timeout_s = 2.5;
  order.check_always = order.keep_first_step = true;
  order.resume_from = "/a/b";
  order.save_to = "/c";
  order.stop_after = 3;
  order.reduce_elements = {1, 2};
  order.threads = 4;
  order.planted = {"rank-dies"};
  order.run_folder = "/run";
  order.run_id = "id";
  write_order(order);
  const Order read = read_order(order.file());
  EXPECT_EQ(read.folder, order.folder);
  EXPECT_EQ(read.config, order.config);
  EXPECT_EQ(read.device, order.device);
  EXPECT_EQ(read.timeout_s, order.timeout_s);
  EXPECT_TRUE(read.check_always && read.keep_first_step);
  EXPECT_EQ(read.resume_from, order.resume_from);
  EXPECT_EQ(read.save_to, order.save_to);
  EXPECT_EQ(read.stop_after, order.stop_after);
  EXPECT_EQ(read.reduce_elements, order.reduce_elements);
  EXPECT_EQ(read.threads, order.threads);
  EXPECT_EQ(read.planted, order.planted);
  EXPECT_EQ(read.run_folder, order.run_folder);
  EXPECT_EQ(read.run_id, order.run_id);

  std::ofstream(order.file()) << "{}";
  try {
    (void)read_order(order.file());
    ADD_FAILURE() << "an empty order is one";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(order.file().string()));
  }
  std::filesystem::remove_all(order.folder);
  EXPECT_THROW((void)read_order(order.file()), std::runtime_error);
}

}  // namespace
}  // namespace suites::distributed_ranks
