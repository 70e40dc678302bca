#include "nsa/train/run/failure.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <filesystem>
#include <new>
#include <system_error>

#include "nsa/parallel/errors.hpp"
#include "nsa/train/files.hpp"
#include "nsa/train/run/training.hpp"

namespace nsa::train {

Failure explain() {
  try {
    throw;
  } catch (const RunRefused& refused) {
    return {refused.code, refused.what()};
  } catch (const UsageError& error) {
    return {ExitCode::usage, error.what()};
  } catch (const ConfigInvalid& error) {
    return {ExitCode::usage, fmt::format("{} mistake(s) in the configuration:\n{}", error.errors.size(), error.what())};
  } catch (const FlagInvalid& error) {
    return {ExitCode::usage, error.what()};
  } catch (const Unsupported& error) {
    return {ExitCode::usage, error.what()};
  } catch (const StateMismatch& error) {
    return {ExitCode::usage, fmt::format("the checkpoint is {}", error.what())};
  } catch (const parallel::PeerDied& error) {
    return {ExitCode::peer, error.what()};
  } catch (const parallel::Timeout& error) {
    return {ExitCode::hung, error.what()};
  } catch (const parallel::WeightsDiffer& error) {
    return {ExitCode::infrastructure, error.what()};
  } catch (const parallel::Disagreement& error) {
    return {ExitCode::usage, error.what()};
  } catch (const parallel::RankTwice& error) {
    return {ExitCode::usage, error.what()};
  } catch (const parallel::Error& error) {
    return {ExitCode::infrastructure, error.what()};
  } catch (const DataError& error) {
    return {ExitCode::infrastructure, error.what()};
  } catch (const FileError& error) {
    return {ExitCode::infrastructure, error.what()};
  } catch (const std::filesystem::filesystem_error& error) {
    return {ExitCode::infrastructure, error.what()};
  } catch (const DeviceError& error) {
    return {ExitCode::infrastructure, error.what()};
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    // torch's allocators tell of memory by words alone: those of a GPU begin with its name.
    const bool machine =
        text.find("CUDA") != std::string::npos || text.find("DefaultCPUAllocator") != std::string::npos;
    return {machine ? ExitCode::infrastructure : ExitCode::internal, text};
  } catch (const std::bad_alloc&) {
    return {ExitCode::infrastructure, "there is not enough memory for this run"};
  } catch (const std::system_error& error) {  // a thread that could not be started, say
    return {ExitCode::infrastructure, error.what()};
  } catch (const std::exception& error) {
    return {ExitCode::internal, error.what()};
  }
}

}  // namespace nsa::train
