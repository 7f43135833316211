// One operation on tensors, from the tensors' checks to their results. What the public functions
// and the optimizer share.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rueda/torch.hpp"

namespace rueda::libtorch {

// The current context; throws when there is none.
inline rueda_context* CurrentContext() {
  return rueda::detail::Current();
}

// What to do. Borrowed for the call. All tensors are on one device, the CPU or one of CUDA.
struct Call {
  rueda_kind kind = RUEDA_ALLREDUCE;
  c10::ArrayRef<at::Tensor> tensors = {};
  bool in_place = false;
  bool grouped = false;     // one name for several tensors: each adds its suffix, else a number
  const std::string& name;  // "": unnamed
  ProcessSet process_set = {};
  reduce_op op = RUEDA_NO_REDUCE_OP;
  double prescale = 1;
  double postscale = 1;
  int root = -1;
  c10::IntArrayRef splits = {};
  std::string_view fault = {};  // why this rank can't take part, as rueda_operation has it, or ""
  c10::ArrayRef<const char*> suffixes = {};
  bool wait_soon = false;  // the caller is about to wait
  // Contiguous, of the right shapes and types: where the results of an allgather or reducescatter
  // go. An allgather's input may lie in its own part of one.
  c10::ArrayRef<at::Tensor> outputs = {};
  const std::string& compressor = rueda::detail::NoCompressor();
  int priority = 0;
};

// Thread-safe. The last reference waits for the end, but with a limit or not at all while an
// exception unwinds past it: rueda::Handle says how.
//
// On CUDA an operation takes its place in the order of the streams, as torch's own do: it comes
// behind what the current stream had been given when it was submitted, and what the stream that is
// current in Wait() is given afterwards comes behind it. "The end" is that it is enqueued, on all
// ranks; nobody waits for a device.
class Operation final : private rueda::detail::Cargo {
 public:
  // In the background, or on this thread as far as it gets in that time. Throws what is wrong with
  // the call; then nothing was submitted.
  static std::shared_ptr<Operation> Submit(rueda_context* context, const Call& call,
                                           int64_t time_ns = 0);
  // Submits and waits, the fast way. Throws how it failed.
  static std::shared_ptr<Operation> Execute(rueda_context* context, const Call& call);

  // Whether Wait() has more to do than to wait: results are copied to where the caller wants them.
  bool CopiesBack() const { return copies_back_; }
  // Whether Wait() is for a stream. Then WaitFor() waits for more: the device.
  bool IsOnDevice() const { return stream_.has_value(); }
  bool Poll();
  // Whether it ends in time; however, and whoever else waits for it. Not what Wait() does then.
  bool WaitFor(int64_t timeout_ns);
  // Why it has not ended, in words. May take a second.
  std::string Explain();
  // See rueda.hpp, Handle::then.
  void Then(std::function<void(const Error*)> callback);
  // Waits for the end; throws how it failed. The results are then there, by part: on CUDA, for the
  // stream that is current in the first call.
  const std::vector<at::Tensor>& Wait();
  // Waits too. How many rows of each part's result came from each rank of the process set; nothing
  // for a result that is no other ranks' rows, or whose memory was given.
  const std::vector<std::vector<int64_t>>& WaitForSplits();

 private:
  explicit Operation(rueda_context* context) { flight.context = context; }
  static std::shared_ptr<Operation> Make(rueda_context* context);
  void End() noexcept override;
  std::shared_ptr<const rueda::detail::Claim> Claim();
  void Start(const Call& call, int64_t time_ns);
  void Prepare(const Call& call);
  void PreparePart(const Call& call, size_t index);
  void Await(const std::optional<c10::Stream>& stream);
  void TakeResults();
  void KeepTensorsFor(const c10::Stream& stream);
  void Release();
  void TakeSplits();
  static void* Allocate(void* user, int32_t part, const int64_t* shape, int32_t dims);

  // Constant from its start to its end.
  std::optional<c10::Stream> stream_;  // that was current when it was submitted; none on the CPU
  std::vector<at::Tensor> inputs_;     // contiguous
  bool copies_back_ = false;           // some result is not the memory that the operation writes
  bool joins_rows_ = false;            // a result is rows of other ranks
  bool allocates_ = false;             // results get memory when their shape is known
  int32_t process_set_ = RUEDA_WORLD;

  // Contiguous. Those whose shape is not known are set by the library's thread while the operation
  // runs; undefined where this rank has none.
  std::vector<at::Tensor> outputs_;

  std::mutex mutex_;
  // Guarded by mutex_.
  bool ended_ = false;
  std::vector<at::Tensor> results_;  // what the caller gets
  std::vector<std::vector<int64_t>> splits_;
  std::exception_ptr error_;  // how it failed

  // Cargo's flight changes under both, and does not once it has ended.
  std::mutex flight_mutex_;
};

}  // namespace rueda::libtorch
