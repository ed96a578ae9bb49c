#include "cli/show.h"

#include <gtest/gtest.h>

#include "cli/bar.h"
#include "cli/failure.h"
#include "cli/fixture.h"
#include "cli/run.h"
#include "cli/text.h"
#include "cli/top_view.h"
#include "cli/waiting.h"

namespace kvram::cli {
namespace {

Snapshot snapshot() { return parse_snapshot(fixture::parse(fixture::kList)); }
constexpr ShowOptions kTable{false, 1060};
constexpr ShowOptions kWide{true, 1060};

TEST(ShowBudgets, BudgetsProcessesAndThoseWhoWait) {
  EXPECT_EQ(show_budgets(snapshot(), kTable),
            R"(simulated GPUs, driver 580.65.06
BUDGET   PID  USER  GPU  ASKED  CHARGED  RESIDENT  PEAK  REFUSED  GUARANTEE    COMMAND
     7     -  ann   0      6Gi      2Gi       2Gi   3Gi        0  cooperative  ./server --port 80
        4242        0             1.5Gi     1.5Gi                              server
        4243        0             512Mi     512Mi                              worker
     8     -  bob   0      4Gi      4Gi     4.1Gi   4Gi        3  cooperative  -
budget 8 holds more than it asked for: 4.1Gi of 4Gi resident; --strict will end it

WAITING  PID  USER  ASKED  SINCE  COMMAND
      1   99  eve    16Gi    90s  ./big
)");
}

TEST(ShowBudgets, WideAddsColumns) {
  std::string text = show_budgets(snapshot(), kWide);
  EXPECT_NE(text.find("  GUARANTEE    MODE       STRICT  OVERCOME  HIDDEN  AGE  COMMAND\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  cooperative  path       yes            2   100Mi   2m  -\n"), std::string::npos) << text;
  EXPECT_NE(text.find("budget 7: mode namespace; past the guard: a driver of the program's own, "), std::string::npos);
  EXPECT_NE(text.find("budget 8: mode path (no SYS_ADMIN); past the guard: the driver opened by absolute path, "),
            std::string::npos);
}

TEST(ShowBudgets, EmptyStateSaysWhatToDo) {
  EXPECT_EQ(show_budgets(Snapshot{}, kTable), "No budgets. Start one: vram run --memory 6Gi -- COMMAND\n");
}

TEST(ShowGpus, ForeignProcessesAreNamedAndEscaped) {
  EXPECT_EQ(show_gpus(snapshot(), kWide),
            R"(simulated GPUs, driver 580.65.06
GPU  NAME        TOTAL  RESERVE  FOREIGN  ASSIGNED  RESIDENT    FREE  HEALTH  UUID      FOREIGN-PROCESSES
  0  NVIDIA A10   24Gi    512Mi      2Gi      10Gi       3Gi  11.5Gi  ok      GPU-0001  pid 77 miner\x1b[2J 2Gi
)");
  EXPECT_EQ(show_gpus(Snapshot{}, kTable).substr(0, 8), "No GPUs.");
}

TEST(ShowOom, SentenceFiguresAndDrawings) {
  EXPECT_EQ(show_oom(fixture::parse(fixture::kOom), kTable),
            R"(simulated GPUs
server (pid 4242) asked for 1Gi by cuMemAlloc_v2, but budget 7 has 512Mi of its
6Gi left; 512Mi would have fitted.

refusal     12, 1970-01-01T00:16:40Z (60s ago)
budget      7: ./server
process     pid 4242 server
asked       1Gi (1073741824 bytes) by cuMemAlloc_v2 on GPU 0
limit       6Gi, of it charged 5.5Gi, left 512Mi
would fit   512Mi (536870912 bytes)

Budget 7: 6Gi on GPU 0
[AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABBBBBBBBBB.....]
  A 4.5Gi  pid 4242 server (asked)
  B   1Gi  pid 4243 worker
  . 512Mi  left

GPU 0: 24Gi
[#%%%%%AAAAAAAAAAAAAAabbbbbbbbbb.............................]
  #  512Mi  driver reserve
  %    2Gi  foreign (outside kube-vram)
  A    6Gi  budget 7: this one
  B    4Gi  budget 8
  . 11.5Gi  free
)");
}

TEST(ShowOoms, ListAndWhatARetryOvercame) {
  json::object reply = {{"ooms", json::array{fixture::parse(fixture::kOom)["oom"]}}, {"counted", {{"overcome", 2}}}};
  EXPECT_EQ(show_ooms(reply, kTable),
            R"(ID  AGE  BUDGET   PID  PROCESS  ASKED  LIMIT   LEFT  KIND
12  60s       7  4242  server     1Gi    6Gi  512Mi  limit
`vram oom ID` shows who held what at that moment.
2 more were overcome by a retry of the same program: counted, not listed.
)");
  EXPECT_EQ(show_ooms(json::object{}, kTable),
            "No refusals. One is recorded here when a program asks for more than its budget has left.\n");
}

// What a terminal would show: without colour sequences.
std::string plain(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = text.find('m', i);
    } else {
      out += text[i];
    }
  }
  return out;
}

TEST(Top, OneFrame) {
  std::string frame;
  for (const std::string& line : top_screen(snapshot(), {80, 24, false, ""})) frame += line + "\n";
  EXPECT_EQ(frame,
            R"(kube-vram  simulated GPUs  driver 580.65.06  budgets 2  waiting 1        q quits
GPU 0  NVIDIA A10  24Gi  resident 3Gi  free 11.5Gi
[##%%%%%%AAAAAAAaaaaaaaaaaaaaBBBBBBBBBBBBB.....................................]
 # 512Mi reserve  % 2Gi foreign  A 2Gi/6Gi  B 4Gi  . 11.5Gi free

  BUDGET   PID  USER  GPU  ASKED  CHARGED  RESIDENT  PEAK  REFUSED  COMMAND
A      7        ann   0      6Gi      2Gi       2Gi   3Gi        0  server --...
          4242        0             1.5Gi     1.5Gi                 server
          4243        0             512Mi     512Mi                 worker
B      8        bob   0      4Gi      4Gi     4.1Gi   4Gi        3  OVER ITS ...
waiting 1: eve asks for 16Gi (pid 99) big
)");
}

TEST(Top, FitsEveryScreenAndColourChangesNoCharacter) {
  Snapshot s = snapshot();
  for (int i = 1; i < 6; ++i) s.gpus.push_back(s.gpus[0]);
  for (size_t columns : {1, 2, 5, 12, 20, 39, 71, 72, 80, 300}) {
    for (size_t rows : {1, 2, 3, 8, 24, 60}) {
      std::vector<std::string> black = top_screen(s, {columns, rows, false, "old"});
      std::vector<std::string> colour = top_screen(s, {columns, rows, true, "old"});
      ASSERT_EQ(black.size(), colour.size());
      EXPECT_LE(black.size(), rows) << columns << "x" << rows;
      for (size_t i = 0; i < black.size(); ++i) {
        EXPECT_LE(display_width(black[i]), columns) << columns << "x" << rows << ": " << black[i];
        EXPECT_EQ(plain(colour[i]), black[i]);
      }
    }
  }
}

TEST(Top, SaysHowManyLinesDoNotFit) {
  std::vector<std::string> lines = top_screen(snapshot(), {80, 7, false, ""});
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_EQ(lines[1], " 0 [#%%%%%AAAAAaaaaaaaaaaaBBBBBBBBBBB..............................] 11.5Gi free");
  EXPECT_EQ(lines.back(), "... 3 more lines: a taller window or `vram ps` shows them");
}

TEST(Bar, CellsAreSharedProportionally) {
  auto parts = [](const std::vector<int64_t>& amounts, int64_t whole, size_t cells) {
    std::vector<Bytes> bytes;
    for (int64_t a : amounts) bytes.emplace_back(a);
    return apportion(bytes, Bytes(whole), cells);
  };
  using Cells = std::vector<size_t>;
  EXPECT_EQ(parts({50, 50}, 100, 10), (Cells{5, 5}));
  EXPECT_EQ(parts({1, 99}, 100, 10), (Cells{1, 9}));  // never invisible
  EXPECT_EQ(parts({0, 100}, 100, 10), (Cells{0, 10}));
  EXPECT_EQ(parts({50}, 100, 10), Cells{5});
  EXPECT_EQ(parts({100, 100}, 100, 10), (Cells{5, 5}));  // more than there is: still within the bar
  EXPECT_EQ(parts({1, 1, 1}, 3, 2).size(), 3U);
  EXPECT_EQ(parts({5}, 0, 10), Cells{0});
}

TEST(Bar, LettersRunOut) {
  EXPECT_EQ(letter_of(0), 'A');
  EXPECT_EQ(letter_of(25), 'Z');
  EXPECT_EQ(letter_of(26), '0');
  EXPECT_EQ(letter_of(36), '*');
}

TEST(Failure, SentenceDetailAndHint) {
  json::value detail =
      json::parse(R"({"gpus": [{"index": 0, "free": 12348030976, "largest_ask": 12348030976, "holders": [
    {"budget": 7, "user": "ann", "command": "./server", "bytes": 6442450944}, {"foreign_pid": 77, "name": "x\n", "bytes": 2147483648}]},
    {"index": 1, "free": 0, "holders": []}]})");
  Error error{ErrorCode::kNoRoom, "Nobody\x1b[2J home."};
  EXPECT_EQ(error_text(error, Format::kTable, detail),
            "vram: VRAM-2001: Nobody\\x1b[2J home.\n"
            "  GPU 0: 11.5Gi free; held by budget 7 6Gi (ann: ./server), foreign pid 77 x\\n 2Gi\n"
            "  GPU 1: 0 free\n"
            "vram: `vram explain VRAM-2001` tells more\n");
  json::object object = fixture::parse(error_text(error, Format::kJson, detail));
  EXPECT_EQ(object["error"].as_object()["code"], "VRAM-2001");
  EXPECT_EQ(object["error"].as_object()["exit_status"], 75);
  EXPECT_EQ(object["detail"], detail);
}

TEST(Waiting, SaysPlaceReasonAndTime) {
  EXPECT_EQ(waiting_text(2, "GPU 0 has 1Gi\n free", 0), "waiting, place 2: GPU 0 has 1Gi\\n free");
  EXPECT_EQ(waiting_text(1, "x", 12.7), "waiting 12s, place 1: x");
}

TEST(Grant, LineOfVerboseNamesModeAndGaps) {
  Grant g = parse_grant(fixture::parse(R"({"event": "granted", "budget": 7, "simulated": true,
    "gpus": [{"uuid": "GPU-1", "index": 0, "name": "NVIDIA A10", "limit": 6442450944, "context_reserve": 268435456}],
    "guard": {"path_dir": "/r/guard/path", "ns_cuda": "/r/ns/libcuda.so.1", "ns_nvml": "/r/ns/libnvidia-ml.so.1",
      "stash_cuda": "/r/ns/libcuda.real.so", "stash_nvml": "/r/ns/libnvidia-ml.real.so"},
    "driver": {"dir": "/sim", "cuda": ["/sim/libcuda.so.1"], "nvml": []}, "env": {"CUDA_VISIBLE_DEVICES": "GPU-1"}})"));
  ASSERT_EQ(g.covers.size(), 1U);  // no NVML on this machine: nothing to cover
  EXPECT_EQ(g.covers[0].paths, std::vector<std::string>{"/sim/libcuda.so.1"});
  EXPECT_EQ(g.covers[0].stash, "/r/ns/libcuda.real.so");
  EXPECT_EQ(g.environment.size(), 1U);
  EXPECT_EQ(
      grant_line(g, "namespace", ""),
      "vram: budget 7: 6Gi on simulated GPU 0 (NVIDIA A10); a context takes 256Mi of it; mode namespace; past the "
      "guard: a driver of the program's own, static programs, a mount undone on purpose\n");
  EXPECT_EQ(grant_line(g, "path", "not allowed")
                .find("mode path (not allowed); past the guard: the driver opened by absolute path"),
            std::string("vram: budget 7: 6Gi on simulated GPU 0 (NVIDIA A10); a context takes 256Mi of it; ").size());
}

TEST(Grant, LibraryPathKeepsWhatWasSet) {
  EXPECT_EQ(library_path("/guard", nullptr), "/guard");
  EXPECT_EQ(library_path("/guard", ""), "/guard");
  EXPECT_EQ(library_path("/guard", "/a:/b"), "/guard:/a:/b");
  EXPECT_EQ(library_path("", "/a"), "/a");
  EXPECT_EQ(library_path("", nullptr), "");
}

}  // namespace
}  // namespace kvram::cli
