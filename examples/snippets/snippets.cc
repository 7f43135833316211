// A piece of code for each function of the C++ API. The documentation (docs/api) shows what stands
// between the marks; the tests run all of it:
//
//     ruedarun -np 2 cpp_snippets
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <rueda/rueda.hpp>
#include <string>
#include <vector>

namespace {

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                        \
    }                                                                      \
  } while (false)

using Floats = std::vector<float>;
using Ints = std::vector<int32_t>;

void Start() {
  //! [init]
  rueda::init({{"stall_warn_s", "30"}}, {{0}});  // knobs, process sets; both may be left out
  if (rueda::is_initialized()) std::puts("ready");
  //! [init]
  CHECK(rueda::ProcessSet{1}.ranks() == std::vector<int>{0});
}

void Stop() {
  //! [shutdown]
  rueda::shutdown();  // waits for all ranks
  //! [shutdown]
  CHECK(!rueda::is_initialized());
}

void Who() {
  //! [who]
  std::printf("rank %d of %d, on its host %d of %d, across hosts %d of %d%s\n",  //
              rueda::rank(), rueda::size(),                                      //
              rueda::local_rank(), rueda::local_size(),                          //
              rueda::cross_rank(), rueda::cross_size(),
              rueda::is_homogeneous() ? "" : "; hosts differ");
  //! [who]
}

void Timeline() {
  //! [timeline]
  rueda::start_timeline("snippets_cpp.json");
  rueda::barrier();
  rueda::stop_timeline();  // open the file in chrome://tracing
  //! [timeline]
}

void Warned() {
  //! [stop]
  for (int step = 0; step < 3; ++step) {
    rueda::barrier();                 // in place of a training step
    if (rueda::should_stop()) break;  // all ranks after the same step: save, exit
  }
  //! [stop]
}

void Memberships() {
  //! [memberships]
  try {
    rueda::barrier();  // may see the failure already
    if (rueda::rank() == 0) rueda::abort("rank 0 has had enough");
    while (true) rueda::barrier();
  } catch (const rueda::Error& error) {
    if (error.status() != RUEDA_ABORTED) throw;
    std::fprintf(stderr, "%s\n", error.what());
    rueda::reset();  // meets the same ranks again
  }
  std::printf("membership %d\n", static_cast<int>(rueda::membership()));
  //! [memberships]
  CHECK(rueda::membership() == 2);
}

void ProcessSets() {
  //! [process_sets]
  const rueda::ProcessSet set = rueda::add_process_set({1});
  if (set.included()) {
    std::vector<double> loss = {1.0 * set.rank()};
    rueda::allreduce_(loss, {.name = "loss", .op = rueda::Average, .process_set = set});
  }
  rueda::remove_process_set(set);
  //! [process_sets]
  CHECK(!set.included());
}

void Views() {
  //! [views]
  float weights[2][3] = {{1, 2, 3}, {4, 5, 6}};
  const rueda::TensorView view(&weights[0][0], {2, 3});
  const rueda::Tensor sum = rueda::allreduce(view, {.name = "weights", .op = rueda::Sum});
  std::printf("[%d, %d]: %g ...\n", static_cast<int>(sum.shape()[0]),
              static_cast<int>(sum.shape()[1]), sum.values<float>()[0]);

  std::vector<rueda::BFloat16> ones(4, {0x3F80});
  rueda::allreduce_(ones, {.name = "ones", .op = rueda::Sum});

  std::vector<float, rueda::SharedAllocator<float>> fast(1000);
  rueda::allreduce_(fast, {.name = "fast"});
  //! [views]
  CHECK(sum.values<float>()[5] == 12 && ones[3].bits == 0x4000);
}

void Allreduce() {
  //! [allreduce]
  const Floats gradient(3, static_cast<float>(rueda::rank()));
  const Floats mean = rueda::allreduce(gradient, {.name = "gradient"});  // an average
  Floats sum = gradient;
  rueda::allreduce_(sum, {.name = "sum", .op = rueda::Sum});  // in place

  const auto handle = rueda::allreduce_async(gradient, {.name = "later", .op = rueda::Max});
  const auto in_place = rueda::allreduce_async_(sum, {.name = "later, in place", .op = rueda::Max});
  while (!rueda::poll(handle)) {
    // something else
  }
  const Floats max = rueda::synchronize(handle);
  rueda::synchronize(in_place);  // until then `sum` is not to be touched
  //! [allreduce]
  CHECK(mean[0] == 0.5f && sum[0] == 1 && max[0] == 1);
}

//! [cuda]
// Adds up device memory in the order of `stream`, a cudaStream_t, without waiting for the device.
rueda::Handle<> AddUp(float* memory, int64_t elements, int device, void* stream) {
  const rueda::TensorView view(memory, {elements});
  auto handle = rueda::allreduce_async_(view.on_cuda(device, stream),
                                        {.name = "on the device", .op = rueda::Sum});
  rueda::wait_on_stream(handle, stream);  // what `stream` is given from now on finds the sums
  return handle;  // keep it until the memory is no longer needed: letting go waits for the device
}
//! [cuda]

// This program has no device memory of its own to add up.
void Cuda() {
  rueda_device device = {};
  rueda_context* const context = rueda_current_context();
  if (rueda_local_device(context, RUEDA_CUDA, &device) == RUEDA_OK) {
    (void)AddUp(nullptr, 0, device.id, nullptr);
  }
}

void Options() {
  //! [options]
  Floats gradient(3, 1);
  rueda::allreduce_(gradient);                                          // unnamed, the average
  rueda::allreduce_(gradient, {.name = "gradient", .op = rueda::Sum});  // fields in this order
  rueda::AllreduceOptions options = {.name = "again", .op = rueda::Sum};
  options.prescale_factor = 0.5;
  rueda::allreduce_(gradient, options);
  //! [options]
  CHECK(gradient[0] == 2);
}

void Handles() {
  //! [handles]
  std::vector<rueda::Handle<Floats>> layers;
  for (const char* name : {"first", "second"}) {
    layers.push_back(rueda::allreduce_async(Floats(3, 1), {.name = name, .op = rueda::Sum}));
  }
  const auto failed = std::make_shared<std::atomic<bool>>(false);  // the callback may come later
  layers[0].then([failed](const rueda::Error* error) { *failed = error != nullptr; });
  while (!layers[1].wait_for(std::chrono::milliseconds(100))) {
    std::printf("still waiting: %s\n", layers[1].explain().c_str());  // who is missing
  }
  const std::vector<Floats> sums = rueda::wait_all(layers);
  //! [handles]
  CHECK(sums[0][2] == 2 && sums[1][0] == 2);
}

void Numbers() {
  //! [numbers]
  double loss = rueda::rank();
  const double mean = rueda::allreduce(loss, {.name = "loss"});
  rueda::allreduce_(loss, {.name = "sum", .op = rueda::Sum});  // in place
  const std::vector<double> losses = rueda::allgather(loss, {.name = "all losses"});
  //! [numbers]
  CHECK(mean == 0.5 && loss == 1 && losses.size() == 2);
}

void Grouped() {
  //! [grouped]
  Floats weights(100, 1);
  Ints counts(3, 1);
  // Both or neither.
  rueda::grouped_allreduce_({weights, counts}, {.name = "layer", .op = rueda::Sum});
  rueda::synchronize(
      rueda::grouped_allreduce_async_({weights, counts}, {.name = "again", .op = rueda::Max}));

  const std::vector<Ints> group = {{1, 2}, {3, 4}};
  const std::vector<Ints> sums =
      rueda::grouped_allreduce(group, {.name = "sums", .op = rueda::Sum});
  const std::vector<Ints> all = rueda::grouped_allgather(group, {.name = "all"});
  const std::vector<Ints> parts =
      rueda::grouped_reducescatter(group, {.name = "parts", .op = rueda::Sum});

  const auto first = rueda::grouped_allreduce_async(group, {.name = "first", .op = rueda::Sum});
  const auto second = rueda::grouped_allgather_async(group, {.name = "second"});
  const auto third = rueda::grouped_reducescatter_async(group, {.name = "third", .op = rueda::Sum});
  rueda::synchronize(first);
  rueda::synchronize(second);
  rueda::synchronize(third);
  //! [grouped]
  CHECK(counts[0] == 2 && sums[1][1] == 8 && all[0].size() == 4 && parts[0].size() == 1);
}

void Reduce() {
  //! [reduce]
  const Floats loss(1, 1);
  const Floats total =
      rueda::reduce(loss, 0, {.name = "total", .op = rueda::Sum});  // empty but on rank 0
  Floats own = loss;
  rueda::reduce_(own, 0, {.name = "own", .op = rueda::Sum});  // unchanged but on rank 0

  const auto later = rueda::reduce_async(loss, 1, {.name = "later", .op = rueda::Sum});
  const auto in_place = rueda::reduce_async_(own, 1, {.name = "later, in place", .op = rueda::Max});
  rueda::synchronize(later);
  rueda::synchronize(in_place);
  //! [reduce]
  CHECK(total.size() == (rueda::rank() == 0 ? 1u : 0u));
  CHECK(own[0] == 2);
}

void Reducescatter() {
  //! [reducescatter]
  const Ints gradient = {1, 2, 3};
  const Ints mine =
      rueda::reducescatter(gradient, {.name = "gradient", .op = rueda::Sum});  // {2, 4} and {6}
  const Ints later = rueda::synchronize(rueda::reducescatter_async(gradient, {.op = rueda::Sum}));
  //! [reducescatter]
  CHECK(mine == (rueda::rank() == 0 ? Ints{2, 4} : Ints{6}) && later == mine);
}

void Broadcast() {
  //! [broadcast]
  Floats weights(3, static_cast<float>(rueda::rank()));
  const Floats roots = rueda::broadcast(weights, 1, {.name = "roots"});
  const auto later = rueda::broadcast_async(weights, 1, {.name = "later"});
  rueda::synchronize(later);
  rueda::broadcast_(weights, 0, {.name = "weights"});  // in place
  rueda::synchronize(rueda::broadcast_async_(weights, 0, {.name = "weights again"}));
  //! [broadcast]
  CHECK(roots[0] == 1 && weights[0] == 0);
}

void Gathering() {
  //! [gathering]
  const Ints mine(static_cast<size_t>(rueda::rank() + 1), rueda::rank());
  const Ints all = rueda::allgather(mine, {.name = "all"});  // {0, 1, 1}
  const auto handle = rueda::allgather_async(mine, {.name = "later"});
  rueda::synchronize(handle);
  const std::vector<int64_t> rows = rueda::received_splits(handle);  // {1, 2}

  const Ints roots = rueda::gather(mine, 0, {.name = "roots"});  // empty but on rank 0
  rueda::synchronize(rueda::gather_async(mine, 1, {.name = "other roots"}));
  //! [gathering]
  CHECK(all == (Ints{0, 1, 1}) && rows == (std::vector<int64_t>{1, 2}));
  CHECK(roots == (rueda::rank() == 0 ? all : Ints()));
}

void Scatter() {
  //! [scatter]
  const Ints whole = rueda::rank() == 0 ? Ints{1, 2, 3, 4} : Ints();
  const Ints half = rueda::scatter(whole, 0);                              // {1, 2} and {3, 4}
  const auto handle = rueda::scatter_async(whole, 0, {.splits = {1, 3}});  // {1} and {2, 3, 4}
  const Ints part = rueda::synchronize(handle);
  //! [scatter]
  CHECK(half.size() == 2 && part.size() == (rueda::rank() == 0 ? 1u : 3u));
}

void Alltoall() {
  //! [alltoall]
  const Ints mine(3, rueda::rank());
  const auto [tensor, splits] =
      rueda::alltoall(mine, {.splits = {1, 2}, .name = "a"});  // a row to 0, two to 1
  const rueda::Received<Ints> later =
      rueda::synchronize(rueda::alltoall_async(mine, {.splits = {1, 2}}));
  //! [alltoall]
  CHECK(tensor == (rueda::rank() == 0 ? Ints{0, 1} : Ints{0, 0, 1, 1}) && later.tensor == tensor);
  CHECK(splits == std::vector<int64_t>(2, rueda::rank() + 1));
}

void SendRecv() {
  //! [send_recv]
  Ints data(4, rueda::rank());
  if (rueda::rank() == 0) {
    rueda::send(data, 1, {.name = "there"});
    rueda::recv(data, 1, {.name = "and back"});
    rueda::synchronize(rueda::send_async(data, 1));
  } else {
    rueda::recv(data, 0, {.name = "there"});
    rueda::send(data, 0, {.name = "and back"});
    rueda::synchronize(rueda::recv_async(data, 0));
  }
  //! [send_recv]
  CHECK(data == Ints(4, 0));
}

void Objects() {
  //! [objects]
  const std::string name = rueda::rank() == 0 ? "Zeno" : "Ada";
  const std::string first = rueda::broadcast_object(name, 0);          // "Zeno"
  const std::vector<std::string> all = rueda::allgather_object(name);  // {"Zeno", "Ada"}
  //! [objects]
  CHECK(first == "Zeno" && all == (std::vector<std::string>{"Zeno", "Ada"}));
}

void Meeting() {
  //! [meeting]
  rueda::barrier();
  const auto here = rueda::barrier_async();
  rueda::synchronize(here);

  for (int batch = 0; batch < 3 + rueda::rank(); ++batch) {  // rank 1 has one more
    Floats loss(1, 1);
    rueda::allreduce_(loss, {.name = "loss", .op = rueda::AverageLive});
  }
  const int last = rueda::join();  // no more data here
  //! [meeting]
  CHECK(last == 1);
}

}  // namespace

int main() {
  Start();
  Who();
  ProcessSets();
  Views();
  Allreduce();
  Cuda();
  Options();
  Handles();
  Numbers();
  Grouped();
  Reduce();
  Reducescatter();
  Broadcast();
  Gathering();
  Scatter();
  Alltoall();
  SendRecv();
  Objects();
  Meeting();
  Timeline();
  Warned();
  Memberships();
  Stop();
  return 0;
}
