// A bar of bytes: who holds what of an amount, drawn in cells. The same characters with and without colours, so that a
// copied or colourless bar still tells it: '#' driver reserve, '%' foreign, 'A' what budget A has charged, 'a' what it
// asked for and has not used, '.' free.
#pragma once
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cli/snapshot.h"

namespace kvram::cli {

struct Segment {
  char mark = '.';  // an upper-case letter may have a used and an unused part
  Bytes bytes;
  Bytes used;         // <= bytes; the rest is drawn in lower case
  std::string label;  // for the legend
};

// The segments of a GPU: reserve, foreign, each budget on it (letters given by letter_of), free; what the figures
// leave unexplained is left out. Shown as "budget 7" with its command.
std::vector<Segment> gpu_segments(const Snapshot& s, const GpuView& gpu);

// The letter of the n-th budget: A..Z, then digits, then '*'.
char letter_of(size_t n);

// How many of `cells` each amount gets: proportional, sums to `cells` when the amounts sum to `whole`, and at least
// one cell for each amount above zero as long as there are enough.
std::vector<size_t> apportion(const std::vector<Bytes>& amounts, Bytes whole, size_t cells);

// The bar itself, `cells` wide, without brackets.
std::string draw_bar(const std::vector<Segment>& segments, Bytes whole, size_t cells, bool colour);

// One mark in its colour, as in the bar.
std::string draw_mark(char mark, bool colour);

}  // namespace kvram::cli
