// The same numbers from the same seed, on every machine.
#pragma once
#include <cstdint>

namespace chaos {

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t next() {  // splitmix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return n == 0 ? 0 : next() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }
  // Sizes from 1 to `most`, as many small ones as large ones.
  uint64_t size(uint64_t most) {
    int bits = 64 - __builtin_clzll(most | 1);
    uint64_t top = 1ULL << below(static_cast<uint64_t>(bits));
    uint64_t s = top + below(top);
    return s > most ? most : s;
  }

 private:
  uint64_t state_;
};

}  // namespace chaos
