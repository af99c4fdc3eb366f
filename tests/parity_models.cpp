// Families of parity that are modules: every file's parameters are loaded by name, its output and all its gradients compared.
#include "parity_models.h"

#include "datasets/tokens.h"
#include "models/point_cloud.h"
#include "models/text_encoder.h"
#include "nn/transformer.h"
#include "parity.h"

namespace parity {
namespace {

/// A module on a tape with the file's parameters.
struct Run {
  Run(const Fixture& fixture, Comparison& comparison, Module& m, const std::set<std::string>& ignored = {})
      : f(fixture), c(comparison), module(m), pack(m, DType::f32, 1) {
    load_parameters(f, module, ignored);
    tape.set_training(f.says("mode train"));
  }
  Var input(const std::string& name) {
    inputs.emplace_back("in/" + name, tape.variable(f.at("in/" + name)));
    return inputs.back().second;
  }
  /// Compares output and gradients.
  void finish(const std::string& name, Var output) {
    c.output(name, tape.value(output));
    tape.backward(output, f.at("cotangent"));
    for (const auto& [key, x] : inputs) c.gradient(key, tape.grad(x));
    for (const Parameter& p : module.parameters()) c.gradient("param/" + p.name, p.grad);
    for (const Buffer& b : module.buffers())
      if (f.has("out/after/" + b.name)) c.output("after/" + b.name, b.value);
  }

  const Fixture& f;
  Comparison& c;
  Module& module;
  ParameterPack pack;
  Tape tape;
  std::vector<std::pair<std::string, Var>> inputs;
};

/// out/attention0, ... are the plans of the last call, where the file has them.
void compare_plans(const Fixture& f, Comparison& c, const std::vector<AttentionHeads*>& attentions, bool heads_first = false) {
  for (size_t i = 0; i < attentions.size(); ++i) {
    const std::string name = cat("attention", i);
    if (!f.has("out/" + name)) continue;
    const View plan = attentions[i]->plan();  // (B, H, N, M)
    const std::vector<double> values = to_doubles(plan);
    const int64_t batch = plan.shape[0], heads = plan.shape[1], size = plan.shape[2] * plan.shape[3];
    std::vector<double> ordered;
    for (int64_t k = 0; k < batch * heads; ++k) {
      const int64_t matrix = heads_first ? k % batch * heads + k / batch : k;
      ordered.insert(ordered.end(), values.begin() + matrix * size, values.begin() + (matrix + 1) * size);
    }
    c.check("out/" + name, ordered, kTolerance);
  }
}

void expose(const std::vector<AttentionHeads*>& attentions) {
  for (AttentionHeads* a : attentions) a->sinkhorn.expose_plan = true;
}

int count_layers(const Fixture& f, const std::string& prefix) {
  int n = 0;
  while (!f.keys(cat(prefix, n, ".")).empty()) ++n;
  return n;
}

void run_vit(const Fixture& f, Comparison& c) {
  const auto model = vit_of(f);
  expose(model->attentions());
  Run run(f, c, *model);
  const Var logits = model->logits(run.input("images"));
  compare_plans(f, c, model->attentions());
  run.finish("logits", logits);
}

void run_set(const Fixture& f, Comparison& c) {
  const auto model = set_transformer_of(f);
  Run run(f, c, *model);
  run.tape.set_training(false);
  run.finish("logits", model->logits(run.input("points")));
}

SetOptions set_options(const Fixture& f, const std::string& mab) {
  return {.dim = f.dim(mab + "fc_o.weight", 0),
          .heads = static_cast<int>(f.number("num_heads", 1)),
          .layer_norm = f.has(mab + "ln0.weight"),
          .scale_by_model_width = !f.says("sqrt(d_head)"),
          .sinkhorn = f.sinkhorn()};
}

void run_mab(const Fixture& f, Comparison& c) {
  Module root;
  Mab mab(root, "", f.dim("param/fc_q.weight", 1), f.dim("param/fc_k.weight", 1), set_options(f, "param/"));
  Run run(f, c, root);
  const Var queries = run.input("query");
  run.finish("output", mab(queries, run.input("key")));
}

void run_isab(const Fixture& f, Comparison& c) {
  Module root;
  Isab isab(root, "", f.dim("in/x", 2), f.dim("param/I", 1), set_options(f, "param/mab0."));
  const std::vector<AttentionHeads*> attentions{&isab.mab0.heads, &isab.mab1.heads};
  expose(attentions);
  Run run(f, c, root);
  const Var output = isab(run.input("x"));
  compare_plans(f, c, attentions, true);
  run.finish("output", output);
}

void run_text(const Fixture& f, Comparison& c) {
  TextEncoder model({.vocabulary = f.dim("param/embedding.weight", 0),
                     .max_length = f.dim("param/pos_embedding.weight", 0) - 1,
                     .dim = f.dim("param/embedding.weight", 1),
                     .mlp_dim = f.dim("param/layers.0.ffn.linear1.weight", 0),
                     .classes = f.dim("param/linear.weight", 0),
                     .depth = count_layers(f, "param/layers."),
                     .heads = static_cast<int>(f.number("n_heads", 1)),
                     .norm_epsilon = f.number("LayerNorm eps", 1e-6),
                     .padding_queries_vote = f.says("padded queries kept"),
                     .pool_padding = true,
                     .sinkhorn = f.sinkhorn()});
  if (f.says("sinusoid")) c.check("param/pos_embedding.weight", to_doubles(model.positions.view()), 1e-6);
  model.positions = f.at("param/pos_embedding.weight").clone();
  expose(model.attentions());
  Run run(f, c, model, {"pos_embedding.weight"});
  run.tape.set_training(false);
  const Tensor tokens = f.integers("in/tokens"), planes({3, tokens.shape()[0], tokens.shape()[1]}, DType::i32);
  const int64_t n = tokens.shape()[1];
  write_tokens(planes, {}, [&](int64_t row) {
    const auto text = tokens.span<int32_t>().subspan(static_cast<size_t>(row * n), static_cast<size_t>(n));
    return text.first(static_cast<size_t>(std::find(text.begin(), text.end(), 0) - text.begin()));
  });
  const Var logits = model.logits(run.tape.leaf(planes));
  compare_plans(f, c, model.attentions());
  run.finish("logits", logits);
}

/// torch's nn.Transformer, post-norm, with padded sources and a causal decoder.
void run_transformer(const Fixture& f, Comparison& c) {
  TransformerOptions options{
      .attention = {.dim = f.dim("in/source", 2), .heads = static_cast<int>(f.number("nhead", 1)), .padding_queries_vote = true},
      .mlp_dim = f.dim("param/encoder.layers.0.linear1.weight", 0),
      .activation = f.says("gelu") ? Activation::gelu : Activation::relu,
      .pre_norm = f.says("pre-norm"),
      .final_norm = f.has("param/encoder.norm.weight")};
  Module root;
  Encoder encoder(root, "encoder", count_layers(f, "param/encoder.layers."), options);
  options.names = LayerNames::torch_decoder();
  Decoder decoder(root, "decoder", count_layers(f, "param/decoder.layers."), options);
  Run run(f, c, root);
  const Var source = run.input("source"), target = run.input("target");
  const Tensor is_padding = f.integers("in/source_is_pad"), causal = causal_mask(target.shape()[1]);
  const AttentionMasks source_masks{.key_is_padding = run.tape.leaf(is_padding)};
  const Var memory = encoder(source, source_masks);
  run.finish("output", decoder(target, memory, {.pair_is_hidden = run.tape.leaf(causal)}, source_masks));
}

/// The files hold (B, channels, points).
template <class M>
void run_channels_first(const Fixture& f, Comparison& c, Module& root, M& module, const std::set<std::string>& ignored) {
  for (const std::string& name : ignored) {
    std::string query = name;
    query[query.find("k_conv")] = 'q';
    require(to_doubles(f.at("param/" + name).view()) == to_doubles(f.at("param/" + query).view()), name, " must equal ", query,
            ": they are one weight");
  }
  Run run(f, c, root, ignored);
  run.finish("output", transpose(module(transpose(run.input("x"), 1, 2)), 1, 2));
}

void run_offset_attention(const Fixture& f, Comparison& c) {
  Module root;
  OffsetAttention attention(root, "", f.dim("in/x", 1));
  run_channels_first(f, c, root, attention, {"k_conv.weight"});
}

void run_trunk(const Fixture& f, Comparison& c) {
  Module root;
  PointTrunk trunk(root, "", f.dim("in/x", 1));
  run_channels_first(f, c, root, trunk, {"sa1.k_conv.weight", "sa2.k_conv.weight", "sa3.k_conv.weight", "sa4.k_conv.weight"});
}

void run_local_operation(const Fixture& f, Comparison& c) {
  Module root;
  LocalOperation local(root, "", f.dim("in/x", 3), f.dim("param/conv1.weight", 0));
  Run run(f, c, root);
  run.finish("output", transpose(local(run.input("x")), 1, 2));
}

}  // namespace

/// Whether the MLP of an attention-only ViT exists and does nothing.
MlpUse mlp_use(const Fixture& f) {
  const std::string mlp = "transformer.layers.0.1.fn.net.0.weight";
  if (!f.has("param/" + mlp)) return MlpUse::none;
  const bool trained = f.has("final/" + mlp) && to_doubles(f.at("final/" + mlp).view()) != to_doubles(f.at("param/" + mlp).view());
  return trained || f.has("grad/param/" + mlp) ? MlpUse::used : MlpUse::unused;
}

std::unique_ptr<Classifier> vit_of(const Fixture& f) {
  const std::string images = f.has("in/images") ? "in/images" : "in/batches", block = "param/transformer.layers.0.";
  const auto heads = static_cast<int>(f.number("heads", 1));
  return std::make_unique<Vit>(VitOptions{.channels = f.dim(images, -3),
                                          .height = f.dim(images, -2),
                                          .width = f.dim(images, -1),
                                          .classes = f.dim("param/mlp_head.1.weight", 0),
                                          .patch = static_cast<int64_t>(f.number("patch", 1)),
                                          .dim = f.dim("param/cls_token", 2),
                                          .mlp_dim = mlp_use(f) == MlpUse::none ? 0 : f.dim(block + "1.fn.net.0.weight", 0),
                                          .head_dim = f.dim(block + "0.fn.to_qkv.weight", 0) / 3 / heads,
                                          .depth = count_layers(f, "param/transformer.layers."),
                                          .heads = heads,
                                          .mlp = mlp_use(f),
                                          .sinkhorn = f.sinkhorn()});
}

std::unique_ptr<Classifier> set_transformer_of(const Fixture& f) {
  SetTransformerOptions options{.input_dim = f.dim("param/enc.0.mab0.fc_k.weight", 1),
                                .classes = f.dim("param/dec.3.weight", 0),
                                .inducing = f.dim("param/enc.0.I", 1),
                                .dropout = 0,
                                .blocks = set_options(f, "param/enc.0.mab0.")};
  options.blocks.sinkhorn.rows_sum_to_inverse_count = !f.says("rows sum to 1,");  // the authors' code, unless the file says otherwise
  return std::make_unique<SetTransformer>(options);
}

std::vector<Family> model_families() {
  return {{"vit", [](const Fixture& f) { return f.has("param/cls_token"); }, run_vit},
          {"set transformer", [](const Fixture& f) { return f.has("param/enc.0.I"); }, run_set},
          {"isab", [](const Fixture& f) { return f.has("param/I"); }, run_isab},
          {"mab", [](const Fixture& f) { return f.has("param/fc_q.weight"); }, run_mab},
          {"text encoder", [](const Fixture& f) { return f.has("param/layers.0.mha.WQ.weight"); }, run_text},
          {"nn.Transformer", [](const Fixture& f) { return f.has("param/decoder.layers.0.self_attn.in_proj_weight"); }, run_transformer},
          {"pct trunk", [](const Fixture& f) { return f.has("param/sa1.q_conv.weight"); }, run_trunk},
          {"pct offset attention", [](const Fixture& f) { return f.has("param/q_conv.weight"); }, run_offset_attention},
          {"pct local operation", [](const Fixture& f) { return f.has("param/conv1.weight"); }, run_local_operation}};
}

}  // namespace parity
