#include "nsa/train/checkpoint.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>

#include "nsa/tests/scratch.hpp"
#include "nsa/train/files.hpp"

namespace {

namespace fs = std::filesystem;
using namespace nsa::train;
using nsa::fixtures::Scratch;
using testing::ElementsAre;
using testing::HasSubstr;

TrainState some_state(std::int64_t step = 7) {
  TrainState state;
  const at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step));
  state.tensors = {{"model/a", at::randn({3, 5}, generator)},
                   {"model/b", at::randn({4}, generator).to(at::kBFloat16)},
                   {"model/transposed", at::randn({2, 3}, generator, at::kDouble).t()},
                   {"model/empty", at::zeros({0, 3})},
                   {"optimizer/step/a", at::full({}, 3.0F)},
                   {"rng/cpu", at::arange(17, at::kByte)}};
  state.facts = {
      {"step", step}, {"loss", 0.1 + 0.2}, {"data", {{"seed", 18446744073709551615U}}}, {"config", {{"x", "1"}}}};
  return state;
}

void expect_same(const TrainState& a, const TrainState& b) {
  EXPECT_EQ(a.facts, b.facts);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    const at::Tensor& other = b.tensors.at(name);
    EXPECT_EQ(tensor.scalar_type(), other.scalar_type()) << name;
    EXPECT_EQ(tensor.sizes(), other.sizes()) << name;
    EXPECT_TRUE(at::equal(tensor, other)) << name;
  }
}

std::string refusal(const fs::path& file) {
  try {
    (void)read_checkpoint(file);
  } catch (const CheckpointInvalid& invalid) {
    return invalid.what();
  }
  return "";
}

TEST(Checkpoint, ReadsBackBitForBit) {
  const Scratch folder;
  const fs::path file = folder / "x.safetensors";
  TrainState state = some_state();
  state.tensors["model/nan"] = at::full({2}, std::numeric_limits<float>::quiet_NaN());
  int pulses = 0;
  write_checkpoint(file, state, [&] { ++pulses; });
  EXPECT_GE(pulses, 7);
  TrainState again = read_checkpoint(file);
  EXPECT_TRUE(at::equal(again.tensors["model/nan"].view(at::kInt), state.tensors["model/nan"].view(at::kInt)));
  again.tensors.erase("model/nan");
  expect_same(some_state(), again);
}

TEST(Checkpoint, TheSameStateMakesTheSameBytes) {
  const Scratch folder;
  write_checkpoint(folder / "a", some_state());
  write_checkpoint(folder / "b", some_state());
  EXPECT_EQ(read_text(folder / "a"), read_text(folder / "b"));
}

TEST(Checkpoint, IsASafetensorsFile) {
  const Scratch folder;
  const fs::path file = folder / "x.safetensors";
  write_checkpoint(file, some_state());
  const std::string bytes = read_text(file);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  std::uint64_t end = 0;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      for (const auto& value : entry) EXPECT_TRUE(value.is_string());
      continue;
    }
    end = std::max(end, entry.at("data_offsets")[1].get<std::uint64_t>());
  }
  EXPECT_EQ(8 + length + end, bytes.size());
  EXPECT_EQ(header["model/b"]["dtype"], "BF16");
  EXPECT_EQ(header["model/transposed"]["shape"], nlohmann::json({3, 2}));
}

TEST(Checkpoint, EveryCutAndEveryFlippedByteIsNoticed) {
  const Scratch folder;
  write_checkpoint(folder / "whole", some_state());
  const std::string bytes = read_text(folder / "whole");
  const auto put = [&](const std::string& content) {
    std::ofstream(folder / "x", std::ios::binary) << content;
    return refusal(folder / "x");
  };
  for (std::size_t size = 0; size < bytes.size(); size += size < 64 ? 1 : 37)
    EXPECT_THAT(put(bytes.substr(0, size)), HasSubstr("checkpoint ")) << size;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    EXPECT_THAT(put(changed), HasSubstr("checkpoint ")) << at;
  }
  EXPECT_THAT(put(bytes + "x"), HasSubstr("goes on after its end"));
  EXPECT_THAT(put(bytes.substr(0, bytes.size() - 4)), HasSubstr("is cut off within checksum"));
  EXPECT_THAT(put("hello"), HasSubstr("is cut off"));
  EXPECT_EQ(put(bytes), "");
}

// Whole files with a checksum that fits, of a writer that is none of ours.
TEST(Checkpoint, ShapesThatNoTensorHasAreRefused) {
  const fs::path corpus = fs::path(__FILE__).parent_path() / "../../fixtures/fuzz/checkpoint";
  EXPECT_EQ(refusal(corpus / "whole.safetensors"), "");
  EXPECT_THAT(refusal(corpus / "negative_sizes.safetensors"), HasSubstr("has a tensor model/a of an impossible shape"));
  EXPECT_THAT(refusal(corpus / "sizes_beyond_64_bits.safetensors"), HasSubstr("impossible shape"));
}

TEST(Checkpoint, AMissingFileIsNoBrokenOne) {
  EXPECT_THROW((void)read_checkpoint("/no/such/file"), FileError);
  EXPECT_THROW(write_checkpoint("/no/such/folder/x", some_state()), FileError);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(CheckpointStore, KeepsTheNewest) {
  const Scratch scratch;
  const fs::path folder = scratch / "checkpoints";
  CheckpointStore store(folder, 2);
  EXPECT_FALSE(store.newest([](const std::string& text) { ADD_FAILURE() << text; }));
  for (const std::int64_t step : {5, 10, 15}) (void)store.save(some_state(step));
  EXPECT_THAT(names_in(folder), ElementsAre("step_00000010.safetensors", "step_00000015.safetensors"));
  const auto newest = store.newest([](const std::string& text) { ADD_FAILURE() << text; });
  ASSERT_TRUE(newest);
  expect_same(newest->state, some_state(15));
  EXPECT_THROW(CheckpointStore(folder, 0), std::invalid_argument);
}

TEST(CheckpointStore, ABrokenOneIsSetAsideAndTheOneBeforeUsed) {
  const Scratch scratch;
  const fs::path folder = scratch.path();
  CheckpointStore store(folder, 2);
  for (const std::int64_t step : {5, 10}) (void)store.save(some_state(step));
  const fs::path torn = folder / "step_00000010.safetensors";
  fs::resize_file(torn, fs::file_size(torn) / 2);
  std::ofstream(folder / "step_00000011.safetensors.tmp") << "killed in the middle";
  std::string told;
  const auto newest = store.newest([&](const std::string& text) { told = text; });
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->state.step(), 5);
  EXPECT_THAT(told, testing::AllOf(HasSubstr(torn.string()), HasSubstr("cut off"), HasSubstr(".broken")));
  EXPECT_THAT(names_in(folder), ElementsAre("step_00000005.safetensors", "step_00000010.safetensors.broken"));
  // It does not count among those that are kept either.
  (void)store.save(some_state(8));
  EXPECT_THAT(names_in(folder), ElementsAre("step_00000005.safetensors", "step_00000008.safetensors",
                                            "step_00000010.safetensors.broken"));
}

TEST(CheckpointStore, NothingIsPromisedOfABrokenOneThatHasNoneBeforeIt) {
  const Scratch scratch;
  CheckpointStore store(scratch.path(), 2);
  for (const std::int64_t step : {5, 10}) {
    const fs::path file = store.save(some_state(step));
    fs::resize_file(file, fs::file_size(file) / 2);
  }
  std::vector<std::string> told;
  EXPECT_FALSE(store.newest([&](const std::string& text) { told.push_back(text); }));
  EXPECT_THAT(told, ElementsAre(HasSubstr("step_00000010.safetensors.broken, the one before it is tried"),
                                HasSubstr("step_00000005.safetensors.broken, there is none before it")));
}

TEST(CheckpointStore, ACopyUnderAnotherNameIsNoNewerCheckpoint) {
  const Scratch scratch;
  const fs::path folder = scratch.path();
  CheckpointStore store(folder, 2);
  (void)store.save(some_state(5));
  const fs::path ten = store.save(some_state(10));
  fs::copy_file(ten, folder / "step_00000099.safetensors");
  std::string told;
  const auto newest = store.newest([&](const std::string& text) { told = text; });
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->file, ten);
  EXPECT_THAT(told, testing::AllOf(HasSubstr("step_00000099.safetensors is, by its content, the checkpoint of step 10"),
                                   HasSubstr("set aside as step_00000099.safetensors.broken")));
}

TEST(CheckpointStore, FilesWithOtherNamesAreNeitherReadNorRemoved) {
  const Scratch scratch;
  const fs::path folder = scratch.path();
  CheckpointStore store(folder, 1);
  const fs::path five = store.save(some_state(5));
  for (const char* name : {"best.safetensors", "step_-0000001.safetensors", "step_5.safetensors", "zzz.safetensors"})
    fs::copy_file(five, folder / name);
  std::ofstream(folder / "mine.tmp") << "precious";
  (void)store.save(some_state(6));
  EXPECT_EQ(store.newest([](const std::string& text) { ADD_FAILURE() << text; })->state.step(), 6);
  EXPECT_THAT(names_in(folder), ElementsAre("best.safetensors", "mine.tmp", "step_-0000001.safetensors",
                                            "step_00000006.safetensors", "step_5.safetensors", "zzz.safetensors"));
  EXPECT_EQ(CheckpointStore::step_of("step_123456789.safetensors"), 123456789);
  for (const char* name : {"step_99999999999999999999.safetensors", "step_000000005.safetensors",
                           "step_+0000005.safetensors", "step_00000005.safetensors.tmp", "step_", ""})
    EXPECT_FALSE(CheckpointStore::step_of(name)) << name;
}

TEST(CheckpointStore, AFolderWithItsNameIsInNobodysWay) {
  const Scratch scratch;
  const fs::path folder = scratch.path();
  CheckpointStore store(folder, 1);
  (void)store.save(some_state(5));
  fs::create_directories(folder / "step_00000010.safetensors" / "x");
  fs::create_directories(folder / "step_00000003.safetensors" / "x");
  fs::create_directories(folder / "notes.tmp" / "x");
  (void)store.save(some_state(6));  // removes nothing but the one of step 5
  std::string told;
  const auto newest = store.newest([&](const std::string& text) { told += text; });
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->state.step(), 6);
  EXPECT_THAT(told, testing::AllOf(HasSubstr("step_00000010.safetensors is a folder"), HasSubstr("set aside")));
  (void)store.save(some_state(10));
  EXPECT_THAT(names_in(folder), ElementsAre("notes.tmp", "step_00000003.safetensors.broken",
                                            "step_00000010.safetensors", "step_00000010.safetensors.broken"));
}

TEST(CheckpointStore, KeepsAllWhenTold) {
  const Scratch scratch;
  CheckpointStore store(scratch.path(), 1);
  (void)store.save(some_state(5));
  store.keep_all();
  (void)store.save(some_state(6));
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step_00000005.safetensors", "step_00000006.safetensors"));
}

TEST(CheckpointStore, AFailedSaveLeavesWhatWasThere) {
  const Scratch scratch;
  const fs::path folder = scratch.path();
  CheckpointStore store(folder, 1);
  (void)store.save(some_state(5));
  // A folder in the place of the temporary file: works for root too, who may write anywhere.
  fs::create_directories(folder / "step_00000010.safetensors.tmp");
  EXPECT_THROW((void)store.save(some_state(10)), FileError);
  fs::remove(folder / "step_00000010.safetensors.tmp");
  EXPECT_THAT(names_in(folder), ElementsAre("step_00000005.safetensors"));
  EXPECT_EQ(store.newest({})->state.step(), 5);
}

}  // namespace
