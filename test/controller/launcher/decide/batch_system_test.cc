#include "controller/launcher/decide/batch_system.h"

#include <gtest/gtest.h>

#include "core/base/limits.h"

namespace rueda {
namespace {

using Hosts = std::vector<HostSlots>;
using Files = std::map<std::string, std::string>;

absl::StatusOr<std::optional<Allocation>> Find(const Environment& environment,
                                               const Files& files = {}) {
  return FindAllocation(environment, [&](const std::string& path) -> absl::StatusOr<std::string> {
    const auto it = files.find(path);
    if (it == files.end()) return absl::NotFoundError("No such file or directory");
    return it->second;
  });
}

Hosts HostsOf(const Environment& environment, const Files& files = {}) {
  const auto found = Find(environment, files);
  EXPECT_TRUE(found.ok()) << found.status();
  return found.ok() && found->has_value() ? (*found)->hosts : Hosts();
}

void ExpectRefused(const Environment& environment, const Files& files, absl::StatusCode code,
                   const std::string& message) {
  const absl::Status status = Find(environment, files).status();
  EXPECT_EQ(status.code(), code) << message;
  EXPECT_EQ(status.message(), message);
}

Environment Slurm(const Environment& more) {
  Environment environment = {{"SLURM_JOB_ID", "123"}, {"SLURM_JOB_NODELIST", "n[1-2]"}};
  for (const auto& each : more) environment[each.first] = each.second;
  return environment;
}

TEST(Allocation, IsNoneWithoutABatchSystem) {
  EXPECT_FALSE(Find({})->has_value());
  EXPECT_FALSE(
      Find({{"SLURM_JOB_NODELIST", "n1"}, {"PBS_NODEFILE", "f"}, {"LSB_HOSTS", "a"}})->has_value());
  EXPECT_FALSE(Find({{"SLURM_JOB_ID", ""}})->has_value());
}

TEST(Allocation, SaysWhoseItIsAndWhatStartsIt) {
  const auto slurm = *Find(Slurm({}));
  EXPECT_EQ(slurm->source, "SLURM job 123");
  EXPECT_EQ(slurm->starter, Starter::Kind::kSrun);
  const auto lsf = *Find({{"LSB_JOBID", "7"}, {"LSB_HOSTS", "a"}});
  EXPECT_EQ(lsf->source, "LSF job 7");
  EXPECT_EQ(lsf->starter, Starter::Kind::kBlaunch);
  const auto pbs = *Find({{"PBS_JOBID", "9.server"}, {"PBS_NODEFILE", "f"}}, {{"f", "a\n"}});
  EXPECT_EQ(pbs->source, "PBS job 9.server");
  EXPECT_EQ(pbs->starter, Starter::Kind::kSsh);
}

// What SLURM 22.05 sets for each of these commands.
TEST(Allocation, OfSlurmHasASlotForEachTaskThatWasAskedFor) {
  const struct {
    const char* command;
    Environment environment;
    Hosts hosts;
  } kCases[] = {
      {"sbatch -N 2", {{"SLURM_TASKS_PER_NODE", "1(x2)"}}, {{"n1", 1}, {"n2", 1}}},
      {"sbatch -N 2 --exclusive",
       {{"SLURM_TASKS_PER_NODE", "8(x2)"}, {"SLURM_JOB_CPUS_PER_NODE", "8(x2)"}},
       {{"n1", 1}, {"n2", 1}}},
      {"sbatch -N 2 -n 5",
       {{"SLURM_NTASKS", "5"}, {"SLURM_TASKS_PER_NODE", "4,1"}},
       {{"n1", 4}, {"n2", 1}}},
      {"salloc -N 2 --ntasks-per-node 3",
       {{"SLURM_NTASKS", "6"}, {"SLURM_NTASKS_PER_NODE", "3"}, {"SLURM_TASKS_PER_NODE", "3(x2)"}},
       {{"n1", 3}, {"n2", 3}}},
      {"a SLURM that sets no more", {{"SLURM_NTASKS_PER_NODE", "3"}}, {{"n1", 3}, {"n2", 3}}},
      {"sbatch -N 4 -n 7",
       {{"SLURM_JOB_NODELIST", "n[01-03,7]"},
        {"SLURM_NTASKS", "7"},
        {"SLURM_TASKS_PER_NODE", "2(x3),1"}},
       {{"n01", 2}, {"n02", 2}, {"n03", 2}, {"n7", 1}}},
      {"the interactive step of salloc -N 2 -n 4",
       {{"SLURM_NTASKS", "4"},
        {"SLURM_TASKS_PER_NODE", "2(x2)"},
        {"SLURM_STEP_ID", "4294967290"},
        {"SLURM_STEP_NUM_TASKS", "1"}},
       {{"n1", 2}, {"n2", 2}}},
  };
  for (const auto& each : kCases) {
    EXPECT_EQ(HostsOf(Slurm(each.environment)), each.hosts) << each.command;
  }
}

TEST(Allocation, OfSlurmIsRefusedWithThePlace) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto missing = absl::StatusCode::kFailedPrecondition;
  ExpectRefused({{"SLURM_JOB_ID", "123"}}, {}, missing,
                "SLURM_JOB_NODELIST, which tells the hosts of SLURM job 123, is not set; or name "
                "the hosts yourself, with -H");
  ExpectRefused(Slurm({{"SLURM_JOB_NODELIST", "n[1-"}}), {}, invalid,
                "SLURM_JOB_NODELIST=n[1-: at character 5: expected a number, found the end");
  ExpectRefused(Slurm({{"SLURM_JOB_NODELIST", "n[1-1000000000]"}}), {}, invalid,
                "SLURM_JOB_NODELIST=n[1-1000000000]: at character 3: more than 65536 nodes");
  ExpectRefused(Slurm({{"SLURM_JOB_NODELIST", "a,b;rm"}}), {}, invalid,
                "SLURM_JOB_NODELIST=a,b;rm, node 2: 'b;rm': a host's name has letters, digits, "
                "'-', '.', '_', and ':' in addresses");
  ExpectRefused(Slurm({{"SLURM_JOB_NODELIST", "-oProxyCommand=x"}}), {}, invalid,
                "SLURM_JOB_NODELIST=-oProxyCommand=x, node 1: '-oProxyCommand=x': a host's name "
                "does not begin with '-'");
  ExpectRefused(Slurm({{"SLURM_NTASKS", "2"}, {"SLURM_TASKS_PER_NODE", "1(y2)"}}), {}, invalid,
                "SLURM_TASKS_PER_NODE=1(y2): at character 3: expected 'x' and a number, found 'y'");
  ExpectRefused(Slurm({{"SLURM_NTASKS", "6"}, {"SLURM_TASKS_PER_NODE", "2(x3)"}}), {}, invalid,
                "SLURM_TASKS_PER_NODE=2(x3) counts the tasks of 3 nodes, SLURM_JOB_NODELIST=n[1-2] "
                "names 2; or name the hosts yourself, with -H");
  ExpectRefused(Slurm({{"SLURM_NTASKS", "1"},
                       {"SLURM_TASKS_PER_NODE", "1"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_STEP_NUM_TASKS", "1"}}),
                {}, invalid,
                "SLURM_TASKS_PER_NODE=1 counts the tasks of 1 nodes, SLURM_JOB_NODELIST=n[1-2] "
                "names 2: this is a step of srun, which has not all of the job; or name the hosts "
                "yourself, with -H");
  ExpectRefused(Slurm({{"SLURM_NTASKS", "2"}, {"SLURM_TASKS_PER_NODE", "1025(x2)"}}), {}, invalid,
                "SLURM_JOB_NODELIST=n[1-2], node 1: more than 1024 slots of one host, or 65536 of "
                "all");
  ExpectRefused(Slurm({{"SLURM_NTASKS_PER_NODE", "x"}}), {}, invalid,
                "SLURM_NTASKS_PER_NODE=x: expected a number from 1 to 1024");
  ExpectRefused(Slurm({{"SLURM_NTASKS", "2"}}), {}, missing,
                "SLURM_TASKS_PER_NODE, which tells the hosts of a SLURM job of several tasks, is "
                "not set; or name the hosts yourself, with -H");
  ExpectRefused(Slurm({{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}}), {}, missing,
                "SLURM_STEP_NUM_TASKS=4: srun has started this 4 times, and each would start the "
                "whole job; run it without srun; or name the hosts yourself, with -H");
  ExpectRefused(
      Slurm({{"SLURM_JOB_NODELIST", "n[1-100]"}, {"SLURM_NTASKS_PER_NODE", "1000"}}), {}, invalid,
      "SLURM_JOB_NODELIST=n[1-100], node 66: more than 1024 slots of one host, or 65536 of all");
}

// Which srun reads for tasks in arbitrary places.
TEST(Allocation, OfSlurmFollowsItsHostFile) {
  const Environment environment =
      Slurm({{"SLURM_JOB_NODELIST", "n[1-3]"}, {"SLURM_HOSTFILE", "/f"}, {"SLURM_NTASKS", "9"}});
  const struct {
    std::string file;
    Hosts hosts;
  } kCases[] = {{"n2\nn1\nn2\n", {{"n2", 2}, {"n1", 1}}},
                {"n3,n1", {{"n3", 1}, {"n1", 1}}},
                {"n1*2, n2*3,n3", {{"n1", 2}, {"n2", 3}, {"n3", 1}}},
                {"n1,n[2,3]*2", {{"n1", 1}, {"n2", 2}, {"n3", 2}}},
                {"# mine\nn[1-2]*3  # two\n\n n3\n", {{"n1", 3}, {"n2", 3}, {"n3", 1}}}};
  for (const auto& each : kCases) {
    EXPECT_EQ(HostsOf(environment, {{"/f", each.file}}), each.hosts) << each.file;
  }
  const auto invalid = absl::StatusCode::kInvalidArgument;
  ExpectRefused(environment, {}, absl::StatusCode::kNotFound,
                "SLURM_HOSTFILE=/f: No such file or directory");
  ExpectRefused(environment, {{"/f", "#\n"}}, invalid, "SLURM_HOSTFILE=/f: the file names no host");
  ExpectRefused(environment, {{"/f", "n1\nn4\n"}}, invalid,
                "SLURM_HOSTFILE=/f, line 2: n4 is no node of this job; SLURM_JOB_NODELIST tells "
                "those");
  ExpectRefused(environment, {{"/f", "n1*0"}}, invalid,
                "SLURM_HOSTFILE=/f, line 1: 'n1*0': expected a number from 1 to 1024 behind the "
                "'*'");
}

TEST(Allocation, OfPbsHasASlotForEachLine) {
  const Environment environment = {{"PBS_JOBID", "9"}, {"PBS_NODEFILE", "/f"}};
  const struct {
    const char* what;
    std::string file;
    Hosts hosts;
  } kCases[] = {
      {"Torque, nodes=2:ppn=3", "a\na\na\nb\nb\nb\n", {{"a", 3}, {"b", 3}}},
      {"PBS Pro, select=3:ncpus=8", "a\nb\nc\n", {{"a", 1}, {"b", 1}, {"c", 1}}},
      {"PBS Pro, select=2:mpiprocs=2+1:mpiprocs=1, packed",
       "a\na\nb\nb\na\n",
       {{"a", 3}, {"b", 2}}},
      {"in the order of first appearance", "b\na\nb\n", {{"b", 2}, {"a", 1}}},
      {"no newline at the end, spaces, an empty line", "  a \r\n\nb", {{"a", 1}, {"b", 1}}},
      {"short and full names", "a\na.x.org\nb.x.org\nb\n", {{"a", 2}, {"b.x.org", 2}}},
      {"of several domains",
       "a\na.x.org\na.y.org\na\n",
       {{"a", 2}, {"a.x.org", 1}, {"a.y.org", 1}}},
      {"addresses",
       "10.0.0.1\n10\n10.0.0.2\n10.0.0.1\n",
       {{"10.0.0.1", 2}, {"10", 1}, {"10.0.0.2", 1}}},
  };
  for (const auto& each : kCases) {
    EXPECT_EQ(HostsOf(environment, {{"/f", each.file}}), each.hosts) << each.what;
  }
}

TEST(Allocation, OfPbsIsRefusedWithTheLine) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const Environment environment = {{"PBS_JOBID", "9"}, {"PBS_NODEFILE", "/f"}};
  ExpectRefused({{"PBS_JOBID", "9"}}, {}, absl::StatusCode::kFailedPrecondition,
                "PBS_NODEFILE, which tells the hosts of PBS job 9, is not set; or name the hosts "
                "yourself, with -H");
  ExpectRefused(environment, {}, absl::StatusCode::kNotFound,
                "PBS_NODEFILE=/f: No such file or directory");
  ExpectRefused(environment, {{"/f", "\n \n"}}, invalid, "PBS_NODEFILE=/f: the file names no host");
  ExpectRefused(environment, {{"/f", "a\n\nb slots=2\n"}}, invalid,
                "PBS_NODEFILE=/f, line 3: 'b slots=2': a host's name has letters, digits, '-', "
                "'.', '_', and ':' in addresses");
  std::string lines;
  for (int i = 0; i <= kLocalRanksMax; ++i) lines += "a\n";
  ExpectRefused(environment, {{"/f", lines}}, invalid,
                "PBS_NODEFILE=/f, line 1025: more than 1024 slots of one host, or 65536 of all");
  lines.clear();
  for (int i = 0; i <= kRanksMax; ++i) lines += std::to_string(i % 100) + "\n";
  ExpectRefused(environment, {{"/f", lines}}, invalid,
                "PBS_NODEFILE=/f, line 65537: more than 65536 slots");
  ExpectRefused(environment, {{"/f", std::string(kHostsFileBytesMax + 1, '\n')}}, invalid,
                "PBS_NODEFILE=/f: the file has more than 20971520 bytes");
}

TEST(Allocation, OfLsfIsTheFirstOfItsFourForms) {
  const Files files = {{"/ranks", "a\na\nb\n"}, {"/hosts", "c\nd\n"}};
  Environment environment = {{"LSB_JOBID", "7"},
                             {"LSB_DJOB_RANKFILE", "/ranks"},
                             {"LSB_DJOB_HOSTFILE", "/hosts"},
                             {"LSB_MCPU_HOSTS", "e 4 f 4 "},
                             {"LSB_HOSTS", "g g h"}};
  EXPECT_EQ(HostsOf(environment, files), (Hosts{{"a", 2}, {"b", 1}}));
  environment.erase("LSB_DJOB_RANKFILE");
  EXPECT_EQ(HostsOf(environment, files), (Hosts{{"c", 1}, {"d", 1}}));
  environment.erase("LSB_DJOB_HOSTFILE");
  EXPECT_EQ(HostsOf(environment, files), (Hosts{{"e", 4}, {"f", 4}}));
  environment.erase("LSB_MCPU_HOSTS");
  EXPECT_EQ(HostsOf(environment, files), (Hosts{{"g", 2}, {"h", 1}}));
}

// As on a cluster of IBM's CSM: "batch1" has started the script, and jsrun starts the rest.
TEST(Allocation, OfLsfLeavesTheLaunchNodeOfJsrunOut) {
  Environment environment = {
      {"LSB_JOBID", "7"}, {"CSM_ALLOCATION_ID", "12"}, {"LSB_MCPU_HOSTS", "batch1 1 n1 42 n2 42"}};
  EXPECT_EQ(HostsOf(environment), (Hosts{{"n1", 42}, {"n2", 42}}));
  EXPECT_EQ((*Find(environment))->starter, Starter::Kind::kSsh);
  environment["LSB_DJOB_RANKFILE"] = "/f";
  EXPECT_EQ(HostsOf(environment, {{"/f", "batch1\nn1\nn1\n"}}), (Hosts{{"n1", 2}}));
  EXPECT_EQ(HostsOf(environment, {{"/f", "n1\nn1\nn2\n"}}), (Hosts{{"n1", 2}, {"n2", 1}}));
  EXPECT_EQ(HostsOf(environment, {{"/f", "n1\n"}}), (Hosts{{"n1", 1}}));
  environment.erase("CSM_ALLOCATION_ID");
  EXPECT_EQ(HostsOf(environment, {{"/f", "n1\nn2\nn2\n"}}), (Hosts{{"n1", 1}, {"n2", 2}}));
}

TEST(Allocation, OfLsfIsRefusedWithTheWord) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto lsf = [](const char* variable, const char* value) {
    return Environment{{"LSB_JOBID", "7"}, {variable, value}};
  };
  ExpectRefused({{"LSB_JOBID", "7"}}, {}, absl::StatusCode::kFailedPrecondition,
                "LSB_MCPU_HOSTS, which tells the hosts of LSF job 7, is not set; or name the hosts "
                "yourself, with -H");
  ExpectRefused(lsf("LSB_MCPU_HOSTS", "a 4 b"), {}, invalid,
                "LSB_MCPU_HOSTS=a 4 b, word 4: expected the number of slots of b, from 1 to 1024");
  ExpectRefused(lsf("LSB_MCPU_HOSTS", "a x"), {}, invalid,
                "LSB_MCPU_HOSTS=a x, word 2: expected the number of slots of a, from 1 to 1024");
  ExpectRefused(lsf("LSB_MCPU_HOSTS", "a 0"), {}, invalid,
                "LSB_MCPU_HOSTS=a 0, word 2: expected the number of slots of a, from 1 to 1024");
  ExpectRefused(lsf("LSB_MCPU_HOSTS", "a 1 -x 1"), {}, invalid,
                "LSB_MCPU_HOSTS=a 1 -x 1, word 3: '-x': a host's name does not begin with '-'");
  ExpectRefused(lsf("LSB_MCPU_HOSTS", " "), {}, invalid, "LSB_MCPU_HOSTS= : it names no host");
  ExpectRefused(lsf("LSB_HOSTS", "a $b"), {}, invalid,
                "LSB_HOSTS=a $b, word 2: '$b': a host's name has letters, digits, '-', '.', '_', "
                "and ':' in addresses");
  ExpectRefused(lsf("LSB_DJOB_HOSTFILE", "/none"), {}, absl::StatusCode::kNotFound,
                "LSB_DJOB_HOSTFILE=/none: No such file or directory");
}

TEST(Allocation, OfSlurmGoesBeforeThatOfPbs) {
  EXPECT_EQ(HostsOf(Slurm({{"PBS_JOBID", "9"}, {"PBS_NODEFILE", "/none"}})),
            (Hosts{{"n1", 1}, {"n2", 1}}));
}

}  // namespace
}  // namespace rueda
