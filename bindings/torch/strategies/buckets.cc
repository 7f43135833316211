#include "bindings/torch/strategies/buckets.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

namespace rueda::libtorch {
namespace {

// Where each parameter begins, and each share: a cache line's.
constexpr int64_t kAlignment = 64;

// In elements; more than one.
int64_t UnitOf(at::ScalarType type) {
  return std::max<int64_t>(2, kAlignment / static_cast<int64_t>(at::elementSize(type)));
}

int64_t RoundUp(int64_t number, int64_t unit) {
  return (number + unit - 1) / unit * unit;
}

std::string ModuleOf(const Parameter& parameter) {
  const size_t dot = parameter.name.rfind('.');
  return dot == std::string::npos ? "" : parameter.name.substr(0, dot);
}

bool AreOnePiece(const Parameter& a, const Parameter& b) {
  return a.tensor.requires_grad() && b.tensor.requires_grad() && a.group == b.group &&
         a.tensor.scalar_type() == b.tensor.scalar_type() &&
         a.tensor.device() == b.tensor.device() && ModuleOf(a) == ModuleOf(b);
}

}  // namespace

std::vector<BucketLayout> LayOutBuckets(const std::vector<Parameter>& parameters,
                                        const BucketRules& rules) {
  std::vector<BucketLayout> buckets;
  // By group, device and type.
  std::map<std::tuple<size_t, at::DeviceType, c10::DeviceIndex, at::ScalarType>, size_t> open;
  for (size_t end = parameters.size(), begin; end > 0; end = begin) {
    // A piece, from `begin` to before `end`.
    begin = end - 1;
    const Parameter& last = parameters[end - 1];
    if (!last.tensor.requires_grad()) continue;
    while (rules.of_modules && begin > 0 && AreOnePiece(parameters[begin - 1], last)) --begin;
    const at::ScalarType type = last.tensor.scalar_type();
    const int64_t unit = UnitOf(type);
    int64_t elements = 0;
    for (size_t i = begin; i < end; ++i) elements += RoundUp(parameters[i].tensor.numel(), unit);
    const at::Device device = last.tensor.device();
    const auto key = std::make_tuple(last.group, device.type(), device.index(), type);
    auto it = open.find(key);
    if (it == open.end() ||
        (buckets[it->second].used + elements) * static_cast<int64_t>(at::elementSize(type)) >
            rules.bytes_max) {
      it = open.insert_or_assign(key, buckets.size()).first;
      buckets.push_back({.type = type, .device = device, .group = last.group, .members = {}});
    }
    BucketLayout& bucket = buckets[it->second];
    for (size_t i = end; i-- > begin;) {
      bucket.members.push_back({.parameter = i, .begin = bucket.used});
      bucket.used += RoundUp(parameters[i].tensor.numel(), unit);
    }
  }
  std::set<int64_t> shares;
  for (BucketLayout& bucket : buckets) {
    const int64_t unit = UnitOf(bucket.type);
    bucket.share = RoundUp((bucket.used + rules.ranks - 1) / rules.ranks, unit);
    while (!shares.insert(bucket.share).second && rules.of_modules) bucket.share += unit;
  }
  return buckets;
}

// As the parameter lies, if it has no holes: that is what optimizers are fast with.
at::Tensor ViewOf(const at::Tensor& memory, const at::Tensor& parameter, int64_t begin) {
  return parameter.is_non_overlapping_and_dense()
             ? memory.as_strided(parameter.sizes(), parameter.strides(), begin)
             : memory.narrow(0, begin, parameter.numel()).view(parameter.sizes());
}

}  // namespace rueda::libtorch
