#include "cli/parse.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "cli/actions.h"
#include "cli/daemon.h"
#include "cli/run.h"
#include "cli/sim_models.h"
#include "cli/top.h"

namespace kvram::cli {
namespace {

using Words = std::vector<std::string>;

Invocation parsed(const Words& words) {
  Result<Invocation> line = parse(words);
  EXPECT_TRUE(line.has_value()) << (line ? "" : line.error().message);
  return line.value_or(Invocation{});
}

std::string refusal(const Words& words) {
  Result<Invocation> line = parse(words);
  EXPECT_FALSE(line.has_value());
  if (line) return "";
  EXPECT_EQ(line.error().code, ErrorCode::kBadUsage);
  return line.error().message;
}

Error run_refusal(const Words& words) {
  Result<Invocation> line = parse(words);
  if (!line) return line.error();
  Result<RunRequest> request = run_request(*line);
  return request ? Error{ErrorCode::kInternal, "accepted"} : request.error();
}

TEST(Parse, CommandsAndGlobalOptionsInAnyPlace) {
  for (const Words& words : {Words{"ps", "-o", "json"}, Words{"-o", "json", "ps"}, Words{"ps", "--output=json"}}) {
    Invocation line = parsed(words);
    EXPECT_EQ(line.name(), "ps");
    EXPECT_EQ(line.format(), Format::kJson);
  }
  EXPECT_EQ(parsed({"daemon", "stop", "--force"}).path, (Words{"daemon", "stop"}));
  EXPECT_TRUE(parsed({"daemon", "stop", "-f"}).has("--force"));
  EXPECT_EQ(parsed({"oom", "last"}).arguments, Words{"last"});
  EXPECT_EQ(parsed({}).command, nullptr);
  EXPECT_EQ(parsed({"ps", "-o", "yaml", "-o", "wide"}).format(), Format::kWide);
}

TEST(Parse, SimTakesAnOptionalList) {
  EXPECT_EQ(parsed({"--sim", "ps"}).value("--sim"), "");
  EXPECT_EQ(parsed({"ps", "--sim", "2xA10"}).value("--sim"), "2xA10");
  EXPECT_EQ(parsed({"ps", "--sim"}).value("--sim"), "");
  EXPECT_FALSE(parsed({"ps"}).has("--sim"));
  EXPECT_EQ(parsed({"oom", "--sim", "last"}).arguments, Words{"last"});
  EXPECT_EQ(parsed({"oom", "--sim", "7"}).arguments, Words{"7"});
  EXPECT_EQ(parsed({"oom", "--sim=2xA10", "7"}).value("--sim"), "2xA10");
  for (const char* text : {"A10", "2xA10,1xH100-80GB", "RTX 4090", "rtx4090"})
    EXPECT_TRUE(looks_like_gpus(text)) << text;
  for (const char* text : {"", "last", "7", "A10,", ",A10", "./server2", "-o3", "A10,,T4"}) {
    EXPECT_FALSE(looks_like_gpus(text)) << text;
  }
  Invocation line = parsed({"run", "--sim", "--memory", "1Gi", "--", "x"});
  EXPECT_EQ(line.value("--sim"), "");
  EXPECT_EQ(line.value("--memory"), "1Gi");
}

TEST(Parse, EverythingBehindTheDashesIsTheCommand) {
  Invocation line = parsed({"run", "-m", "6Gi", "--", "./server", "--memory", "5", "--", "-o", "json"});
  EXPECT_EQ(line.arguments, (Words{"./server", "--memory", "5", "--", "-o", "json"}));
  EXPECT_EQ(line.value("--memory"), "6Gi");
  EXPECT_EQ(line.format(), Format::kTable);
  EXPECT_EQ(parsed({"run", "--memory", "6Gi", "nvidia-smi"}).arguments, Words{"nvidia-smi"});
}

TEST(Parse, MistakesSayWhatWasMeant) {
  EXPECT_EQ(
      refusal({"rnu"}),
      "`vram` has no command 'rnu'. Did you mean 'run'? There are: run, ps, top, gpus, oom, kill, daemon, explain, "
      "completion.");
  EXPECT_EQ(refusal({"daemon", "stat"}),
            "`vram daemon` has no command 'stat'. Did you mean 'status'? There are: status, stop.");
  EXPECT_EQ(refusal({"run", "--memroy", "6Gi", "--", "x"}),
            "`vram run` has no option --memroy. Did you mean --memory? `vram run --help` lists what it takes.");
  EXPECT_EQ(refusal({"run", "-m", "6Gi", "ls", "--all"}),
            "--all may belong to `vram run` or to 'ls': write -- before the command, as in `vram run --memory 6Gi -- "
            "ls --all`.");
  EXPECT_EQ(refusal({"run", "--memory"}), "--memory needs a value. `vram COMMAND --help` lists the options.");
  EXPECT_EQ(refusal({"ps", "-o", "xml"}), "'xml' is no output format: json, yaml or wide.");
  EXPECT_EQ(refusal({"ps", "x"}), "`vram ps` takes no argument 'x'. `vram ps --help` lists what it takes.");
  EXPECT_EQ(refusal({"ps", "--", "x"}), "`vram ps` runs no command: -- has no place here.");
  EXPECT_EQ(refusal({"\x1b[2J"}).substr(0, 32), "`vram` has no command '\\x1b[2J'.");
}

TEST(Parse, ErrorsOfABrokenLineStillComeAsJson) {
  EXPECT_EQ(format_hint({"run", "-o", "json", "--nope"}), Format::kJson);
  EXPECT_EQ(format_hint({"run", "--", "x", "-o", "json"}), Format::kTable);
}

TEST(RunRequest, BadInputHasItsCode) {
  struct Row {
    Words words;
    ErrorCode code;
    const char* says;
  };
  const Row rows[] = {
      {{"run", "--memory", "0", "--", "x"}, ErrorCode::kBadQuantity, "'0'"},
      {{"run", "--memory", "-1", "--", "x"}, ErrorCode::kBadQuantity, "negative"},
      {{"run", "--memory", "4X", "--", "x"}, ErrorCode::kBadQuantity, "suffix"},
      {{"run", "--memory", "1e30", "--", "x"}, ErrorCode::kBadQuantity, "larger"},
      {{"run", "--memory", "", "--", "x"}, ErrorCode::kBadQuantity, "empty"},
      {{"run", "--memory", "6Gi", "--gpu", "0", "--", "x"}, ErrorCode::kBadGpuCount, "--gpu 0"},
      {{"run", "--memory", "6Gi", "--gpu", "-2", "--", "x"}, ErrorCode::kBadGpuCount, "--gpu -2"},
      {{"run", "--memory", "6Gi", "--gpu", "two", "--", "x"}, ErrorCode::kBadGpuCount, "--gpu two"},
      {{"run", "--memory", "6Gi", "--gpu", "17", "--", "x"}, ErrorCode::kBadGpuCount, "1 to 16"},
      {{"run", "--card", "0", "--", "x"}, ErrorCode::kBadGpuCount, "--card 0"},
      {{"run", "--card", "1", "--memory", "6Gi", "--", "x"}, ErrorCode::kCardBesideMemory, "one of the two"},
      {{"run", "--card", "1", "--gpu", "2", "--", "x"}, ErrorCode::kBadUsage, "beside --card"},
      {{"run", "--gpu", "2", "--", "x"}, ErrorCode::kBadUsage, "--memory 40Gi --gpu 2"},
      {{"run", "--", "x"}, ErrorCode::kBadUsage, "--memory 6Gi"},
      {{"run", "--memory", "6Gi"}, ErrorCode::kNoCommand, "after --"},
      {{"run", "--memory", "6Gi", "--"}, ErrorCode::kNoCommand, "after --"},
      {{"run", "--memory", "6Gi", "--wait", "soon", "--", "x"}, ErrorCode::kBadDuration, "'soon'"},
      {{"run", "--memory", "6Gi", "--wait", "0", "--", "x"}, ErrorCode::kBadDuration, "'0'"},
  };
  for (const Row& row : rows) {
    Error error = run_refusal(row.words);
    EXPECT_EQ(error.code, row.code) << error.message;
    EXPECT_NE(error.message.find(row.says), std::string::npos) << error.message;
  }
}

TEST(RunRequest, ReadsEverything) {
  Result<RunRequest> r =
      run_request(parsed({"run", "-m", "40Gi", "--gpu", "2", "--wait", "1h30m", "--strict", "-v", "--", "a", "b"}));
  ASSERT_TRUE(r.has_value());
  EXPECT_EQ(r->memory, Bytes(40LL << 30));
  EXPECT_EQ(r->gpus, 2);
  EXPECT_EQ(r->wait_s, 5400.0);
  EXPECT_TRUE(r->strict && r->verbose && !r->no_namespace);
  EXPECT_EQ(r->command, (Words{"a", "b"}));
}

TEST(Durations, UnitsAddUp) {
  EXPECT_EQ(parse_duration("90"), 90.0);
  EXPECT_EQ(parse_duration("0.5s"), 0.5);
  EXPECT_EQ(parse_duration("10m"), 600.0);
  EXPECT_EQ(parse_duration("1d2h3m4s"), 93784.0);
  for (const char* text : {"", "-5", "5x", "m", "1h30", "1e3", "31d", "nan", "inf", "5 s"}) {
    EXPECT_FALSE(parse_duration(text).has_value()) << text;
  }
}

TEST(Signals, NamesAndNumbers) {
  EXPECT_EQ(parse_signal("KILL"), 9);
  EXPECT_EQ(parse_signal("sigterm"), 15);
  EXPECT_EQ(parse_signal("2"), 2);
  for (const char* text : {"", "0", "65", "NOPE", "9x"}) EXPECT_FALSE(parse_signal(text).has_value()) << text;
}

TEST(Ids, PositiveNumbers) {
  EXPECT_EQ(parse_id("7", "a budget"), 7);
  EXPECT_EQ(parse_id("#12", "a budget"), 12);
  for (const char* text : {"", "0", "-1", "7a", "99999999999999999999"}) {
    EXPECT_EQ(parse_id(text, "a budget").error().code, ErrorCode::kBadId) << text;
  }
}

TEST(Intervals, Bounds) {
  EXPECT_EQ(parse_interval("0.1"), 0.1);
  EXPECT_EQ(parse_interval("3600"), 3600.0);
  for (const char* text : {"0", "-1", "0.05", "3601", "x", ""}) EXPECT_FALSE(parse_interval(text).has_value()) << text;
}

TEST(SimModels, OnlyThoseOfTheCatalogue) {
  const std::string catalogue =
      R"({"gpus": [{"key": "A10"}, {"key": "A100-40GB"}, {"key": "A100-80GB"}, {"key": "H100-80GB"}, {"key": "RTX4090"}]})";
  for (const char* gpus : {"A10", "2xa10,1xH100-80GB", "h100", "rtx 4090", "16xA10"}) {
    EXPECT_TRUE(check_gpus(gpus, catalogue).has_value()) << gpus;
  }
  EXPECT_EQ(check_gpus("1xZ999", catalogue).error().message,
            "'Z999' is none of the simulated GPUs. There are: A10, A100-40GB, A100-80GB, H100-80GB, RTX4090.");
  EXPECT_EQ(check_gpus("A100", catalogue).error().message.substr(0, 26), "'A100' is more than one of");
  EXPECT_EQ(check_gpus("17xA10", catalogue).error().code, ErrorCode::kBadSimSpec);
  EXPECT_EQ(check_gpus("0xA10", catalogue).error().code, ErrorCode::kBadSimSpec);
  EXPECT_TRUE(check_gpus("1xZ999", "").has_value());
  EXPECT_TRUE(same_gpus("A10,A10", "2xA10"));
  EXPECT_FALSE(same_gpus("A10", "2xA10"));
}

TEST(FindCommand, MissingAndNotExecutable) {
  EXPECT_EQ(find_command("/bin/sh"), "/bin/sh");
  EXPECT_TRUE(find_command("sh").has_value());
  EXPECT_EQ(find_command("no-such-command-here").error().code, ErrorCode::kCommandMissing);
  EXPECT_EQ(find_command("/no/such/file").error().code, ErrorCode::kCommandMissing);
  EXPECT_EQ(find_command("").error().code, ErrorCode::kCommandMissing);
  EXPECT_EQ(find_command("/etc/passwd").error().message,
            "/etc/passwd cannot be executed: it lacks the permission (chmod +x).");
  EXPECT_EQ(find_command("/tmp").error().message, "/tmp cannot be executed: it is a folder.");
}

}  // namespace
}  // namespace kvram::cli
