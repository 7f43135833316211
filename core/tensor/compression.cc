// PURE
#include "core/tensor/compression.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rueda {
namespace {

constexpr const char* kNames[kCompressorCount] = {"none", "fp16", "bf16",     "fp8", "int8",
                                                  "1bit", "topk", "powersgd", "auto"};
constexpr double kPartsOfTopK = 1e6;
constexpr int kPowerSgdRankMax = 64;

absl::Status Bad(absl::string_view text, absl::string_view what) {
  std::string names;
  for (const char* name : kNames) absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  return absl::InvalidArgumentError(absl::StrCat("compressor '", text.substr(0, 64), "': ", what,
                                                 "; there are ", names,
                                                 ", with topk:SHARE and powersgd:RANK, and each "
                                                 "with ,no_feedback"));
}

}  // namespace

absl::string_view CompressorName(Compressor compressor) {
  return kNames[static_cast<int>(compressor)];
}

std::string Compression::ToString() const {
  std::string text(CompressorName(compressor));
  if (compressor == Compressor::kTopK) absl::StrAppend(&text, ":", parameter / kPartsOfTopK);
  if (compressor == Compressor::kPowerSgd) absl::StrAppend(&text, ":", parameter);
  if (compressor != Compressor::kNone && !feedback) absl::StrAppend(&text, ",no_feedback");
  return text;
}

bool IsValid(const Compression& compression) {
  switch (compression.compressor) {
    case Compressor::kNone:
      return compression == Compression();
    case Compressor::kTopK:
      return compression.parameter >= 1 && compression.parameter <= kPartsOfTopK;
    case Compressor::kPowerSgd:
      return compression.parameter >= 1 && compression.parameter <= kPowerSgdRankMax;
    default:
      return compression.parameter == 0;
  }
}

absl::StatusOr<Compression> ParseCompression(absl::string_view text) {
  if (text.empty()) return Compression();
  Compression compression;
  absl::string_view rest = text;
  compression.feedback = !absl::ConsumeSuffix(&rest, ",no_feedback");
  const size_t colon = rest.find(':');
  const absl::string_view name = rest.substr(0, colon);
  int number = 0;
  while (number < kCompressorCount && name != kNames[number]) ++number;
  if (number == kCompressorCount) return Bad(text, "unknown");
  compression.compressor = static_cast<Compressor>(number);
  const absl::string_view value =
      colon == absl::string_view::npos ? absl::string_view() : rest.substr(colon + 1);
  if (compression.compressor == Compressor::kTopK) {
    double share = 0.01;
    if (colon != absl::string_view::npos && !absl::SimpleAtod(value, &share)) share = 0;
    if (!(share >= 1 / kPartsOfTopK && share <= 1)) {
      return Bad(text, "the share must be a number from 0.000001 to 1");
    }
    compression.parameter = static_cast<uint32_t>(std::llround(share * kPartsOfTopK));
  } else if (compression.compressor == Compressor::kPowerSgd) {
    int rank = 1;
    if (colon != absl::string_view::npos && !absl::SimpleAtoi(value, &rank)) rank = 0;
    if (rank < 1 || rank > kPowerSgdRankMax) {
      return Bad(text, absl::StrCat("the rank must be a number from 1 to ", kPowerSgdRankMax));
    }
    compression.parameter = static_cast<uint32_t>(rank);
  } else if (colon != absl::string_view::npos) {
    return Bad(text, "it takes no number");
  }
  if (compression.compressor == Compressor::kNone) return Compression();
  return compression;
}

absl::Status CheckCompressible(const Compression& compression, OpKind kind, ReduceOp op,
                               DType dtype) {
  if (compression.none()) return absl::OkStatus();
  const auto refuse = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("compressor '", compression.ToString(), "': ", what));
  };
  if (kind != OpKind::kAllreduce && kind != OpKind::kReducescatter) {
    return refuse("only allreduces and reducescatters are compressed");
  }
  if (op != ReduceOp::kSum && !IsAverage(op)) return refuse("only sums and averages are");
  if (dtype != DType::kFloat32 && dtype != DType::kFloat16 && dtype != DType::kBFloat16) {
    return refuse(absl::StrCat("of float32, float16 and bfloat16, not of ", DTypeName(dtype)));
  }
  return absl::OkStatus();
}

}  // namespace rueda
