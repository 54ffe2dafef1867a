"""The reference of the public names: docstrings in numpydoc's form -> Markdown, one page for each name."""

from __future__ import annotations

import inspect
import re

import pdoc.doc
import pdoc.docstrings

import fxdask
from site_builder.pages import Page

GROUP = "API reference"
MADE_BY_OTHERS = re.compile(r"_|set_\w+_request$")  # private names, and methods that scikit-learn adds
CRITERIA_TEXT = "The criteria that rank features and nodes, by their names; the guide describes them."
INDEX = Page("api.html", "All names", GROUP)


def reference_pages() -> dict[Page, str]:
    """The Markdown of every page of the reference: first the index, then one for each public name."""
    for name in fxdask.__all__:
        getattr(fxdask, name)  # pdoc sees only names that are loaded
    module = pdoc.doc.Module(fxdask)
    described = {name: module.get(name) for name in fxdask.__all__ if name != "__version__"}
    pages = {Page(f"api-{name}.html", name, GROUP): _page(name, found) for name, found in described.items() if found}
    lines = ["# API reference", "", "Everything that `import fxdask` gives. Other modules may change at any time.", ""]
    lines += ["| name | what it is |", "|---|---|"]
    lines += [f"| [`{page.name}`]({page.file}) | {_summary(described[page.name])} |" for page in pages]
    return {INDEX: "\n".join(lines) + "\n", **pages}


def reference_names() -> dict[str, str]:
    """The page that describes each public name, by the words that documents use for it."""
    found = {}
    for name in fxdask.__all__:
        if name != "__version__":
            found |= dict.fromkeys((name, f"fxdask.{name}", f"fxdask.{name}(...)"), f"api-{name}.html")
    return found


def _summary(found: pdoc.doc.Doc) -> str:
    """The first sentence of a docstring."""
    first = _markdown(found).partition("\n\n")[0].replace("\n", " ")
    return first.replace("|", "\\|") or CRITERIA_TEXT


def _page(name: str, found: pdoc.doc.Doc) -> str:
    parts = [f"# {name}", _signature(name, found), _markdown(found)]
    if name == "CRITERIA":
        parts += [CRITERIA_TEXT, "\n".join(f"- `{criterion}`" for criterion in fxdask.CRITERIA)]
    if isinstance(found, pdoc.doc.Class):
        for member in found.members.values():
            of_fxdask = member.taken_from[0].startswith("fxdask")
            if of_fxdask and not MADE_BY_OTHERS.match(member.name) and member.docstring:
                signature = _signature(f"{name}.{member.name}", member) if isinstance(member, pdoc.doc.Function) else ""
                parts += [f"## {member.name}", signature, _markdown(member)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _signature(name: str, found: pdoc.doc.Doc) -> str:
    """How something is called, as a block of code; a long signature has one parameter on each line."""
    if isinstance(found, pdoc.doc.Variable):
        return ""
    try:
        signature = inspect.signature(found.obj)
    except (TypeError, ValueError):
        return ""
    words = [_parameter(word) for word in _parameters(signature) if word not in ("self", "cls")]
    returned = "" if signature.return_annotation in (inspect.Signature.empty, "None") else signature.return_annotation
    end = f" -> {inspect.formatannotation(returned) if not isinstance(returned, str) else returned}" if returned else ""
    line = f"{name}({', '.join(words)}){end}"
    if len(line) > 90:
        line = f"{name}(\n    " + ",\n    ".join(words) + f",\n){end}"
    return f"```python\n{line}\n```"


def _parameters(signature: inspect.Signature) -> list[str]:
    """The parameters as they are written, with the star before those that are given by name only."""
    inside = str(signature.replace(return_annotation=inspect.Signature.empty))
    depth, words = 0, [""]
    for letter in inside[1:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            words.append("")
        else:
            words[-1] += letter
    return [word.strip() for word in words if word.strip()]


def _parameter(word: str) -> str:
    """A parameter whose annotation is not a string: annotations are kept as text by all modules of fxdask."""
    return re.sub(r": '([^']*)'", r": \1", word)


def _markdown(found: pdoc.doc.Doc) -> str:
    """A docstring as Markdown; examples become blocks of code, and roles of Sphinx plain code."""
    text = pdoc.docstrings.convert(found.docstring, "numpy", None)
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return re.sub(r"^(>>> .*\n(?:.+\n?)*)", _as_code, text, flags=re.MULTILINE).strip()


def _as_code(example: re.Match[str]) -> str:
    return "```pycon\n" + example[1].rstrip("\n") + "\n```\n"
