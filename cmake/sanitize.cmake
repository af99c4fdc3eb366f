# SINKGRAD_SANITIZE=address: AddressSanitizer with leaks and undefined behaviour; =thread: ThreadSanitizer. The first finding ends the program.
# tools/sanitize.sh builds and runs either.
set(SINKGRAD_SANITIZE OFF CACHE STRING "build with sanitizers: OFF, address (with undefined behaviour) or thread")
set_property(CACHE SINKGRAD_SANITIZE PROPERTY STRINGS OFF address thread)
set(SINKGRAD_OTHER_THREADS std)  # which core/threads_*.cpp is left out
if(NOT SINKGRAD_SANITIZE)
  return()
endif()

if(SINKGRAD_SANITIZE STREQUAL "address")
  # What undefined behaviour says of null pointers and dead objects AddressSanitizer says too; checks of both cost the compiler much.
  set(sanitizers -fsanitize=address,undefined -fno-sanitize=null,vptr)
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
elseif(SINKGRAD_SANITIZE STREQUAL "thread")
  set(sanitizers -fsanitize=thread)
  set(SINKGRAD_OTHER_THREADS openmp)
else()
  message(FATAL_ERROR "sinkgrad: SINKGRAD_SANITIZE must be OFF, address or thread, got ${SINKGRAD_SANITIZE}")
endif()
add_compile_options(${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer -O0 -g1)
file(GLOB_RECURSE loops core/*.cpp ops/*.cpp datasets/*.cpp)  # where tests spend their time; the rest compiles in half of it
set_property(SOURCE ${loops} APPEND PROPERTY COMPILE_OPTIONS -O1)
add_link_options(${sanitizers})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # Of Highway's targets AVX2 and the baseline: vector kernels take most of the build, and their C++ is the same for all targets.
  add_compile_definitions("HWY_BROKEN_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3|HWY_AVX3_DL)")
endif()
message(STATUS "sinkgrad: sanitizers ${SINKGRAD_SANITIZE}")
