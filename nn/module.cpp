// Registration of parameters by path, and how the pack lays them out and draws them.
#include "nn/module.h"

#include "core/names.h"
#include "core/rng.h"

namespace sinkgrad {
namespace {

constexpr int64_t kAlignment = 16;  // elements: 64 bytes in f32

int64_t aligned(int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

View part_of(const Tensor& flat, int64_t offset, const Shape& shape) { return flat.view().rows(offset, offset + shape.count()).reshaped(shape); }

template <class T>
void draw(const Parameter& p, uint64_t seed, T* x) {
  RandomStream random(seed, "init/" + p.name);
  for (int64_t i = 0; i < p.shape.count(); ++i) {
    double v = p.init.scale;
    if (p.init.kind == Init::Kind::uniform) v = random.uniform(-p.init.scale, p.init.scale);
    if (p.init.kind == Init::Kind::normal) v = p.init.scale * random.normal();
    x[i] = static_cast<T>(static_cast<float>(v));  // the same weights in every dtype
  }
  if (p.init.zero_row >= 0) {
    const int64_t row = p.shape.count(1, p.shape.rank());
    std::fill_n(x + p.init.zero_row * row, row, T(0));
  }
}

}  // namespace

int64_t Module::parameter_count() {
  int64_t n = 0;
  for (const Parameter& p : parameters()) n += p.shape.count();
  return n;
}

Parameter& Module::find_parameter(const std::string& name) {
  std::vector<std::string> names;
  for (Parameter& p : parameters()) {
    if (p.name == name) return p;
    names.push_back(p.name);
  }
  throw Error(cat("module: has no parameter '", name, "'", did_you_mean(name, names)));
}

Parameter& Module::parameter(const std::string& name, const Shape& shape, Init init, bool decay) {
  const std::string full = full_name(name);
  for (const Parameter& p : parameters()) require(p.name != full, "module: two parameters are called '", full, "'");
  return root_->parameters_.emplace_back(Parameter{full, shape, init, decay});
}

Buffer& Module::buffer(const std::string& name, const Shape& shape, double initial) {
  return root_->buffers_.emplace_back(Buffer{full_name(name), shape, initial});
}

ParameterPack::ParameterPack(Module& module, DType dtype, uint64_t seed, Device device) : module_(&module) {
  int64_t count = 0, state_count = 0;
  for (const Parameter& p : module.parameters()) {
    const int64_t begin = count;
    count += aligned(p.shape.count());
    if (!ranges_.empty() && ranges_.back().decay == p.decay)
      ranges_.back().end = count;
    else
      ranges_.push_back({begin, count, p.decay});
  }
  for (const Buffer& b : module.buffers()) state_count += aligned(b.shape.count());
  const Tensor drawn({count}, dtype), initial({state_count}, dtype);
  values_ = Tensor({count}, dtype, device);
  gradients_ = Tensor({count}, dtype, device);
  state_ = Tensor({state_count}, dtype, device);

  int64_t offset = 0;
  for (Parameter& p : module.parameters()) {
    p.value = part_of(values_, offset, p.shape);
    p.grad = part_of(gradients_, offset, p.shape);
    const View values = part_of(drawn, offset, p.shape);
    dispatch(dtype, [&]<class T>() { draw(p, seed, values.as<T>()); });
    offset += aligned(p.shape.count());
  }
  offset = 0;
  for (Buffer& b : module.buffers()) {
    b.value = part_of(state_, offset, b.shape);
    const View values = part_of(initial, offset, b.shape);
    dispatch(dtype, [&]<class T>() { std::fill_n(values.as<T>(), b.shape.count(), static_cast<T>(b.initial)); });
    offset += aligned(b.shape.count());
  }
  values_.copy_from(drawn);
  state_.copy_from(initial);
}

View ParameterPack::part(const Tensor& flat, const View& own, const Tensor& all) {
  const auto bytes = static_cast<const char*>(own.data) - static_cast<const char*>(all.view().data);
  return part_of(flat, bytes / static_cast<int64_t>(size_of(own.dtype)), own.shape);
}

}  // namespace sinkgrad
