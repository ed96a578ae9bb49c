#include "cli/json.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

namespace kvram::cli {
namespace {

TEST(Json, PrettyKeepsIntegersAndEscapesControls) {
  json::value v = json::parse(
      R"({"bytes": 9223372036854775807, "time": 1.5, "name": "a\u001b[2J\u007f\u009b", "none": [], "list": [1, {}]})");
  EXPECT_EQ(pretty_json(v),
            "{\n"
            "  \"bytes\": 9223372036854775807,\n"
            "  \"time\": 1.5,\n"
            "  \"name\": \"a\\u001b[2J\\u007f\\u009b\",\n"
            "  \"none\": [],\n"
            "  \"list\": [\n"
            "    1,\n"
            "    {}\n"
            "  ]\n"
            "}\n");
  EXPECT_EQ(json::parse(pretty_json(v)), v);
}

TEST(Yaml, QuotesWhatWouldBeReadAsSomethingElse) {
  json::value v =
      json::parse(R"({"gpus": [{"index": 0, "name": "NVIDIA A10", "uuid": "GPU-1"}, {"index": 1}], "no": "no",
    "number": "12", "date": "2026-01-01", "colon": "a: b", "empty": "", "control": "a\nb", "nothing": null, "flag": true, "list": [], "map": {}})");
  EXPECT_EQ(to_yaml(v),
            "gpus:\n"
            "  - index: 0\n"
            "    name: NVIDIA A10\n"
            "    uuid: GPU-1\n"
            "  - index: 1\n"
            "\"no\": \"no\"\n"
            "number: \"12\"\n"
            "date: \"2026-01-01\"\n"
            "colon: \"a: b\"\n"
            "empty: \"\"\n"
            "control: \"a\\nb\"\n"
            "nothing: null\n"
            "flag: true\n"
            "list: []\n"
            "map: {}\n");
}

TEST(Json, ReadersAreTolerant) {
  json::value v = json::parse(R"({"text": "x", "int": 3, "huge": 18446744073709551615, "double": 2.5})");
  const json::object& o = v.get_object();
  EXPECT_EQ(int_at(o, "int"), 3);
  EXPECT_EQ(int_at(o, "huge"), INT64_MAX);
  EXPECT_EQ(int_at(o, "text", -1), -1);
  EXPECT_EQ(double_at(o, "int"), 3.0);
  EXPECT_EQ(double_at(o, "double"), 2.5);
  EXPECT_EQ(text_at(o, "int"), "");
  EXPECT_TRUE(array_at(o, "none").empty());
  EXPECT_TRUE(object_at(o, "text").empty());
  EXPECT_EQ(parse_object("[1]").error().code, ErrorCode::kDaemonProtocol);
  EXPECT_EQ(parse_object("{\"a\": ").error().code, ErrorCode::kDaemonProtocol);
}

}  // namespace
}  // namespace kvram::cli
