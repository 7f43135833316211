#include "core/base/utf8.h"

#include <gtest/gtest.h>

namespace rueda {
namespace {

TEST(Utf8, KnowsCharactersOfEveryLength) {
  for (const std::string text : {"a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    EXPECT_EQ(Utf8Length(text + "b"), text.size());
    EXPECT_TRUE(IsUtf8(text + text));
    EXPECT_EQ(Printable(text, 100), text);
  }
  EXPECT_TRUE(IsUtf8(""));
}

TEST(Utf8, RefusesWhatIsNone) {
  for (const std::string text : {"\x80", "\xC1\xBF", "\xC3", "\xC3(", "\xE0\x9F\xBF",
                                 "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xFF"}) {
    EXPECT_EQ(Utf8Length(text), 0u) << text;
    EXPECT_FALSE(IsUtf8("a" + text)) << text;
  }
}

TEST(Printable, TakesWhatWouldBeACommandToATerminal) {
  EXPECT_EQ(Printable("\x1b[2J\x1b]0;title\x07", 100), "?[2J?]0;title?");
  EXPECT_EQ(Printable(std::string("a\0b\rc\x7f", 6), 100), "a?b?c?");
  EXPECT_EQ(Printable("\xC2\x9B"
                      "2J",
                      100),
            "?2J");  // C1's own CSI
  EXPECT_EQ(Printable("\xE2\x80\xAE"
                      "abc",
                      100),
            "?abc");  // written from right to left
  EXPECT_EQ(Printable("\xE2\x81\xA7"
                      "abc",
                      100),
            "?abc");
  EXPECT_EQ(Printable("one\ttwo\nthree", 100), "one\ttwo\nthree");
  EXPECT_EQ(Printable("\xFF\xC3", 100), "??");
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(Printable("ab\xE2\x82\xAC", 4), "ab");
  EXPECT_EQ(Printable("ab\xE2\x82\xAC", 5), "ab\xE2\x82\xAC");
  EXPECT_EQ(Printable("abc", 0), "");
}

}  // namespace
}  // namespace rueda
