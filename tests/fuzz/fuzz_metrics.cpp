// Logs of runs: metrics.jsonl.
#include "fuzz/fuzz.h"
#include "tools/ui/metrics.h"

namespace sinkgrad::fuzz {

std::vector<std::string> seeds() {
  return {
      "{\"schema\": 1, \"t\": 1.5}\n{\"t\": 2, \"step\": 3, \"epoch\": 0.5, \"split\": \"train\", \"loss\": null, \"nonfinite\": \"loss\"}\n"
      "{\"t\": 3, \"step\": 3, \"event\": \"resume\", \"dropped\": 1}\n{\"t\": 4, \"step\": 4, \"split\": \"test\", \"acc\": 0.75}\n{\"t\": 5, \"st"};
}

void feed(std::string_view input) {
  const MemoryFile file(input);
  const MetricsFile metrics = read_metrics(file.path());
  for (const MetricsRow& row : metrics.rows) row.value("loss");
}

}  // namespace sinkgrad::fuzz
