#include "base/bytes.h"

#include <fmt/format.h>

#include <array>

namespace kvram {
namespace {

struct Suffix {
  std::string_view text;
  int64_t factor;
};
constexpr std::array kBinary = {Suffix{"Ei", 1LL << 60}, Suffix{"Pi", 1LL << 50}, Suffix{"Ti", 1LL << 40},
                                Suffix{"Gi", 1LL << 30}, Suffix{"Mi", 1LL << 20}, Suffix{"Ki", 1LL << 10}};
constexpr std::array kDecimal = {Suffix{"E", 1'000'000'000'000'000'000LL},
                                 Suffix{"P", 1'000'000'000'000'000LL},
                                 Suffix{"T", 1'000'000'000'000LL},
                                 Suffix{"G", 1'000'000'000LL},
                                 Suffix{"M", 1'000'000LL},
                                 Suffix{"k", 1'000LL}};
using Wide = __int128;
constexpr Wide kMax = INT64_MAX;

std::unexpected<Error> bad(std::string_view text, std::string_view why) {
  std::string shown(text.substr(0, 40));
  return fail(ErrorCode::kBadQuantity, fmt::format("'{}' is not an amount of memory that can be asked for: {}. Write a "
                                                   "positive number with Ki, Mi, Gi or Ti, for example 6Gi.",
                                                   shown, why));
}

struct Number {
  Wide digits = 0;    // all digits, the point left out
  int decimals = 0;   // how many of them stood behind the point
  size_t length = 0;  // characters read
  bool overflow = false;
};

Number read_number(std::string_view text) {
  Number n;
  bool point = false;
  int seen = 0;
  for (; n.length < text.size(); ++n.length) {
    char c = text[n.length];
    if (c == '.' && !point) {
      point = true;
      continue;
    }
    if (c < '0' || c > '9') break;
    ++seen;
    if (n.digits > kMax) {
      n.overflow = true;
      continue;
    }
    n.digits = n.digits * 10 + (c - '0');
    if (point) ++n.decimals;
  }
  if (seen == 0) n.length = 0;
  return n;
}

// The factor of a suffix as numerator and decimal shift; false if there is no such suffix.
bool read_suffix(std::string_view text, Wide* factor, int* shift) {
  *factor = 1;
  *shift = 0;
  if (text.empty()) return true;
  for (const Suffix& s : kBinary) {
    if (text == s.text) return *factor = s.factor, true;
  }
  for (const Suffix& s : kDecimal) {
    if (text == s.text) return *factor = s.factor, true;
  }
  if (text == "m") return *shift = -3, true;
  if (text.size() >= 2 && text.size() <= 4 && (text[0] == 'e' || text[0] == 'E')) {
    bool negative = text[1] == '-';
    text.remove_prefix(negative || text[1] == '+' ? 2 : 1);
    if (text.empty()) return false;
    int exponent = 0;
    for (char c : text) {
      if (c < '0' || c > '9') return false;
      exponent = exponent * 10 + (c - '0');
    }
    return *shift = negative ? -exponent : exponent, true;
  }
  return false;
}

}  // namespace

Result<Bytes> parse_quantity(std::string_view text) {
  if (text.empty()) return bad(text, "it is empty");
  if (text[0] == '-') return bad(text, "it is negative");
  std::string_view rest = text[0] == '+' ? text.substr(1) : text;
  Number number = read_number(rest);
  if (number.length == 0) return bad(text, "it does not begin with a number");
  Wide factor = 1;
  int shift = 0;
  if (!read_suffix(rest.substr(number.length), &factor, &shift)) return bad(text, "its suffix is unknown");
  if (number.overflow) return bad(text, "it is larger than 8Ei");
  Wide value = number.digits * factor;
  shift -= number.decimals;
  for (; shift > 0; --shift) {
    value *= 10;
    if (value > kMax) return bad(text, "it is larger than 8Ei");
  }
  for (; shift < 0 && value > 0; ++shift) {
    value = value / 10 + (value % 10 != 0 ? 1 : 0);
  }
  if (value > kMax) return bad(text, "it is larger than 8Ei");
  if (value == 0) return bad(text, "it is zero");
  return Bytes(static_cast<int64_t>(value));
}

std::string format_quantity(Bytes amount) {
  for (const Suffix& s : kBinary) {
    if (amount.count() != 0 && amount.count() % s.factor == 0)
      return fmt::format("{}{}", amount.count() / s.factor, s.text);
  }
  return fmt::format("{}", amount.count());
}

std::string format_human(Bytes amount) {
  int64_t count = amount.count();
  std::string sign = count < 0 ? "-" : "";
  Wide magnitude = count < 0 ? -static_cast<Wide>(count) : static_cast<Wide>(count);
  for (const Suffix& s : kBinary) {
    if (magnitude < s.factor) continue;
    auto tenths = static_cast<int64_t>((magnitude * 10 + s.factor / 2) / s.factor);
    if (tenths % 10 == 0 || tenths >= 1000) return fmt::format("{}{}{}", sign, (tenths + 5) / 10, s.text);
    return fmt::format("{}{}.{}{}", sign, tenths / 10, tenths % 10, s.text);
  }
  return fmt::format("{}", count);
}

}  // namespace kvram
