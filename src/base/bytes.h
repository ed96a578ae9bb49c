// Bytes: an amount of memory. Exact, signed 64-bit, checked arithmetic, parsed and printed as Kubernetes quantities.
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvram {

class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(int64_t count) : count_(count) {}
  constexpr int64_t count() const { return count_; }
  friend constexpr auto operator<=>(Bytes, Bytes) = default;

  // Saturate at the ends of int64, so that a sum of hostile numbers never wraps round.
  friend constexpr Bytes operator+(Bytes a, Bytes b) {
    int64_t sum = 0;
    if (__builtin_add_overflow(a.count_, b.count_, &sum)) sum = b.count_ > 0 ? INT64_MAX : INT64_MIN;
    return Bytes(sum);
  }
  friend constexpr Bytes operator-(Bytes a, Bytes b) {
    int64_t difference = 0;
    if (__builtin_sub_overflow(a.count_, b.count_, &difference)) difference = b.count_ < 0 ? INT64_MAX : INT64_MIN;
    return Bytes(difference);
  }
  Bytes& operator+=(Bytes other) { return *this = *this + other; }
  Bytes& operator-=(Bytes other) { return *this = *this - other; }

 private:
  int64_t count_ = 0;
};

constexpr Bytes kKiB{1024};
constexpr Bytes kMiB{1024 * 1024};
constexpr Bytes kGiB{1024 * 1024 * 1024};

// The smallest multiple of step (> 0) that is not below amount (>= 0).
constexpr Bytes round_up(Bytes amount, Bytes step) {
  int64_t rest = amount.count() % step.count();
  return rest == 0 ? amount : amount + Bytes(step.count() - rest);
}
constexpr Bytes round_down(Bytes amount, Bytes step) { return amount - Bytes(amount.count() % step.count()); }

// A Kubernetes quantity of memory: digits with an optional decimal fraction and a suffix Ki..Ei, k..E, m or exponent
// (1e9). Fractions of a byte are rounded up, as Kubernetes does. Zero, negative amounts, more than 2^63-1 and anything
// else: kBadQuantity with a sentence that repeats the text.
Result<Bytes> parse_quantity(std::string_view text);
// Exact: the largest binary suffix that divides the amount ("6Gi", "1536Mi", "1000").
std::string format_quantity(Bytes amount);
// For people: at most one decimal, rounded to nearest ("5.6Gi", "23Gi", "512Mi", "0").
std::string format_human(Bytes amount);

}  // namespace kvram
