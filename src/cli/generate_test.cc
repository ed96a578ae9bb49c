#include "cli/generate.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace kvram::cli {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return file ? text.str() : "";
}

// The committed pages are what the tables make now.
TEST(Generated, PagesInDocsAreUpToDate) {
  const char* source = getenv("KV_SOURCE_DIR");
  ASSERT_NE(source, nullptr);
  for (const auto& [kind, folder] : {std::pair{"commands", "/docs/commands/"}, std::pair{"errors", "/docs/"}}) {
    for (const auto& [name, text] : generated_files(kind, "")) {
      EXPECT_TRUE(read_file(std::string(source) + folder + name) == text) << "run `make docs`: " << name << " is old";
    }
  }
}

TEST(Generated, EveryErrorIsOnThePage) {
  std::string page = error_page();
  for (const ErrorInfo& info : error_table()) {
    EXPECT_NE(page.find("## " + error_id(info.code) + "\n"), std::string::npos) << error_id(info.code);
    EXPECT_NE(page.find(info.title), std::string::npos);
  }
}

TEST(Generated, EveryCommandAndOptionIsInHelpManAndCompletion) {
  std::string bash = completion_script("bash");
  std::string zsh = completion_script("zsh");
  std::string fish = completion_script("fish");
  for (const CommandPath& path : all_commands()) {
    std::string help = help_text(path);
    std::string man = man_page(path, "1.2.3");
    EXPECT_NE(help.find(path.back()->summary), std::string::npos);
    EXPECT_NE(man.find("\n.SH NAME\n"), std::string::npos);
    EXPECT_NE(man.find("kube\\-vram 1.2.3"), std::string::npos);
    for (const OptionSpec& o : path.back()->options) {
      EXPECT_NE(help.find(o.name), std::string::npos) << o.name;
      std::string escaped;
      for (char c : o.name) escaped += c == '-' ? std::string("\\-") : std::string(1, c);
      EXPECT_NE(man.find(escaped), std::string::npos) << o.name;
      EXPECT_NE(bash.find(o.name), std::string::npos) << o.name;
      EXPECT_NE(zsh.find(std::string(o.name) + "["), std::string::npos) << o.name;
      EXPECT_NE(fish.find(" -l " + std::string(o.name.substr(2))), std::string::npos) << o.name;
    }
  }
  EXPECT_EQ(completion_script("tcsh"), "");
}

TEST(Generated, HiddenCommandsStayHidden) {
  for (const CommandPath& path : all_commands()) EXPECT_FALSE(path.back()->hidden);
  EXPECT_EQ(help_text({&command_tree()}).find("__complete"), std::string::npos);
}

TEST(Generated, UnknownKindIsRefused) {
  Result<void> written = write_generated("poems", "/nowhere", "");
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::kBadUsage);
}

}  // namespace
}  // namespace kvram::cli
