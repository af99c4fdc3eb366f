// The table is read by columns: a name that matches one framework's pattern becomes the other's. '#' stands for the number of a layer, '*' for
// weight or bias.
#include "models/parameter_names.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

#include "models/text_encoder.h"

namespace sinkgrad {
namespace {

constexpr std::array<const char*, 3> kNamings = {"authors", "torch", "fairseq"};

struct Rule {
  std::array<std::string_view, kNamings.size()> names;  // empty: this framework has no such parameter
  int third = -1;                                       // of torch's packed projection: queries, keys, values

  std::string_view in(Naming naming) const { return names[static_cast<size_t>(naming)]; }
  bool packed_in(Naming naming) const { return third >= 0 && naming == Naming::torch; }
};

constexpr Rule kRules[] = {
    {{"layers.#.mha.WQ.*", "encoder.layers.#.self_attn.in_proj_*", "encoder.layers.#.self_attn.q_proj.*"}, 0},
    {{"layers.#.mha.WK.*", "encoder.layers.#.self_attn.in_proj_*", "encoder.layers.#.self_attn.k_proj.*"}, 1},
    {{"layers.#.mha.WV.*", "encoder.layers.#.self_attn.in_proj_*", "encoder.layers.#.self_attn.v_proj.*"}, 2},
    {{"layers.#.mha.linear.*", "encoder.layers.#.self_attn.out_proj.*", "encoder.layers.#.self_attn.out_proj.*"}},
    {{"layers.#.layernorm1.*", "encoder.layers.#.norm1.*", "encoder.layers.#.self_attn_layer_norm.*"}},
    {{"layers.#.ffn.linear1.*", "encoder.layers.#.linear1.*", "encoder.layers.#.fc1.*"}},
    {{"layers.#.ffn.linear2.*", "encoder.layers.#.linear2.*", "encoder.layers.#.fc2.*"}},
    {{"layers.#.layernorm2.*", "encoder.layers.#.norm2.*", "encoder.layers.#.final_layer_norm.*"}},
    {{"", "decoder.layers.#.self_attn.in_proj_*", "decoder.layers.#.self_attn.q_proj.*"}, 0},
    {{"", "decoder.layers.#.self_attn.in_proj_*", "decoder.layers.#.self_attn.k_proj.*"}, 1},
    {{"", "decoder.layers.#.self_attn.in_proj_*", "decoder.layers.#.self_attn.v_proj.*"}, 2},
    {{"", "decoder.layers.#.self_attn.out_proj.*", "decoder.layers.#.self_attn.out_proj.*"}},
    {{"", "decoder.layers.#.norm1.*", "decoder.layers.#.self_attn_layer_norm.*"}},
    {{"", "decoder.layers.#.multihead_attn.in_proj_*", "decoder.layers.#.encoder_attn.q_proj.*"}, 0},
    {{"", "decoder.layers.#.multihead_attn.in_proj_*", "decoder.layers.#.encoder_attn.k_proj.*"}, 1},
    {{"", "decoder.layers.#.multihead_attn.in_proj_*", "decoder.layers.#.encoder_attn.v_proj.*"}, 2},
    {{"", "decoder.layers.#.multihead_attn.out_proj.*", "decoder.layers.#.encoder_attn.out_proj.*"}},
    {{"", "decoder.layers.#.norm2.*", "decoder.layers.#.encoder_attn_layer_norm.*"}},
    {{"", "decoder.layers.#.linear1.*", "decoder.layers.#.fc1.*"}},
    {{"", "decoder.layers.#.linear2.*", "decoder.layers.#.fc2.*"}},
    {{"", "decoder.layers.#.norm3.*", "decoder.layers.#.final_layer_norm.*"}},
    {{"embedding.*", "", "encoder.embed_tokens.*"}},
};

/// What the '#' and the '*' of a pattern stand for.
struct Wildcards {
  std::string layer = {}, kind = {};
};

std::optional<Wildcards> match(std::string_view pattern, std::string_view name) {
  Wildcards found;
  for (const char c : pattern) {
    if (c == '*') {
      found.kind = name;
      name = {};
    } else if (c == '#') {
      found.layer = name.substr(0, name.find_first_not_of("0123456789"));
      if (found.layer.empty()) return std::nullopt;
      name.remove_prefix(found.layer.size());
    } else if (name.starts_with(c)) {
      name.remove_prefix(1);
    } else {
      return std::nullopt;
    }
  }
  return found.kind == "weight" || found.kind == "bias" ? std::optional(found) : std::nullopt;
}

std::string filled(std::string_view pattern, const Wildcards& wildcards) {
  std::string name;
  for (const char c : pattern) name += c == '#' ? wildcards.layer : c == '*' ? wildcards.kind : std::string(1, c);
  return name;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && std::memcmp(a.view().data, b.view().data, a.view().bytes()) == 0;
}

/// (3 n, ...) -> its rows third n .. (third + 1) n - 1
Tensor split(const Tensor& packed, int third, const std::string& at) {
  const Shape& shape = packed.shape();
  require<InputError>(shape.rank() > 0 && shape[0] % 3 == 0, at, " must hold queries, keys and values of one size, got ", shape);
  return packed.rows(third * shape[0] / 3, (third + 1) * shape[0] / 3).clone();
}

/// The inverse of split.
Tensor joined(const std::array<Tensor, 3>& thirds, const std::string& at) {
  const Tensor& first = thirds[0];
  for (const Tensor& t : thirds)
    require<InputError>(t && t.shape() == first.shape() && t.dtype() == first.dtype() && t.shape().rank() > 0, at,
                        " requires queries, keys and values of one shape, got ",
                        ShapesOf{std::array{thirds[0].view(), thirds[1].view(), thirds[2].view()}}, " (as many as there are)");
  Shape shape = first.shape();
  shape.set(0, 3 * shape[0]);
  const Tensor packed(shape, first.dtype());
  const size_t bytes = first.view().bytes();
  for (size_t i = 0; i < 3 && bytes > 0; ++i) std::memcpy(packed.view().as<char>() + i * bytes, thirds[i].view().data, bytes);
  return packed;
}

/// fairseq saves a version, the device's marker of the position table and the output projection, which is the decoder's embedding.
Weights without_extras(Weights weights, const std::string& path) {
  for (const char* name : {"encoder.version", "decoder.version", "encoder.embed_positions._float_tensor", "decoder.embed_positions._float_tensor"})
    weights.erase(name);
  const auto copy = weights.find("decoder.output_projection.weight"), table = weights.find("decoder.embed_tokens.weight");
  if (copy == weights.end() || table == weights.end()) return weights;
  require<InputError>(same_bits(copy->second, table->second), path, ": decoder.output_projection.weight must equal decoder.embed_tokens.weight, ",
                      "which is both here");
  weights.erase(copy);
  return weights;
}

}  // namespace

Naming naming_called(const std::string& name) {
  const auto found = std::find(kNamings.begin(), kNamings.end(), name);
  require<InputError>(found != kNamings.end(), "names must be those of authors, torch or fairseq, got ", name);
  return static_cast<Naming>(found - kNamings.begin());
}

Naming own_naming(const std::string& model) { return model == "translator" ? Naming::fairseq : Naming::authors; }

Weights renamed(const Weights& weights, Naming from, Naming to, const std::string& path) {
  Weights named, given = from == Naming::fairseq ? without_extras(weights, path) : weights;
  if (from == to) return given;
  std::map<std::string, std::array<Tensor, 3>> packed;
  bool any = false;
  const auto put = [&](const std::string& name, const Tensor& tensor) {
    require<InputError>(named.emplace(name, tensor).second, path, ": more than one tensor would be called '", name, "'");
  };
  for (const auto& [name, tensor] : given) {
    bool known = false;
    for (const Rule& rule : kRules) {
      const auto wildcards = rule.in(to).empty() ? std::nullopt : match(rule.in(from), name);
      if (!wildcards) continue;
      known = any = true;
      const std::string other = filled(rule.in(to), *wildcards);
      if (rule.packed_in(to))
        packed[other][static_cast<size_t>(rule.third)] = tensor;
      else
        put(other, rule.packed_in(from) ? split(tensor, rule.third, path + ": " + name) : tensor);
    }
    if (!known) put(name, tensor);
  }
  for (const auto& [name, thirds] : packed) put(name, joined(thirds, path + ": " + name));
  require<InputError>(any, path, ": requires parameters under the names of ", kNamings[static_cast<size_t>(from)], ", such as ",
                      filled(kRules[0].in(from), {"0", "weight"}), ", and holds none that ", kNamings[static_cast<size_t>(to)],
                      " would name otherwise");
  return named;
}

Weights constants_of(Model& model) {
  const auto* text = dynamic_cast<const TextEncoder*>(&model);
  return text ? Weights{{"pos_embedding.weight", text->positions}} : Weights{};
}

void remove_constants(Weights& weights, Model& model, const std::string& path) {
  constexpr double kRounding = 1e-5;  // sines of f32 angles against ours, of f64
  for (const auto& [name, ours] : constants_of(model)) {
    const auto found = weights.find(name);
    if (found == weights.end()) continue;
    const Tensor& theirs = found->second;
    const std::string at = path + ": " + name;
    require<InputError>(theirs.shape().rank() == 2 && theirs.shape()[1] == ours.shape()[1], at, " must be ", ours.shape(), ", got ", theirs.shape());
    const std::vector<double> a = to_doubles(theirs.view()), b = to_doubles(ours.view());
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)  // either may allow longer texts
      require<InputError>(std::abs(a[i] - b[i]) <= kRounding, at, " must be the model's own table of positions, got ", a[i], " instead of ", b[i],
                          " in row ", static_cast<int64_t>(i) / ours.shape()[1]);
    weights.erase(found);
  }
}

}  // namespace sinkgrad
