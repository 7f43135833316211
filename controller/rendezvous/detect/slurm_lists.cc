// PURE
#include "controller/rendezvous/detect/slurm_lists.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

constexpr int64_t kNumberMax = 999'999'999'999'999'999;

// Reads a list from the left to the right.
class Cursor {
 public:
  explicit Cursor(absl::string_view text) : text_(text) {}

  bool AtEnd() const { return at_ == text_.size(); }
  // Zero at the end: no list has such a character.
  char Peek() const { return AtEnd() ? '\0' : text_[at_]; }
  bool Take(char c) {
    if (AtEnd() || Peek() != c) return false;
    ++at_;
    return true;
  }
  absl::string_view TakeDigits() {
    const size_t first = at_;
    while (absl::ascii_isdigit(static_cast<unsigned char>(Peek()))) ++at_;
    return text_.substr(first, at_ - first);
  }
  absl::string_view TakeUntil(absl::string_view stops) {
    const size_t first = at_;
    at_ = std::min(text_.find_first_of(stops, at_), text_.size());
    return text_.substr(first, at_ - first);
  }
  absl::Status Expected(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("at character ", at_ + 1, ": expected ", what, ", found ",
                     AtEnd() ? "the end" : absl::StrCat("'", text_.substr(at_, 1), "'")));
  }
  // Of what begins at `first`, a place that at() told.
  absl::Status Refuse(size_t first, absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat("at character ", first + 1, ": ", why));
  }
  size_t at() const { return at_; }

 private:
  const absl::string_view text_;
  size_t at_ = 0;
};

absl::Status TooMany(const Cursor& cursor, size_t first) {
  return cursor.Refuse(first, absl::StrCat("more than ", kRanksMax, " nodes"));
}

// "01-03": 1 to 3, in two digits.
struct Range {
  int64_t first = 0;
  int64_t last = 0;
  size_t digits = 0;
};

absl::StatusOr<int64_t> ReadNumber(Cursor* cursor, absl::string_view* digits) {
  const size_t first = cursor->at();
  *digits = cursor->TakeDigits();
  if (digits->empty()) return cursor->Expected("a number");
  int64_t number = 0;
  if (digits->size() > kHostNameBytesMax || !absl::SimpleAtoi(*digits, &number) ||
      number > kNumberMax) {
    return cursor->Refuse(first, "the number is too large");
  }
  return number;
}

absl::StatusOr<Range> ReadRange(Cursor* cursor) {
  const size_t first = cursor->at();
  Range range;
  absl::string_view digits, ignored;
  RUEDA_ASSIGN_OR_RETURN(range.first, ReadNumber(cursor, &digits));
  range.last = range.first;
  range.digits = digits.size();
  if (cursor->Take('-')) {
    RUEDA_ASSIGN_OR_RETURN(range.last, ReadNumber(cursor, &ignored));
  }
  if (range.last < range.first) return cursor->Refuse(first, "a range ends before it begins");
  return range;
}

// What a bracket stands for; it is open.
absl::StatusOr<std::vector<std::string>> ReadBracket(Cursor* cursor) {
  std::vector<std::string> numbers;
  do {
    const size_t first = cursor->at();
    RUEDA_ASSIGN_OR_RETURN(const Range range, ReadRange(cursor));
    if (static_cast<int64_t>(numbers.size()) + range.last - range.first >= kRanksMax) {
      return TooMany(*cursor, first);
    }
    for (int64_t number = range.first; number <= range.last; ++number) {
      const std::string text = absl::StrCat(number);
      numbers.push_back(std::string(range.digits - std::min(range.digits, text.size()), '0') +
                        text);
    }
  } while (cursor->Take(','));
  if (!cursor->Take(']')) return cursor->Expected("',', '-' or ']'");
  return numbers;
}

// The names of one item, at least one.
absl::StatusOr<std::vector<std::string>> ReadNodes(Cursor* cursor) {
  const size_t first = cursor->at();
  std::vector<std::string> names = {std::string(cursor->TakeUntil("[],"))};
  while (cursor->Take('[')) {
    RUEDA_ASSIGN_OR_RETURN(const std::vector<std::string> numbers, ReadBracket(cursor));
    if (names.size() * numbers.size() > kRanksMax) return TooMany(*cursor, first);
    const absl::string_view rest = cursor->TakeUntil("[],");
    if (names[0].size() + numbers[0].size() + rest.size() > kHostNameBytesMax) {
      return cursor->Refuse(first, "the name is too long");
    }
    std::vector<std::string> longer;
    longer.reserve(names.size() * numbers.size());
    for (const std::string& name : names) {
      for (const std::string& number : numbers) longer.push_back(absl::StrCat(name, number, rest));
    }
    names = std::move(longer);
  }
  if (names[0].empty()) return cursor->Expected("a node's name");
  return names;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandSlurmNodes(absl::string_view list) {
  Cursor cursor(list);
  std::vector<std::string> nodes;
  do {
    const size_t first = cursor.at();
    RUEDA_ASSIGN_OR_RETURN(std::vector<std::string> more, ReadNodes(&cursor));
    if (nodes.size() + more.size() > kRanksMax) return TooMany(cursor, first);
    std::move(more.begin(), more.end(), std::back_inserter(nodes));
  } while (cursor.Take(','));
  return cursor.AtEnd() ? absl::StatusOr<std::vector<std::string>>(std::move(nodes))
                        : cursor.Expected("',' or '['");
}

absl::StatusOr<std::vector<int>> ExpandSlurmCounts(absl::string_view list) {
  Cursor cursor(list);
  std::vector<int> counts;
  do {
    const size_t first = cursor.at();
    absl::string_view digits;
    RUEDA_ASSIGN_OR_RETURN(const int64_t count, ReadNumber(&cursor, &digits));
    int64_t times = 1;
    if (cursor.Take('(')) {
      if (!cursor.Take('x')) return cursor.Expected("'x' and a number");
      RUEDA_ASSIGN_OR_RETURN(times, ReadNumber(&cursor, &digits));
      if (!cursor.Take(')')) return cursor.Expected("')'");
    }
    if (count < 1 || count > kRanksMax || times < 1) {
      return cursor.Refuse(first, absl::StrCat("expected numbers from 1 to ", kRanksMax));
    }
    if (times > kRanksMax - static_cast<int64_t>(counts.size())) return TooMany(cursor, first);
    counts.insert(counts.end(), static_cast<size_t>(times), static_cast<int>(count));
  } while (cursor.Take(','));
  return cursor.AtEnd() ? absl::StatusOr<std::vector<int>>(std::move(counts))
                        : cursor.Expected("',' or '(x'");
}

}  // namespace rueda
