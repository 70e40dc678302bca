#include "nsa/parallel/patient.hpp"

#include <gtest/gtest.h>

#include <future>
#include <memory>

namespace {

using nsa::parallel::Patient;
using namespace std::chrono_literals;

TEST(Patient, WaitsForAWhileOnlyAndRefusesMeanwhile) {
  Patient patient;
  int done = 0;
  EXPECT_TRUE(patient.within(10s, [&] { ++done; }));
  const auto gate = std::make_shared<std::promise<void>>();
  EXPECT_FALSE(patient.within(10ms, [gate] { gate->get_future().wait(); }));
  const auto before = std::chrono::steady_clock::now();
  EXPECT_FALSE(patient.within(10ms, [&] { ++done; }));
  EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
  gate->set_value();
  while (!patient.within(10s, [&] { ++done; })) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(done, 2);
}

TEST(Patient, LeavesBehindWhatNeverEnds) {
  const auto gate = std::make_shared<std::promise<void>>();
  {
    Patient patient;
    EXPECT_FALSE(patient.within(1ms, [gate] { gate->get_future().wait(); }));
  }
  gate->set_value();
}

}  // namespace
