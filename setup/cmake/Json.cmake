# A precompiled header for what checks and sees no LibTorch: nsa_sees_json() (Component.cmake).
set(NSA_OPTIMISATION -O1)
nsa_component(nsa_json_precompiled SOURCES ${CMAKE_CURRENT_LIST_DIR}/precompiled.cpp DEPENDS fmt::fmt nlohmann_json::nlohmann_json)
target_precompile_headers(nsa_json_precompiled PRIVATE <nlohmann/json.hpp> <fmt/format.h> <fmt/ranges.h>)
unset(NSA_OPTIMISATION)
