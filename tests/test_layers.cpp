// The layers: values, statistics, randomness, masks and gradients of every module of nn/.
#include <catch2/catch.hpp>

#include "module_check.h"
#include "nn/set.h"
#include "nn/transformer.h"

using namespace sinkgrad;

namespace {

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double m = 0;
  for (size_t i = 0; i < a.size(); ++i) m = std::isnan(a[i] - b[i]) ? INFINITY : std::max(m, std::abs(a[i] - b[i]));
  return m;
}

std::vector<double> values(Var x) { return to_doubles(x.tape->value(x)); }

/// Rows begin .. end-1 of batch b of (B, N, D).
std::vector<double> rows_of(Var x, int64_t b, int64_t begin, int64_t end) {
  const std::vector<double> all = values(x);
  const int64_t n = x.shape()[1], d = x.shape()[2];
  return {all.begin() + (b * n + begin) * d, all.begin() + (b * n + end) * d};
}

}  // namespace

TEST_CASE("Linear is x weight^T + bias, and names its parameters as torch does") {
  Module root;
  Linear layer(root, "fc", 2, 3), without(root, "plain", 2, 3, {.bias = false});
  ParameterPack pack(root, DType::f32, 1);
  REQUIRE(root.parameters().size() == 3);
  CHECK(root.parameters()[0].name == "fc.weight");
  CHECK(root.parameters()[1].name == "fc.bias");
  CHECK_FALSE(root.parameters()[1].decay);
  CHECK(root.parameters()[0].shape == Shape{3, 2});
  std::copy_n(std::vector<float>{1, 2, 3, 4, 5, 6}.begin(), 6, layer.weight.value.as<float>());
  std::copy_n(std::vector<float>{10, 20, 30}.begin(), 3, layer.bias->value.as<float>());
  const Tensor x = Tensor::of<float>({1, 2}, {1, -1});
  Tape tape;
  CHECK(values(layer(tape.leaf(x))) == std::vector<double>{9, 19, 29});
  CHECK(without.bias == nullptr);
}

TEST_CASE("initial weights follow torch and fairseq by name") {
  Module root;
  const AttentionOptions fairseq{.dim = 64, .heads = 4, .init = InitScheme::fairseq};
  MultiHeadAttention attention(root, "a", fairseq, AttentionNames::fairseq());
  Linear linear(root, "l", 100, 50);
  CHECK(root.find_parameter("a.q_proj.weight").init.scale == Approx(std::sqrt(0.5 * 6 / 128)));
  CHECK(root.find_parameter("a.out_proj.weight").init.scale == Approx(std::sqrt(6.0 / 128)));
  CHECK(root.find_parameter("a.out_proj.bias").init.scale == 0);
  CHECK(root.find_parameter("a.k_proj.bias").init.scale == Approx(0.125));
  CHECK(root.find_parameter("l.weight").init.scale == Approx(0.1));
  ParameterPack pack(root, DType::f32, 1);
  double largest = 0;
  for (double w : to_doubles(linear.weight.value)) largest = std::max(largest, std::abs(w));
  CHECK(largest <= 0.1);
  CHECK(largest > 0.0999);
}

TEST_CASE("batch norm: batch statistics and running ones as in torch") {
  Module root;
  BatchNorm norm(root, "bn", 1);
  ParameterPack pack(root, DType::f32, 1);
  const Tensor x = Tensor::of<float>({4, 1}, {1, 2, 3, 6});  // mean 3, variance 3.5 biased, 14/3 unbiased
  Tape tape;
  CHECK(values(norm(tape.leaf(x)))[3] == Approx(3 / std::sqrt(3.5 + 1e-5)));
  CHECK(to_doubles(root.buffers()[0].value)[0] == Approx(0.3));
  CHECK(to_doubles(root.buffers()[1].value)[0] == Approx(0.9 + 0.1 * 14 / 3));
  tape.reset();
  tape.set_training(false);
  CHECK(values(norm(tape.leaf(x)))[3] == Approx((6 - 0.3) / std::sqrt(0.9 + 1.4 / 3 + 1e-5)));
  CHECK(to_doubles(root.buffers()[0].value)[0] == Approx(0.3));  // unchanged
  tape.reset();
  tape.set_training(true);
  const Tensor one({1, 1});
  CHECK_THROWS_WITH(norm(tape.leaf(one)), Catch::Contains("more than one value per channel") && Catch::Contains("(1,1)"));
}

TEST_CASE("dropout acts only in training, from a stream named by the layer's path") {
  Module root;
  Dropout first(root, "a", 0.5), second(root, "b", 0.5), none(root, "c", 0);
  const Tensor x = Tensor::of<float>({64}, std::vector<float>(64, 1));
  Tape tape;
  const auto run = [&](const Dropout& d, uint64_t step) {
    tape.set_random({.seed = 3, .step = step});
    const auto y = values(d(tape.leaf(x)));
    tape.reset();
    return y;
  };
  const auto y = run(first, 1);
  CHECK(std::all_of(y.begin(), y.end(), [](double v) { return v == 0 || v == 2; }));
  CHECK(std::count(y.begin(), y.end(), 0.0) > 10);
  CHECK(run(first, 1) == y);
  CHECK(run(first, 2) != y);
  CHECK(run(second, 1) != y);
  CHECK(run(none, 1) == to_doubles(x.view()));
  tape.set_training(false);
  CHECK(run(first, 1) == to_doubles(x.view()));
  CHECK_THROWS_WITH(Dropout(root, "d", 1), Catch::Contains("[0, 1)"));
}

TEST_CASE("attention: packed and separate projections are the same function") {
  const AttentionOptions options{.dim = 6, .heads = 2, .head_dim = 4, .sinkhorn = {.iterations = 3}};
  Module packed_root, separate_root;
  MultiHeadAttention packed(packed_root, "", options), separate(separate_root, "", options, AttentionNames::fairseq());
  ParameterPack a(packed_root, DType::f32, 1), b(separate_root, DType::f32, 2);
  const auto copy_rows = [&](const std::string& from, int64_t begin, int64_t end, const std::string& to) {
    const View rows = packed_root.find_parameter(from).value.rows(begin, end), target = separate_root.find_parameter(to).value;
    REQUIRE(rows.shape == target.shape);
    std::copy_n(rows.as<float>(), rows.shape.count(), target.as<float>());
  };
  int64_t row = 0;
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    copy_rows("in_proj_weight", row, row + 8, cat(name, ".weight"));
    copy_rows("in_proj_bias", row, row + 8, cat(name, ".bias"));
    row += 8;
  }
  copy_rows("out_proj.weight", 0, 6, "out_proj.weight");
  copy_rows("out_proj.bias", 0, 6, "out_proj.bias");
  const Tensor x = random_tensor({2, 5, 6}, "x"), memory = random_tensor({2, 3, 6}, "memory");
  Tape tape;
  const Var q = tape.leaf(x), k = tape.leaf(memory);
  CHECK(values(packed(q, k)) == values(separate(q, k)));
  CHECK(packed_root.parameter_count() == 3 * 8 * 7 + 6 * 9);
}

TEST_CASE("attention: scores are scaled by head or by model width, plans can be read") {
  Module root;
  MultiHeadAttention by_head(root, "a", {.dim = 16, .heads = 4}), by_model(root, "b", {.dim = 16, .heads = 4, .scale_by_model_width = true});
  CHECK(by_head.heads.scale == 0.5);
  CHECK(by_model.heads.scale == 0.25);
  CHECK_THROWS_WITH(MultiHeadAttention(root, "c", {.dim = 10, .heads = 4}), Catch::Contains("4 heads do not divide width 10"));
  ParameterPack pack(root, DType::f32, 1);
  by_head.heads.sinkhorn = {.iterations = 21, .expose_plan = true};
  const Tensor x = random_tensor({2, 5, 16}, "x");
  Tape tape;
  by_head(tape.leaf(x), tape.leaf(x));
  const View plan = by_head.heads.plan();
  REQUIRE(plan.shape == Shape{2, 4, 5, 5});
  for (int64_t matrix = 0; matrix < 8; ++matrix)
    for (int64_t j = 0; j < 5; ++j) {
      double row = 0, column = 0;
      for (int64_t i = 0; i < 5; ++i) row += plan.as<float>()[matrix * 25 + j * 5 + i], column += plan.as<float>()[matrix * 25 + i * 5 + j];
      CHECK(row == Approx(1).epsilon(1e-5));
      CHECK(column == Approx(1).epsilon(1e-4));
    }
  CHECK(by_head.heads.report().most_half_steps == 21);
  tape.reset();
  CHECK_THROWS_AS(by_head.heads.plan(), Error);
}

TEST_CASE("padding changes nothing for real tokens, unless its queries vote (fault 4, fault 18)") {
  const int64_t lengths[] = {5, 3, 1, 0};
  const Tensor x = random_tensor({4, 5, 8}, "x"), mask = padding_mask(lengths, 5);
  CHECK(to_doubles(mask.view()) == std::vector<double>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1});  // nonzero excludes
  CHECK_THROWS_WITH(padding_mask(lengths, 4), Catch::Contains("0..4") && Catch::Contains("got 5"));
  for (bool vote : {false, true}) {
    Module root;
    MultiHeadAttention attention(root, "", {.dim = 8, .heads = 2, .padding_queries_vote = vote, .sinkhorn = {.iterations = 3, .expose_plan = true}});
    ParameterPack pack(root, DType::f32, 1);
    Tape tape;
    const Var input = tape.leaf(x), is_padding = tape.leaf(mask),
              y = attention(input, input, {.key_is_padding = is_padding, .query_is_padding = is_padding});
    const View plan = attention.heads.plan();  // (4, 2, 5, 5)
    for (int64_t i = 0; i < 5; ++i)
      for (int64_t j = 3; j < 5; ++j) CHECK(plan.as<float>()[50 + i * 5 + j] == 0);
    const Var alone = slice(slice(input, 0, 1, 2), 1, 0, 3), y_alone = attention(alone, alone);
    const double change = largest_difference(rows_of(y, 1, 0, 3), rows_of(y_alone, 0, 0, 3));
    if (vote)
      CHECK(change > 1e-4);
    else
      CHECK(change < 1e-6);
    // A sample whose every token is padding gets no attention: only the output projection's bias.
    CHECK(rows_of(y, 3, 0, 1) == to_doubles(root.find_parameter("out_proj.bias").value));
    const Tensor wrong({4, 6}, DType::i32);
    CHECK_THROWS_WITH(attention(input, input, {.key_is_padding = tape.leaf(wrong)}), Catch::Contains("(4,6)"));
  }
}

TEST_CASE("a query that sees nothing leaves the shared weights' gradients alone (fault 15)") {
  Module root;
  MultiHeadAttention attention(root, "", {.dim = 4, .heads = 2});
  ParameterPack pack(root, DType::f32, 1);
  const int64_t lengths[] = {4, 2};
  const Tensor padding = padding_mask(lengths, 4), x = random_tensor({2, 4, 4}, "x");
  Tensor band({4, 4}, DType::i32);
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t j = 0; j < 4; ++j) band.span<int32_t>()[static_cast<size_t>(i * 4 + j)] = std::abs(i - j) > 1;  // query 3 of sample 1 sees nothing
  const auto gradients = [&](bool without_that_row) {
    pack.zero_gradients();
    Tape tape;
    Tensor queries_out({2, 4}, DType::i32);
    queries_out.span<int32_t>()[7] = 1;
    Tensor cotangent = random_tensor({2, 4, 4}, "cotangent");
    for (size_t i = 28; i < 32; ++i) cotangent.span<float>()[i] = 0;  // the loss ignores it
    AttentionMasks masks{.key_is_padding = tape.leaf(padding), .pair_is_hidden = tape.leaf(band)};
    if (without_that_row) masks.query_is_padding = tape.leaf(queries_out);
    const Var y = attention(tape.leaf(x), tape.leaf(x), masks);
    CHECK(rows_of(y, 1, 3, 4) == to_doubles(root.find_parameter("out_proj.bias").value));
    tape.backward(y, cotangent);
    return to_doubles(pack.gradients().view());
  };
  CHECK(largest_difference(gradients(false), gradients(true)) == 0);
}

TEST_CASE("encoder: pre and post norm, relu and gelu, causal decoder") {
  const Tensor x = random_tensor({2, 4, 8}, "x"), memory = random_tensor({2, 3, 8}, "memory");
  for (bool pre_norm : {false, true}) {
    TransformerOptions options{.attention = {.dim = 8, .heads = 2},
                               .mlp_dim = 12,
                               .activation = pre_norm ? Activation::gelu : Activation::relu,
                               .pre_norm = pre_norm,
                               .final_norm = pre_norm};
    Module root;
    Encoder encoder(root, "encoder", 2, options);
    options.names = LayerNames::torch_decoder();
    Decoder decoder(root, "decoder", 2, options);
    ParameterPack pack(root, DType::f32, 1);
    Tape tape;
    const Var y = encoder(tape.leaf(x));
    double mean = 0;  // every row leaves a norm with mean 0
    for (double v : rows_of(y, 0, 0, 1)) mean += v / 8;
    CHECK(mean == Approx(0).margin(1e-6));
    // Changing the last token changes no earlier output of a causal decoder.
    Tensor changed = x.clone();
    for (size_t i = 24; i < 32; ++i) changed.span<float>()[i] += 1;
    const Tensor causal = causal_mask(4);
    const AttentionMasks masks{.pair_is_hidden = tape.leaf(causal)};
    const Var a = decoder(tape.leaf(x), tape.leaf(memory), masks), b = decoder(tape.leaf(changed), tape.leaf(memory), masks);
    CHECK(rows_of(a, 0, 0, 3) == rows_of(b, 0, 0, 3));
    CHECK(rows_of(a, 0, 3, 4) != rows_of(b, 0, 3, 4));
  }
}

TEST_CASE("the same weights run as Transformer and as Sinkformer") {
  Module root;
  Encoder encoder(root, "", 2, {.attention = {.dim = 8, .heads = 2}, .mlp_dim = 8});
  ParameterPack pack(root, DType::f32, 1);
  const Tensor x = random_tensor({1, 6, 8}, "x");
  Tape tape;
  const auto softmax = values(encoder(tape.leaf(x)));
  for (AttentionHeads* a : encoder.attentions()) a->sinkhorn.iterations = 5;
  const auto sinkhorn = values(encoder(tape.leaf(x)));
  CHECK(largest_difference(softmax, sinkhorn) > 1e-4);
  for (AttentionHeads* a : encoder.attentions()) a->sinkhorn.iterations = 1;
  CHECK(values(encoder(tape.leaf(x))) == softmax);
}

TEST_CASE("set blocks: order and padding of a set do not matter") {
  Module root;
  const SetOptions options{.dim = 8, .heads = 2, .sinkhorn = {.iterations = 3}};
  Isab isab(root, "isab", 3, 4, options);
  Sab sab(root, "sab", 8, options);
  Pma pma(root, "pma", 2, options);
  ParameterPack pack(root, DType::f32, 1);
  const auto pooled = [&](Var x, Var is_padding) { return pma(sab(isab(x, is_padding), is_padding), is_padding); };
  const Tensor x = random_tensor({1, 5, 3}, "x"), mask = Tensor::of<int32_t>({1, 5}, {0, 0, 0, 1, 1}),
               order = Tensor::of<int32_t>({5}, {3, 1, 4, 0, 2});
  Tape tape;
  const Var input = tape.leaf(x), y = pooled(input, {});
  REQUIRE(y.shape() == Shape{1, 2, 8});
  const Var permuted = tape.reshape(gather_rows(tape.reshape(input, {5, 3}), tape.leaf(order)), {1, 5, 3});
  CHECK(largest_difference(values(y), values(pooled(permuted, {}))) < 1e-5);
  CHECK(largest_difference(values(pooled(input, tape.leaf(mask))), values(pooled(slice(input, 1, 0, 3), {}))) < 1e-5);
}

TEST_CASE("backward of every layer is the derivative of its forward") {
  const Tensor x = random_tensor({2, 4, 8}, "x", DType::f64), memory = random_tensor({2, 3, 8}, "memory", DType::f64), causal = causal_mask(4);
  const Tensor tokens = Tensor::of<int32_t>({2, 2}, {1, 0, 1, 2});
  for (int iterations : {1, 3}) {
    const AttentionOptions attention{.dim = 8, .heads = 2, .head_dim = 3, .sinkhorn = {.iterations = iterations}};
    {
      Module root;
      Embedding embedding(root, "e", 3, 8);
      BatchNorm norm(root, "bn", 8);
      CHECK(gradient_error(root, [&](Tape& tape) { return norm(embedding(tape.leaf(tokens))); }) < 1e-6);
    }
    for (bool pre_norm : {false, true}) {
      TransformerOptions options{
          .attention = attention, .mlp_dim = 5, .activation = Activation::gelu, .pre_norm = pre_norm, .final_norm = true, .dropout = 0.3};
      Module root;
      Encoder encoder(root, "encoder", 2, options);
      options.names = LayerNames::fairseq();
      Decoder decoder(root, "decoder", 1, options);
      CHECK(gradient_error(
                root, [&](Tape& tape) { return decoder(tape.leaf(x), encoder(tape.leaf(memory)), {.pair_is_hidden = tape.leaf(causal)}); }) < 1e-6);
    }
    for (bool released : {false, true}) {
      Module root;
      SetOptions options{.dim = 6, .heads = 2, .scale_by_model_width = released, .sinkhorn = {.iterations = iterations}};
      options.sinkhorn.rows_sum_to_inverse_count = released;
      Isab isab(root, "isab", 8, 3, options);
      Pma pma(root, "pma", 2, options);
      CHECK(gradient_error(root, [&](Tape& tape) { return pma(isab(tape.leaf(x))); }) < 1e-6);
    }
  }
}

TEST_CASE("sinusoid tables of torch's tutorial and of fairseq") {
  const Tensor a = sinusoid_interleaved(4, 6, DType::f64);
  CHECK(a.span<double>()[0] == 0);
  CHECK(a.span<double>()[1] == 1);
  CHECK(a.span<double>()[3 * 6 + 0] == Approx(std::sin(3.0)));
  CHECK(a.span<double>()[3 * 6 + 3] == Approx(std::cos(3 * std::pow(1e4, -2.0 / 6))));
  CHECK(a.span<double>()[3 * 6 + 4] == Approx(std::sin(3 * std::pow(1e4, -4.0 / 6))));
  const Tensor b = sinusoid_halves(4, 6, 1, DType::f64);
  CHECK(std::all_of(&b.span<double>()[6], &b.span<double>()[6] + 6, [](double v) { return v == 0; }));
  CHECK(b.span<double>()[3 * 6 + 0] == Approx(std::sin(3.0)));
  CHECK(b.span<double>()[3 * 6 + 2] == Approx(std::sin(3e-4)));
  CHECK(b.span<double>()[3 * 6 + 4] == Approx(std::cos(3e-2)));
}

TEST_CASE("linear over more rows than its backward takes at a time equals matmul and add") {
  // A small weight, whose rows threads share, and one that goes by three blocks of rows.
  const int64_t rows = 2500;
  const auto [k, m] = GENERATE(std::pair<int64_t, int64_t>(7, 5), std::pair<int64_t, int64_t>(330, 200));
  const Tensor x = random_tensor({rows, k}, "x", DType::f64), w = random_tensor({m, k}, "w", DType::f64),
               bias = random_tensor({m}, "bias", DType::f64), cotangent = random_tensor({rows, m}, "cotangent", DType::f64);
  const auto gradients = [&](bool fused) {
    Tape tape(DType::f64);
    const Var vx = tape.variable(x), vw = tape.variable(w), vb = tape.variable(bias);
    const Var once = fused ? linear(vx, vw, vb) : add(matmul(vx, vw, false, true), vb);
    const Var again = fused ? linear(scale_shift(vx, 2, 1), vw, vb) : add(matmul(scale_shift(vx, 2, 1), vw, false, true), vb);  // adds up
    tape.backward(add(sum(mul(once, tape.leaf(cotangent))), sum(mul(again, again))));
    std::vector<std::vector<double>> all;
    for (const Var v : {vx, vw, vb}) all.push_back(to_doubles(tape.grad(v)));
    return all;
  };
  const auto found = gradients(true), expected = gradients(false);
  for (size_t i = 0; i < 3; ++i) {
    INFO("gradient " << i);
    CHECK(largest_difference(found[i], expected[i]) <= 1e-9);  // of sums over thousands of rows
  }
}
