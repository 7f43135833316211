// Frames: what a reader takes, and what it refuses. Each test's own thread.
#include "controller/protocol/frame.h"

#include <gtest/gtest.h>

#include <cstring>

namespace rueda {
namespace {

const FrameScope kSender = {7, 2, 5};
const FrameScope kReceiver = {7, 5, 2};

SessionKey KeyOf(uint8_t first) {
  SessionKey key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(first + i);
  return key;
}

FrameWriter Writer() {
  return FrameWriter(kSender, KeyOf(1));
}
FrameReader Reader() {
  return FrameReader(kReceiver, KeyOf(1));
}

// 1: a frame came; 0: more bytes are needed; -1: refused.
int Read(FrameReader* reader, std::string* buffer, Frame* frame) {
  const absl::StatusOr<bool> read = reader->Read(buffer, frame);
  return !read.ok() ? -1 : *read ? 1 : 0;
}
int ReadOnce(std::string bytes, FrameReader reader = Reader()) {
  Frame frame;
  return Read(&reader, &bytes, &frame);
}

// With the right key, as only a peer that is authenticated can make it.
std::string Signed(std::string header_and_payload) {
  const SessionKey key = KeyOf(1);
  const Mac mac =
      ComputeMac({reinterpret_cast<const char*>(key.data()), key.size()}, header_and_payload);
  header_and_payload.append(reinterpret_cast<const char*>(mac.data()), mac.size());
  return header_and_payload;
}

TEST(Frame, EveryTypeAndSizeComesThrough) {
  FrameWriter writer = Writer();
  FrameReader reader = Reader();
  std::string buffer;
  for (int type = 1; type <= kFrameTypeMax; ++type) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{300}, size_t{70'000}}) {
      const std::string payload(bytes, static_cast<char>('a' + type));
      buffer += writer.Write(static_cast<FrameType>(type), payload, static_cast<uint16_t>(type));
      Frame frame;
      ASSERT_EQ(Read(&reader, &buffer, &frame), 1);
      EXPECT_EQ(static_cast<int>(frame.type), type);
      EXPECT_EQ(frame.descriptors, type);
      EXPECT_EQ(frame.payload, payload);
      EXPECT_EQ(buffer, "");
    }
  }
}

TEST(Frame, TheLargestComesThrough) {
  std::string buffer = Writer().Write(FrameType::kPlan, std::string(kControlFrameBytesMax, 'x'));
  FrameReader reader = Reader();
  Frame frame;
  ASSERT_EQ(Read(&reader, &buffer, &frame), 1);
  EXPECT_EQ(frame.payload.size(), kControlFrameBytesMax);
}

TEST(Frame, ComesOutWhenItsLastByteIsThere) {
  FrameWriter writer = Writer();
  FrameReader reader = Reader();
  std::string bytes = writer.Write(FrameType::kEvents, "one");
  bytes += writer.Write(FrameType::kPlan, "two");
  const size_t first = FrameReader::kHeaderBytes + 3 + kMacBytes;
  std::string buffer;
  Frame frame;
  for (size_t i = 0; i < bytes.size(); ++i) {
    buffer.push_back(bytes[i]);
    const bool whole = i + 1 == first || i + 1 == bytes.size();
    ASSERT_EQ(Read(&reader, &buffer, &frame), whole ? 1 : 0) << "after byte " << i;
    if (whole) {
      EXPECT_EQ(buffer, "");
    }
  }
  EXPECT_EQ(frame.payload, "two");
}

TEST(Frame, TakesOnlyItsOwnBytesOffTheBuffer) {
  FrameWriter writer = Writer();
  FrameReader reader = Reader();
  std::string buffer = writer.Write(FrameType::kEvents, "one");
  const std::string second = writer.Write(FrameType::kPlan, "two");
  buffer += second;
  Frame frame;
  ASSERT_EQ(Read(&reader, &buffer, &frame), 1);
  EXPECT_EQ(buffer, second);
}

TEST(Frame, EveryFlippedBitIsRefused) {
  const std::string good = Writer().Write(FrameType::kEvents, "payload", 2);
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    const int read = ReadOnce(bad);
    ASSERT_NE(read, 1) << bit;
    if (read == -1) continue;
    bad.resize(kControlFrameBytesMax + 100);  // a larger length: wait until so many bytes are there
    ASSERT_EQ(ReadOnce(bad), -1) << bit;
  }
}

TEST(Frame, TooLongALengthIsRefusedFromTheHeaderAlone) {
  std::string header = Writer().Write(FrameType::kEvents, "").substr(0, FrameReader::kHeaderBytes);
  const auto with_length = [&](uint32_t length) {
    memcpy(header.data() + 32, &length, sizeof length);
    return header;
  };
  EXPECT_EQ(ReadOnce(with_length(kControlFrameBytesMax)), 0);
  EXPECT_EQ(ReadOnce(with_length(kControlFrameBytesMax + 1)), -1);
  EXPECT_EQ(ReadOnce(with_length(1u << 31)), -1);
  EXPECT_EQ(ReadOnce(with_length(UINT32_MAX)), -1);
}

TEST(Frame, GarbageIsRefusedAtOnce) {
  EXPECT_EQ(ReadOnce("GET / HTTP/1.1\r\nHost: somewhere or other\r\n\r\n"), -1);
  EXPECT_EQ(ReadOnce(std::string(FrameReader::kHeaderBytes, '\0')), -1);
}

TEST(Frame, ReplayedSkippedAndReorderedFramesAreRefused) {
  FrameWriter writer = Writer();
  const std::string first = writer.Write(FrameType::kEvents, "one");
  const std::string second = writer.Write(FrameType::kEvents, "two");
  FrameReader reader = Reader();
  Frame frame;
  std::string buffer = first;
  ASSERT_EQ(Read(&reader, &buffer, &frame), 1);
  buffer = first;
  EXPECT_EQ(Read(&reader, &buffer, &frame), -1) << "replayed";
  EXPECT_EQ(ReadOnce(second), -1) << "skipped one";
  buffer = second;
  EXPECT_EQ(Read(&reader, &buffer, &frame), 1) << "a refused frame uses no number up";
}

TEST(Frame, FromElsewhereIsRefused) {
  const std::string good = Writer().Write(FrameType::kEvents, "x");
  ASSERT_EQ(ReadOnce(good), 1);
  EXPECT_EQ(ReadOnce(good, FrameReader(kReceiver, KeyOf(2))), -1) << "another session";
  EXPECT_EQ(ReadOnce(good, FrameReader({8, 5, 2}, KeyOf(1))), -1) << "another membership";
  EXPECT_EQ(ReadOnce(good, FrameReader({7, 5, 3}, KeyOf(1))), -1) << "another sender";
  EXPECT_EQ(ReadOnce(good, FrameReader({7, 4, 2}, KeyOf(1))), -1) << "another receiver";
  EXPECT_EQ(ReadOnce(good, FrameReader(kSender, KeyOf(1))), -1) << "its own";
}

TEST(Frame, UnknownTypesAreRefusedFromAuthenticatedPeersToo) {
  for (const int type : {0, kFrameTypeMax + 1, 255}) {
    EXPECT_EQ(ReadOnce(Writer().Write(static_cast<FrameType>(type), "x")), -1) << type;
  }
}

TEST(Frame, ReservedBytesAreZero) {
  std::string frame = Writer().Write(FrameType::kEvents, "");
  frame.resize(FrameReader::kHeaderBytes);
  ASSERT_EQ(ReadOnce(Signed(frame)), 1);
  frame[36] = 1;
  EXPECT_EQ(ReadOnce(Signed(frame)), -1);
}

TEST(FrameDeathTest, NobodyWritesOneThatNobodyWouldRead) {
  const std::string payload(kControlFrameBytesMax + 1, 'x');
  EXPECT_DEATH(Writer().Write(FrameType::kPlan, payload), "bytes in one frame");
}

}  // namespace
}  // namespace rueda
