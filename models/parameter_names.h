// Parameter names of other frameworks. Models here carry the names of the code that they follow: the authors', or fairseq's for translators;
// weights under other names are renamed by a table of patterns, the same for both directions.
#pragma once
#include <map>
#include <string>

#include "nn/classifier.h"

namespace sinkgrad {

/// authors: the Sinkformer code's Set Transformer, ViT and IMDb encoder; torch: nn.Transformer, nn.TransformerEncoder; fairseq: transformer.
enum class Naming : uint8_t { authors, torch, fairseq };
/// InputError for other names.
Naming naming_called(const std::string& name);

using Weights = std::map<std::string, Tensor>;

/// How the parameters of a model of the registry are named here.
Naming own_naming(const std::string& model);

/// The same weights under other names; torch's in_proj_weight (3 dim, dim) is split into the projections of queries, keys and values, or joined
/// from them. Names without a counterpart stay as they are. What fairseq keeps beside its parameters (version, the copy of the decoder's
/// embedding that projects its output) is left out. InputError beginning with `path` when no name belongs to `from`, projections do not fit
/// together, or that copy differs.
Weights renamed(const Weights& weights, Naming from, Naming to, const std::string& path);

/// What the authors keep among a model's parameters and the model here computes: the text encoder's table of positions.
Weights constants_of(Model& model);
/// Leaves these constants out of weights from elsewhere. InputError beginning with `path` where they differ by more than rounding: such weights
/// would mean something else here.
void remove_constants(Weights& weights, Model& model, const std::string& path);

}  // namespace sinkgrad
