#include "node/journal.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "node/driver_files.h"
#include "node/guard_folder.h"
#include "node/oom_log.h"

namespace kvram::node {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/kvj-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path;
};

TEST(Journal, WhatIsAppendedIsLoaded) {
  Folder folder;
  {
    Journal journal(folder.path, "j", 1000);
    EXPECT_TRUE(journal.load().empty());
    journal.append("one");
    journal.append("two words");
    EXPECT_FALSE(journal.trouble());
  }
  Journal again(folder.path, "j", 1000);
  EXPECT_EQ(again.load(), (std::vector<std::string>{"one", "two words"}));
}

TEST(Journal, EveryPlaceWhereALineCanBeCutOffLosesThatLineAlone) {
  Folder folder;
  std::string path = folder.path + "/j";
  {
    Journal journal(folder.path, "j", 1000);
    journal.append("first");
    journal.append("second");
  }
  auto whole = fs::file_size(path);
  for (size_t cut = 1; cut <= 15; ++cut) {
    fs::resize_file(path, whole - cut);
    Journal journal(folder.path, "j", 1000);
    EXPECT_EQ(journal.load(), (std::vector<std::string>{"first"})) << cut;
    journal.append("second");
    EXPECT_EQ(fs::file_size(path), whole) << "the cut line is gone before the next is written";
  }
}

TEST(Journal, EveryDamagedByteIsFoundAndTheFileKeptAside) {
  Folder folder;
  std::string path = folder.path + "/j";
  for (size_t at = 0; at < 14; ++at) {
    fs::remove(path);
    {
      Journal journal(folder.path, "j", 1000);
      journal.append("first");
      journal.append("second");
    }
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file << '!';
    file.close();
    Journal journal(folder.path, "j", 1000);
    EXPECT_EQ(journal.load(), (std::vector<std::string>{"second"})) << at;
    EXPECT_NE(journal.kept_aside(), "") << at;
  }
}

TEST(Journal, ARewriteReplacesAllAndIsAskedForWhenTheFileGrows) {
  Folder folder;
  Journal journal(folder.path, "j", 60);
  for (int i = 0; i < 10; ++i) journal.append("line");
  EXPECT_TRUE(journal.wants_rewrite());
  journal.rewrite({"all"});
  EXPECT_FALSE(journal.wants_rewrite());
  journal.append("more");
  Journal again(folder.path, "j", 60);
  EXPECT_EQ(again.load(), (std::vector<std::string>{"all", "more"}));
}

TEST(Journal, AFolderThatIsNotThereIsTroubleNotAnEnd) {
  Journal journal("/nonexistent/folder", "j", 60);
  journal.append("line");
  ASSERT_TRUE(journal.trouble());
  EXPECT_EQ(journal.trouble()->code, ErrorCode::kStateReadOnly);
}

TEST(OomLog, KeepsTheLastOnesAndCountsWhatWasOvercome) {
  OomLog log;
  for (uint64_t id = 1; id <= kMaxOoms + 5; ++id) {
    Oom oom;
    oom.id = id;
    oom.pid = 7;
    log.add(oom);
  }
  EXPECT_EQ(log.all().size(), kMaxOoms);
  EXPECT_EQ(log.find(5), nullptr);
  EXPECT_FALSE(log.overcome(6, 8)) << "another process's refusal";
  EXPECT_TRUE(log.overcome(6, 7));
  EXPECT_EQ(log.find(6), nullptr);
  EXPECT_EQ(log.counted_overcome(), 1u);
}

TEST(OomLog, GoesThroughTheJournalUnchanged) {
  Oom oom;
  oom.id = 9;
  oom.time = 1796081226.25;
  oom.budget = 4;
  oom.uid = 1000;
  oom.command = "./d \"x\"";
  oom.pid = 77;
  oom.process = "d";
  oom.call = "cuMemAlloc_v2";
  oom.asked = 4096;
  oom.limit = 6ULL << 30;
  oom.charged = oom.limit;
  oom.processes = {{77, "d", 6ULL << 30, 5ULL << 30}};
  oom.gpu_total = 24ULL << 30;
  auto back = oom_from_json(oom_json(oom, true));
  ASSERT_TRUE(back);
  EXPECT_EQ(oom_json(*back, true), oom_json(oom, true));
  EXPECT_FALSE(oom_from_json("{\"id\":\"x\"}"));
  EXPECT_FALSE(oom_from_json("nonsense"));
}

TEST(LoaderCache, FindsPathsAndBearsDamage) {
  std::ifstream file("/etc/ld.so.cache", std::ios::binary);
  std::string cache((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_FALSE(cache.empty());
  std::vector<std::string> libc = cache_paths(cache, "libc.so.6");
  ASSERT_FALSE(libc.empty());
  EXPECT_TRUE(fs::exists(libc[0]));
  for (size_t cut = 0; cut < 2000; cut += 13) cache_paths(cache.substr(0, cut), "lib");
  std::string wild = cache;
  for (size_t i = 60; i < wild.size(); i += 7) wild[i] = '\xff';
  cache_paths(wild, "lib");
}

TEST(GuardFolder, ALibraryWithoutThePlacesIsRefused) {
  EXPECT_EQ(patch_guard("no library", "/s", "libcuda.real.so", "/r").error().code, ErrorCode::kGuardMissing);
  Folder folder;
  auto made = prepare_guard_folder(folder.path, folder.path + "/none", {});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kGuardMissing);
}

}  // namespace
}  // namespace kvram::node
