// A context whose first grave finding about an implementation comes with a Python script that makes the call again.
#pragma once

#include <memory>
#include <string>

#include "harness/forwarding_context.hpp"
#include "suites/implementation/client.hpp"

namespace suites {

// Of one case. `client` is null where no implementation is judged: then nothing is added. Else the first finding of
// severity warn or above gets the evidence "python" (implementation/repro.hpp) for the last call that was made until
// then. Where that cannot be written the finding is what it is, and the fact "python repro" says why.
class ContextWithRepro : public harness::ForwardingContext {
 public:
  ContextWithRepro(harness::Context& to, std::shared_ptr<implementation::Client> client, std::string case_id);

  void finding(std::string_view code, std::string_view message, const harness::Json& evidence) override;
  void finding(std::string_view code, reports::Severity severity, std::string_view message,
               const harness::Json& evidence) override;

 protected:
  void conclude(const Comparison& comparison, std::string_view code, const std::string& what_failed,
                const harness::Json& evidence) override;

 private:
  [[nodiscard]] harness::Json with_script(reports::Severity severity, harness::Json evidence);
  [[nodiscard]] harness::Json written();

  std::shared_ptr<implementation::Client> client_;
  const std::string case_id_;
  bool told_ = false;
};

}  // namespace suites
