// An operator of operators.hpp by way of the dispatcher.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <type_traits>

namespace nsa::python {

// `name`: that of `function` ("nsa::attend").
template <auto function>
const auto& operator_of(const char* name) {
  static const auto found = c10::Dispatcher::singleton()
                                .findSchemaOrThrow(name, "")
                                .template typed<std::remove_pointer_t<decltype(function)>>();
  return found;
}

}  // namespace nsa::python
