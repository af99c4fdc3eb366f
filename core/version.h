// The version of this library: headers, program and packages read it here.
#pragma once

#define SINKGRAD_VERSION "0.1.0"
#define SINKGRAD_VERSION_MAJOR 0
#define SINKGRAD_VERSION_MINOR 1
#define SINKGRAD_VERSION_PATCH 0
