// The feature table of our own kernels, and the routes that follow from it.
#include "nsa/cuda/architectures.hpp"
#include "nsa/cuda/features.hpp"
#include "nsa/tests/gpu_call.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <stdexcept>
#include <tuple>

namespace cuda_features_test {

using nsa::Backend;
using nsa::Call;
using nsa::Environment;
using nsa::Op;
using nsa::Precision;
using nsa::RouteVariant;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// On a GPU that this build was compiled for.
Call gpu_call() { return nsa::fixtures::gpu_call(nsa::first_architecture(nsa::compiled_architectures())); }

std::string refusal(const std::function<void(Call&)>& change, Op op = Op::attend_window) {
  Call call = gpu_call();
  change(call);
  return nsa::cuda_refusal(call, op);
}

nsa::Route routed(const Environment& environment, const Call& call = gpu_call()) {
  return nsa::route(nsa::resolve(environment), call);
}

TEST(CudaFeatures, WhatIsServed) {
  for (const Op op : nsa::kAllOps) {
    EXPECT_EQ(nsa::cuda_refusal(gpu_call(), op), "") << to_string(op);
    EXPECT_EQ(refusal([](Call& c) { c.S = 1, c.training = c.packed = true; }, op), "");
    for (const auto& [Dk, Dv] : {std::pair{32, 32}, {64, 64}, {128, 128}, {192, 128}})
      EXPECT_EQ(refusal([k = Dk, v = Dv](Call& c) { c.Dk = k, c.Dv = v; }, op), "") << Dk;
    for (const int h : {1, 3, 6, 8, 12, 16}) EXPECT_EQ(refusal([h](Call& c) { c.Hq = 2 * h; }, op), "") << h;
    for (const nsa::Geometry& g : {nsa::Geometry{4, 2, 8, 3, 6}, {32, 32, 32, 64, 1}, {16, 16, 48, 5, 100}})
      EXPECT_EQ(refusal([&](Call& c) { c.geometry = g; }, op), "") << g.l;
  }
}

TEST(CudaFeatures, EveryRefusalSaysWhatCameAndWhatIsServed) {
  EXPECT_EQ(refusal([](Call& c) { c.cuda = false; }), "device is cpu; served: a CUDA device");
  EXPECT_EQ(refusal([](Call& c) { c.cuda_major = 7, c.cuda_minor = 5; }),
            fmt::format("compute capability 7.5; served: what this build was compiled for, {} (TORCH_CUDA_ARCH_LIST)",
                        nsa::compiled_architectures()));
  EXPECT_THAT(refusal([](Call& c) { c.cuda_major = 12; }),
              HasSubstr("compute capability 12.0; served: what this build"));
  EXPECT_EQ(refusal([](Call& c) { c.precision = Precision::fp32; }), "precision is fp32; served: bf16 and fp16");
  EXPECT_EQ(refusal([](Call& c) { c.precision = Precision::fp64; }), "precision is fp64; served: bf16 and fp16");
  EXPECT_EQ(refusal([](Call& c) { c.Hq = 34; }), "34 heads in 2 groups; served: 1 to 16 heads a group");
  EXPECT_EQ(refusal([](Call& c) { c.Hq = 1; }), "1 heads in 2 groups; served: 1 to 16 heads a group");
  EXPECT_EQ(refusal([](Call& c) { c.Dv = 32; }), "d_k 64, d_v 32; served: 32/32, 64/64, 128/128, 192/128");
  EXPECT_THAT(refusal([](Call& c) { c.Dk = 128, c.Dv = 192; }), HasSubstr("d_k 128, d_v 192"));
  EXPECT_EQ(refusal([](Call& c) { c.geometry.d = 12; }), "geometry l=32 d=12 l'=64; served: d divides l and l'");
  EXPECT_EQ(refusal([](Call& c) { c.geometry.l_sel = 72; }), "geometry l=32 d=16 l'=72; served: d divides l and l'");
  EXPECT_EQ(refusal([](Call& c) { c.geometry.n_sel = 65; }), "65 selected blocks a query; served: 3 to 64");
  EXPECT_EQ(refusal([](Call& c) { c.geometry.n_sel = 2; }), "2 selected blocks a query; served: 3 to 64");
  EXPECT_EQ(refusal([](Call& c) { c.geometry.n_sel = 64, c.geometry.l_sel = 128; }), "");
  EXPECT_EQ(refusal([](Call& c) { c.geometry.n_sel = 64, c.geometry.l_sel = 144; }),
            "64 selected blocks of 144 tokens; served: at most 8192 tokens a query");
  EXPECT_THAT(refusal([](Call& c) { c.S = std::int64_t{1} << 27; }), HasSubstr("chosen blocks"));
  EXPECT_THAT(refusal([](Call& c) { c.B = c.S = std::numeric_limits<std::int64_t>::max(); }),
              HasSubstr("chosen blocks"));
  EXPECT_THAT(refusal([](Call& c) { c.S = std::int64_t{1} << 25, c.Hq = 32; }), HasSubstr("32 heads of width 64"));
  EXPECT_EQ(refusal([](Call& c) { c.phi = nsa::Phi::mlp; }, Op::compress), "phi is mlp; served: avg");
  EXPECT_EQ(refusal([](Call& c) { c.phi = nsa::Phi::mlp; }, Op::attend_compressed), "");
}

// Made-up GPUs against made-up builds: code of sm_80 and sm_90a runs on no Blackwell, PTX does.
TEST(CudaArchitectures, AdmitWhatTheBinaryHolds) {
  const auto runs = [](std::string_view list, int major, int minor) {
    return nsa::architecture_refusal(list, major, minor).empty();
  };
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 6}, {8, 9}, {9, 0}})
    EXPECT_TRUE(runs("8.0;9.0a", major, minor));
  for (const auto& [major, minor] : {std::pair{7, 5}, {10, 0}, {10, 3}, {12, 0}, {9, 1}})
    EXPECT_FALSE(runs("8.0;9.0a", major, minor)) << major << '.' << minor;
  EXPECT_FALSE(runs("8.6", 8, 0));
  EXPECT_FALSE(runs("9.0a", 8, 0));
  EXPECT_TRUE(runs("8.0+PTX;9.0a", 12, 0));
  EXPECT_TRUE(runs("8.0 9.0a+PTX", 9, 0));
  EXPECT_FALSE(runs("9.0a+PTX", 10, 0));  // what is for one version is translated for no other
  EXPECT_FALSE(runs("7.0+PTX", 7, 5));    // no kernel is written for it
  for (const std::string_view list : {"", ";", "eight", "8", "8.", "8.x;9"}) EXPECT_FALSE(runs(list, 8, 0)) << list;
}

TEST(CudaArchitectures, TheFirstIsOneThatRuns) {
  EXPECT_EQ(nsa::first_architecture("8.0;9.0a"), (std::pair{8, 0}));
  EXPECT_EQ(nsa::first_architecture("7.5 9.0a"), (std::pair{9, 0}));
  EXPECT_EQ(nsa::first_architecture("8.6+PTX"), (std::pair{8, 6}));
  for (const std::string_view none : {"", "7.5", "eight"}) EXPECT_EQ(nsa::first_architecture(none), (std::pair{0, 0}));
  const auto [major, minor] = nsa::first_architecture(nsa::compiled_architectures());
  EXPECT_EQ(nsa::architecture_refusal(nsa::compiled_architectures(), major, minor), "") << "of this very build";
}

// The compute capabilities (80, 90) of the machine code in this very program, which holds the kernels. Section
// .nv_fatbin of an ELF file is a row of containers (magic, version, bytes of the header, bytes after it), each a row of
// entries: kind (1 PTX, 2 machine code) in bytes 0-1, bytes of the entry's header in 4-7 and of its payload in 8-15,
// the compute capability in 28-31.
std::set<std::uint32_t> machine_code_here() {
  std::ifstream stream("/proc/self/exe", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  const auto read = [&]<typename T>(std::size_t at, T value) {
    if (at + sizeof value > bytes.size()) throw std::out_of_range("beyond the end of the program");
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  const auto header = read(0, Elf64_Ehdr{});
  const auto section = [&](std::size_t i) { return read(header.e_shoff + i * header.e_shentsize, Elf64_Shdr{}); };
  const auto names = section(header.e_shstrndx);
  std::set<std::uint32_t> found;
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const auto here = section(i);
    if (std::string_view(bytes.data() + names.sh_offset + here.sh_name) != ".nv_fatbin") continue;
    for (std::size_t at = here.sh_offset; at < here.sh_offset + here.sh_size;) {
      if (read(at, std::uint32_t{}) != 0xBA55ED50) {  // padding between two containers
        at += 8;
        continue;
      }
      std::size_t entry = at + read(at + 6, std::uint16_t{});
      at = entry + read(at + 8, std::uint64_t{});
      for (; entry < at; entry += read(entry + 4, std::uint32_t{}) + read(entry + 8, std::uint64_t{}))
        if (read(entry, std::uint16_t{}) == 2) found.insert(read(entry + 28, std::uint32_t{}));
    }
  }
  return found;
}

// A GPU is admitted by the list that the build has given to nvcc: it must be what came of it.
TEST(CudaArchitectures, TheListIsWhatThisBinaryHolds) {
  const auto binary = machine_code_here();
  ASSERT_FALSE(binary.empty()) << "no machine code in this program";
  for (std::uint32_t sm = 80; sm < 130; ++sm) {
    const int major = static_cast<int>(sm / 10), minor = static_cast<int>(sm % 10);
    const bool refused = !nsa::architecture_refusal(nsa::compiled_architectures(), major, minor).empty();
    const bool held = std::any_of(binary.begin(), binary.end(), [&](std::uint32_t code) {
      return code == sm || (code / 10 == sm / 10 && code < sm && code != 90);  // 90: built as 9.0a, for 9.0 alone
    });
    EXPECT_EQ(!refused, held) << "compute capability " << major << '.' << minor;
  }
}

// ---- projections, RoPE and gate in one

std::string project_refusal(const std::function<void(Call&)>& change, const Environment& environment = {}) {
  Call call = gpu_call();
  change(call);
  return nsa::project_refusal(nsa::resolve(environment), call);
}
void nothing(Call&) {}

TEST(ProjectFeatures, WhatIsServed) {
  EXPECT_EQ(project_refusal(nothing), "");
  EXPECT_EQ(project_refusal(nothing, {{"NSA_STOPGRAD_GATES", "1"}}), "");
  EXPECT_EQ(project_refusal([](Call& c) { c.S = 1, c.Hq = 40, c.G = 1, c.training = c.packed = true; }), "");
  for (const auto& [Dk, Dv] : {std::pair{32, 8}, {64, 64}, {128, 192}})
    EXPECT_EQ(project_refusal([k = Dk, v = Dv](Call& c) { c.Dk = k, c.Dv = v; }), "") << Dk;
}

TEST(ProjectFeatures, EveryRefusalSaysWhatCameAndWhatIsServed) {
  EXPECT_EQ(project_refusal([](Call& c) { c.cuda = false; }), "device is cpu; served: a CUDA device");
  EXPECT_EQ(project_refusal([](Call& c) { c.precision = Precision::fp32; }),
            "precision is fp32; served: bf16 and fp16");
  EXPECT_EQ(project_refusal([](Call& c) { c.Hq = 13; }), "13 heads in 2 groups; served: as many in each");
  EXPECT_EQ(project_refusal([](Call& c) { c.Dk = 96; }),
            "d_k 96, d_v 64; served: d_k 32, 64, 128 or 192, d_v a multiple of 8");
  EXPECT_THAT(project_refusal([](Call& c) { c.Dv = 36; }), HasSubstr("d_k 64, d_v 36"));
  EXPECT_THAT(project_refusal([](Call& c) { c.S = std::numeric_limits<std::int64_t>::max() / 2; }),
              HasSubstr("served: at most 2147483647 x 8 values of a kind"));
  // Refused either way: where the build has no code for 8.x, for that.
  const bool built = nsa::architecture_refusal(nsa::compiled_architectures(), 8, 9).empty();
  EXPECT_THAT(
      project_refusal([](Call& c) { c.cuda_major = 8, c.cuda_minor = 9, c.Dk = 192; }),
      HasSubstr(built ? "d_k 192 on compute capability 8.9; served there: up to 128" : "compute capability 8.9"));
}

TEST(ProjectFeatures, AFlagThatIsAgainstItIsNamed) {
  for (const auto& [name, value] : Environment{{"NSA_FUSED_PROJECT", "0"},
                                               {"NSA_USE_CUDA", "0"},
                                               {"NSA_FORCE_PARITY", "1"},
                                               {"NSA_FORCE_BRANCH", "cmp"},
                                               {"NSA_FORCE_UNIFORM_GATE", "1"}})
    EXPECT_EQ(project_refusal(nothing, {{name, value}}), name + "=" + value);
}

TEST(NormFeatures, AFlagThatIsAgainstItIsNamed) {
  const auto refusal = [](const Environment& environment) {
    const auto flags = nsa::resolve(environment);
    return nsa::flag_against(flags, flags.fused_norm, "fused_norm");
  };
  EXPECT_EQ(refusal({{"NSA_USE_CUDA", "1"}}), "");
  EXPECT_EQ(refusal({{"NSA_USE_CUDA", "1"}, {"NSA_FORCE_BRANCH", "cmp"}}), "") << "which is the attention's";
  for (const auto& [name, value] :
       Environment{{"NSA_FUSED_NORM", "0"}, {"NSA_USE_CUDA", "0"}, {"NSA_FORCE_PARITY", "1"}})
    EXPECT_EQ(refusal({{name, value}}), name + "=" + value);
}

TEST(DecodeFeatures, AFlagThatIsAgainstItIsNamed) {
  EXPECT_EQ(nsa::decode_refusal(nsa::resolve({{"NSA_FUSED_DECODE", "1"}, {"NSA_FORCE_UNIFORM_GATE", "1"}})), "");
  for (const auto& [name, value] : Environment{{"NSA_FUSED_DECODE", "0"},
                                               {"NSA_USE_CUDA", "0"},
                                               {"NSA_FORCE_PARITY", "1"},
                                               {"NSA_FORCE_BRANCH", "cmp"},
                                               {"NSA_STRICT_ASSERTS", "1"}})
    EXPECT_EQ(nsa::decode_refusal(nsa::resolve({{name, value}})), name + "=" + value);
}

TEST(RouteToCuda, OnlyWhenItIsAskedFor) {
  const auto by_default = nsa::kCudaByDefault ? Backend::cuda : Backend::sdpa;
  const auto standard = routed({}), asked = routed({{"NSA_USE_CUDA", "1"}}), refused = routed({{"NSA_USE_CUDA", "0"}});
  for (const Op op : nsa::kAllOps) {
    EXPECT_EQ(standard[op].backend, by_default) << to_string(op);
    EXPECT_EQ(asked[op].backend, Backend::cuda) << to_string(op);
    EXPECT_EQ(refused[op].backend, Backend::sdpa) << to_string(op);
    EXPECT_EQ(asked[op].why, "NSA_USE_CUDA=1");
    EXPECT_EQ(asked[op].variant, op == Op::attend ? RouteVariant::in_one : RouteVariant::none);
  }
}

TEST(RouteToCuda, ARefusalIsToldAndTheOtherChoiceTaken) {
  Call call = gpu_call();
  call.precision = Precision::fp32;
  const auto plain = routed({{"NSA_USE_CUDA", "0"}}, call), asked = routed({{"NSA_USE_CUDA", "1"}}, call);
  for (const Op op : nsa::kAllOps) {
    EXPECT_EQ(asked[op].backend, plain[op].backend);
    EXPECT_EQ(asked[op].variant, plain[op].variant);
    if (op == Op::attend) continue;  // its parts say why
    EXPECT_EQ(asked[op].refused,
              (std::vector<nsa::Refused>{{op, Backend::cuda, "precision is fp32; served: bf16 and fp16"}}));
    EXPECT_EQ(asked[op].why, "cuda refused: precision is fp32; served: bf16 and fp16; " + plain[op].why);
  }
}

TEST(RouteToCuda, LearnedCompressionStaysWithSdpa) {
  Call call = gpu_call();
  call.phi = nsa::Phi::mlp;
  const auto route = routed({{"NSA_USE_CUDA", "1"}}, call);
  EXPECT_EQ(route[Op::compress].backend, Backend::sdpa);
  EXPECT_THAT(route[Op::compress].why, StartsWith("cuda refused: phi is mlp; served: avg"));
  for (const Op op : {Op::attend_compressed, Op::select, Op::attend_selected, Op::attend_window, Op::combine})
    EXPECT_EQ(route[op].backend, Backend::cuda) << to_string(op);
}

TEST(RouteToCuda, WhatWasAskedForByNameKeepsItsWay) {
  const auto window = routed({{"NSA_USE_CUDA", "1"}, {"NSA_USE_FA2_WIN", "1"}});
  EXPECT_EQ(window[Op::attend_window].backend, Backend::flash);
  EXPECT_EQ(window[Op::attend_compressed].backend, Backend::cuda);
  EXPECT_EQ(window[Op::attend_selected].backend, Backend::cuda);
  const auto masked = routed({{"NSA_USE_CUDA", "1"}, {"NSA_FORCE_SEL_MASK", "1"}});
  EXPECT_EQ(masked[Op::attend_selected].variant, RouteVariant::masked);
  EXPECT_EQ(masked[Op::attend_window].backend, Backend::cuda);
}

TEST(RouteToCuda, TakesTheBranchThatFlashRefuses) {
  Call call = gpu_call();
  call.Dk = 192, call.Dv = 128;
  const auto route = routed({{"NSA_USE_CUDA", "1"}, {"NSA_USE_FA2", "1"}}, call);
  EXPECT_EQ(route[Op::attend_window].backend, Backend::cuda);
  EXPECT_THAT(route[Op::attend_window].why, HasSubstr("flash refused: d_k 192 differs from d_v 128"));
  const auto refused = [](Op op) { return nsa::Refused{op, Backend::flash, "d_k 192 differs from d_v 128"}; };
  EXPECT_EQ(route[Op::attend_window].refused, std::vector{refused(Op::attend_window)});
  EXPECT_EQ(route[Op::attend].variant, RouteVariant::in_one);
  EXPECT_EQ(route[Op::attend].refused, (std::vector{refused(Op::attend_compressed), refused(Op::attend_window)}));
}

TEST(RouteToCuda, ForceParityWins) {
  const auto route = routed({{"NSA_USE_CUDA", "1"}, {"NSA_FORCE_PARITY", "1"}});
  for (const Op op : nsa::kAllOps) EXPECT_EQ(route[op].backend, Backend::reference) << to_string(op);
}

TEST(RouteToCuda, TheFlagAndItsOrigin) {
  EXPECT_EQ(nsa::resolve({}).use_cuda, nsa::kCudaByDefault);
  const auto flags = nsa::resolve({{"NSA_USE_CUDA", "yes"}});
  EXPECT_TRUE(flags.use_cuda);
  EXPECT_EQ(flags.origin.at("use_cuda").text, "NSA_USE_CUDA=yes");
  EXPECT_EQ(nsa::flatten(flags).at("use_cuda"), "true");
  EXPECT_THROW((void)nsa::resolve({{"NSA_USE_CUDA", "2"}}), nsa::FlagInvalid);
  EXPECT_EQ(to_string(Backend::cuda), "cuda");
}

}  // namespace cuda_features_test
