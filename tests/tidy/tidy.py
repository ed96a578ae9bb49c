#!/usr/bin/env python3
"""Checks the rules of the tree that a compiler does not: arrows, sizes, links, words. The rules stand in layout.py.

tidy.py [--root FOLDER]     prints one line per breach (file:line: sentence) and exits 1 if there is one
"""
import argparse
import os
import re
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import cxx
import layout

Breach = namedtuple("Breach", "path line sentence")
CXX = (".cc", ".h", ".c")


def tracked(root):
    """The tree's own files: what git tracks or would track; without git, everything outside build/."""
    git = subprocess.run(["git", "-C", root, "ls-files", "-z", "-co", "--exclude-standard"], capture_output=True, check=False)
    if git.returncode == 0 and git.stdout:
        names = git.stdout.decode().split("\0")
    else:
        names = [os.path.relpath(os.path.join(d, f), root) for d, _, fs in os.walk(root) for f in fs]
    return sorted({n for n in names if n and not n.startswith(("build/", ".git/")) and (Path(root) / n).is_file()})


def folder_of(path):
    """("src", "node") for src/node/x/y.cc, ("apps", "vram") for apps/vram/main.cc, (top, "") elsewhere."""
    parts = path.split("/")
    return (parts[0], parts[1]) if parts[0] in ("src", "apps") and len(parts) > 2 else (parts[0], "")


def _forbidden_arrow(top, folder, target, include):
    if top == "apps":
        return f"a program may not include {target}/" if target in layout.NOT_FOR_APPS else None
    if top != "src" or target == folder or target in layout.MAY_INCLUDE[folder]:
        return None
    if include in layout.MAY_ALSO_INCLUDE.get(folder, ()):
        return None
    allowed = ", ".join(sorted(layout.MAY_INCLUDE[folder])) or "nothing else"
    return f"{folder}/ may not include {target}/ (it may include {allowed})"


def _forbidden_system(folder, include, for_tests):
    if folder in layout.PURE_FOLDERS and layout.IMPURE_HEADERS.match(include) and not for_tests:
        return f"{folder}/ is pure: no <{include}> (no IO, threads, clock or chance)"
    if folder in layout.FREESTANDING_FOLDERS and layout.CXX_HEADER.match(include) and not for_tests:
        return f"{folder}/ is loaded into other programs: no <{include}> of the C++ library"
    for pattern, folders in layout.CONFINED:
        if pattern.match(include) and folder not in folders:
            return f"<{include}> stays in {', '.join(sorted(folders))}/"
    return None


def is_test(path):
    """Tests and what only they link may include what they need."""
    return re.search(r"_(test|testing|fuzz)\.", path) is not None


def check_arrows(path, text):
    top, folder = folder_of(path)
    if top not in ("src", "apps") or not path.endswith(CXX):
        return
    if top == "src" and folder not in layout.MAY_INCLUDE:
        yield Breach(path, 1, f"src/{folder or '.'} is not in MAY_INCLUDE of tests/tidy/layout.py: say what it may include")
        return
    for_tests = is_test(path)
    for line, include, quoted in cxx.includes(text):
        target = include.split("/")[0]
        sentence = None
        if target in layout.MAY_INCLUDE and "/" in include:
            sentence = None if for_tests else _forbidden_arrow(top, folder, target, include)
        elif not quoted and top == "src":
            sentence = _forbidden_system(folder, include, for_tests)
        if sentence:
            yield Breach(path, line, sentence)


def check_sizes(path, text):
    limit = layout.MAX_LINES.get(Path(path).suffix)
    if limit is None:
        return
    count = text.count("\n")
    if count > limit:
        yield Breach(path, limit + 1, f"{count} lines: at most {limit} (split it by concern)")
    if path.endswith(CXX):
        for f in cxx.functions(text):
            if f.lines > layout.MAX_FUNCTION_LINES:
                yield Breach(path, f.first, f"{f.name} has {f.lines} lines: at most {layout.MAX_FUNCTION_LINES}")


def check_text(path, text):
    if path.endswith(".h") and path.startswith(("src/", "apps/")) and "#pragma once" not in text:
        yield Breach(path, 1, "a header starts with #pragma once")
    if text and not text.endswith("\n"):
        yield Breach(path, text.count("\n") + 1, "the last line has no end")
    for number, line in enumerate(text.split("\n"), 1):
        if line.endswith((" ", "\t", "\r")) and not path.endswith(".svg"):
            yield Breach(path, number, "space at the end of the line")
        if layout.TODO.search(line) and not path.startswith("tests/tidy/"):
            yield Breach(path, number, "a thing left to do names its owner, in parentheses after the word")
        word = layout.FORBIDDEN.search(line)
        if word:
            yield Breach(path, number, f"'{word.group()}' does not belong in the tree")
        for host in re.findall(r"https?://([\w.-]+)", line):
            if host not in layout.HOSTS:
                yield Breach(path, number, f"a link to {host}: not one of HOSTS in tests/tidy/layout.py")


def headings(text):
    """The anchors of a Markdown file, made the way that GitHub makes them."""
    anchors, seen = set(), {}
    for match in re.finditer(r"^#{1,6} +(.*?) *#*$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match.group(1))
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        anchors.add(f"{slug}-{count}" if count else slug)
    anchors |= set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    return anchors


def check_links(root, path, text):
    if not path.endswith(".md"):
        return
    bare = re.sub(r"```.*?```", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)
    for match in re.finditer(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", bare):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", target):
            continue
        line = bare.count("\n", 0, match.start()) + 1
        name, _, anchor = target.partition("#")
        file = (Path(root) / path).parent / name if name else Path(root) / path
        if not file.exists():
            yield Breach(path, line, f"the link {target} leads nowhere")
        elif anchor and file.suffix == ".md" and anchor not in headings(file.read_text(encoding="utf-8")):
            yield Breach(path, line, f"the link {target}: {file.name} has no such heading")


def check_reach(root, files):
    """Every page under docs/ can be reached from README.md, and every source file is named in a CMakeLists.txt."""
    pages = {f for f in files if f.endswith(".md")}
    reached, queue = set(), ["README.md"] if "README.md" in pages else []
    while queue:
        page = queue.pop()
        reached.add(page)
        text = (Path(root) / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            found = os.path.relpath((Path(root) / page).parent / target, root)
            for other in pages if (Path(root) / found).is_dir() else {found} & pages:
                if other not in reached and (other == found or os.path.dirname(other) == found):
                    queue.append(other)
    for page in sorted(pages - reached) if "README.md" in pages else ():
        if page.startswith("docs/"):
            yield Breach(page, 1, "no link leads here from README.md")
    lists = "\n".join((Path(root) / f).read_text(encoding="utf-8") for f in files if f.endswith(("CMakeLists.txt", ".cmake")))
    for source in files:
        if source.endswith((".cc", ".c")) and not re.search(rf"\b{re.escape(os.path.basename(source))}\b", lists):
            yield Breach(source, 1, "no CMakeLists.txt names this file: nothing builds it")


def check_tree(root):
    files = tracked(root)
    breaches = []
    for path in files:
        try:
            text = (Path(root) / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        breaches += check_arrows(path, text)
        breaches += check_sizes(path, text)
        if path != "LICENSE":
            breaches += check_text(path, text)
        breaches += check_links(root, path, text)
    breaches += check_reach(root, files)
    return breaches, len(files)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", default=str(Path(__file__).resolve().parents[2]))
    args = parser.parse_args()
    breaches, count = check_tree(args.root)
    for b in breaches:
        print(f"{b.path}:{b.line}: {b.sentence}")
    print(f"tidy: {count} files, {len(breaches)} breaches")
    sys.exit(1 if breaches else 0)


if __name__ == "__main__":
    main()
