#include "bindings/c/arguments.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "bindings/c/structs.h"
#include "core/base/limits.h"
#include "core/base/utf8.h"
#include "core/tensor/compression.h"

namespace rueda::capi {
namespace {

// The status with where in the caller's input something is wrong: "operation 2 ('w')".
absl::Status At(size_t index, const char* name, const absl::Status& status) {
  std::string where = absl::StrCat("operation ", index);
  if (name != nullptr) {
    absl::StrAppend(&where, " ('", absl::string_view(name, strnlen(name, 64)), "')");
  }
  return StatusAt(where, status);
}

// By our number.
const rueda_dtype kTheirDTypes[kDTypeCount] = {
    RUEDA_UINT8,         RUEDA_INT8,       RUEDA_INT32,   RUEDA_INT64,     RUEDA_FLOAT16,
    RUEDA_BFLOAT16,      RUEDA_FLOAT32,    RUEDA_FLOAT64, RUEDA_BOOL,      RUEDA_INT16,
    RUEDA_UINT16,        RUEDA_UINT32,     RUEDA_UINT64,  RUEDA_COMPLEX64, RUEDA_COMPLEX128,
    RUEDA_FLOAT8_E4M3FN, RUEDA_FLOAT8_E5M2};

absl::StatusOr<DType> DTypeOf(rueda_dtype dtype) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const rueda_dtype& theirs = kTheirDTypes[i];
    if (theirs.code == dtype.code && theirs.bits == dtype.bits && theirs.lanes == dtype.lanes) {
      return static_cast<DType>(i);
    }
  }
  std::string supported;
  for (int i = 0; i < kDTypeCount; ++i) {
    absl::StrAppend(&supported, i == 0 ? "" : ", ", DTypeName(static_cast<DType>(i)));
  }
  return absl::UnimplementedError(absl::StrCat("dtype with code ", dtype.code, ", ", dtype.bits,
                                               " bits and ", dtype.lanes, " lanes; supported are ",
                                               supported));
}

// What something is on.
struct DeviceId {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
  friend bool operator==(const DeviceId&, const DeviceId&) = default;
};

std::string DeviceName(const DeviceId& device) {
  return device.type == DeviceType::kCpu ? "the CPU" : absl::StrCat("CUDA device ", device.index);
}

absl::StatusOr<DeviceId> DeviceIdOf(const rueda_device& device) {
  RUEDA_ASSIGN_OR_RETURN(const DeviceType type, DeviceTypeOf(device.type));
  return DeviceId{type, type == DeviceType::kCpu ? 0 : device.id};
}

struct CheckedTensor {
  void* data;
  DeviceId device;
  DType dtype;
  Shape shape;
};

absl::StatusOr<CheckedTensor> CheckTensor(const rueda_tensor& tensor) {
  CheckedTensor checked;
  RUEDA_ASSIGN_OR_RETURN(checked.device, DeviceIdOf(tensor.device));
  RUEDA_ASSIGN_OR_RETURN(checked.dtype, DTypeOf(tensor.dtype));
  if (tensor.ndim < 0 || tensor.ndim > kDimsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("ndim is ", tensor.ndim, "; expected 0 to ", kDimsMax));
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr) {
    return absl::InvalidArgumentError("the tensor's shape is null");
  }
  const absl::Span<const int64_t> dims(tensor.shape, static_cast<size_t>(tensor.ndim));
  RUEDA_RETURN_IF_ERROR(Shape::Validate(dims));
  checked.shape = Shape(dims);
  if (tensor.strides != nullptr && checked.shape.elements() > 1) {
    int64_t expected = 1;
    for (int i = tensor.ndim - 1; i >= 0; --i) {
      if (dims[i] != 1 && tensor.strides[i] != expected) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the tensor is not contiguous: dimension ", i, " has stride ", tensor.strides[i],
            " where row-major order has ", expected, "; copy it into a contiguous one"));
      }
      expected *= dims[i];
    }
  }
  checked.data =
      tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;
  return checked;
}

// The shape that goes with the operation where only rows count: their number is not known.
Shape WithoutRows(const Shape& shape) {
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
  if (!dims.empty()) dims[0] = 0;
  return Shape(dims);
}

// All tensors of an operation are on one device, and so are those of a group.
absl::Status CheckDevice(const DeviceId& device, std::optional<DeviceId>* all,
                         absl::string_view whose = "an operation") {
  if (!all->has_value()) *all = device;
  if (**all == device) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensors on ", DeviceName(**all), " and on ",
                                                 DeviceName(device), "; all of ", whose,
                                                 " are on one device"));
}

absl::Status CheckOutput(const rueda_operation& operation, const KindTraits& kind, bool has_input,
                         PartArgs* part, std::optional<DeviceId>* device) {
  RUEDA_ASSIGN_OR_RETURN(CheckedTensor output, CheckTensor(*operation.output));
  RUEDA_RETURN_IF_ERROR(CheckDevice(output.device, device));
  if (!has_input) {  // nothing else tells what it is
    part->dtype = output.dtype;
    part->shape = kind.ragged ? WithoutRows(output.shape) : output.shape;
  }
  if (output.dtype != part->dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("input is ", DTypeName(part->dtype), ", output is ", DTypeName(output.dtype)));
  }
  if (output.data == nullptr && output.shape.elements() > 0) {
    return absl::InvalidArgumentError("the output's data pointer is null");
  }
  part->output = output.data;
  part->output_given = true;
  if (kind.reshapes) {
    part->output_shape = std::move(output.shape);
  } else if (output.shape != part->shape) {
    return absl::InvalidArgumentError(absl::StrCat("input has shape ", part->shape.ToString(),
                                                   ", output ", output.shape.ToString()));
  }
  return absl::OkStatus();
}

absl::Status CheckPart(const rueda_operation& operation, const OperationTraits& traits, Rank self,
                       PartArgs* part, std::optional<DeviceId>* device) {
  const KindTraits& kind = TraitsOf(traits.kind);
  const bool gives = traits.Gives(self);
  // Of a scatter what this rank does not give may tell what it gets.
  const bool has_input = gives || (operation.kind == RUEDA_SCATTER && operation.output == nullptr);
  if (has_input) {
    if (operation.input == nullptr) return absl::InvalidArgumentError("`input` is null");
    RUEDA_ASSIGN_OR_RETURN(CheckedTensor input, CheckTensor(*operation.input));
    RUEDA_RETURN_IF_ERROR(CheckDevice(input.device, device));
    part->input = gives ? input.data : nullptr;
    part->dtype = input.dtype;
    part->shape = gives ? std::move(input.shape) : WithoutRows(input.shape);
  }
  if (!traits.Gets(self)) return absl::OkStatus();
  if (operation.output != nullptr) return CheckOutput(operation, kind, has_input, part, device);
  if (!has_input) return absl::InvalidArgumentError("`output` is null");
  if (!kind.reshapes) part->output = const_cast<void*>(part->input);  // in place
  return absl::OkStatus();
}

absl::Status CheckFault(const char* fault, absl::string_view* out) {
  *out = absl::string_view(fault, strnlen(fault, kNameBytesMax + 1));
  if (!out->empty() && out->size() <= kNameBytesMax && IsUtf8(*out)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the fault is not UTF-8 of 1 to ", kNameBytesMax, " bytes"));
}

absl::Status CheckName(const char* name, absl::string_view* out) {
  const size_t length = strnlen(name, kNameBytesMax + 1);
  if (length == 0) {
    return absl::InvalidArgumentError("the name is empty; null makes an operation unnamed");
  }
  if (length > kNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name is longer than ", kNameBytesMax, " bytes"));
  }
  *out = absl::string_view(name, length);
  if (!IsUtf8(*out)) return absl::InvalidArgumentError("the name is not UTF-8");
  return absl::OkStatus();
}

// The number behind an enumerator that a caller wrote, which may be any.
template <typename E>
int NumberOf(const E& enumerator) {
  static_assert(sizeof(E) == sizeof(int));
  int number;
  memcpy(&number, &enumerator, sizeof number);
  return number;
}

// An enumerator of the C API and what it is here.
template <typename Ours>
struct Enumerator {
  int number;
  const char* name;
  Ours ours;
};
constexpr Enumerator<OpKind> kTheirKinds[] = {
    {RUEDA_ALLREDUCE, "RUEDA_ALLREDUCE", OpKind::kAllreduce},
    {RUEDA_BROADCAST, "RUEDA_BROADCAST", OpKind::kBroadcast},
    {RUEDA_ALLGATHER, "RUEDA_ALLGATHER", OpKind::kAllgather},
    {RUEDA_BARRIER, "RUEDA_BARRIER", OpKind::kBarrier},
    {RUEDA_ALLTOALL, "RUEDA_ALLTOALL", OpKind::kAlltoall},
    {RUEDA_REDUCESCATTER, "RUEDA_REDUCESCATTER", OpKind::kReducescatter},
    {RUEDA_REDUCE, "RUEDA_REDUCE", OpKind::kReduce},
    {RUEDA_GATHER, "RUEDA_GATHER", OpKind::kGather},
    {RUEDA_SCATTER, "RUEDA_SCATTER", OpKind::kScatter},
    {RUEDA_SEND, "RUEDA_SEND", OpKind::kSendRecv},
    {RUEDA_RECV, "RUEDA_RECV", OpKind::kSendRecv}};
constexpr Enumerator<ReduceOp> kTheirReduceOps[] = {
    {RUEDA_SUM, "RUEDA_SUM", ReduceOp::kSum},
    {RUEDA_AVERAGE, "RUEDA_AVERAGE", ReduceOp::kAverage},
    {RUEDA_MIN, "RUEDA_MIN", ReduceOp::kMin},
    {RUEDA_MAX, "RUEDA_MAX", ReduceOp::kMax},
    {RUEDA_PRODUCT, "RUEDA_PRODUCT", ReduceOp::kProduct},
    {RUEDA_BAND, "RUEDA_BAND", ReduceOp::kBitAnd},
    {RUEDA_BOR, "RUEDA_BOR", ReduceOp::kBitOr},
    {RUEDA_BXOR, "RUEDA_BXOR", ReduceOp::kBitXor},
    {RUEDA_ADASUM, "RUEDA_ADASUM", ReduceOp::kAdasum},
    {RUEDA_AVERAGE_LIVE, "RUEDA_AVERAGE_LIVE", ReduceOp::kAverageLive}};

// An error: this version does not know it. `field` has it; `what` is for people.
template <typename Ours, size_t kCount>
absl::Status ReadEnumerator(absl::string_view field, int number, absl::string_view what,
                            const Enumerator<Ours> (&table)[kCount], Ours* ours) {
  for (const Enumerator<Ours>& row : table) {
    if (row.number != number) continue;
    *ours = row.ours;
    return absl::OkStatus();
  }
  std::string known;
  for (const Enumerator<Ours>& row : table) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", row.name, " (", row.number, ")");
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " ", number, " is no ", what, "; known are ", known));
}

// Behind the tensors, whose device it must name. A barrier has none. `*exec_given` becomes this
// version's.
absl::Status CheckExec(const rueda_exec** exec_given, rueda_exec* copy,
                       std::optional<DeviceId>* device) {
  if (*exec_given == nullptr) return absl::OkStatus();
  RUEDA_RETURN_IF_ERROR(ReadStruct(*exec_given, copy, exec_given));
  const rueda_exec* const exec = *exec_given;
  RUEDA_ASSIGN_OR_RETURN(const DeviceId given, DeviceIdOf(exec->device));
  if (device->has_value() && **device != given) {
    return absl::InvalidArgumentError(absl::StrCat("exec says ", DeviceName(given),
                                                   ", the tensors are on ", DeviceName(**device)));
  }
  *device = given;
  if (given.type == DeviceType::kCpu && (exec->stream != nullptr || exec->ready_event != nullptr)) {
    return absl::InvalidArgumentError(
        "an operation on the CPU has no stream and no event: leave them null");
  }
  return absl::OkStatus();
}

// The kind and what goes with it become ours.
absl::Status CheckOne(const rueda_operation& operation, Rank self, OperationArgs* args) {
  const int kind = NumberOf(operation.kind);
  RUEDA_RETURN_IF_ERROR(
      ReadEnumerator("kind", kind, "kind of operation", kTheirKinds, &args->kind));
  if (TraitsOf(args->kind).reduces) {
    RUEDA_RETURN_IF_ERROR(ReadEnumerator("reduce_op", NumberOf(operation.reduce_op),
                                         "reduce operation", kTheirReduceOps, &args->reduce_op));
    args->scaling = {operation.prescale, operation.postscale};
  } else if (operation.prescale != 1 || operation.postscale != 1) {
    return absl::InvalidArgumentError("only reductions take scale factors; leave them at 1");
  }
  if (TraitsOf(args->kind).rooted) args->root = kind == RUEDA_SEND ? self : operation.root;
  if (args->kind == OpKind::kSendRecv) {
    args->peer = kind == RUEDA_SEND ? operation.root : self;
    if (args->root == args->peer) {
      return absl::InvalidArgumentError("a rank can't send to itself; copy instead");
    }
  }
  if (kind == RUEDA_BARRIER && (operation.input != nullptr || operation.output != nullptr)) {
    return absl::InvalidArgumentError("a barrier takes no tensors");
  }
  constexpr uint32_t kFlags = RUEDA_OPERATION_WAIT_SOON | RUEDA_OPERATION_RELEASE;
  if ((operation.flags & ~kFlags) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown bits in rueda_operation.flags: ", operation.flags,
                     "; known are RUEDA_OPERATION_WAIT_SOON (1) and RUEDA_OPERATION_RELEASE (2)"));
  }
  if (operation.split_count > 0 && operation.splits == nullptr) {
    return absl::InvalidArgumentError("split_count is not 0, but splits is null");
  }
  if (operation.splits != nullptr && kind != RUEDA_ALLTOALL && kind != RUEDA_SCATTER) {
    return absl::InvalidArgumentError("only alltoall and scatter take splits");
  }
  if (operation.splits != nullptr && operation.split_count == 0) {
    return absl::InvalidArgumentError("splits is not null, but split_count is 0");
  }
  return absl::OkStatus();
}

// A group is ordered behind one point of one stream: its exec is its first operation's.
absl::Status CheckAlikeExec(const rueda_exec* a, const rueda_exec* b) {
  const bool alike = a == nullptr || b == nullptr
                         ? a == b
                         : a->device.type == b->device.type && a->device.id == b->device.id &&
                               a->stream == b->stream && a->ready_event == b->ready_event;
  if (alike) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the tensors of a group are given to one stream: device, stream and ready_event must be "
      "equal; order one stream behind the others and give that one for all, or take groups by "
      "stream");
}

// One of the caller's operations, each of `stride` bytes, as this version has it.
absl::Status ReadOperation(const rueda_operation* operations, size_t stride, size_t index,
                           rueda_operation* copy, const rueda_operation** operation) {
  const auto* const given = reinterpret_cast<const rueda_operation*>(
      reinterpret_cast<const char*>(operations) + index * stride);
  if (given->size != stride) {
    return absl::InvalidArgumentError("the operations of a group differ in `size`");
  }
  return ReadStruct(given, copy, operation);
}

absl::string_view CompressorOf(const rueda_operation& operation) {
  return operation.compressor == nullptr ? absl::string_view() : operation.compressor;
}

// In a group everything but tensors and names must be alike.
bool Alike(const rueda_operation& a, const rueda_operation& b) {
  return a.kind == b.kind && a.process_set == b.process_set &&
         NumberOf(a.reduce_op) == NumberOf(b.reduce_op) && a.root == b.root &&
         a.prescale == b.prescale && a.postscale == b.postscale && a.allocate == b.allocate &&
         a.allocate_user == b.allocate_user && a.flags == b.flags &&
         (a.priority > 0) == (b.priority > 0) && (a.priority < 0) == (b.priority < 0) &&
         (a.name == nullptr) == (b.name == nullptr) && CompressorOf(a) == CompressorOf(b);
}

absl::Status CheckGroup(const rueda_operation& first, const rueda_operation& operation,
                        OpKind kind) {
  if (!Alike(first, operation)) {
    return absl::InvalidArgumentError(
        "in a group kind, process set, reduce_op, root, scale factors, compressor, priority, "
        "allocator and flags must be equal, and all operations named or none");
  }
  if (!TraitsOf(kind).groups) {
    return absl::InvalidArgumentError("only allreduces, allgathers and reducescatters form groups");
  }
  return absl::OkStatus();
}

void FillArgs(const rueda_operation& first, Rank self, CheckedOperations* checked) {
  OperationArgs& args = checked->args;
  args.set = first.process_set;
  if (args.Gives(self)) args.splits = absl::MakeConstSpan(first.splits, first.split_count);
  args.parts = checked->parts;
  args.names = checked->names;
  args.allocate = first.allocate;
  args.allocate_user = first.allocate_user;
  args.wait_soon = (first.flags & RUEDA_OPERATION_WAIT_SOON) != 0;
}

}  // namespace

rueda_dtype TheirDType(DType dtype) {
  return kTheirDTypes[static_cast<int>(dtype)];
}

rueda_device TheirDevice(DeviceType type, int index) {
  return {type == DeviceType::kCpu ? RUEDA_CPU : RUEDA_CUDA, index};
}

absl::StatusOr<DeviceType> DeviceTypeOf(int32_t type) {
  switch (type) {
    case RUEDA_CPU:
    case RUEDA_CUDA_HOST:
      return DeviceType::kCpu;
    case RUEDA_CUDA:
    case RUEDA_CUDA_MANAGED:
      return DeviceType::kCuda;
    default:
      return absl::UnimplementedError(
          absl::StrCat("DLPack device type ", type,
                       "; known are RUEDA_CPU (1), RUEDA_CUDA (2), RUEDA_CUDA_HOST (3), "
                       "RUEDA_CUDA_MANAGED (13)"));
  }
}

absl::Status CheckOperations(const rueda_operation* operations, size_t count, Rank self,
                             CheckedOperations* checked) {
  if (operations == nullptr || count == 0) {
    return absl::InvalidArgumentError("no operations were given");
  }
  if (count > static_cast<size_t>(kGroupTensorsMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a group of ", count, " tensors; at most ", kGroupTensorsMax));
  }
  checked->parts.reserve(count);
  checked->names.reserve(count);
  const size_t stride = operations[0].size;
  // Of another version's structs: the first one's, and the others' one after another.
  rueda_operation copies[2];
  rueda_exec exec_copies[2];
  const rueda_operation* read_first = nullptr;
  const rueda_exec* first_exec = nullptr;
  std::optional<DeviceId> device;
  for (size_t i = 0; i < count; ++i) {
    const size_t copy = i == 0 ? 0 : 1;
    const rueda_operation* read = nullptr;
    absl::Status status = ReadOperation(operations, stride, i, &copies[copy], &read);
    if (!status.ok()) return At(i, nullptr, status);
    if (i == 0) read_first = read;
    const rueda_operation& first = *read_first;
    const rueda_operation& operation = *read;
    const rueda_exec* exec = operation.exec;
    PartArgs part;
    absl::string_view name;
    status = CheckOne(operation, self, &checked->args);
    if (status.ok() && count > 1) status = CheckGroup(first, operation, checked->args.kind);
    if (status.ok() && i == 0) {
      const absl::StatusOr<Compression> compression = ParseCompression(CompressorOf(operation));
      status = compression.status();
      if (status.ok()) checked->args.compression = *compression;
    }
    std::optional<DeviceId> own;
    if (status.ok()) status = CheckPart(operation, checked->args, self, &part, &own);
    if (status.ok()) status = CheckExec(&exec, &exec_copies[copy], &own);
    if (i == 0) first_exec = exec;
    if (status.ok() && own.has_value()) status = CheckDevice(*own, &device, "a group");
    if (status.ok() && i > 0) status = CheckAlikeExec(first_exec, exec);
    if (status.ok() && operation.name != nullptr) status = CheckName(operation.name, &name);
    if (status.ok() && operation.fault != nullptr && checked->args.fault.empty()) {
      status = CheckFault(operation.fault, &checked->args.fault);
      checked->args.fault_part = i;
    }
    if (!status.ok()) return At(i, operation.name, status);
    if (operation.kind != RUEDA_BARRIER) checked->parts.push_back(std::move(part));
    if (operation.name != nullptr) checked->names.push_back(name);
  }
  FillArgs(*read_first, self, checked);
  if (!device.has_value() || device->type == DeviceType::kCpu) {
    if (read_first->priority < 0) checked->args.priority = Priority::kLow;
    return absl::OkStatus();
  }
  checked->args.device = device->type;
  checked->args.device_index = device->index;
  if (read_first->priority > 0) checked->args.priority = Priority::kUrgent;
  if (first_exec != nullptr) checked->exec = {first_exec->stream, first_exec->ready_event};
  return absl::OkStatus();
}

absl::Status WriteRanks(const char* function, absl::Span<const Rank> found, int32_t* ranks,
                        size_t capacity, size_t* count) {
  if (count == nullptr || (ranks == nullptr && capacity > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(function, ": a null pointer"));
  }
  std::copy_n(found.begin(), std::min(capacity, found.size()), ranks);
  *count = found.size();
  return absl::OkStatus();
}

}  // namespace rueda::capi
