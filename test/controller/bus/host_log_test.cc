// The announcement log: in one thread step by step, then between threads as the ranks of a host
// use it.
#include "controller/bus/host_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/futex.h"
#include "core/base/limits.h"
#include "test/support/log_memory.h"

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Memory for a log, and one end of it for each writer.
class Logs {
 public:
  explicit Logs(const LogLayout& layout) : layout_(layout), memory_(layout) {
    for (int i = 0; i < layout.writers; ++i) {
      logs_.push_back(std::make_unique<HostLog>(memory(), layout, i));
    }
  }
  HostLog& operator[](int i) { return *logs_[static_cast<size_t>(i)]; }
  char* memory() { return static_cast<char*>(memory_.data()); }
  // The ring's words, and a writer's side ring: behind the lines of head, starving count, unread
  // mark, cursors and starving marks.
  uint64_t* ring() {
    return reinterpret_cast<uint64_t*>(memory() + 64 * size_t(3 + 2 * layout_.writers));
  }
  char* side(int writer) {
    return reinterpret_cast<char*>(ring() + layout_.words) +
           static_cast<size_t>(writer) * layout_.side_bytes;
  }

 private:
  const LogLayout layout_;
  testing::LogMemory memory_;
  std::vector<std::unique_ptr<HostLog>> logs_;
};

// Small enough to wrap often.
LogLayout Small(int writers, int words = 16, size_t side_bytes = 512) {
  LogLayout layout;
  layout.writers = writers;
  layout.words = words;
  layout.side_bytes = side_bytes;
  return layout;
}

LogWord Word(uint32_t field) {
  return {1, false, field, 0};
}

// The fields of all words that there are to read.
std::vector<uint32_t> ReadAll(HostLog* log) {
  std::vector<uint32_t> fields;
  LogEntry entry;
  while (true) {
    const absl::StatusOr<bool> read = log->Read(&entry);
    EXPECT_TRUE(read.ok()) << read.status();
    if (!*read) return fields;
    fields.push_back(entry.word.field);
  }
}

TEST(HostLog, EveryFieldComesThroughToEveryReader) {
  Logs logs(Small(2));
  const LogWord words[] = {{1, false, 0, 0},
                           {15, true, (1u << 30) - 1, 65'535},
                           {8, false, 1u << 29, 1},
                           {3, true, 12'345, 54'321}};
  int writer = 0;
  for (const LogWord& word : words) ASSERT_TRUE(logs[writer++ % 2].Append(word));
  for (int reader = 0; reader < 2; ++reader) {
    LogEntry entry;
    for (uint64_t i = 0; i < std::size(words); ++i) {
      ASSERT_TRUE(logs[reader].HasNext());
      ASSERT_TRUE(*logs[reader].Read(&entry));
      EXPECT_EQ(entry.writer, static_cast<int>(i % 2));
      EXPECT_EQ(entry.position, i);
      EXPECT_EQ(entry.word.kind, words[i].kind);
      EXPECT_EQ(entry.word.flag, words[i].flag);
      EXPECT_EQ(entry.word.field, words[i].field);
      EXPECT_EQ(entry.word.low, words[i].low);
      EXPECT_FALSE(entry.has_payload);
    }
    EXPECT_FALSE(logs[reader].HasNext());
    EXPECT_FALSE(*logs[reader].Read(&entry));
  }
}

TEST(HostLog, OrderIsOneOrderForAllOverManyLaps) {
  Logs logs(Small(2));
  uint32_t next = 0;
  for (int lap = 0; lap < 100; ++lap) {
    std::vector<uint32_t> wrote;
    for (int i = 0; i < 7; ++i) {
      ASSERT_TRUE(logs[i % 2].Append(Word(next))) << "lap " << lap;
      wrote.push_back(next++);
    }
    for (int reader = 0; reader < 2; ++reader) {
      ASSERT_EQ(ReadAll(&logs[reader]), wrote) << "lap " << lap;
      logs[reader].PublishCursor();
    }
  }
}

TEST(HostLog, AWriterHasItsShareOfTheRingAndNoMore) {
  Logs logs(Small(4, 32));
  for (uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(logs[1].Append(Word(i)));
  EXPECT_FALSE(logs[1].Append(Word(99)));
  for (uint32_t i = 0; i < 8; ++i)
    ASSERT_TRUE(logs[2].Append(Word(100 + i))) << "others have theirs";
  EXPECT_THAT(ReadAll(&logs[0]), ::testing::SizeIs(16)) << "what was refused was not written";
}

TEST(HostLog, CreditComesBackOnceEveryReaderHasPassed) {
  Logs logs(Small(2));
  for (uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(logs[0].Append(Word(i)));
  ASSERT_FALSE(logs[0].Append(Word(8)));
  ReadAll(&logs[0]);
  EXPECT_FALSE(logs[0].Append(Word(8))) << "the other has read nothing";
  EXPECT_EQ(logs[0].SlowestReader(), 1);
  LogEntry entry;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(*logs[1].Read(&entry));
  EXPECT_TRUE(logs[0].Append(Word(8))) << "a quarter of the ring is published by itself";
}

// As if the writer had been interrupted between taking its place and publishing its word.
// The next word goes to `position`, and the one after it behind all that there were.
bool AppendAt(uint64_t position, HostLog* log, uint32_t field, Logs* logs) {
  std::atomic<uint64_t>& head = *reinterpret_cast<std::atomic<uint64_t>*>(logs->memory());
  const uint64_t end = head;
  head = position;
  const bool appended = log->Append(Word(field));
  head = std::max(end, position + 1);
  return appended;
}

TEST(HostLog, WhoFillsAGapIsToldOnceWhenSomebodySleepsBehindIt) {
  Logs logs(Small(2));
  ASSERT_TRUE(AppendAt(1, &logs[1], 11, &logs));  // writer 0 has taken the first place
  EXPECT_THAT(ReadAll(&logs[1]), IsEmpty()) << "its own word is behind the gap";
  EXPECT_FALSE(logs[1].LastLook());
  EXPECT_FALSE(logs[1].TakeFilledGap());
  ASSERT_TRUE(AppendAt(0, &logs[0], 10, &logs));
  EXPECT_THAT(ReadAll(&logs[0]), ElementsAre(10, 11));
  EXPECT_TRUE(logs[0].TakeFilledGap());
  EXPECT_FALSE(logs[0].TakeFilledGap());
  EXPECT_TRUE(logs[1].LastLook());
  EXPECT_THAT(ReadAll(&logs[1]), ElementsAre(10, 11));
  for (uint32_t i = 0; i < 100; ++i) {  // in turns there are none, over many laps
    ASSERT_TRUE(logs[i % 2].Append(Word(i)));
    for (int reader : {0, 1}) {
      ReadAll(&logs[reader]);
      EXPECT_FALSE(logs[reader].LastLook());
      EXPECT_FALSE(logs[reader].TakeFilledGap()) << i;
      logs[reader].PublishCursor();
    }
  }
}

TEST(HostLog, WhoFillsAGapIsNotToldWhenNobodySleepsBehindIt) {
  Logs logs(Small(2));
  ASSERT_TRUE(AppendAt(1, &logs[1], 11, &logs));
  EXPECT_THAT(ReadAll(&logs[1]), IsEmpty());
  ASSERT_TRUE(AppendAt(0, &logs[0], 10, &logs));
  EXPECT_TRUE(logs[1].LastLook()) << "filled in time";
  EXPECT_THAT(ReadAll(&logs[0]), ElementsAre(10, 11));
  EXPECT_FALSE(logs[0].TakeFilledGap());
}

// Whatever the order in which two gaps are filled, who sleeps behind both is rung by the last.
TEST(HostLog, WhoFillsTheLastOfTwoGapsIsTold) {
  for (const bool first_is_last : {false, true}) {
    Logs logs(Small(3));
    ASSERT_TRUE(AppendAt(2, &logs[2], 12, &logs));
    EXPECT_FALSE(logs[2].LastLook());
    const int early = first_is_last ? 1 : 0, late = 1 - early;
    ASSERT_TRUE(AppendAt(early, &logs[early], 10 + early, &logs));
    ReadAll(&logs[early]);
    logs[early].TakeFilledGap();
    EXPECT_FALSE(logs[early].LastLook());
    ASSERT_TRUE(AppendAt(late, &logs[late], 10 + late, &logs));
    EXPECT_THAT(ReadAll(&logs[late]), ElementsAre(10, 11, 12));
    EXPECT_TRUE(logs[late].TakeFilledGap()) << first_is_last;
    EXPECT_THAT(ReadAll(&logs[2]), ElementsAre(10, 11, 12));
  }
}

TEST(HostLog, AStarvingWriterIsToldOnceByTheReaderThatMakesRoom) {
  Logs logs(Small(2));
  EXPECT_THAT(logs[1].TakeStarving(), IsEmpty());
  for (uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(logs[0].Append(Word(i)));
  ReadAll(&logs[0]);
  logs[0].PublishCursor();
  ASSERT_FALSE(logs[0].Append(Word(8)));
  EXPECT_THAT(logs[1].TakeStarving(), IsEmpty()) << "no room was made";
  ReadAll(&logs[1]);
  logs[1].PublishCursor();
  EXPECT_THAT(logs[1].TakeStarving(), ElementsAre(0));
  EXPECT_THAT(logs[1].TakeStarving(), IsEmpty());
  EXPECT_TRUE(logs[0].Append(Word(8)));
  ReadAll(&logs[1]);
  logs[1].PublishCursor();
  EXPECT_THAT(logs[1].TakeStarving(), IsEmpty()) << "it starves no more";
}

// A reader that has read everything but published nothing would leave the writer waiting for ever.
TEST(HostLog, AReaderWithNothingNewPublishesForTheStarving) {
  Logs logs(Small(2, 64));
  for (uint32_t i = 0; i < 32; ++i) ASSERT_TRUE(logs[0].Append(Word(i)));
  ReadAll(&logs[0]);
  LogEntry entry;
  for (int i = 0; i < 32; ++i) ASSERT_TRUE(*logs[1].Read(&entry));
  for (uint32_t i = 0; i < 3; ++i) logs[0].Append(Word(32 + i));
  while (logs[0].Append(Word(50))) {
  }
  ReadAll(&logs[0]);
  ReadAll(&logs[1]);  // its last Read found nothing
  EXPECT_THAT(logs[1].TakeStarving(), ElementsAre(0));
  EXPECT_TRUE(logs[0].Append(Word(51)));
}

TEST(HostLog, PayloadsOfEverySizeComeThrough) {
  Logs logs(Small(1));
  const size_t most = logs[0].payload_bytes_max();
  LogEntry entry;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{59}, size_t{60}, size_t{61}, most}) {
    const std::string payload(bytes, 'x');
    ASSERT_TRUE(logs[0].Append({5, true, 0, 77}, payload)) << bytes;
    ASSERT_TRUE(*logs[0].Read(&entry));
    EXPECT_EQ(entry.word.kind, 5);
    EXPECT_EQ(entry.word.low, 77);
    EXPECT_TRUE(entry.word.flag);
    EXPECT_TRUE(entry.has_payload);
    EXPECT_EQ(entry.payload, payload);
    logs[0].PublishCursor();
  }
  ASSERT_TRUE(logs[0].Append(Word(1)));
  ASSERT_TRUE(*logs[0].Read(&entry));
  EXPECT_EQ(entry.payload, "") << "nothing is left of the one before";
}

TEST(HostLog, TheSideRingIsNotOverwrittenBeforeAllHaveRead) {
  Logs logs(Small(2));
  ASSERT_TRUE(logs[0].Append({5}, std::string(250, 'a')));
  ASSERT_TRUE(logs[0].Append({5}, std::string(150, 'b')));
  EXPECT_FALSE(logs[0].Append({5}, std::string(100, 'c')));
  ReadAll(&logs[0]);
  EXPECT_FALSE(logs[0].Append({5}, std::string(100, 'c')));
  LogEntry entry;
  ASSERT_TRUE(*logs[1].Read(&entry));
  EXPECT_EQ(entry.payload, std::string(250, 'a'));
  logs[1].PublishCursor();
  logs[0].PublishCursor();
  ASSERT_TRUE(logs[0].Append({5}, std::string(100, 'c'))) << "in front of the unread one";
  ASSERT_TRUE(*logs[1].Read(&entry));
  EXPECT_EQ(entry.payload, std::string(150, 'b'));
  ASSERT_TRUE(*logs[1].Read(&entry));
  EXPECT_EQ(entry.payload, std::string(100, 'c'));
}

TEST(HostLog, TheSideRingStaysWarmWhileReadersKeepUp) {
  constexpr size_t kSide = 1 << 20, kWarm = 256 << 10;
  Logs logs(Small(2, 16, kSide));
  const std::string payload(4'000, 'x');
  LogEntry entry;
  for (int i = 0; i < 1'000; ++i) {
    ASSERT_TRUE(logs[0].Append({5}, payload));
    for (const int reader : {0, 1}) {
      if (reader == 1 && i == 0) continue;  // it is one behind: there is always an unread one
      ASSERT_TRUE(*logs[reader].Read(&entry));
      ASSERT_EQ(entry.payload, payload);
      logs[reader].PublishCursor();
    }
  }
  const std::string cold(logs.side(0) + kWarm + payload.size(), kSide - kWarm - payload.size());
  EXPECT_EQ(cold.find_first_not_of('\0'), std::string::npos);
}

TEST(HostLogDeathTest, APayloadThatNeverFitsIsABrokenInvariant) {
  Logs logs(Small(1));
  const std::string payload(logs[0].payload_bytes_max() + 1, 'x');
  EXPECT_DEATH(logs[0].Append({5}, payload), "broken invariant");
}

// Any interleaving: what is read is what was accepted, in one order.
TEST(HostLog, RandomInterleavingsLoseNothing) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    Logs logs(Small(3));
    std::vector<std::string> wrote;
    std::vector<std::string> read[3];
    int refused = 0;
    for (int step = 0; step < 3'000; ++step) {
      const int i = static_cast<int>(random() % 3);
      const uint32_t number = static_cast<uint32_t>(step);
      switch (random() % 5) {
        case 0:
          if (logs[i].Append(Word(number))) {
            wrote.push_back(absl::StrCat(i, " ", number));
          } else {
            ++refused;
          }
          break;
        case 1: {
          const std::string payload(random() % 300, static_cast<char>('a' + step % 26));
          if (logs[i].Append({2, false, 0, 0}, payload)) {
            wrote.push_back(absl::StrCat(i, " ", payload));
          } else {
            ++refused;
          }
          break;
        }
        case 2:
          logs[i].PublishCursor();
          break;
        default: {
          LogEntry entry;
          const absl::StatusOr<bool> got = logs[i].Read(&entry);
          ASSERT_TRUE(got.ok()) << got.status();
          if (!*got) break;
          read[i].push_back(entry.has_payload ? absl::StrCat(entry.writer, " ", entry.payload)
                                              : absl::StrCat(entry.writer, " ", entry.word.field));
        }
      }
    }
    EXPECT_GT(refused, 0) << "seed " << seed << ": the ring was never full";
    for (const auto& each : read) {
      ASSERT_GT(each.size(), 100u);
      ASSERT_TRUE(std::equal(each.begin(), each.end(), wrote.begin())) << "seed " << seed;
    }
  }
}

// Another process wrote nonsense -----------------------------------------------------------------

TEST(HostLog, AWordOfAWriterThatIsNotThereIsRefused) {
  Logs logs(Small(2));
  logs.ring()[0] = (uint64_t{1} << 63) | (uint64_t{2} << 49);
  LogEntry entry;
  EXPECT_TRUE(absl::IsInvalidArgument(logs[0].Read(&entry).status()));
}

TEST(HostLog, APayloadOutsideTheSideRingIsRefused) {
  const uint64_t payload = (uint64_t{1} << 63) | (uint64_t{1} << 47);
  const auto read = [&](uint64_t unit, uint32_t length) {
    Logs logs(Small(2));
    logs.ring()[0] = payload | unit << 16;
    if (unit < 8) memcpy(logs.side(0) + 64 * unit, &length, sizeof length);
    LogEntry entry;
    return logs[1].Read(&entry).status();
  };
  EXPECT_TRUE(read(0, 508).ok());
  EXPECT_TRUE(read(7, 60).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(read(0, 509)));
  EXPECT_TRUE(absl::IsInvalidArgument(read(7, 61)));
  EXPECT_TRUE(absl::IsInvalidArgument(read(0, UINT32_MAX)));
  EXPECT_TRUE(absl::IsInvalidArgument(read(8, 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(read((1 << 30) - 1, 0)));
}

TEST(HostLog, LayoutsFitTheirLimits) {
  for (const int writers : {1, 2, 3, 64, 65, kLocalRanksMax}) {
    const LogLayout layout = LogLayout::For(writers);
    EXPECT_EQ(layout.words & (layout.words - 1), 0);
    EXPECT_GE(layout.words, kLogWordsMin);
    EXPECT_GE(layout.words / layout.writers, kLogWordsPerWriter);
    EXPECT_GE(layout.bytes(), static_cast<size_t>(writers) * kSideRingBytes);
  }
}

// Between threads --------------------------------------------------------------------------------

// Every thread writes and reads, as ranks do. All must see the same order, and each writer's words
// in the order in which it wrote them. Run under ThreadSanitizer too.
TEST(HostLog, ThreadsSeeOneOrder) {
  constexpr int kThreads = 3;
  constexpr uint32_t kWords = 3'000;
  Logs logs(Small(kThreads, 32, 1'024));
  std::vector<std::pair<int, uint32_t>> seen[kThreads];
  std::vector<std::thread> threads;
  for (int self = 0; self < kThreads; ++self) {
    threads.emplace_back([&, self] {
      std::mt19937 random(static_cast<uint32_t>(self));
      LogEntry entry;
      uint32_t next = 0;
      auto& mine = seen[self];
      while (mine.size() < size_t{kThreads} * kWords) {
        bool moved = false;
        if (next < kWords) {
          const bool wrote =
              next % 3 == 0
                  ? logs[self].Append({2, false, 0, static_cast<uint16_t>(next)},
                                      std::string(random() % 200, static_cast<char>('a' + self)))
                  : logs[self].Append({1, false, next, static_cast<uint16_t>(next)});
          if (wrote) ++next;
          moved |= wrote;
        }
        while (true) {
          const absl::StatusOr<bool> read = logs[self].Read(&entry);
          ASSERT_TRUE(read.ok()) << read.status();
          if (!*read) break;
          moved = true;
          mine.emplace_back(entry.writer, entry.word.low);
          if (entry.has_payload) {
            ASSERT_EQ(entry.payload,
                      std::string(entry.payload.size(), static_cast<char>('a' + entry.writer)));
          }
        }
        logs[self].TakeStarving();
        if (!moved) sched_yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint32_t next[kThreads] = {};
  for (const auto& [writer, number] : seen[0]) ASSERT_EQ(number, next[writer]++);
  EXPECT_EQ(seen[1], seen[0]);
  EXPECT_EQ(seen[2], seen[0]);
}

// Rounds of one word from everybody. Who reads a word of its own that completes a round rings the
// others, and so does who has filled a gap; nobody else does.
TEST(HostLog, NobodySleepsForEver) {
  constexpr int kThreads = 6;
  constexpr uint64_t kRounds = 3'000;
  constexpr Nanos kPatience = 20 * kSecond;
  Logs logs(LogLayout::For(kThreads));
  std::atomic<uint32_t> asleep[kThreads] = {};
  std::atomic<bool> lost{false};
  const auto ring_all = [&](int self) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (int i = 0; i < kThreads; ++i) {
      if (i == self || asleep[i].load(std::memory_order_relaxed) == 0) continue;
      asleep[i].store(0, std::memory_order_relaxed);
      FutexWakeAll(asleep[i]);
    }
  };
  std::vector<std::thread> threads;
  for (int self = 0; self < kThreads; ++self) {
    threads.emplace_back([&, self] {
      HostLog& log = logs[self];
      LogEntry entry;
      uint64_t seen = 0;
      const auto read_on = [&] {
        while (*log.Read(&entry)) {
          ++seen;
          if (entry.writer == self && entry.position % kThreads == kThreads - 1) ring_all(self);
        }
        if (log.TakeFilledGap()) ring_all(self);
      };
      for (uint64_t round = 0; round < kRounds && !lost; ++round) {
        ASSERT_TRUE(log.Append(Word(0)));
        while (seen < (round + 1) * kThreads && !lost) {
          read_on();
          log.PublishCursor();
          asleep[self].store(1, std::memory_order_relaxed);
          std::atomic_thread_fence(std::memory_order_seq_cst);
          const Nanos deadline = MonotonicNow() + kPatience;
          if (!log.LastLook() && seen < (round + 1) * kThreads) {
            FutexWait(asleep[self], 1, deadline);
            if (MonotonicNow() >= deadline) {
              lost = true;
              ring_all(self);
            }
          }
          asleep[self].store(0, std::memory_order_relaxed);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(lost) << "somebody slept, and nobody rang";
}

// Every thread writes more than its credit, again and again, and sleeps when it can't go on. One
// without credit rings the slowest reader, which may be asleep with nothing of its own to do; who
// makes room rings the starving.
TEST(HostLog, AWriterWithoutCreditIsRung) {
  constexpr int kThreads = 3;
  constexpr int kWords = 20'000;
  constexpr Nanos kPatience = 20 * kSecond;
  Logs logs(Small(kThreads));
  std::atomic<uint32_t> asleep[kThreads] = {};
  std::atomic<int> writing{kThreads};
  std::atomic<bool> lost{false};
  const auto ring = [&](int i) {
    if (asleep[i].load(std::memory_order_relaxed) == 0) return;
    asleep[i].store(0, std::memory_order_relaxed);
    FutexWakeAll(asleep[i]);
  };
  const auto ring_all = [&] {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (int i = 0; i < kThreads; ++i) ring(i);
  };
  std::vector<std::thread> threads;
  for (int self = 0; self < kThreads; ++self) {
    threads.emplace_back([&, self] {
      HostLog& log = logs[self];
      LogEntry entry;
      int wrote = 0;
      const auto turn = [&] {
        bool moved = false;
        if (wrote < kWords) {
          moved = log.Append(Word(0));
          if (!moved) ring(log.SlowestReader());
          if (moved && ++wrote == kWords && writing.fetch_sub(1) == 1) ring_all();
        }
        while (*log.Read(&entry)) moved = true;
        if (log.TakeFilledGap()) ring_all();
        for (const int i : log.TakeStarving()) ring(i);
        return moved;
      };
      while (writing > 0 && !lost) {
        if (turn()) continue;
        log.PublishCursor();
        for (const int i : log.TakeStarving()) ring(i);
        asleep[self].store(1, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        const Nanos deadline = MonotonicNow() + kPatience;
        if (!turn() && !log.LastLook() && writing > 0) {
          FutexWait(asleep[self], 1, deadline);
          if (MonotonicNow() >= deadline) {
            lost = true;
            ring_all();
          }
        }
        asleep[self].store(0, std::memory_order_relaxed);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(lost) << "somebody slept, and nobody rang";
}

}  // namespace
}  // namespace rueda
