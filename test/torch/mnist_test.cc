// examples/mnist: what it reads, and what it promises about a training run.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "examples/mnist/dataset.h"
#include "test/torch/ranks.h"

namespace {

namespace fs = std::filesystem;
using rueda::test::Ended;
using rueda::test::RunProgram;

// A directory of this test's own, gone with it.
class Directory : public testing::Test {
 protected:
  Directory() : path_(fs::temp_directory_path() / ("rueda-mnist-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~Directory() override { fs::remove_all(path_); }

  fs::path Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }
  // A file in MNIST's format: `magic`, the sizes, then `data`.
  void WriteIdx(const std::string& name, int magic, const std::vector<int>& sizes,
                const std::string& data) const {
    std::string bytes;
    const auto add = [&bytes](int number) {
      for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift);
    };
    add(magic);
    for (const int size : sizes) add(size);
    Write(name, bytes + data);
  }
  // Two training and one test images of 2 x 3.
  void WriteAll(const std::string& dot = "-") const {
    WriteIdx("train-images" + dot + "idx3-ubyte", 0x803, {2, 2, 3},
             "abcdef\xff" + std::string(5, '\0'));
    WriteIdx("train-labels" + dot + "idx1-ubyte", 0x801, {2}, "\x03\x09");
    WriteIdx("t10k-images" + dot + "idx3-ubyte", 0x803, {1, 2, 3}, "ABCDEF");
    WriteIdx("t10k-labels" + dot + "idx1-ubyte", 0x801, {1}, std::string(1, '\0'));
  }

  const fs::path path_;
};

std::string ErrorOf(const fs::path& path) {
  try {
    mnist::Load(path);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "none";
}

testing::AssertionResult Says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << text << "' does not say '" << part << "'";
}

using MnistDataset = Directory;

TEST_F(MnistDataset, ReadsMnistsOwnFiles) {
  for (const std::string dot : {"-", "."}) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    WriteAll(dot);
    const mnist::Dataset dataset = mnist::Load(path_);
    EXPECT_EQ(dataset.train.count, 2);
    EXPECT_EQ(dataset.train.height, 2);
    EXPECT_EQ(dataset.train.width, 3);
    EXPECT_EQ(dataset.train.labels, (std::vector<int64_t>{3, 9}));
    EXPECT_FLOAT_EQ(dataset.train.pixels[1], 'b' / 255.0f);
    EXPECT_FLOAT_EQ(dataset.train.pixels[6], 1);
    EXPECT_EQ(dataset.train.pixels.size(), 12u);
    EXPECT_EQ(dataset.test.labels, (std::vector<int64_t>{0}));
  }
}

TEST_F(MnistDataset, SaysWhatIsWrongWithAFile) {
  WriteAll();
  WriteIdx("train-labels-idx1-ubyte", 0x801, {3}, "\x03\x09\x01");
  EXPECT_TRUE(Says(ErrorOf(path_), "has 3 labels for 2 images"));
  WriteIdx("train-labels-idx1-ubyte", 0x801, {2}, "\x03\x0a");
  EXPECT_TRUE(Says(ErrorOf(path_), "has a label 10"));
  WriteIdx("train-labels-idx1-ubyte", 0x801, {2}, "\x03");
  EXPECT_TRUE(Says(ErrorOf(path_), "has 1 bytes of data where its header says 2"));
  WriteIdx("train-labels-idx1-ubyte", 0x803, {2}, "\x03\x09");
  EXPECT_TRUE(Says(ErrorOf(path_), "begins with 2051 instead of 2049"));
  WriteIdx("train-labels-idx1-ubyte", 0x801, {-1}, "\x03\x09");
  EXPECT_TRUE(Says(ErrorOf(path_), "dimension 0 is 4294967295"));
  Write("train-labels-idx1-ubyte", "abc");
  EXPECT_TRUE(Says(ErrorOf(path_), "too short"));
  Write("train-labels-idx1-ubyte", "\x1f\x8b and so on");
  EXPECT_TRUE(Says(ErrorOf(path_), "gunzip"));
  fs::remove(path_ / "train-labels-idx1-ubyte");
  EXPECT_TRUE(Says(ErrorOf(path_), "has no train-labels-idx1-ubyte"));
  Write("train-labels-idx1-ubyte.gz", "");
  EXPECT_TRUE(Says(ErrorOf(path_), "gunzip"));
}

TEST_F(MnistDataset, EveryFifthSmallDigitIsForTheTest) {
  std::string text;
  for (int line = 0; line < 12; ++line) {
    for (int i = 0; i < 64; ++i) text += "16,";
    text += std::to_string(line % 10) + "\n";
  }
  const mnist::Dataset dataset = mnist::Load(Write("digits.csv", text));
  EXPECT_EQ(dataset.train.count, 10);
  EXPECT_EQ(dataset.test.labels, (std::vector<int64_t>{4, 9}));
  EXPECT_EQ(dataset.test.pixels, std::vector<float>(2 * 64, 1.0f));

  EXPECT_TRUE(Says(ErrorOf(Write("digits.csv", text + "1,2,3\n")), "line 13"));
  text.replace(0, 2, "17");
  EXPECT_TRUE(Says(ErrorOf(Write("digits.csv", text)), "line 1 is not"));
  EXPECT_TRUE(Says(ErrorOf(Write("digits.csv", "")), "fewer than five"));
  EXPECT_TRUE(Says(ErrorOf(path_ / "none.csv"), "third_party/setup.sh"));
}

std::string Binary(const std::string& name) {
  return (fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin" / name).string();
}
std::string Program() {
  return Binary("mnist");
}

std::string Text(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

std::string LastLine(const std::string& text) {
  const std::string whole = text.substr(0, text.find_last_not_of('\n') + 1);
  return whole.substr(whole.rfind('\n') + 1);
}

// The value of a field of a line of JSON as it was written.
std::string Field(const std::string& json, const std::string& name) {
  const std::string key = "\"" + name + "\": ";
  const size_t begin = json.find(key);
  if (begin == std::string::npos) return "no " + name + " in " + json;
  const size_t start = begin + key.size();
  return json.substr(start, json.find_first_of(",}", start) - start);
}

class MnistTraining : public Directory {
 protected:
  void SetUp() override {
    if (!fs::exists(mnist::DefaultPath())) {
      GTEST_SKIP() << mnist::DefaultPath() << " is not there; run third_party/setup.sh";
    }
  }
};

TEST_F(MnistTraining, LearnsAndGivesTheSameBitsOnEveryRun) {
  std::vector<std::string> digests;
  for (int run = 0; run < 2; ++run) {
    const std::vector<Ended> ended = RunProgram(2, {Program()}, {}, 110);
    ASSERT_EQ(ended[0].status, 0) << ended[0].out << ended[0].err;
    EXPECT_EQ(ended[1].status, 0) << ended[1].err;
    EXPECT_EQ(ended[1].out, "") << "only rank 0 reports";
    const std::string json = LastLine(ended[0].out);
    EXPECT_EQ(Field(json, "ranks"), "2");
    EXPECT_EQ(Field(json, "epochs"), "30");
    EXPECT_EQ(Field(json, "replicas_equal"), "true");
    EXPECT_GE(std::stod(Field(json, "test_accuracy")), 0.97) << ended[0].out;
    EXPECT_GT(std::stod(Field(json, "train_seconds")), 0);
    digests.push_back(Field(json, "parameters_digest"));
  }
  EXPECT_EQ(digests[0].size(), 18u) << digests[0];
  EXPECT_EQ(digests[0], digests[1]);
}

// The last line on standard output, whatever ruedarun puts before it.
TEST_F(MnistTraining, ItsLastLineIsJsonUnderTheLauncherToo) {
  for (const std::string prefix : {"rank", "none"}) {
    const std::string command = Binary("ruedarun") + " -np 2 --prefix " + prefix + " " + Program() +
                                " --epochs 1 > " + (path_ / "out").string();
    ASSERT_EQ(std::system(command.c_str()), 0);
    const std::regex json(
        R"((\[0\] )?\{"ranks": 2, "epochs": 1, "test_accuracy": 0\.\d{4}, "replicas_equal": true, )"
        R"("train_seconds": \d+\.\d\d, "parameters_digest": "[0-9a-f]{16}"\})");
    const std::string line = LastLine(Text(path_ / "out"));
    EXPECT_TRUE(std::regex_match(line, json)) << line;
    EXPECT_EQ(line[0], prefix == "rank" ? '[' : '{');
  }
}

// The small digits once more, in the form of MNIST's files.
TEST_F(MnistTraining, LearnsFromMnistsOwnFiles) {
  const mnist::Dataset dataset = mnist::Load(mnist::DefaultPath());
  const auto write = [this](const std::string& part, const mnist::Images& images) {
    std::string pixels, labels;
    for (const float pixel : images.pixels) pixels += static_cast<char>(std::lround(pixel * 255));
    for (const int64_t label : images.labels) labels += static_cast<char>(label);
    const int count = static_cast<int>(images.count);
    WriteIdx(part + "-images-idx3-ubyte", 0x803, {count, 8, 8}, pixels);
    WriteIdx(part + "-labels-idx1-ubyte", 0x801, {count}, labels);
  };
  write("train", dataset.train);
  write("t10k", dataset.test);
  const std::vector<std::string> words = {Program(), "--epochs", "10", "--data", path_.string()};
  const std::vector<Ended> ended = RunProgram(2, words);
  ASSERT_EQ(ended[0].status, 0) << ended[0].err;
  EXPECT_TRUE(Says(ended[0].out, "1438 training and 359 test images of 8 x 8"));
  EXPECT_GE(std::stod(Field(LastLine(ended[0].out), "test_accuracy")), 0.93) << ended[0].out;

  WriteIdx("t10k-labels-idx1-ubyte", 0x803, {359}, std::string(359, '\0'));
  for (const Ended& rank : RunProgram(2, words)) {
    EXPECT_EQ(rank.status, 1);
    EXPECT_TRUE(Says(rank.err, "t10k-labels-idx1-ubyte: begins with 2051 instead of 2049"));
  }
  WriteAll();
  EXPECT_TRUE(Says(RunProgram(1, words)[0].err, "images of 2 x 3 are too small"));
}

// With none to be seen, whatever machine this is.
TEST_F(MnistTraining, WithoutACudaDeviceItSaysSoInOneLine) {
  const Ended ended =
      RunProgram(1, {Program(), "--device", "cuda"}, {{"CUDA_VISIBLE_DEVICES", ""}})[0];
  EXPECT_EQ(ended.status, 1);
  EXPECT_TRUE(ended.err.starts_with("mnist: ")) << ended.err;
  EXPECT_TRUE(Says(ended.err, "CUDA"));
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  EXPECT_EQ(ended.out, "");
}

TEST_F(MnistTraining, AKilledRankEndsItWithTheRanksName) {
  const std::string out = (path_ / "rank.0.out").string();
  std::ofstream(path_ / "rank.sh")
      << "if [ $RUEDA_RANK = 0 ]; then exec " << Program() << " --epochs 100000; fi\n"
      << Program() << " --epochs 100000 &\n"
      << "until grep -q 'epoch  2' " << out << "; do sleep 0.1; done\n"
      << "kill -9 $!\n"
      // Else ruedarun may end rank 0 before it has found out by itself.
      << "until [ -s " << (path_ / "rank.0.err").string() << " ]; do sleep 0.1; done\n"
      << "wait $!\n";
  const std::string command = "timeout -s KILL 60 " + Binary("ruedarun") + " -np 2 --output-dir " +
                              path_.string() + " sh " + (path_ / "rank.sh").string() + " 2> " +
                              (path_ / "launcher").string();
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_NE(WEXITSTATUS(status), 0);
  const std::string error = Text(path_ / "rank.0.err");
  EXPECT_TRUE(Says(error, "mnist: "));
  EXPECT_TRUE(Says(error, "rank 1"));
  EXPECT_TRUE(Says(Text(path_ / "launcher"), "how it ended"));
  EXPECT_EQ(Text(out).find("replicas_equal"), std::string::npos);
}

TEST_F(MnistTraining, LearnsWithEachStrategy) {
  for (const std::string strategy : {"sharded", "fsdp", "adasum", "local_sgd", "diloco", "ddp2",
                                     "decentralized", "async", "pipeline"}) {
    std::vector<std::string> words = {Program(), "--strategy", strategy, "--epochs", "6"};
    // Its outer momentum makes steps longer: smaller ones, and more of them.
    if (strategy == "diloco")
      words = {Program(), "--strategy", strategy, "--epochs", "12", "--lr", "0.01"};
    const std::vector<Ended> ended = RunProgram(2, words);
    ASSERT_EQ(ended[0].status, 0) << ended[0].out << ended[0].err;
    const std::string json = LastLine(ended[0].out);
    EXPECT_EQ(Field(json, "replicas_equal"), "true") << strategy;
    EXPECT_GE(std::stod(Field(json, "test_accuracy")), 0.9) << strategy;
  }
  const std::vector<Ended> ended = RunProgram(1, {Program(), "--strategy", "dpp"});
  EXPECT_EQ(ended[0].status, 1);
  EXPECT_TRUE(Says(ended[0].err, "there is no strategy 'dpp'; there are ddp"));
  EXPECT_TRUE(Says(RunProgram(1, {Program(), "--strategy", "spawn"})[0].err, "rueda::run"));
}

TEST_F(MnistTraining, TrainsInMixedPrecisionAndStopsEarly) {
  for (const std::string precision : {"bf16", "16"}) {
    const std::vector<Ended> ended =
        RunProgram(2, {Program(), "--strategy", "sharded", "--precision", precision, "--epochs",
                       "60", "--patience", "2"});
    ASSERT_EQ(ended[0].status, 0) << ended[0].out << ended[0].err;
    const std::string json = LastLine(ended[0].out);
    EXPECT_EQ(Field(json, "replicas_equal"), "true") << precision;
    EXPECT_GE(std::stod(Field(json, "test_accuracy")), 0.9) << precision;
    EXPECT_LT(std::stoi(Field(json, "epochs")), 60) << precision;
  }
}

TEST_F(MnistTraining, GoesOnToTheSameBits) {
  const std::string folder = (path_ / "checkpoints").string();
  const auto digest = [&](const std::vector<std::string>& options) {
    std::vector<std::string> words = {Program()};
    words.insert(words.end(), options.begin(), options.end());
    const std::vector<Ended> ended = RunProgram(2, words);
    EXPECT_EQ(ended[0].status, 0) << ended[0].out << ended[0].err;
    return Field(LastLine(ended[0].out), "parameters_digest");
  };
  const std::string whole = digest({"--epochs", "4"});
  EXPECT_NE(digest({"--epochs", "2", "--checkpoint", folder}), whole);
  EXPECT_EQ(digest({"--epochs", "4", "--checkpoint", folder, "--resume", folder}), whole);
}

// Without a launcher it starts its ranks itself; with one it must be told the same.
TEST_F(MnistTraining, StartsItsRanksItself) {
  const auto run = [&](const std::string& words) {
    const std::string out = (path_ / "out").string();
    const int status =
        std::system(("env -u RUEDA_RANK -u RUEDA_SIZE " + words + " > " + out + " 2>&1").c_str());
    return std::pair(WIFEXITED(status) ? WEXITSTATUS(status) : -1, Text(out));
  };
  const std::string launcher = Binary("ruedarun") + " --prefix none";
  const auto [status, alone] = run(Program() + " --devices 2 --epochs 1");
  EXPECT_EQ(status, 0) << alone;
  const auto [launched_status, launched] =
      run(launcher + " -np 2 " + Program() + " --devices 2 --epochs 1");
  EXPECT_EQ(launched_status, 0) << launched;
  EXPECT_EQ(Field(LastLine(alone), "ranks"), "2");
  EXPECT_EQ(Field(LastLine(alone), "parameters_digest"),
            Field(LastLine(launched), "parameters_digest"));
  // What is wrong with the options it says as it does without.
  for (const std::string words : {" --devices 2 --batch-size 720", " --devices 2 --lr x"}) {
    const auto [misused_status, misused] = run(Program() + words);
    EXPECT_EQ(misused_status, 2) << misused;
    EXPECT_TRUE(Says(misused, "--help lists the options"));
  }
  for (const std::string ranks : {"1", "3"}) {
    const auto [other_status, other] =
        run(launcher + " -np " + ranks + " " + Program() + " --devices 2");
    EXPECT_NE(other_status, 0);
    EXPECT_TRUE(Says(other, "devices is 2, and the job has " + ranks + " rank"));
    EXPECT_TRUE(Says(other, "start it with ruedarun -np 2"));
  }
}

// As tf.distribute's MultiWorkerMirroredStrategy is told who is where.
TEST_F(MnistTraining, AdoptsTfConfig) {
  const std::string out = (path_ / "out").string();
  const std::string script =
      "for i in 0 1; do TF_CONFIG='{\"cluster\": {\"worker\": [\"127.0.0.1:" +
      std::to_string(20'000 + getpid() % 20'000) +
      "\", \"127.0.0.1:1\"]}, \"task\": {\"type\": \"worker\", \"index\": '$i'}}' " + Program() +
      " --strategy multi_worker --epochs 1 --lr 0.02 > " + out + ".$i || touch " + out +
      ".failed & done; wait";
  std::ofstream(path_ / "start.sh") << script << "\n";
  ASSERT_EQ(std::system(("sh " + (path_ / "start.sh").string()).c_str()), 0);
  EXPECT_FALSE(fs::exists(out + ".failed"));
  const std::string json = LastLine(Text(out + ".0"));
  EXPECT_EQ(Field(json, "ranks"), "2") << json;
  EXPECT_EQ(Field(json, "replicas_equal"), "true");
}

TEST_F(MnistTraining, TheSeedChoosesTheResult) {
  std::vector<std::string> digests;
  for (const std::string seed : {"1", "2"}) {
    const std::vector<Ended> ended = RunProgram(1, {Program(), "--epochs", "1", "--seed", seed});
    ASSERT_EQ(ended[0].status, 0) << ended[0].err;
    digests.push_back(Field(LastLine(ended[0].out), "parameters_digest"));
  }
  EXPECT_NE(digests[0], digests[1]);
}

TEST_F(MnistTraining, ReplicasThatDifferAreAFailure) {
  const std::vector<Ended> ended = RunProgram(3, {Program(), "--epochs", "1", "--no-broadcast"});
  for (const Ended& rank : ended) EXPECT_EQ(rank.status, 1) << rank.err;
  EXPECT_EQ(Field(LastLine(ended[0].out), "replicas_equal"), "false");
}

// What all ranks refuse before they begin is said by each in a line, and nobody is taken for lost.
TEST_F(MnistTraining, WithoutADeviceCudaIsRefusedInALine) {
  const std::vector<Ended> ended =
      RunProgram(2, {Program(), "--device", "cuda"}, {{"CUDA_VISIBLE_DEVICES", ""}});
  for (const Ended& rank : ended) {
    EXPECT_EQ(rank.status, 1);
    EXPECT_EQ(rank.err.find("mnist: "), 0u) << rank.err;
    EXPECT_EQ(std::count(rank.err.begin(), rank.err.end(), '\n'), 1) << rank.err;
  }
}

TEST_F(MnistTraining, OptionsAreChecked) {
  const auto error = [](const std::vector<std::string>& options) {
    std::vector<std::string> words = {Program()};
    words.insert(words.end(), options.begin(), options.end());
    const Ended ended = RunProgram(1, words)[0];
    EXPECT_NE(ended.status, 0);
    return ended.err;
  };
  const std::vector<Ended> help = RunProgram(2, {Program(), "--help"});
  EXPECT_TRUE(Says(help[0].out, "--batch-size N"));
  EXPECT_TRUE(Says(help[0].out, "--strategy NAME"));
  EXPECT_EQ(help[0].status, 0);
  EXPECT_EQ(help[1].out, "") << "once is enough";
  for (const Ended& ended : RunProgram(2, {Program(), "--strategy", "ddp", "--csv", "--help"})) {
    EXPECT_EQ(ended.status, 0) << ended.err;
  }
  EXPECT_TRUE(Says(error({"--epoch", "3"}), "--epoch: unknown"));
  for (const std::string rate : {"inf", "nan", "-1", ""}) {
    EXPECT_TRUE(Says(error({"--lr", rate}), rate.empty() ? "no value" : "expected a number"));
  }
  for (const std::string option : {"--checkpoint", "--csv", "--data"}) {
    EXPECT_TRUE(Says(error({option, ""}), option + " '': that is no value for it"));
    EXPECT_TRUE(Says(error({option, "--no-broadcast"}), "'--no-broadcast': that is no value"));
  }
  EXPECT_TRUE(Says(error({"--epochs"}), "value is missing"));
  EXPECT_TRUE(Says(error({"--commit-steps", "5"}), "nothing is committed without --elastic"));
  EXPECT_TRUE(Says(error({"--epochs", "3x"}), "--epochs 3x: expected a number"));
  EXPECT_TRUE(Says(error({"--batch-size", "0"}), "at least 1"));
  EXPECT_TRUE(Says(error({"--batch-size", "100000"}), "more than the 1438 training images"));
  EXPECT_TRUE(Says(error({"--data", "/nowhere"}), "/nowhere: can't be opened"));
}

}  // namespace
