// What this program was built from. The values stand in a source file that every build writes afresh
// (write_build_info.cpp), so that users of this header are not compiled again when an id changes.
#pragma once

namespace build_info {

extern const char* const kVersion;    // the project's, "0.1.0"
extern const char* const kBuildId;    // harness::source_hash() of the sources
extern const char* const kSourceDir;  // where they were, absolute; need not exist when the program runs
extern const char* const kBuildType;  // "Release"
extern const char* const kCompiler;   // "GNU 12.2.0"

}  // namespace build_info
