// Options that many subcommands share: --device auto|cpu|cuda[:N], --threads, and --data KEY=VALUE of those that read a checkpoint.
#pragma once
#include <CLI/CLI.hpp>
#include <charconv>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/device.h"
#include "tools/option_checks.h"

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

inline CLI::Option* add_threads_option(CLI::App& command, int& threads) {
  return command.add_option("--threads", threads, "results do not depend on it [all cores]")->check(positive_integer);
}

inline CLI::Option* add_data_option(CLI::App& command, std::vector<std::string>& settings) {
  return command.add_option("--data", settings, "KEY=VALUE, changes one option of the data that the checkpoint names; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

/// What a name stands for. "cuda" is GPU number `gpu`, "auto" that one or the CPU where there is none; `note` then says why when this build has a
/// CUDA backend.
inline Device open_device(const std::string& name, std::string& note, int gpu = 0) {
  if (name == "cpu" || (name == "auto" && !Device::built_with_cuda())) return Device::cpu();
  if (name != "auto") return Device::cuda(name == "cuda" ? gpu : detail::cuda_index(name));
  try {
    return Device::cuda(gpu);
  } catch (const DeviceError& error) {
    note = cat("note   running on the CPU: ", error.what());
    return Device::cpu();
  }
}

}  // namespace sinkgrad
