// Which build a library is of. libsinkgrad and libsinkgrad_cuda call each other's C++ and share tables of kernels, so they must be of one build:
// cmake/build_stamp.cmake makes SINKGRAD_BUILD of the version and of the headers that both see.
#pragma once

/// An ELF section that holds nothing but the name of the build: it is read from the file before any of the library's code runs.
#define SINKGRAD_BUILD_SECTION ".sinkgrad.build"

#define SINKGRAD_DECLARE_BUILD() [[gnu::used, gnu::section(SINKGRAD_BUILD_SECTION)]] static const char sinkgrad_build[] = SINKGRAD_BUILD
