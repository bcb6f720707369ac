#!/usr/bin/env python3
"""Compares the docs with the tree. Usage: docs.py [ROOT]

* The map in README.md, the code block under "## The tree", names every top-level folder, every folder of server/,
  client/ and tests/ that holds files, and nothing that does not exist.
* Every relative link of every Markdown file leads to something.

Exit code: 0 when all is well, 1 with one line for each difference.
"""

import pathlib
import re
import sys

IGNORED = {"build", "__pycache__"}  # and what begins with a dot
OPENED = ("server", "client", "tests")  # the map also names what is in these
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def ignored(name):
    return name in IGNORED or name.startswith(".")


def folders(root):
    """Folders that the map must name, as "server/core/"."""
    found = []
    for top in sorted(path for path in root.iterdir() if path.is_dir() and not ignored(path.name)):
        inner = [path for path in top.iterdir() if path.is_dir()] if top.name in OPENED else []
        for path in [top, *inner]:
            if not ignored(path.name) and any(file.is_file() for file in path.rglob("*")):
                found.append(f"{path.relative_to(root)}/")
    return found


def mapped(readme):
    """Paths of the map: two spaces of indent mean "inside the last path without indent"."""
    match = re.search(r"^## The tree\n+```\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    paths, parent = [], ""
    for line in match.group(1).splitlines() if match else []:
        name = line.split()[0]
        if not line.startswith(" "):
            parent = name
        paths.append(name if not line.startswith(" ") else parent + name)
    return paths


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]).resolve()
    errors = []
    paths = mapped((root / "README.md").read_text(encoding="utf-8"))
    if not paths:
        errors.append('README.md: no map under "## The tree"')
    errors += [f"README.md: the map names {path}, which does not exist" for path in paths if not (root / path).exists()]
    errors += [f"README.md: the map does not name {path}" for path in folders(root) if path not in paths]
    for document in sorted(root.rglob("*.md")):
        if any(ignored(part) for part in document.relative_to(root).parts):
            continue
        for link in LINK.findall(document.read_text(encoding="utf-8")):
            if "://" not in link and not link.startswith("mailto:") and not (document.parent / link).exists():
                errors.append(f"{document.relative_to(root)}: the link {link} leads nowhere")
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
