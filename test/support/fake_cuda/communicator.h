// FAKE: NCCL's communicators. What is enqueued on one is a task of its stream that meets the other
// members' tasks, in the order in which it was enqueued, at the hub. Threads: as the table has it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "test/support/fake_cuda/hub.h"
#include "test/support/fake_cuda/stream.h"
#include "test/support/fake_cuda/wire.h"

namespace rueda::fake_cuda {

// Of a collective, as it is enqueued.
struct Transfer {
  Description what;
  const void* in;
  void* out;
};

// Shared with the tasks that it has enqueued.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // UNAVAILABLE: nobody is where the id leads.
  static Outcome Connect(const rueda_cuda_id& id, int32_t members, int32_t self, int32_t device,
                         std::shared_ptr<Communicator>* result);
  // `*result` is null for a negative color.
  Outcome Split(int32_t color, int32_t key, std::shared_ptr<Communicator>* result);
  // DEADLINE_EXCEEDED, UNAVAILABLE: not all members came.
  Outcome Await(int64_t timeout);
  explicit Communicator(int32_t device);
  ~Communicator();

  const int32_t number;
  const int32_t device;
  int32_t members() const { return members_; }  // 0: not known yet, the split is not over
  int32_t self() const { return self_; }

  Outcome AllocateBuffer(size_t bytes, void** memory);
  void ReleaseBuffer(void* memory);

  Outcome Begin();
  Outcome End();
  // Or gathers it, between Begin and End.
  Outcome Enqueue(const std::shared_ptr<Stream>& stream, const Transfer& transfer);

  // ABORTED, INTERNAL: nothing can be enqueued any more. INVALID_ARGUMENT: not yet.
  Outcome Usable() const;
  // The same, or UNAVAILABLE.
  Outcome Check();
  // Any thread.
  void Abort();
  void Vanish();
  void Destroy();

 private:
  Outcome Dead() const;
  Outcome Join(const rueda_cuda_id& id, int32_t members, int32_t self);
  Outcome AwaitPart(int64_t deadline);
  Outcome AwaitSaid(Say wanted, int64_t deadline, std::string* bytes);
  bool Read(const Stop& stop, Say* say, std::string* bytes);

  // On a stream's thread.
  void Run(uint64_t ticket, const std::vector<Transfer>& task);
  Outcome CheckTask(const std::vector<Transfer>& task) const;
  bool Exchange(const std::vector<Transfer>& task);
  void Spoil(const std::vector<Transfer>& task);
  bool Stopped() const { return aborted_.load() || HasFailed(device); }

  std::atomic<int> data_{-1};  // sockets
  std::atomic<int> control_{-1};
  std::atomic<bool> aborted_{false};

  // Of the thread that uses it.
  int32_t members_ = 0;
  int32_t self_ = -1;
  std::shared_ptr<Communicator> parent_;  // while the split is not over
  bool ready_ = false;                    // all members are there
  std::string lost_;                      // why peers can't be reached; empty: they can
  bool gathering_ = false;
  std::shared_ptr<Stream> group_stream_;
  std::vector<Transfer> group_;
  uint64_t tickets_ = 0;
  std::vector<void*> buffers_;

  Mutex mutex_;
  CondVar changed_;
  uint64_t turn_ ABSL_GUARDED_BY(mutex_) = 0;  // the ticket of the task that runs, or runs next
};

// What NCCL has: sums, products, minima and maxima of its types, averages of floating ones, sums of
// complex ones as of pairs; without what a test refuses.
bool Supports(int32_t dtype, int32_t reduce_op);
void Refuse(int32_t dtype, int32_t reduce_op);
void SetSplit(bool works);
void ResetCommunicators();

int32_t LiveCommunicators();
// Of the one with this number, or (-1) of all on the device.
void KillMembers(int32_t number, int32_t device);

}  // namespace rueda::fake_cuda
