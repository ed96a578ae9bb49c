#include "cli/text.h"

#include <gtest/gtest.h>

#include "cli/table.h"

namespace kvram::cli {
namespace {

TEST(Text, PrintableEscapesWhatATerminalActsOn) {
  EXPECT_EQ(printable("plain text, 6Gi"), "plain text, 6Gi");
  EXPECT_EQ(printable("a\nb\tc\rd"), "a\\nb\\tc\\rd");
  EXPECT_EQ(printable("\x1b[31mred\x07"), "\\x1b[31mred\\x07");
  EXPECT_EQ(printable(std::string_view("nul\0x", 5)), "nul\\x00x");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\x9b2J");  // C1 control sequence introducer
  EXPECT_EQ(printable("\xe2\x80\xae"
                      "gpj.exe"),
            "\\u{202e}gpj.exe");  // right-to-left override
  EXPECT_EQ(printable("gr\xc3\xbc\xc3\x9f dich"), "gr\xc3\xbc\xc3\x9f dich");
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");           // overlong '/'
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("cut \xe2\x82"), "cut \\xe2\\x82");
}

TEST(Text, WidthAndShorteningCountColumns) {
  EXPECT_EQ(display_width("abc"), 3U);
  EXPECT_EQ(display_width("\xe6\xbc\xa2"), 2U);  // one wide character
  EXPECT_EQ(display_width("e\xcc\x81"), 1U);     // e and a combining accent
  EXPECT_EQ(shorten("abcdef", 6), "abcdef");
  EXPECT_EQ(shorten("abcdefg", 6), "abc...");
  EXPECT_EQ(shorten("\xe6\xbc\xa2\xe6\xbc\xa2\xe6\xbc\xa2\xe6\xbc\xa2", 6), "\xe6\xbc\xa2...");
  EXPECT_EQ(shorten("abcdef", 2), "..");
  EXPECT_EQ(shorten("abcdef", 0), "");
  EXPECT_EQ(pad_left("7", 3), "  7");
  EXPECT_EQ(pad_right("7", 3), "7  ");
}

TEST(Text, WrapBreaksAtSpaces) {
  EXPECT_EQ(wrap("one two three", 7), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(wrap("incomprehensible x", 5), (std::vector<std::string>{"incomprehensible", "x"}));
  EXPECT_EQ(wrap("", 5), std::vector<std::string>{""});
}

TEST(Text, NearestFindsWhatWasMeant) {
  std::vector<std::string_view> words = {"run", "ps", "top", "gpus", "oom", "explain", "completion"};
  EXPECT_EQ(nearest("rnu", words), "run");
  EXPECT_EQ(nearest("gpu", words), "gpus");
  EXPECT_EQ(nearest("compl", words), "completion");
  EXPECT_EQ(nearest("zebra", words), "");
  EXPECT_EQ(nearest("", words), "");
  EXPECT_EQ(edit_distance("abcd", "abdc"), 1U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
}

TEST(Text, AgesAreRoundedDown) {
  EXPECT_EQ(format_age(-5), "0s");
  EXPECT_EQ(format_age(119.9), "119s");
  EXPECT_EQ(format_age(120), "2m");
  EXPECT_EQ(format_age(7200), "2h");
  EXPECT_EQ(format_age(172800), "2d");
}

TEST(Table, AlignsAndEscapes) {
  Table table({{"ID", Align::kRight}, {"NAME"}, {"LAST"}});
  table.add({"7", "a\nb", "x"});
  table.add({"1234", "c"});
  EXPECT_EQ(table.text(),
            "  ID  NAME  LAST\n"
            "   7  a\\nb  x\n"
            "1234  c\n");
  EXPECT_EQ(table.text(12),
            "  ID  NAM...\n"
            "   7  a\\n...\n"
            "1234  c\n");
}

}  // namespace
}  // namespace kvram::cli
