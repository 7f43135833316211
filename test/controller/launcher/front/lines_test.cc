#include "controller/launcher/front/lines.h"

#include <gtest/gtest.h>

#include <random>

namespace rueda {
namespace {

// What comes out when `pieces` come in one after the other, and then the end.
std::string Joined(LineJoiner::Style style, const std::vector<std::string>& pieces) {
  LineJoiner joiner(std::move(style));
  std::string out;
  for (const std::string& piece : pieces) joiner.Feed(piece, &out);
  joiner.Finish(&out);
  return out;
}

TEST(Lines, AreMarkedOnce) {
  const struct {
    std::vector<std::string> pieces;
    std::string expected;
  } kCases[] = {
      {{}, ""},
      {{""}, ""},
      {{"a\n"}, "[1] a\n"},
      {{"a\nb\n"}, "[1] a\n[1] b\n"},
      {{"a", "b", "\n", "c\n"}, "[1] ab\n[1] c\n"},
      {{"\n\n"}, "[1] \n[1] \n"},
      {{"no end"}, "[1] no end\n"},
      {{"a\nno", " end"}, "[1] a\n[1] no end\n"},
      {{"a\rb\r\nc\r"}, "[1] a\rb\r\n[1] c\r\n"},
      {{std::string("a\0b\xFF\n", 5)}, std::string("[1] a\0b\xFF\n", 9)},
  };
  for (const auto& each : kCases) {
    EXPECT_EQ(Joined({"[1] "}, each.pieces), each.expected);
  }
}

TEST(Lines, ComeOutAsSoonAsTheyEnd) {
  LineJoiner joiner({"[0] "});
  std::string out;
  joiner.Feed("a\nb", &out);
  EXPECT_EQ(out, "[0] a\n");
  joiner.Feed("\n", &out);
  EXPECT_EQ(out, "[0] a\n[0] b\n");
}

TEST(Lines, AreShownInPieces) {
  const struct {
    LineJoiner::Style style;
    std::string expected;
  } kCases[] = {
      {{"[0] "}, "[0] a.b\n[0] c\n"},
      {{"[0] ", true}, "[0] a.b\n[0] c\n"},
      {{""}, "a.b\nc"},
  };
  for (const auto& each : kCases) {
    LineJoiner joiner(each.style);
    std::string out;
    joiner.Show(&out);
    EXPECT_EQ(out, "");
    joiner.Feed("a", &out);
    EXPECT_EQ(out, "");
    joiner.Show(&out);
    EXPECT_EQ(out, each.style.prefix + "a");
    joiner.Feed(".", &out);
    joiner.Show(&out);
    joiner.Feed("b\nc", &out);
    joiner.Show(&out);
    joiner.Finish(&out);
    EXPECT_EQ(out, each.expected);
  }
}

TEST(Lines, AreMarkedAgainWhenAnotherCameBetween) {
  LineJoiner joiner({"[0] "});
  std::string out;
  joiner.Feed("a", &out);
  joiner.Show(&out);
  joiner.Interrupt();
  joiner.Feed("b\n", &out);
  EXPECT_EQ(out, "[0] a[0] b\n") << "the other's output has ended the first";
}

TEST(Lines, OfProgressBarsAreShownToTheirEndOnATerminal) {
  LineJoiner joiner({"[0] ", true});
  std::string out;
  joiner.Feed("1%\r", &out);
  joiner.Show(&out);
  EXPECT_EQ(out, "[0] 1%");
  joiner.Feed("2%\r", &out);
  joiner.Show(&out);
  EXPECT_EQ(out, "[0] 1%\r[0] 2%");
  joiner.Feed("\n", &out);
  EXPECT_EQ(out, "[0] 1%\r[0] 2%\r\n");
}

TEST(Lines, EndWithACarriageReturnOnATerminal) {
  const LineJoiner::Style style = {"[1] ", true};
  EXPECT_EQ(Joined(style, {"\r 1%\r 2%\n"}), "[1] \r[1]  1%\r[1]  2%\n");
  EXPECT_EQ(Joined(style, {"a\r\nb\n"}), "[1] a\r\n[1] b\n");
  EXPECT_EQ(Joined(style, {"a\r", "\nb\n"}), "[1] a\r\n[1] b\n");
  EXPECT_EQ(Joined(style, {"a\r", "b\n"}), "[1] a\r[1] b\n");
  EXPECT_EQ(Joined(style, {"a\r\r\nb"}), "[1] a\r[1] \r\n[1] b\n");
}

TEST(Lines, WithoutAPrefixAreJoinedAndNothingElse) {
  EXPECT_EQ(Joined({""}, {"a", "b\nc", ""}), "ab\nc");
  EXPECT_EQ(Joined({"", false, 4}, {"abcdefghij\nk"}), "abcdefghij\nk");
}

TEST(Lines, ThatAreTooLongComeInMarkedPieces) {
  EXPECT_EQ(Joined({"[1] ", false, 4}, {"abcdefghij\nk\n"}), "[1] abcd\n[1] efgh\n[1] ij\n[1] k\n");
  EXPECT_EQ(Joined({"[1] ", false, 4}, {"abc\nabc", "d"}), "[1] abc\n[1] abcd\n");
}

TEST(Lines, DoNotDependOnThePiecesTheyComeIn) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    std::string text;
    const char kBytes[] = {'a', '\n', '\r', '\0', 'b'};
    for (int i = 0; i < 200; ++i) text.push_back(kBytes[random() % sizeof kBytes]);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t bytes = 1 + random() % 7;
      pieces.push_back(text.substr(at, bytes));
      at += bytes;
    }
    for (const LineJoiner::Style& style :
         {LineJoiner::Style{"[3] "}, LineJoiner::Style{"[3] ", true}, LineJoiner::Style{""},
          LineJoiner::Style{"[3] ", false, 9}}) {
      EXPECT_EQ(Joined(style, pieces), Joined(style, {text})) << "trial " << trial;
    }
    EXPECT_EQ(Joined({""}, pieces), text);
  }
}

}  // namespace
}  // namespace rueda
