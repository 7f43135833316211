"""What mkdocs does for this site beside its plug-ins (mkdocs.yml, `hooks`).

* The pages that Doxygen made are part of the site, so that links to them are checked.
* A link out of docs/ has no page to lead to. It becomes the file's path, in code style, and the
  file must exist.
"""

from __future__ import annotations

import logging
import os
import pathlib
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DOXYGEN = "reference/doxygen"  # where its pages are in the site
LINK = re.compile(r"\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"\s*(?:>\s*)*(`{3,}|~{3,})")

log = logging.getLogger("mkdocs.hooks")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds Doxygen's pages, which docs/build.sh has made."""
    folder = os.environ.get("RUEDA_DOXYGEN_HTML")
    if not folder:
        log.warning("there are no pages of C and C++: build the site with docs/build.sh")
        return files
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file():
            name = f"{DOXYGEN}/{path.relative_to(folder)}"
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def path_outside(page: str, target: str) -> pathlib.Path | None:
    """The file that a page's link leads to, if that is outside of docs/."""
    target = target.partition("#")[0]
    if not target or re.match(r"[a-z]+:|/", target):
        return None
    path = pathlib.Path(os.path.normpath(DOCS / pathlib.Path(page).parent / target))
    return None if path.is_relative_to(DOCS) else path


def without_links_outside(page: str, line: str) -> str:
    """The line with paths where it links to files outside of docs/."""

    def replace(match: re.Match[str]) -> str:
        path = path_outside(page, match["target"])
        if path is None:
            return match[0]
        if not path.exists():
            log.warning("%s links to %s, which does not exist", page, match["target"])
        name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
        text = match["text"]
        if text.strip("`") in (name, path.name):
            return f"`{name}`"
        return f"{text} (`{name}`)"

    return LINK.sub(replace, line)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Every line but those of code blocks."""
    lines = []
    fence = ""
    for line in markdown.split("\n"):
        mark = FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
        elif not fence:
            line = without_links_outside(page.file.src_uri, line)
        lines.append(line)
    return "\n".join(lines)
