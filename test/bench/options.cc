#include "test/bench/options.h"

#include <getopt.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "test/bench/support.h"
#include "test/bench/tensor.h"

namespace rueda::bench {
namespace {

constexpr char kUsage[] =
    R"(usage: ruedarun -np N rueda_bench [options]

  --op OPERATION    blocking operation to time: allreduce (the default), broadcast, allgather,
                    alltoall, reducescatter, barrier
  --bytes LIST      sizes, such as 4,4K,1M (default 4,256,4K,16K,64K,256K,1M,4M,16M,64M,256M);
                    on each rank
  --dtype LIST      such as float32,bfloat16 (default float32), or all: the sums of each; allreduce
                    only
  --compressor LIST such as none,int8,auto (rueda.h): allreduce of float32 with each
  --many COUNTxSIZE instead: COUNT asynchronous allreduces of SIZE each, submitted and waited for
                    as one; may be given several times
  --step LAYERSxWIDTHxBATCH
                    instead: a synthetic training step with and without its communication; each
                    layer's gradient, WIDTH x WIDTH, is submitted when it has been computed
  --cycles N        instead: N times, inits and shuts down one more context of all ranks
  --registered      tensors in memory of rueda_mem_alloc
  --device cpu|cuda where the tensors are (default cpu). On cuda, --many orders a stream behind its
                    operations and waits for that alone: what a training does
  --iterations N    instead of a number that suits the size, and takes two seconds at most
  --timeline FILE   each measurement in 20 rounds of N, with the timeline off and on, alternating:
                    what it costs
  --idle SECONDS    instead: after 10 s, keeps the job idle for so long and prints each rank's CPU
                    time and context switches
  --late SECONDS    instead: rank 0 comes so late to a barrier; prints what waiting costs the others
  --json            one JSON line per measurement instead of a table

Without ruedarun:

rueda_bench --vs LIST   Rueda, the floor and the peers in the list, interleaved: openmpi, impi,
                    mpich, gloo, torch, horovod; those that are set up
rueda_bench --scaling LIST   weak scaling of the training step over so many ranks, such as 1,2,4

  --np LIST         --vs: numbers of ranks (default 2,4)
  --bytes LIST      --vs: sizes (default 4,4K,64K,1M,16M,64M,256M)
  --step SHAPE, --registered, --iterations N
                    --scaling: the step (default 32x256x64), and how many in a row
  --rounds N        how often to measure everything (default 5)
  --results FILE    JSON lines, appended (default rueda_vs.jsonl, rueda_scaling.jsonl)
  --plot FILE       .svg or .png (default beside the results)
  --peers-dir DIR   where test/bench/peers is now, if not where rueda_bench was built
)";

// "4", "64K", "1M", "2G", in bytes.
size_t ParseSize(const std::string& text) {
  char* end = nullptr;
  const unsigned long long number = std::strtoull(text.c_str(), &end, 10);
  size_t unit = 1;
  if (*end == 'K' || *end == 'k') unit = size_t{1} << 10;
  if (*end == 'M' || *end == 'm') unit = size_t{1} << 20;
  if (*end == 'G' || *end == 'g') unit = size_t{1} << 30;
  if (end == text.c_str() || (unit == 1 ? *end != 0 : end[1] != 0)) Misused("not a size: " + text);
  return number * unit;
}

int ParseCount(const std::string& text) {
  char* end = nullptr;
  const long number = std::strtol(text.c_str(), &end, 10);
  if (end == text.c_str() || *end != 0 || number < 1 || number > 1'000'000) {
    Misused("expected a number from 1 to 1000000, not " + text);
  }
  return static_cast<int>(number);
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::vector<size_t> ParseSizes(const std::string& text) {
  std::vector<size_t> sizes;
  for (const std::string& part : Split(text, ',')) sizes.push_back(ParseSize(part));
  return sizes;
}

std::pair<int, size_t> ParseMany(const std::string& text) {
  const std::vector<std::string> parts = Split(text, 'x');
  if (parts.size() != 2) Misused("--many expects COUNTxSIZE, such as 200x4K");
  return {ParseCount(parts[0]), ParseSize(parts[1])};
}

StepShape ParseStep(const std::string& text) {
  const std::vector<std::string> parts = Split(text, 'x');
  if (parts.size() != 3) Misused("--step expects LAYERSxWIDTHxBATCH, such as 32x256x64");
  return {ParseCount(parts[0]), ParseCount(parts[1]), ParseCount(parts[2])};
}

std::vector<std::string> DTypeNames(const std::string& text) {
  const std::vector<std::string> known = KnownDTypes();
  if (text == "all") return known;
  std::vector<std::string> names = Split(text, ',');
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string all;
    for (const std::string& each : known) all += (all.empty() ? "" : ", ") + each;
    Misused("no dtype '" + name + "' that can be added up; there are " + all);
  }
  return names;
}

[[noreturn]] void EndWithUsage() {
  std::fputs(kUsage, stderr);
  std::exit(2);
}

}  // namespace

int KindOf(const std::string& operation) {
  static const std::pair<const char*, rueda_kind> kKinds[] = {
      {"allreduce", RUEDA_ALLREDUCE},         {"broadcast", RUEDA_BROADCAST},
      {"allgather", RUEDA_ALLGATHER},         {"alltoall", RUEDA_ALLTOALL},
      {"reducescatter", RUEDA_REDUCESCATTER}, {"barrier", RUEDA_BARRIER}};
  for (const auto& [name, kind] : kKinds) {
    if (operation == name) return kind;
  }
  return -1;
}

Options ParseOptions(int argc, char** argv) {
  Options options;
  static const option kOptions[] = {{"op", required_argument, nullptr, 'o'},
                                    {"bytes", required_argument, nullptr, 'b'},
                                    {"many", required_argument, nullptr, 'm'},
                                    {"step", required_argument, nullptr, 's'},
                                    {"cycles", required_argument, nullptr, 'c'},
                                    {"registered", no_argument, nullptr, 'r'},
                                    {"device", required_argument, nullptr, 'e'},
                                    {"iterations", required_argument, nullptr, 'i'},
                                    {"idle", required_argument, nullptr, 'd'},
                                    {"late", required_argument, nullptr, 'l'},
                                    {"dtype", required_argument, nullptr, 'T'},
                                    {"compressor", required_argument, nullptr, 'C'},
                                    {"timeline", required_argument, nullptr, 't'},
                                    {"json", no_argument, nullptr, 'j'},
                                    {"vs", required_argument, nullptr, 'V'},
                                    {"scaling", required_argument, nullptr, 'S'},
                                    {"np", required_argument, nullptr, 'N'},
                                    {"rounds", required_argument, nullptr, 'O'},
                                    {"results", required_argument, nullptr, 'R'},
                                    {"plot", required_argument, nullptr, 'P'},
                                    {"peers-dir", required_argument, nullptr, 'D'},
                                    {"help", no_argument, nullptr, 'h'},
                                    {}};
  int choice;
  while ((choice = getopt_long(argc, argv, "", kOptions, nullptr)) != -1) {
    switch (choice) {
      case 'o':
        options.op = optarg;
        break;
      case 'b':
        options.bytes = ParseSizes(optarg);
        break;
      case 'm':
        options.many.push_back(ParseMany(optarg));
        break;
      case 's':
        options.step = ParseStep(optarg);
        break;
      case 'c':
        options.cycles = ParseCount(optarg);
        break;
      case 'r':
        options.registered = true;
        break;
      case 'e':
        options.cuda = std::strcmp(optarg, "cuda") == 0;
        if (!options.cuda && std::strcmp(optarg, "cpu") != 0)
          Misused("--device expects cpu or cuda");
        break;
      case 'i':
        options.iterations = ParseCount(optarg);
        break;
      case 'd':
        options.idle_seconds = std::atof(optarg);
        if (!(options.idle_seconds > 0)) Misused("--idle expects a number of seconds above 0");
        break;
      case 'l':
        options.late_seconds = std::atof(optarg);
        if (!(options.late_seconds > 0)) Misused("--late expects a number of seconds above 0");
        break;
      case 'T':
        options.dtypes = DTypeNames(optarg);
        break;
      case 'C':
        options.compressors = Split(optarg, ',');
        break;
      case 't':
        options.timeline = optarg;
        break;
      case 'j':
        options.json = true;
        break;
      case 'V':
        options.vs = optarg;
        break;
      case 'S':
        options.scaling = optarg;
        break;
      case 'N':
        options.np = optarg;
        break;
      case 'O':
        options.rounds = std::to_string(ParseCount(optarg));
        break;
      case 'R':
        options.results = optarg;
        break;
      case 'P':
        options.plot = optarg;
        break;
      case 'D':
        options.peers_dir = optarg;
        break;
      case 'h':
        std::fputs(kUsage, stdout);
        std::exit(0);
      default:
        EndWithUsage();
    }
  }
  if (!options.dtypes.empty() && options.op != "allreduce")
    Misused("--dtype goes with allreduce only");
  if (!options.compressors.empty() && (options.op != "allreduce" || !options.dtypes.empty())) {
    Misused("--compressor goes with allreduce of float32 only");
  }
  if (options.cuda && (options.registered || options.step.layers > 0)) {
    Misused("--device cuda goes neither with --registered nor with --step");
  }
  if (options.cuda && (!options.vs.empty() || !options.scaling.empty())) {
    Misused(
        "--device cuda goes neither with --vs nor with --scaling, which measure on the CPU; "
        "rueda_nccl_bench compares with NCCL");
  }
  if (optind < argc || KindOf(options.op) < 0) EndWithUsage();
  return options;
}

}  // namespace rueda::bench
