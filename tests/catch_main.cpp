// The main function of every Catch2 test program.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "ops/cpu/instructions.h"

int main(int argc, char** argv) {
  sinkgrad::cpu::limit_instructions_by_environment();
  return Catch::Session().run(argc, argv);
}
