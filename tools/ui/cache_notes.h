// What people are told while a cache file of data is made, which may take minutes.
#pragma once
#include <chrono>
#include <filesystem>
#include <memory>
#include <ostream>

namespace sinkgrad {

/// Says on `out` that a cache file is being made: at once, again every `interval`, and how long it took when the result is destroyed.
std::shared_ptr<void> tell_of_making(std::ostream& out, const std::filesystem::path& path,
                                     std::chrono::milliseconds interval = std::chrono::seconds(30));

}  // namespace sinkgrad
