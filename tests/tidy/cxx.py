"""A small reader of C++: enough to find includes and the extent of functions, without a compiler."""
import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)"""
    r"""|(?P<raw>(?:u8|[uUL])?R"(?P<delim>[^()\\\s]{0,16})\(.*?\)(?P=delim)")"""
    r"""|(?P<string>"(?:\\.|[^"\\\n])*")"""
    r"""|(?P<number>\.?\d(?:'?[\w.])*)"""
    r"""|(?P<char>'(?:\\.|[^'\\\n])+')"""
    r"""|(?P<directive>^[ \t]*\#(?:\\\n|[^\n])*)"""
    r"""|(?P<word>[A-Za-z_]\w*)"""
    r"""|(?P<punct>[{}();=,:<>\[\]&*~!+\-/%|^?.@])""",
    re.DOTALL | re.MULTILINE | re.VERBOSE)
_TYPE_WORDS = {"class", "struct", "union", "enum"}
_PLAIN = {"const", "noexcept", "override", "final", "mutable", "try", "volatile", "&", "*", "else", "do"}


@dataclass
class Function:
    """name: the word before the first parenthesis of its head; first and last: its lines, head and closing brace included."""
    name: str
    first: int
    last: int

    @property
    def lines(self):
        return self.last - self.first + 1


def includes(text):
    """[(line number, path, quoted?)] of every #include."""
    found = []
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', text, re.MULTILINE):
        line = text.count("\n", 0, match.start()) + 1
        found.append((line, match.group(1) or match.group(2), match.group(1) is not None))
    return found


def tokens(text):
    """(kind, text, line) without comments and preprocessor lines; literals come as one token."""
    line, at = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        kind = match.lastgroup if match.lastgroup != "delim" else "raw"
        if kind not in ("comment", "directive"):
            yield kind, match.group(), line


def _is_type(head):
    """Whether a brace after `head` opens a class: `struct X : Y<Z>`, but not `struct X f()`."""
    depth = 0
    seen_type = False
    for _, word, _ in head:
        depth += (word in "(<") - (word in ")>") if len(word) == 1 else 0
        if depth == 0 and word in _TYPE_WORDS:
            seen_type = True
        if depth == 0 and word == ")" and seen_type and head[0][1] not in ("template", "class", "struct"):
            return False
    if not seen_type:
        return False
    words = [word for _, word, _ in head]
    return words[-1] != ")" and words[-1] not in _PLAIN - {"final"}


def _without_template(words):
    """The words of a head after `template <...>`."""
    if words[:2] != ["template", "<"]:
        return words
    depth = 0
    for i, word in enumerate(words):
        depth += (word == "<") - (word == ">")
        if i and depth == 0 and word == ">":
            return _without_template(words[i + 1:])
    return words


def _initialises_member(words):
    """Whether a brace after these words is a member's in `X() : a_{1}`: a lone colon after a parenthesis, and a name last."""
    if words[-1] in _PLAIN or not re.match(r"\w|>", words[-1]):
        return False
    after = words[words.index("("):]
    return any(w == ":" and ":" not in (after[i - 1], after[i + 1]) for i, w in enumerate(after[:-1]))


def _classify(head):
    words = _without_template([word for _, word, _ in head])
    if not words:
        return "block"
    if "namespace" in words:
        return "namespace"
    if words[:1] == ["extern"] and len(words) == 2:
        return "namespace"  # extern "C"
    if _is_type(head):
        return "type"
    if "(" in words and words[-1] not in ("=", ",", "(", "return"):
        before = words[:words.index("(")]
        if "=" not in before or "operator" in before:
            return "other" if _initialises_member(words) else "function"
    return "other"


def _name(head):
    words = [word for _, word, _ in head]
    at = words.index("(")
    name = words[max(at - 1, 0)]
    if re.match(r"(TYPED_)?TEST(_[FP])?$|RC_GTEST", name):  # TEST(Suite, Case)
        name = f"{name}({' '.join(words[at + 1:words.index(')')])})"
    return name


def functions(text):
    """Every function with a body; lambdas and local classes belong to the function they stand in."""
    found = []
    stack = []  # (kind, Function or None)
    head = []
    inside = 0  # depth of functions and initialisers: a brace there opens a block of no interest
    for token in tokens(text):
        word = token[1] if token[0] == "punct" else ""
        if word == "{":
            kind = "block" if inside else _classify(head)
            started = None
            if kind == "function":
                started = Function(_name(head), head[0][2], 0)
            inside += kind in ("function", "block", "other")
            stack.append((kind, started))
            if not inside or kind in ("function", "other"):
                kept, head = head, []
                if kind == "other":
                    head = kept  # an initialiser: the declaration goes on after it
        elif word == "}":
            if not stack:
                continue
            kind, started = stack.pop()
            inside -= kind in ("function", "block", "other")
            if started:
                started.last = token[2]
                found.append(started)
            if kind != "other" and not inside:
                head = []
        elif inside:
            continue
        elif word == ";":
            head = []
        elif word == ":" and len(head) == 1 and head[0][1] in ("public", "private", "protected"):
            head = []
        else:
            head.append(token)
    return found
