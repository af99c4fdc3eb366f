// The points are those of the authors' script: numpy's RandomState(4), 20 times the numbers below.
#include "tools/theory/figure_one.h"

#include <algorithm>

#include "tools/theory/particles.h"

namespace sinkgrad {
namespace {

constexpr double kScale = 20;
const std::vector<double> kQueries = {0.015168512142881865, 0.14998539997134869,  -0.29877267933205953, 0.20807955248739346,  -0.12549045600807301,
                                      -0.47537317053363715, -0.19431203013655515, 0.17957255219021317,  0.099675009782989307, -0.34424298988364394,
                                      0.30269582930026651,  0.41597138479308882,  0.31324801737944985,  0.58699589031427069,  0.4308439940639392,
                                      0.58469319203446879,  0.53589179578051827,  0.55988678957450944,  0.35194962644878441,  0.32248457610393211};
const std::vector<double> kKeys = {-0.019777183586669217, 0.35039165511552112,    0.020014050253170962,  0.42253315804560448,
                                   -0.041627352974623916, 0.58127147518528255,    -0.043491163266512617, 0.33245801486616922,
                                   -0.15253297784456019,  0.46356079551096385,    0.45732122402054209,   -0.0087169267622018154,
                                   0.42044863307708191,   -0.0050584672941972331, 0.41907000087051982,   -0.012825165935533067,
                                   0.53022149012703723,   -0.14630782698766076,   0.41267273057626264,   -0.049240082201919666};

/// A plan (key, query) as (query, key) with total 1.
std::vector<double> shares(Var plan) {
  Tape& tape = *plan.tape;
  std::vector<double> values = to_doubles(tape.value(transpose(plan, 0, 1)));
  double total = 0;
  for (double value : values) total += value;
  for (double& value : values) value /= total;
  return values;
}

}  // namespace

FigureOne figure_one() {
  const Tensor queries = matrix(10, 2, kQueries), keys = matrix(10, 2, kKeys);
  Tape tape(DType::f64);
  tape.set_recording(false);
  const Var q = tape.leaf(queries), k = tape.leaf(keys);
  const Var scores = scale_shift(matmul(k, q, false, true), -kScale * kScale, 0);  // (key, query)
  const Var kernel = exp(sub(scores, max(scores, {}, true)));
  return {.queries = kQueries,
          .keys = kKeys,
          .kernel = shares(kernel),
          .softmax = shares(sinkhorn(scores, {.iterations = 1})),
          .sinkhorn = shares(sinkhorn(scores, {.iterations = 200}))};
}

int links(const std::vector<double>& plan) {
  return static_cast<int>(std::ranges::count_if(plan, [](double value) { return value > 1e-12; }));
}

}  // namespace sinkgrad
