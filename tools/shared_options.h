// The option --device auto|cpu|cuda[:N] of the subcommands.
#pragma once
#include <CLI/CLI.hpp>
#include <charconv>
#include <string>

#include "core/check.h"
#include "core/device.h"

namespace sinkgrad {

namespace detail {
/// The N of "cuda" (0) or "cuda:N"; -1 for anything else.
inline int cuda_index(const std::string& name) {
  if (name == "cuda") return 0;
  if (!name.starts_with("cuda:")) return -1;
  int index = -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + 5, end, index);
  return error == std::errc() && stop == end ? index : -1;
}
}  // namespace detail

inline const CLI::Validator device_name(
    [](const std::string& s) {
      return s == "auto" || s == "cpu" || detail::cuda_index(s) >= 0 ? std::string() : "must be auto, cpu, cuda or cuda:N, got " + s;
    },
    "");

inline CLI::Option* add_device_option(CLI::App& command, std::string& name, const std::string& description) {
  return command.add_option("--device", name, description)->check(device_name)->type_name("auto|cpu|cuda[:N]")->capture_default_str();
}

/// What a name stands for. "auto" is the first GPU, or the CPU where there is none; `note` then says why when this build has a CUDA backend.
inline Device open_device(const std::string& name, std::string& note) {
  if (name == "cpu" || (name == "auto" && !Device::built_with_cuda())) return Device::cpu();
  if (name != "auto") return Device::cuda(detail::cuda_index(name));
  try {
    return Device::cuda(0);
  } catch (const DeviceError& error) {
    note = cat("note   running on the CPU: ", error.what());
    return Device::cpu();
  }
}

}  // namespace sinkgrad
