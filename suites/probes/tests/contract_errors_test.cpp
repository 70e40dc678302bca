#include "suites/probes/contract_errors.hpp"

#include <gtest/gtest.h>

namespace suites::probes {
namespace contract_errors_test {

TEST(ContractErrors, ThoseAboutOffsetsAreToldFromOthers) {
  EXPECT_TRUE(about_cu_seqlens(nsa::ContractError("cu_seqlens: [2] = 5 after 7")));
  EXPECT_TRUE(about_cu_seqlens(nsa::ContractError("attend_window: cu_seqlens is Long; allowed: Int")));
  EXPECT_FALSE(about_cu_seqlens(nsa::ContractError("attend_window: q is Long")));
  EXPECT_FALSE(about_cu_seqlens(nsa::ContractError("")));
}

}  // namespace contract_errors_test
}  // namespace suites::probes
