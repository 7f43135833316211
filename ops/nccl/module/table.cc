// The module's table: its functions in the order of cuda_abi.h.
#include "ops/nccl/module/communicator.h"
#include "ops/nccl/module/device.h"

extern "C" __attribute__((visibility("default"))) const rueda_cuda* rueda_module_table() {
  namespace cuda = rueda::cuda;
  static const rueda_cuda table = {
      .size = sizeof(rueda_cuda),
      .abi = RUEDA_CUDA_ABI,
      .name = "nccl",
      .probe = &cuda::Probe,
      .describe = &cuda::Describe,
      .locate = &cuda::Locate,
      .open_stream = &cuda::OpenStream,
      .close_stream = &cuda::CloseStream,
      .is_capturing = &cuda::IsCapturing,
      .open_event = &cuda::OpenEvent,
      .close_event = &cuda::CloseEvent,
      .record = &cuda::Record,
      .wait = &cuda::Wait,
      .synchronize = &cuda::Synchronize,
      .allocate = &cuda::Allocate,
      .release = &cuda::Release,
      .transfer = &cuda::Transfer,
      .copy = &cuda::EnqueueCopy,
      .reduce = &cuda::EnqueueReduce,
      .encode = &cuda::EnqueueEncode,
      .combine = &cuda::EnqueueCombine,
      .decode = &cuda::EnqueueDecode,
      .make_id = &cuda::MakeId,
      .connect = &cuda::Connect,
      .split = &cuda::Split,
      .await = &cuda::Await,
      .allocate_buffer = &cuda::AllocateBuffer,
      .release_buffer = &cuda::ReleaseBuffer,
      .supports = &cuda::Supports,
      .begin = &cuda::Begin,
      .end = &cuda::End,
      .allreduce = &cuda::Allreduce,
      .reduce_to = &cuda::ReduceTo,
      .reducescatter = &cuda::Reducescatter,
      .allgather = &cuda::Allgather,
      .broadcast = &cuda::Broadcast,
      .send = &cuda::Send,
      .receive = &cuda::Receive,
      .check = &cuda::Check,
      .abort = &cuda::Abort,
      .destroy = &cuda::Destroy,
  };
  return &table;
}
