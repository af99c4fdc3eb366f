// What keeps a GPU from being used, as one sentence each: no driver, an old driver, no GPU, no such GPU, kernels for other GPUs.
// Pure functions of facts, so that every sentence is tested on machines without a GPU.
#pragma once
#include <string>

#include "core/check.h"

namespace sinkgrad::cuda {

/// What the CUDA runtime tells before a GPU is opened.
struct GpuFacts {
  int driver = 0;            ///< the CUDA version that the driver supports, 12040 for 12.4; 0 without a driver
  int runtime = 0;           ///< the CUDA version of this build
  bool too_old = false;      ///< the runtime refuses the driver
  int count = 0;             ///< visible GPUs
  int index = 0;             ///< the GPU that is asked for
  std::string visible = {};  ///< CUDA_VISIBLE_DEVICES where it is set
  bool restricted = false;   ///< whether it is set
  std::string error = {};    ///< what else the runtime complains about
};

inline std::string version_text(int version) { return cat(version / 1000, ".", version % 1000 / 10); }

/// Empty when the GPU can be opened.
inline std::string obstacle(const GpuFacts& f) {
  const std::string visible = f.restricted ? cat(" (CUDA_VISIBLE_DEVICES is '", f.visible, "')") : "";
  if (f.driver == 0) return "cuda: this machine has no NVIDIA driver";
  if (f.too_old)
    return cat("cuda: the NVIDIA driver is too old: it supports CUDA ", version_text(f.driver), ", this sinkgrad needs CUDA ",
               version_text(f.runtime));
  if (!f.error.empty()) return cat("cuda: the GPUs cannot be listed: ", f.error);
  if (f.count == 0) return cat("cuda: the driver sees no GPU", visible);
  if (f.index < 0 || f.index >= f.count) return cat("cuda: there is no GPU ", f.index, ", this machine has ", f.count, ", counted from 0", visible);
  return "";
}

/// When the self-test kernel did not write what it should.
inline std::string unusable(const std::string& gpu, int architecture, const std::string& built_for, const std::string& reason) {
  return cat("cuda: the kernels do not run on ", gpu, ": they are built for ", built_for, ", the device is sm_", architecture, ": ", reason);
}

}  // namespace sinkgrad::cuda
