// The models: parameter counts and names of the authors' code, options by name, gradients, and what they must not depend on.
#include <catch2/catch.hpp>

#include "datasets/tokens.h"
#include "models/point_cloud_transformer.h"
#include "models/registry.h"
#include "models/set_transformer.h"
#include "models/text_encoder.h"
#include "models/vit.h"
#include "module_check.h"

using namespace sinkgrad;
using nlohmann::json;

namespace {

/// Token planes of some texts, padded to the longest or to `longest`.
Tensor planes_of(const std::vector<std::vector<int32_t>>& texts, int64_t longest = 0) {
  for (const auto& text : texts) longest = std::max(longest, static_cast<int64_t>(text.size()));
  const Tensor planes({3, static_cast<int64_t>(texts.size()), longest}, DType::i32);
  write_tokens(planes, {}, [&](int64_t i) { return std::span(texts[static_cast<size_t>(i)]); });
  return planes;
}

}  // namespace

TEST_CASE("parameter counts of the authors' models") {
  CHECK(SetTransformer({}).parameter_count() == 1'145'384);
  CHECK(SetTransformer({.blocks = {.layer_norm = false}}).parameter_count() == 1'140'264);
  CHECK(Vit({}).parameter_count() == 1'899'138);
  CHECK(TextEncoder({}).parameter_count() == 8'835'074);
  CHECK(make_model({{"name", "text_encoder"}}, {512, 16000}, 2)->parameter_count() == 8'835'074);
  const std::vector<std::pair<int, int64_t>> mnist = {{1, 168'842}, {2, 93'962}, {4, 76'682}, {7, 76'682}, {14, 93'962}, {28, 168'842}};
  for (const auto& [patch, count] : mnist) {
    CHECK(make_model({{"name", "vit_attention_only"}, {"patch", patch}, {"unused_mlp", true}}, {1, 28, 28}, 10)->parameter_count() == count);
    CHECK(make_model({{"name", "vit_attention_only"}, {"patch", patch}}, {1, 28, 28}, 10)->parameter_count() == count - 33'280);
  }
}

TEST_CASE("parameters carry the authors' names") {
  Vit vit({.height = 32, .width = 32, .depth = 1});
  for (const char* name :
       {"to_patch_embedding.1.weight", "cls_token", "pos_embedding", "transformer.layers.0.0.norm.weight", "transformer.layers.0.0.fn.to_qkv.weight",
        "transformer.layers.0.0.fn.to_out.0.bias", "transformer.layers.0.1.fn.net.3.weight", "mlp_head.1.bias"})
    CHECK_NOTHROW(vit.find_parameter(name));
  CHECK_THROWS(vit.find_parameter("transformer.layers.0.0.fn.to_qkv.bias"));
  SetTransformer set({});
  for (const char* name : {"enc.0.I", "enc.1.mab0.fc_q.weight", "dec.1.S", "dec.1.mab.ln1.bias", "dec.3.weight"})
    CHECK_NOTHROW(set.find_parameter(name));
  TextEncoder text({.vocabulary = 10, .depth = 1});
  for (const char* name : {"embedding.weight", "layers.0.mha.WQ.weight", "layers.0.mha.linear.bias", "layers.0.ffn.linear2.weight",
                           "layers.0.layernorm1.bias", "linear.weight"})
    CHECK_NOTHROW(text.find_parameter(name));
}

TEST_CASE("models by name: defaults, overrides and mistakes") {
  CHECK(model_names() ==
        std::vector<std::string>{"point_cloud_transformer", "set_transformer", "text_encoder", "translator", "vit", "vit_attention_only"});
  CHECK(default_model_config("vit")["heads"] == 8);
  CHECK(default_model_config("vit").begin().key() == "name");
  const auto config = complete_model_config({{"name", "set_transformer"}, {"tolerance", 1}, {"iterations", 21}});
  CHECK(config["tolerance"].is_number_float());
  CHECK(config["iterations"] == 21);
  CHECK(config["dim"] == 256);

  const auto model = make_model({{"name", "set_transformer"},
                                 {"iterations", 5},
                                 {"gradient", "implicit"},
                                 {"tolerance", 0.5},
                                 {"dim", 16},
                                 {"rows_sum_to_inverse_count", true},
                                 {"scale_by_model_width", true}},
                                {50, 3}, 4);
  REQUIRE(model->attentions().size() == 5);
  for (const AttentionHeads* a : model->attentions()) {
    CHECK(a->sinkhorn.iterations == 5);
    CHECK(a->sinkhorn.gradient == SinkhornGradient::implicit);
    CHECK(a->sinkhorn.tolerance == 0.5);
    CHECK(a->sinkhorn.rows_sum_to_inverse_count);
    CHECK(a->scale == 0.25);
    CHECK(a->count == 4);
  }

  using Catch::Contains;
  const auto fails = [](const json& c, const Shape& item, const std::string& message) {
    CHECK_THROWS_AS(make_model(c, item, 2), InputError);
    CHECK_THROWS_WITH(make_model(c, item, 2), Contains(message));
  };
  fails({{"name", "vitt"}}, {1, 28, 28}, "did you mean 'vit'");
  fails({{"name", "vit"}, {"iteration", 3}}, {1, 28, 28}, "did you mean 'iterations'");
  fails({{"name", "vit"}, {"heads", "four"}}, {1, 28, 28}, "option 'heads' must be an integer");
  fails({{"name", "vit"}, {"iterations", 0}}, {1, 28, 28}, "from 1");
  fails({{"name", "vit"}, {"tolerance", -1}}, {1, 28, 28}, "at least 0");
  fails({{"name", "vit"}, {"gradient", "exact"}}, {1, 28, 28}, "unrolled, implicit or frozen");
  fails({{"name", "vit"}, {"patch", 5}}, {1, 28, 28}, "got 28x28");
  fails({{"name", "vit"}}, {50, 3}, "(50,3)");
  fails({{"name", "set_transformer"}, {"layer_norm", 1}}, {50, 3}, "true or false");
  fails({{"name", "set_transformer"}, {"heads", 3}}, {50, 3}, "divide");
  fails({{"name", "set_transformer"}, {"dropout", 1}}, {50, 3}, "less than 1");
  fails({{"name", 3}}, {50, 3}, "\"name\"");
  fails(json::array(), {50, 3}, "object");
}

TEST_CASE("backward of every model is the derivative of its forward") {
  const Tensor images = random_tensor({2, 2, 8, 8}, "images", DType::f64), points = random_tensor({2, 9, 3}, "points", DType::f64);
  for (int iterations : {1, 3}) {
    for (MlpUse mlp : {MlpUse::none, MlpUse::used}) {
      Vit vit({.channels = 2,
               .height = 8,
               .width = 8,
               .classes = 3,
               .patch = 4,
               .dim = 6,
               .mlp_dim = 5,
               .head_dim = 3,
               .depth = 2,
               .heads = 2,
               .mlp = mlp,
               .sinkhorn = {.iterations = iterations}});
      CHECK(gradient_error(vit, [&](Tape& tape) { return vit.logits(tape.leaf(images)); }) < 1e-6);
    }
    SetTransformer set({.classes = 4, .inducing = 3, .blocks = {.dim = 8, .heads = 2, .sinkhorn = {.iterations = iterations}}});
    CHECK(gradient_error(set, [&](Tape& tape) { return set.logits(tape.leaf(points)); }) < 1e-6);
    TextEncoder text({.vocabulary = 7,
                      .max_length = 5,
                      .dim = 6,
                      .mlp_dim = 5,
                      .depth = 1,
                      .heads = 2,
                      .sinkhorn = {.iterations = iterations},
                      .dtype = DType::f64});
    const Tensor planes = planes_of({{3, 1, 6, 2}, {5, 4}});
    CHECK(gradient_error(text, [&](Tape& tape) { return text.logits(tape.leaf(planes)); }) < 1e-6);
  }
  for (bool sinkhorn : {false, true}) {
    Module root;
    LocalOperation local(root, "local", 3, 8);
    PointTrunk trunk(root, "trunk", 8, sinkhorn ? std::optional<SinkhornOptions>{{.iterations = 3}} : std::nullopt);
    const Tensor groups = random_tensor({2, 5, 4, 3}, "groups", DType::f64);
    CHECK(gradient_error(root, [&](Tape& tape) { return trunk(local(tape.leaf(groups))); }) < 1e-6);
  }
}

TEST_CASE("the unused MLP of the attention-only ViT gets no gradient and changes nothing") {
  Vit vit({.channels = 1,
           .height = 8,
           .width = 8,
           .classes = 3,
           .patch = 4,
           .dim = 6,
           .mlp_dim = 5,
           .head_dim = 3,
           .depth = 1,
           .heads = 1,
           .mlp = MlpUse::unused});
  ParameterPack pack(vit, DType::f32, 1);
  const Tensor images = random_tensor({2, 1, 8, 8}, "images"), cotangent = random_tensor({2, 3}, "cotangent");
  Tape tape;
  tape.backward(vit.logits(tape.leaf(images)), cotangent);
  for (const Parameter& p : vit.parameters()) {
    const std::vector<double> g = to_doubles(p.grad);
    const bool all_zero = std::all_of(g.begin(), g.end(), [](double v) { return v == 0; });
    CHECK(all_zero == (p.name.find("layers.0.1.") != std::string::npos));
  }
}

TEST_CASE("set transformer: order does not matter, dropout only in training, batch independent") {
  SetTransformer set({.classes = 4, .inducing = 3, .blocks = {.dim = 8, .heads = 2, .sinkhorn = {.iterations = 5}}});
  ParameterPack pack(set, DType::f32, 1);
  Tape tape;
  const Tensor points = random_tensor({2, 9, 3}, "points");
  Tensor reversed = points.clone();
  for (size_t i = 0; i < 9; ++i) std::copy_n(&points.span<float>()[3 * i], 3, &reversed.span<float>()[3 * (8 - i)]);
  const auto logits = [&](const View& x) {
    const std::vector<double> y = to_doubles(tape.value(set.logits(tape.leaf(x))));
    tape.reset();
    return y;
  };
  tape.set_random({.seed = 1, .step = 1});
  const auto trained = logits(points.view());
  set.logits(tape.leaf(points));
  const auto dropouts = [](const Record& r) { return std::string(r.op->name) == "dropout"; };
  CHECK(std::count_if(tape.records().begin(), tape.records().end(), dropouts) == 2);
  tape.reset();
  tape.set_training(false);
  const auto all = logits(points.view()), first = logits(points.view().rows(0, 1)), again = logits(reversed.view());
  CHECK(trained != all);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(first[i] == Approx(all[i]).margin(1e-6));
    CHECK(again[i] == Approx(all[i]).margin(1e-5));
  }
}

TEST_CASE("token planes hold tokens, positions from 1, and where padding is") {
  CHECK(to_doubles(planes_of({{5, 6}, {7}}, 3).view()) == std::vector<double>{5, 6, 0, 7, 0, 0, 1, 2, 0, 1, 0, 0, 0, 0, 1, 0, 1, 1});
  const Tensor shifted({3, 1, 3}, DType::i32);
  const std::vector<int32_t> row = {9, 8};
  write_tokens(shifted, {.padding = 1, .first_position = 2, .padding_position = 1}, [&](int64_t) { return std::span(row); });
  CHECK(to_doubles(shifted.view()) == std::vector<double>{9, 8, 1, 2, 3, 1, 0, 0, 1});
}

TEST_CASE("padding changes nothing for the text encoder, unless the released code's options are on") {
  const auto distance = [](const TextEncoderOptions& options) {
    TextEncoder model(options);
    ParameterPack pack(model, DType::f32, 1);
    Tape tape;
    tape.set_training(false);
    const auto logits = [&](int64_t longest) {
      const std::vector<double> y = to_doubles(tape.value(model.logits(tape.leaf(planes_of({{3, 1, 6}, {2, 5}}, longest)))));
      tape.reset();
      return y;
    };
    const std::vector<double> tight = logits(3), padded = logits(9);
    double worst = 0;
    for (size_t i = 0; i < tight.size(); ++i) worst = std::max(worst, std::abs(tight[i] - padded[i]));
    return worst;
  };
  const TextEncoderOptions small{.vocabulary = 7, .max_length = 9, .dim = 8, .mlp_dim = 8, .depth = 2, .heads = 2, .sinkhorn = {.iterations = 3}};
  CHECK(distance(small) < 1e-6);
  TextEncoderOptions voting = small, pooling = small;
  voting.padding_queries_vote = true;
  pooling.pool_padding = true;
  CHECK(distance(voting) > 1e-4);
  CHECK(distance(pooling) > 1e-4);
}

TEST_CASE("the released text encoder: probabilities as scores, noise as positions") {
  TextEncoder model(
      {.vocabulary = 7, .max_length = 9, .dim = 8, .mlp_dim = 8, .depth = 1, .heads = 2, .random_positions = true, .double_softmax = true});
  ParameterPack pack(model, DType::f32, 1);
  Tape tape;
  tape.set_training(false);
  const std::vector<double> p = to_doubles(tape.value(model.logits(tape.leaf(planes_of({{3, 1, 6}, {2, 5}})))));
  CHECK(p[0] + p[1] == Approx(1));
  CHECK(p[2] + p[3] == Approx(1));
  double sum = 0, squares = 0;
  for (const double x : to_doubles(model.positions.view())) sum += x, squares += x * x;
  CHECK(std::abs(sum / 80) < 0.4);
  CHECK(squares / 80 == Approx(1).margin(0.4));
  CHECK(to_doubles(TextEncoder({.max_length = 3, .dim = 4, .heads = 2}).positions.view())[5] == Approx(std::cos(1)));
}

TEST_CASE("sampling of points: farthest first, points at the origin never, nearest neighbours by distance") {
  const Tensor points = Tensor::of<float>({1, 5, 3}, {1, 0, 0, 2, 0, 0, 4, 0, 0, 0.01f, 0, 0, 1.5f, 0, 0});
  const auto farthest = [&](int64_t count) {
    const Tensor chosen({1, count}, DType::i32);
    farthest_points(points.view(), chosen.view());
    return to_doubles(chosen.view());
  };
  CHECK(farthest(4) == std::vector<double>{0, 2, 1, 4});
  const Tensor centres = Tensor::of<float>({1, 1, 3}, {1.9f, 0, 0});
  const auto nearest = [&](int64_t k) {
    const Tensor found({1, 1, k}, DType::i32);
    nearest_points(points.view(), centres.view(), found.view());
    return to_doubles(found.view());
  };
  CHECK(nearest(3) == std::vector<double>{1, 4, 0});
  CHECK_THROWS_WITH(farthest(6), Catch::Contains("(1,5,3)"));
  CHECK_THROWS_AS(nearest(6), ShapeError);
  const Tensor rows = Tensor::of<int32_t>({2, 1, 2}, {0, 3, 1, 2});
  make_flat_rows(rows.view(), 5);
  CHECK(to_doubles(rows.view()) == std::vector<double>{0, 3, 6, 7});
}

TEST_CASE("the PCT: names, attention by option, gradient, and clouds too small for it") {
  PointCloudTransformer upstream({});
  CHECK(upstream.parameter_count() == 2'876'136);
  for (const char* name : {"conv1.weight", "bn2.bias", "gather_local_0.conv1.weight", "gather_local_1.bn2.weight", "pt_last.sa4.q_conv.weight",
                           "pt_last.sa1.after_norm.bias", "conv_fuse.0.weight", "conv_fuse.1.weight", "bn6.weight", "linear2.bias", "linear3.weight"})
    CHECK_NOTHROW(upstream.find_parameter(name));
  CHECK_THROWS(upstream.find_parameter("linear1.bias"));
  CHECK(upstream.attentions().empty());

  const json small = {{"name", "point_cloud_transformer"}, {"width", 4}, {"centres", 8}, {"neighbours", 3}, {"dropout", 0}};
  const auto make = [&](const json& changes) {
    json config = small;
    config.update(changes);
    return make_model(config, {12, 3}, 5);
  };
  const auto groups_of = [](const Tensor& points) {
    const Tensor rows({points.shape()[0] * PointGroups{8, 3}.rows_per_cloud()}, DType::i32);
    const Tensor coordinates(points.shape());
    const std::vector<double> values = to_doubles(points.view());
    for (size_t i = 0; i < values.size(); ++i) coordinates.span<float>()[i] = static_cast<float>(values[i]);
    write_groups(coordinates.view(), {8, 3}, rows.view());
    return rows;
  };
  const Tensor points = random_tensor({3, 12, 3}, "points", DType::f64), groups = groups_of(points);
  for (const json& changes : {json{{"iterations", 1}}, json{{"iterations", 3}}, json{{"iterations", 1}, {"double_normalisation", false}}}) {
    const auto model = make(changes);
    CHECK(model->attentions().size() == (changes["iterations"] == 3 || changes.contains("double_normalisation") ? 4 : 0));
    CHECK(gradient_error(*model, [&](Tape& tape) { return model->scores(tape.leaf(points), tape.leaf(groups)); }) < 1e-6);
  }
  CHECK(make({{"iterations", 21}})->attentions()[3]->sinkhorn.iterations == 21);

  // The fused features are the four attentions and the second level's own: each of the five moves the output.
  {
    const auto model = make(json::object());
    ParameterPack pack(*model, DType::f32, 1);
    Tape tape;
    const Tensor clouds = random_tensor({3, 12, 3}, "points");
    const Var logits = model->scores(tape.leaf(clouds), tape.leaf(groups));
    tape.backward(logits, random_tensor({3, 5}, "cotangent"));
    const View gradient = model->find_parameter("conv_fuse.0.weight").grad;  // (64, 5 16)
    for (int64_t block = 0; block < 5; ++block) {
      double sum = 0;
      for (int64_t i = 0; i < gradient.shape.count(); ++i)
        if (i % 80 / 16 == block) sum += std::abs(gradient.as<float>()[i]);
      CHECK(sum > 0);
    }
  }

  // A larger batch in between changes nothing for a smaller one.
  const auto model = make({{"iterations", 3}});
  ParameterPack pack(*model, DType::f32, 1);
  Tape tape;
  tape.set_training(false);
  const Tensor clouds = random_tensor({6, 12, 3}, "clouds");
  const auto logits = [&](int64_t count) {
    const Tensor some = clouds.rows(0, count), rows = groups_of(some);
    const std::vector<double> y = to_doubles(tape.value(model->scores(tape.leaf(some), tape.leaf(rows))));
    tape.reset();
    return y;
  };
  const auto before = logits(2);
  CHECK(before.size() == 10);
  const auto all = logits(6);
  CHECK(before == logits(2));
  for (size_t i = 0; i < before.size(); ++i) CHECK(all[i] == Approx(before[i]).margin(1e-5));

  using Catch::Contains;
  CHECK_THROWS_WITH(model->scores(tape.leaf(clouds), {}), Contains("point groups") && Contains("those of 6 clouds, got none"));
  CHECK_THROWS_WITH(model->scores(tape.leaf(clouds), tape.leaf(groups)), Contains("got i32 (144)"));
  CHECK_THROWS_WITH(make({{"centres", 13}}), Contains("at least 13 points") && Contains("(12,3)"));
  CHECK_THROWS_WITH(make({{"neighbours", 5}}), Contains("half of the centres"));
  CHECK_THROWS_WITH(make_model(small, {12, 4}, 2), Contains("(12,4)"));
  CHECK_THROWS_WITH(make_model(small, {1, 28, 28}, 2), Contains("(1,28,28)"));
}
