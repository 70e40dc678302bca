#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "build_info.hpp"
#include "nsa/bench/peers.hpp"
#include "nsa/bench/subject.hpp"

namespace nsa::bench {
namespace bench_peers_test {

using ::testing::HasSubstr;

constexpr const char* kHeader = "index,config,Hq,Hkv,Dqk,Dv,implementation,what,mode,S,ms\n";
constexpr const char* kSome =
    "random,c,64,4,128,128,slow,full NSA,fwd,8192,5.0\n"
    "random,c,64,4,128,128,quick,full NSA,fwd,8192,2.5\n"
    "drift,c,64,4,128,128,slow,full NSA,fwd,8192,2.0\n"
    "random,c,64,4,128,128,dense,full causal attention,fwd,8192,1.0\n"
    "random,c,64,4,128,128,quick,full NSA (own geometry),fwd,8192,0.5\n"
    "random,c,64,4,128,128,quick,full NSA,fwd_bwd,8192,7.5\n";

Peers parse(const std::string& text) {
  std::istringstream stream(text);
  return Peers::parse(stream, "p.csv");
}

std::string refusal_of(const std::string& text) {
  try {
    (void)parse(text);
  } catch (const PeersInvalid& error) {
    return error.what();
  }
  return "";
}

TEST(BenchPeers, TheFastestOfExactlyTheSameProblem) {
  const Peers peers = parse(std::string("# one H200\n") + kHeader + kSome);
  EXPECT_EQ(peers.origin(), "one H200");
  EXPECT_EQ(peers.rows().size(), 6U);
  const auto random = peers.fastest({"c", "full NSA", "fwd", "random", 8192});
  ASSERT_TRUE(random);
  EXPECT_EQ(random->implementation, "quick");
  EXPECT_EQ(random->ms, 2.5);
  EXPECT_EQ(peers.fastest({"c", "full NSA", "fwd", "drift", 8192})->ms, 2.0);
  EXPECT_EQ(peers.fastest({"c", "full NSA", "fwd", "", 8192})->ms, 2.0) << "any choice";
  EXPECT_EQ(peers.fastest({"c", "full NSA", "fwd_bwd", "", 8192})->ms, 7.5);
  EXPECT_EQ(peers.fastest({"c", kDense, "fwd", "", 8192})->ms, 1.0);
}

TEST(BenchPeers, TimesOfAnotherGpuAreNone) {
  const Peers peers = parse(std::string("# one NVIDIA H200, torch 2.11.0\n") + kHeader + kSome);
  EXPECT_TRUE(peers.measured_on("NVIDIA H200"));
  for (const std::string gpu : {"NVIDIA H100 80GB HBM3", "NVIDIA H20", "NVIDIA H200 NVL", "NVIDIA A100-SXM4-80GB", ""})
    EXPECT_FALSE(peers.measured_on(gpu)) << gpu;
  EXPECT_FALSE(parse(std::string(kHeader) + kSome).measured_on("NVIDIA H200")) << "a file that does not say";
}

TEST(BenchPeers, NobodyWhereNobodyWasMeasured) {
  const Peers peers = parse(std::string(kHeader) + kSome);
  EXPECT_EQ(peers.origin(), "");
  EXPECT_FALSE(peers.fastest({"a", "full NSA", "fwd", "", 8192}));
  EXPECT_FALSE(peers.fastest({"c", "full NSA", "fwd", "", 4096}));
  EXPECT_FALSE(peers.fastest({"c", "full NSA", "bwd", "", 8192}));
  EXPECT_FALSE(peers.fastest({"c", "", "fwd", "", 8192}));
  EXPECT_FALSE(Peers().fastest({"c", "full NSA", "fwd", "", 8192}));
}

TEST(BenchPeers, ColumnsInAnyOrderAndLinesOfAnotherSystem) {
  const Peers peers = parse("ms,S,mode,what,implementation,config,index,remark\r\n1.5,64,fwd,w,i,a,random,x\r\n\r\n");
  ASSERT_EQ(peers.rows().size(), 1U);
  EXPECT_EQ(peers.fastest({"a", "w", "fwd", "random", 64})->ms, 1.5);
}

TEST(BenchPeers, MistakesAreToldWithTheirPlace) {
  EXPECT_THAT(refusal_of(""), HasSubstr("p.csv: no header"));
  EXPECT_THAT(refusal_of("# only a comment\n"), HasSubstr("no header"));
  EXPECT_THAT(refusal_of("index,config\n"), HasSubstr("p.csv:1: no column 'implementation'"));
  EXPECT_THAT(refusal_of("index,ms,x,x\nrandom,1\n"), HasSubstr("p.csv:1: the column 'x' stands twice"));
  const std::string start = std::string("# x\n") + kHeader;
  EXPECT_THAT(refusal_of(start + "random,c,1\n"), HasSubstr("p.csv:3: 3 cells, the header has 11"));
  for (const char* ms : {"", "fast", "0", "-1", "1.5x", "nan", "inf"})
    EXPECT_THAT(refusal_of(start + "random,c,1,1,1,1,i,w,fwd,64," + ms + "\n"), HasSubstr("p.csv:3: ms is")) << ms;
  EXPECT_THAT(refusal_of(start + "random,c,1,1,1,1,i,w,fwd,6.4,1\n"), HasSubstr("S is '6.4'"));
  EXPECT_THROW((void)Peers::read("no/such/file.csv"), PeersInvalid);
}

// What the program compares with: every name that a subject uses stands in the file.
TEST(BenchPeers, TheFileThatTravelsAlong) {
  const Peers peers =
      Peers::read(std::filesystem::path(build_info::kSourceDir) / "fixtures" / "bench" / "peers_h200.csv");
  EXPECT_THAT(peers.origin(), HasSubstr("H200"));
  std::set<std::string> names;
  for (const Peer& row : peers.rows()) names.insert(row.what);
  for (const Subject& subject : subjects())
    EXPECT_TRUE(subject.peer.empty() || names.contains(subject.peer)) << subject.peer;
  EXPECT_TRUE(names.contains(kDense));
  const auto bar = peers.fastest({"c", "full NSA", "fwd", "random", 65536});
  ASSERT_TRUE(bar);
  EXPECT_THAT(bar->implementation, HasSubstr("mdy666"));
  EXPECT_NEAR(bar->ms, 39.5, 0.2);
  EXPECT_TRUE(peers.fastest({"b", "full NSA", "fwd_bwd", "", 65536}));
}

}  // namespace bench_peers_test
}  // namespace nsa::bench
