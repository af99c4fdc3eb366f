// A libcuda.so.1 of any version that knows no GPU, so that what the CUDA runtime makes of an old driver can be seen on every machine.
#include <cstdlib>
#include <cstring>

extern "C" {

int cuInit(unsigned) { return 100; }  // CUDA_ERROR_NO_DEVICE
int cuDriverGetVersion(int* version) {
  const char* wanted = std::getenv("FAKE_DRIVER_VERSION");
  *version = wanted ? std::atoi(wanted) : 0;
  return 0;
}
int cuDeviceGetCount(int* count) { return *count = 0; }
int cuGetProcAddress_v2(const char* symbol, void** function, int, unsigned long long, void*);
int cuGetProcAddress(const char* symbol, void** function, int, unsigned long long) { return cuGetProcAddress_v2(symbol, function, 0, 0, nullptr); }
static int not_here() { return 999; }  // CUDA_ERROR_UNKNOWN

int cuGetProcAddress_v2(const char* symbol, void** function, int, unsigned long long, void*) {
  *function = reinterpret_cast<void*>(not_here);
  if (!std::strcmp(symbol, "cuInit")) *function = reinterpret_cast<void*>(cuInit);
  if (!std::strcmp(symbol, "cuDriverGetVersion")) *function = reinterpret_cast<void*>(cuDriverGetVersion);
  if (!std::strcmp(symbol, "cuDeviceGetCount")) *function = reinterpret_cast<void*>(cuDeviceGetCount);
  if (!std::strncmp(symbol, "cuGetProcAddress", 16)) *function = reinterpret_cast<void*>(cuGetProcAddress_v2);
  return 0;
}
}
