#include "controller/rendezvous/rendezvous_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace rueda {
namespace {

class RendezvousFileTest : public testing::Test {
 protected:
  RendezvousFileTest() {
    char name[] = "/tmp/rueda-rendezvous-XXXXXX";
    folder_ = mkdtemp(name);
    path_ = RendezvousPath(folder_, "job", 1);
  }
  ~RendezvousFileTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
  }
  void ExpectRefused(absl::StatusCode code, const std::string& what) {
    const absl::Status status = ReadRendezvous(path_).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(status.message().find(what), std::string::npos) << status;
  }

  std::string folder_, path_;
};

TEST_F(RendezvousFileTest, IsReadByOthersUntilItsOwnerIsGone) {
  ExpectRefused(absl::StatusCode::kUnavailable, "is not there");
  {
    const std::string secret("\x00\xff secret\n", 10);
    const absl::StatusOr<RendezvousFile> file =
        RendezvousFile::Publish(path_, {"[fd00::1]:34567", secret});
    ASSERT_TRUE(file.ok()) << file.status();
    const absl::StatusOr<RendezvousPoint> point = ReadRendezvous(path_);
    ASSERT_TRUE(point.ok()) << point.status();
    EXPECT_EQ(point->address, "[fd00::1]:34567");
    EXPECT_EQ(point->secret, secret);
    struct stat info;
    ASSERT_EQ(stat(path_.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  ExpectRefused(absl::StatusCode::kUnavailable, "is not there");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(RendezvousFileTest, MayHaveNoSecret) {
  const absl::StatusOr<RendezvousFile> file = RendezvousFile::Publish(path_, {"10.0.0.1:1", ""});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(ReadRendezvous(path_)->secret, "");
}

TEST_F(RendezvousFileTest, ReplacesOneThatAnEarlierJobLeft) {
  Write("rueda rendezvous 1\n10.0.0.1:1\n\n");
  const absl::StatusOr<RendezvousFile> file = RendezvousFile::Publish(path_, {"10.0.0.2:2", "s"});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(ReadRendezvous(path_)->address, "10.0.0.2:2");
}

TEST_F(RendezvousFileTest, OfAnotherRankZeroIsNotRemoved) {
  auto first = RendezvousFile::Publish(path_, {"10.0.0.1:1", "s"});
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = RendezvousFile::Publish(path_, {"10.0.0.2:2", "s"});
  ASSERT_TRUE(second.ok()) << second.status();
  { const RendezvousFile gone = *std::move(first); }
  ASSERT_TRUE(ReadRendezvous(path_).ok());
  EXPECT_EQ(ReadRendezvous(path_)->address, "10.0.0.2:2");
}

TEST_F(RendezvousFileTest, BelongsToAJobAndAMembership) {
  EXPECT_EQ(path_, RendezvousPath(folder_, "job", 1));
  EXPECT_NE(path_, RendezvousPath(folder_, "job", 2));
  EXPECT_NE(path_, RendezvousPath(folder_, "bob", 1));
  EXPECT_EQ(path_.find("job"), std::string::npos);
}

TEST_F(RendezvousFileTest, IsOfNoUseWhenOthersMayReadIt) {
  Write("rueda rendezvous 1\n10.0.0.1:1\n\n");
  EXPECT_TRUE(ReadRendezvous(path_).ok());
  for (const mode_t mode : {0640, 0604, 0620}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    ExpectRefused(absl::StatusCode::kPermissionDenied, "must be a regular file of this user");
  }
}

TEST_F(RendezvousFileTest, IsNoLinkAndNoDirectory) {
  const std::string other = folder_ + "/other";
  std::ofstream(other) << "rueda rendezvous 1\n10.0.0.1:1\n\n";
  ASSERT_EQ(chmod(other.c_str(), 0600), 0);
  ASSERT_EQ(symlink(other.c_str(), path_.c_str()), 0);
  EXPECT_FALSE(ReadRendezvous(path_).ok());
  ASSERT_EQ(unlink(path_.c_str()), 0);
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  ExpectRefused(absl::StatusCode::kPermissionDenied, "must be a regular file of this user");
}

TEST_F(RendezvousFileTest, IsRefusedWhenItIsDamaged) {
  for (const std::string text :
       {"", "rueda rendezvous 1", "rueda rendezvous 1\n", "rueda rendezvous 1\n10.0.0.1:1\n",
        "rueda rendezvous 2\n10.0.0.1:1\n\n", "rueda rendezvous 1\n\nab\n",
        "rueda rendezvous 1\n10.0.0.1:1\nabc\n", "rueda rendezvous 1\n10.0.0.1:1\nxy\n",
        "rueda rendezvous 1\n10.0.0.1:1\nab\nmore", "rueda rendezvous 1\nexample.org:1\nab\n",
        "rueda rendezvous 1\n10.0.0.1\nab\n", "rueda rendezvous 1\n10.0.0.1:99999\nab\n"}) {
    Write(text);
    ExpectRefused(absl::StatusCode::kDataLoss, path_);
  }
  for (const size_t digits : {8'194, 100'000}) {
    Write("rueda rendezvous 1\n10.0.0.1:1\n" + std::string(digits, 'a') + "\n");
    ExpectRefused(absl::StatusCode::kDataLoss, path_);
  }
}

TEST_F(RendezvousFileTest, WantsADirectory) {
  path_ = folder_ + "/none/rueda-1";
  ExpectRefused(absl::StatusCode::kNotFound, "RUEDA_SHARED_DIR=" + folder_ + "/none");
  const absl::Status status = RendezvousFile::Publish(path_, {"10.0.0.1:1", "s"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
}

}  // namespace
}  // namespace rueda
