#include "controller/lanes/outputs.h"

#include <exception>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "controller/lanes/callbacks.h"
#include "core/base/log.h"
#include "core/base/threads.h"

namespace rueda {
namespace {

// Rows of output `part` that come from each member; a reducescatter's come from all at once.
std::vector<int64_t> RowsOf(const Request& request, size_t part, absl::Span<const int64_t> dims,
                            const ProcessSet& set, int self) {
  const size_t members = static_cast<size_t>(set.size());
  std::vector<int64_t> rows;
  switch (request.spec->signature.kind) {
    case OpKind::kReducescatter:
      rows.push_back(ReducescatterRows(request.parts[part].shape.dim(0), set.size(), self));
      return rows;
    case OpKind::kScatter:
      rows.assign(members, 0);
      rows[set.IndexOf(request.spec->signature.root)] = dims[self];
      return rows;
    case OpKind::kAlltoall:
      for (size_t giver = 0; giver < members; ++giver) {
        rows.push_back(dims.size() == members ? dims[giver] / static_cast<int64_t>(members)
                                              : dims[giver * members + static_cast<size_t>(self)]);
      }
      return rows;
    default:  // allgather, gather
      for (size_t i = part; i < dims.size(); i += request.parts.size()) rows.push_back(dims[i]);
      return rows;
  }
}

// The caller's memory for output `part`; null when there is none.
void* Allocate(const Request& request, int32_t part, const Shape& shape) {
  const TurnScope scope;
  try {
    return request.allocate(request.allocate_user, part, shape.dims().data(), shape.rank());
  } catch (...) {
    RUEDA_LOG(Error) << "an allocator threw: " << CurrentException().message();
  }
  return nullptr;
}

// An allgather's input may lie in the output where it ends up, and nowhere else.
absl::Status CheckOverlap(const PartArgs& part, const Shape& output, size_t place_bytes) {
  const size_t input_bytes = static_cast<size_t>(part.shape.elements()) * DTypeSize(part.dtype);
  const size_t output_bytes = static_cast<size_t>(output.elements()) * DTypeSize(part.dtype);
  const char* const in = static_cast<const char*>(part.input);
  const char* const out = static_cast<const char*>(part.output);
  const bool apart = in >= out + output_bytes || out >= in + input_bytes;
  const bool empty = input_bytes == 0 || output_bytes == 0;
  if (apart || empty || in == out + place_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "input and output overlap; the input may lie in the output only where the rank's own part "
      "ends up");
}

absl::Status PrepareOutput(Request* request, size_t index, const Shape& shape, size_t place_bytes,
                           const AllocateMemory& allocate) {
  PartArgs& part = request->parts[index];
  const size_t bytes = static_cast<size_t>(shape.elements()) * DTypeSize(part.dtype);
  if (part.output_given) {
    absl::Status status;
    if (part.output_shape != shape) {
      status = absl::InvalidArgumentError(absl::StrCat("the result has shape ", shape.ToString(),
                                                       ", the given output ",
                                                       part.output_shape.ToString()));
    } else {
      status = CheckOverlap(part, shape, place_bytes);
    }
    if (!status.ok()) part.output = nullptr;
    return status;
  }
  if (request->allocate != nullptr) {
    part.output = Allocate(*request, static_cast<int32_t>(index), shape);
    if (part.output != nullptr || bytes == 0) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("the allocator returned nothing for ", bytes, " bytes"));
  }
  RUEDA_ASSIGN_OR_RETURN(request->outputs.back().data, allocate(bytes));
  part.output = request->outputs.back().data.get();
  return absl::OkStatus();
}

}  // namespace

absl::Status PrepareOutputs(Request* request, absl::Span<const int64_t> first_dims,
                            const ProcessSet& set, Rank self, const AllocateMemory& allocate) {
  const Signature& signature = request->spec->signature;
  if (!TraitsOf(signature.kind).reshapes || !signature.Gets(self)) return absl::OkStatus();
  const int own = set.IndexOf(self);
  absl::Status status;
  for (size_t i = 0; i < request->parts.size(); ++i) {
    const PartArgs& part = request->parts[i];
    std::vector<int64_t> rows = RowsOf(*request, i, first_dims, set, own);
    std::vector<int64_t> dims(part.shape.dims().begin(), part.shape.dims().end());
    dims[0] = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    const Shape shape(dims);
    request->output_shapes.push_back(shape);
    request->outputs.emplace_back();
    size_t place_bytes = SIZE_MAX;
    if (signature.kind == OpKind::kAllgather) {
      place_bytes =
          static_cast<size_t>(std::accumulate(rows.begin(), rows.begin() + own, int64_t{0}) *
                              shape.Row().elements()) *
          DTypeSize(part.dtype);
    }
    request->output_splits.push_back(std::move(rows));
    if (absl::Status prepared = PrepareOutput(request, i, shape, place_bytes, allocate);
        !prepared.ok()) {
      status.Update(StatusAt(SpecLabel(*request->spec), prepared));
    }
  }
  return status;
}

}  // namespace rueda
