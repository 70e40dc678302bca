// In a test whose processes sum over Gloo: skips it, with the reason, where this build has none (nsa/CMakeLists.txt).
#pragma once

#include <gtest/gtest.h>

#ifdef NSA_WITHOUT_GLOO
#define NSA_NEEDS_GLOO() GTEST_SKIP() << "built without gloo's headers (libgloo-dev): no group of processes on CPUs"
#else
#define NSA_NEEDS_GLOO() static_cast<void>(0)
#endif
