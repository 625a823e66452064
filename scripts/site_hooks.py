"""What MkDocs does beyond mkdocs.yml when it builds the site: `make docs`.

Pages of docs/ may link to files of the checkout: they go into the site. The reference of all commands is written by
scripts/command_reference.py, in the environment that dolmen is installed in, and becomes a page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"\[([a-z-]+\.md)\]\((\1(?:#[^)\s]*)?)\)")
CODE_IN_TABLE = re.compile(r"^ *\|.*\\\|.*$", re.MULTILINE)
OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")
COMMANDS = "commands.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the reference of commands, and the files outside docs/ that pages link to."""
    commands = Path(os.environ["COMMAND_REFERENCE"]).read_text()
    files.append(File.generated(config, COMMANDS, content=commands))
    pages = [file.content_string for file in files.documentation_pages()]
    for path in sorted({link[1] for page in pages for link in OUTSIDE.finditer(page)}):
        files.append(File.generated(config, f"files/{path}", content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapts a page to the site.

    Links to files outside docs/ point at their copies in the site. Links that are named after a file get the title of
    its page. Pipes in code of a table need no backslash here, and would show it.
    """

    def name_by_title(link: re.Match[str]) -> str:
        target = files.get_file_from_path(link[1])
        title = target.page.title if target is not None and target.page is not None else None
        return f"[{title or link[1]}]({link[2]})"

    def unescape_pipes(row: re.Match[str]) -> str:
        return re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), row[0])

    markdown = OUTSIDE.sub(lambda link: f"](files/{link[1]}{link[2] or ''})", markdown)
    return CODE_IN_TABLE.sub(unescape_pipes, NAMED.sub(name_by_title, markdown))
