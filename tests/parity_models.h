// Models of a reference file, built from the shapes of its parameters: to run them once, or to train them.
#pragma once
#include <memory>

#include "models/set_transformer.h"
#include "models/vit.h"
#include "parity.h"

namespace parity {

std::unique_ptr<Classifier> vit_of(const Fixture& fixture);
/// Without dropout.
std::unique_ptr<Classifier> set_transformer_of(const Fixture& fixture);

}  // namespace parity
