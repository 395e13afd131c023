"""What mkdocs calls: adds the generated pages and writes out the wildcards of the navigation."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from generate import Page, all_pages, result_pictures

PAGES: list[Page] = []
_REMOTE = re.compile(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def on_config(config: MkDocsConfig) -> None:
    """Generate the pages; replace ``FOLDER/*`` in the navigation by what is in the folder."""
    PAGES[:] = all_pages(Path(config.config_file_path).parent)
    config.nav = _expanded(config.nav, Path(config.docs_dir))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Hand the generated pages to mkdocs."""
    for page in PAGES:
        files.append(File.generated(config, page.path, content=page.content))
    for path, picture in result_pictures(Path(config.config_file_path).parent).items():
        files.append(File.generated(config, path, abs_src_path=str(picture)))
    return files


def on_post_page(output: str, **kwargs: Any) -> None:
    """Refuse a page that would load something from elsewhere.

    Raises:
        PluginError: names the first such element.
    """
    found = _REMOTE.search(output)
    if found:
        raise PluginError(f"loads something from elsewhere: {found[0]}")


def _expanded(nav: Any, docs: Path) -> Any:
    """Return a part of the navigation with every ``FOLDER/*`` written out."""
    if isinstance(nav, str) and nav.endswith("/*"):
        return _folder(nav.removesuffix("*"), docs)
    if isinstance(nav, dict):
        return {title: _expanded(part, docs) for title, part in nav.items()}
    return [_expanded(part, docs) for part in nav] if isinstance(nav, list) else nav


def _folder(folder: str, docs: Path) -> list[Any]:
    """List a folder: what is written by hand in the order of names, then what is generated, in its own order."""
    written = sorted(path.relative_to(docs).as_posix() for path in (docs / folder).glob("*.md"))
    entries: list[Any] = list(written)
    sections: dict[str, list[Any]] = {}
    titles = {page.path: page.title for page in PAGES}
    for page in PAGES:
        if not page.path.startswith(folder):
            continue
        *parents, _ = page.path.removeprefix(folder).split("/")
        place, path = entries, ""
        for parent in parents:
            path += f"{parent}/"
            if path not in sections:
                sections[path] = []
                place.append({titles[f"{folder}{path}index.md"]: sections[path]})
            place = sections[path]
        place.append({page.title: page.path})
    return entries
