#include "simgpu/image.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <optional>

#include "lease/module_image.h"

namespace kvram::simgpu {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr char kElfMagic[] = {0x7f, 'E', 'L', 'F'};

bool word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%'; }

// PTX with its comments blanked out, so that offsets stay those of the text.
std::string without_comments(std::string_view text) {
  std::string out(text);
  for (size_t i = 0; i + 1 < out.size(); ++i) {
    size_t end = 0;
    if (out[i] == '/' && out[i + 1] == '/') {
      end = out.find('\n', i);
    } else if (out[i] == '/' && out[i + 1] == '*') {
      end = out.find("*/", i + 2);
      if (end != std::string::npos) end += 2;
    } else {
      continue;
    }
    end = std::min(end, out.size());
    for (size_t j = i; j < end; ++j) {
      if (out[j] != '\n') out[j] = ' ';
    }
    i = end;
  }
  return out;
}

class Cursor {
 public:
  Cursor(std::string_view text, size_t at) : text_(text), at_(at) {}
  size_t at() const { return at_; }
  bool done() const { return at_ >= text_.size(); }
  void skip_space() {
    while (!done() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  char peek() {
    skip_space();
    return done() ? '\0' : text_[at_];
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  // ".name", a word or a number; empty at anything else.
  std::string_view token() {
    skip_space();
    size_t start = at_;
    if (!done() && text_[at_] == '.') ++at_;
    while (!done() && word_char(text_[at_])) ++at_;
    return text_.substr(start, at_ - start);
  }
  // Behind the bracket that closes the one here.
  // False if nothing does.
  bool skip_group(char open, char close) {
    if (!take(open)) return false;
    int depth = 1;
    for (; !done() && depth > 0; ++at_) depth += (text_[at_] == open) - (text_[at_] == close);
    return depth == 0;
  }

 private:
  std::string_view text_;
  size_t at_;
};

uint32_t number(std::string_view text) {
  uint32_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Bytes of a type such as ".u64", ".b8", ".f16x2", ".pred"; 0 for what is no type.
uint32_t type_bytes(std::string_view type) {
  if (type.size() < 3 || (type[1] != 'u' && type[1] != 's' && type[1] != 'b' && type[1] != 'f')) return 0;
  uint32_t bits = number(type.substr(2));
  bool pair = type.ends_with("x2");
  return bits % 8 == 0 && bits <= 128 ? bits / 8 * (pair ? 2 : 1) : 0;
}

struct Variable {
  std::string name;
  uint64_t bytes = 0;
  uint32_t align = 0;
  bool managed = false;
};

// ".align 8 .b8 name[16]" and the like, behind ".param", ".global", ".shared"; nothing if it is no declaration.
std::optional<Variable> read_variable(Cursor& at) {
  Variable out;
  uint32_t each = 0;
  while (at.peek() == '.') {
    std::string_view word = at.token();
    if (word == ".align") {
      out.align = number(at.token());
    } else if (word == ".v2" || word == ".v4") {
      each = each == 0 ? (word == ".v2" ? 2U : 4U) : each * (word == ".v2" ? 2U : 4U);
    } else if (word == ".attribute") {
      size_t start = at.at();
      at.skip_group('(', ')');
      out.managed = at.at() > start;
    } else if (word == ".ptr" || word == ".space") {
      continue;
    } else if (uint32_t bytes = type_bytes(word)) {
      each = each == 0 ? bytes : each * bytes;
    }
  }
  out.name = std::string(at.token());
  out.bytes = each;
  while (at.peek() == '[') {
    at.take('[');
    out.bytes *= std::max<uint64_t>(1, number(at.token()));
    at.take(']');
  }
  if (out.name.empty() || each == 0) return std::nullopt;
  if (out.align == 0) out.align = each;
  return out;
}

void read_params(Cursor& at, ImageKernel& kernel) {
  kernel.params_known = true;
  if (!at.take('(')) return;
  uint64_t offset = 0;
  while (!at.done() && at.peek() != ')') {
    if (at.token() != ".param") {
      if (!at.take(',')) break;
      continue;
    }
    std::optional<Variable> variable = read_variable(at);
    if (!variable) break;
    offset = (offset + variable->align - 1) / variable->align * variable->align;
    kernel.params.push_back(ImageParam{static_cast<uint32_t>(offset), static_cast<uint32_t>(variable->bytes)});
    offset += variable->bytes;
    at.take(',');
  }
  at.take(')');
}

// "// sim: us=100 regs=64 local=256" in a piece of the original text.
void read_directives(std::string_view text, ImageKernel& kernel) {
  for (size_t found = text.find("// sim:"); found != std::string_view::npos; found = text.find("// sim:", found + 1)) {
    std::string_view line = text.substr(found + 7, text.find('\n', found) - found - 7);
    while (!line.empty()) {
      size_t start = line.find_first_not_of(" \t\r");
      if (start == std::string_view::npos) break;
      std::string_view one = line.substr(start, line.find_first_of(" \t\r", start) - start);
      line.remove_prefix(std::min(line.size(), start + one.size()));
      size_t equals = one.find('=');
      if (equals == std::string_view::npos) continue;
      std::string_view key = one.substr(0, equals);
      std::string value(one.substr(equals + 1));
      if (key == "us") kernel.gpu_ns = static_cast<uint64_t>(std::strtod(value.c_str(), nullptr) * 1000);
      if (key == "regs") kernel.registers = number(value);
      if (key == "local") kernel.local_bytes = number(value);
    }
  }
}

// The entry whose ".entry" ends at `at`; returns where its body ends.
size_t read_entry(std::string_view plain, std::string_view original, size_t at, Image& image) {
  ImageKernel kernel;
  Cursor cursor(plain, at);
  kernel.name = std::string(cursor.token());
  if (cursor.peek() == '(') read_params(cursor, kernel);
  kernel.params_known = true;
  while (cursor.peek() == '.') {
    std::string_view word = cursor.token();
    if (word != ".maxntid" && word != ".reqntid") {
      cursor.token();
      continue;
    }
    uint32_t threads = std::max(1U, number(cursor.token()));
    while (cursor.take(',')) threads *= std::max(1U, number(cursor.token()));
    kernel.max_threads = std::min(threads, 1024U);
  }
  size_t body = cursor.at();
  if (cursor.peek() == '{' && !cursor.skip_group('{', '}')) image.status = Image::Status::kBadPtx;
  std::string_view inside = plain.substr(body, cursor.at() - body);
  for (size_t found = inside.find(".shared"); found != std::string_view::npos;
       found = inside.find(".shared", found + 1)) {
    Cursor declared(inside, found + 7);
    if (found != 0 && word_char(inside[found - 1])) continue;  // "ld.shared", not a declaration
    if (std::optional<Variable> variable = read_variable(declared)) {
      kernel.shared_bytes += static_cast<uint32_t>(variable->bytes);
    }
  }
  // From the start of the line before the entry's own.
  size_t line = original.rfind('\n', at);
  size_t before = line == std::string_view::npos || line == 0 ? std::string_view::npos : original.rfind('\n', line - 1);
  size_t start = before == std::string_view::npos ? 0 : before;
  size_t end = std::min(original.size(), original.find('\n', cursor.at()));
  read_directives(original.substr(start, end - start), kernel);
  if (!kernel.name.empty()) image.kernels.push_back(std::move(kernel));
  return std::max(cursor.at(), at);
}

void add_global(std::string_view plain, size_t at, Image& image) {
  Cursor cursor(plain, at);
  std::optional<Variable> variable = read_variable(cursor);
  if (variable) image.globals.push_back(ImageGlobal{variable->name, variable->bytes, variable->managed});
}

void read_cubin(const unsigned char* p, uint64_t bytes, Image& image) {
  using lease::image::read;
  image.status = Image::Status::kInvalid;
  if (bytes < 64 || p[4] != 2 || p[5] != 1) return;  // 64-bit, little-endian
  image.status = Image::Status::kGood;
  uint64_t table = read<uint64_t>(p + 40);
  uint64_t entry = read<uint16_t>(p + 58);
  uint64_t count = read<uint16_t>(p + 60);
  uint64_t names_index = read<uint16_t>(p + 62);
  if (entry < 64 || table >= bytes || count > (bytes - table) / entry || names_index >= count) return;
  const unsigned char* names_section = p + table + names_index * entry;
  uint64_t names = read<uint64_t>(names_section + 24);
  uint64_t names_bytes = read<uint64_t>(names_section + 32);
  if (names >= bytes || names_bytes > bytes - names) return;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t name = read<uint32_t>(p + table + i * entry);
    if (name >= names_bytes) continue;
    const char* text = reinterpret_cast<const char*>(p + names + name);
    std::string_view section(text, strnlen(text, names_bytes - name));
    if (!section.starts_with(".text.")) continue;
    ImageKernel kernel;
    kernel.name = std::string(section.substr(6));
    image.kernels.push_back(std::move(kernel));
  }
}

void add_all(Image& into, Image&& from) {
  for (ImageKernel& kernel : from.kernels) {
    auto same = [&](const ImageKernel& known) { return known.name == kernel.name; };
    if (std::none_of(into.kernels.begin(), into.kernels.end(), same)) into.kernels.push_back(std::move(kernel));
  }
  for (ImageGlobal& global : from.globals) into.globals.push_back(std::move(global));
}

void read_fatbin(const unsigned char* p, uint64_t bytes, Image& image) {
  using lease::image::read;
  image.status = Image::Status::kGood;
  uint64_t at = read<uint16_t>(p + 6);
  while (at + 16 <= bytes) {
    uint64_t header = read<uint32_t>(p + at + 4);
    uint64_t payload = read<uint64_t>(p + at + 8);
    if (header < 16 || header > bytes - at || payload > bytes - at - header) break;
    const unsigned char* inside = p + at + header;
    std::string_view text(reinterpret_cast<const char*>(inside), payload);
    if (payload >= 64 && std::memcmp(inside, kElfMagic, 4) == 0) {
      Image cubin;
      read_cubin(inside, payload, cubin);
      add_all(image, std::move(cubin));
    } else if (text.substr(0, 4096).find(".version") != std::string_view::npos) {
      add_all(image, read_ptx(text.substr(0, text.find('\0'))));
    } else if (payload != 0) {
      image.opaque = true;
    }
    at += header + payload;
  }
  if (image.kernels.empty()) image.opaque = true;
}

}  // namespace

Image read_ptx(std::string_view text) {
  Image image;
  image.bytes = text.size() + 1;
  std::string plain = without_comments(text);
  if (plain.find(".version") == std::string::npos) return image;
  image.status = Image::Status::kGood;
  int depth = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    if (plain[i] == '{') ++depth;
    if (plain[i] == '}') --depth;
    if (depth < 0) break;
    if (plain[i] != '.' || (i != 0 && word_char(plain[i - 1]))) continue;
    std::string_view rest = std::string_view(plain).substr(i);
    auto is = [&](std::string_view word) {
      return rest.starts_with(word) && (rest.size() == word.size() || !word_char(rest[word.size()]));
    };
    if (is(".entry")) {
      i = read_entry(plain, text, i + 6, image) - 1;
    } else if (depth == 0 && is(".global")) {
      add_global(plain, i + 7, image);
    } else if (depth == 0 && is(".const")) {
      add_global(plain, i + 6, image);
    }
  }
  if (depth != 0) image.status = Image::Status::kBadPtx;
  return image;
}

Image read_image(const void* data) {
  Image image;
  if (data == nullptr) return image;
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t bytes = lease::module_image_bytes(data);
  if (bytes < 5) return image;  // too short for any kind
  uint32_t magic = lease::image::read<uint32_t>(p);
  if (magic == kWrapperMagic) {
    const void* inner = reinterpret_cast<const void*>(lease::image::read<uintptr_t>(p + 8));
    if (inner == nullptr || lease::image::read<uint32_t>(static_cast<const unsigned char*>(inner)) != kFatbinMagic) {
      return image;
    }
    return read_image(inner);
  }
  if (magic == kFatbinMagic) {
    read_fatbin(p, bytes, image);
  } else if (std::memcmp(p, kElfMagic, 4) == 0) {
    read_cubin(p, bytes, image);
  } else {
    return read_ptx(static_cast<const char*>(data));
  }
  image.bytes = bytes;
  return image;
}

Image read_file_image(const std::string& content) {
  const auto* p = reinterpret_cast<const unsigned char*>(content.data());
  if (content.size() < 16) return Image{};
  uint32_t magic = lease::image::read<uint32_t>(p);
  if (magic == kWrapperMagic) return Image{};  // a pointer means nothing in a file
  if (magic == kFatbinMagic) {
    uint64_t body = lease::image::read<uint64_t>(p + 8);
    uint64_t header = lease::image::read<uint16_t>(p + 6);
    if (body > content.size() || header + body > content.size()) return Image{};
  } else if (std::memcmp(p, kElfMagic, 4) == 0) {
    if (content.size() < 64) return Image{};
    uint64_t table = lease::image::read<uint64_t>(p + 40);
    uint64_t rows = static_cast<uint64_t>(lease::image::read<uint16_t>(p + 58)) * lease::image::read<uint16_t>(p + 60);
    if (table > content.size() || rows > content.size() - table) return Image{};
    if (lease::module_image_bytes(p) > content.size()) return Image{};
  }
  return read_image(content.c_str());
}

}  // namespace kvram::simgpu
