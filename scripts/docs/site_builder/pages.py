"""The pages that are made from Markdown: which files they come from, and how they are grouped in the navigation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent.parent


@dataclass(frozen=True)
class Page:
    """A page of the site: its file, its name in the navigation, its group, and the Markdown file it comes from."""

    file: str
    name: str
    group: str
    source: str = ""


def _chapter(stem: str, name: str) -> Page:
    return Page(f"{stem}.html", name, "Guide", f"scripts/docs/{stem}.md")


def _deployment(folder: str, name: str) -> Page:
    return Page(f"deploy-{folder}.html", name, "Deployment", f"deploy/{folder}/README.md")


MARKDOWN_PAGES = (
    Page("index.html", "fxdask", "", "README.md"),
    _chapter("first-steps", "First steps"),
    _chapter("rules-and-criteria", "Rules and criteria"),
    _chapter("memory", "Memory and planning"),
    _chapter("clusters", "Clusters and deployment"),
    _chapter("object-stores", "Object stores"),
    _chapter("tables", "Tables"),
    _chapter("stores", "Stores and their format"),
    _chapter("paper", "Reproducing the paper"),
    _chapter("exactness", "How exact is it?"),
    Page("deploy.html", "Overview", "Deployment", "deploy/README.md"),
    _deployment("compose", "Docker Compose"),
    _deployment("kubernetes", "Kubernetes"),
    _deployment("slurm", "Slurm"),
    _deployment("ssh", "SSH"),
    Page("format.html", "Store format", "Project", "fxdask/store/FORMAT.md"),
    Page("changelog.html", "Changes", "Project", "CHANGELOG.md"),
    Page("contributing.html", "Working on fxdask", "Project", "CONTRIBUTING.md"),
)
GROUPS = ("", "Guide", "API reference", "Deployment", "Examples", "Project")
"""The groups in the order of the navigation; pages of the first have no heading."""
