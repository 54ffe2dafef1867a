"""The site is built from the documents and the docstrings; dead links in it are found."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from docs.documents import CHAPTERS, DOCUMENTS, ROOT
from web_pages import CHROMIUM, Parts, measured_widths

import fxdask

BUILDER = ROOT / "scripts" / "docs"


@pytest.fixture(scope="module")
def builder():
    """The modules of the builder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BUILDER)
        from site_builder import links, markdown, pages, site

        yield {"links": links, "markdown": markdown, "pages": pages, "site": site}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site, made by a process as scripts/docs/build starts it."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = build_by_command(folder)
    assert done.returncode == 0, done.stderr
    assert "no dead links" in done.stdout
    return folder


def build_by_command(folder):
    path = os.pathsep.join([str(BUILDER), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-P", "-m", "site_builder", folder]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)


def page(folder, name):
    return Parts((folder / name).read_text())


def test_the_script_starts_the_builder_with_the_python_of_the_environment(tmp_path):
    """The script is run with an environment that prints what it is asked to start."""
    copy = tmp_path / "scripts" / "docs"
    copy.mkdir(parents=True)
    shutil.copy(BUILDER / "build", copy)
    (tmp_path / "scripts" / "environment").write_text("#!/bin/sh\necho echo\n")
    (tmp_path / "scripts" / "environment").chmod(0o755)
    done = subprocess.run([copy / "build", "somewhere"], capture_output=True, text=True, check=True)
    assert done.stdout == "-P -m site_builder somewhere\n"


def test_every_document_and_every_public_name_has_a_page(site, builder):
    sources = {page.source for page in builder["pages"].MARKDOWN_PAGES}
    assert {path.relative_to(ROOT).as_posix() for path in DOCUMENTS} <= sources
    for name in set(fxdask.__all__) - {"__version__"}:
        found = page(site, f"api-{name}.html")
        assert name in found.text
        assert f"api-{name}.html" in page(site, "api.html").addresses
    for chapter in CHAPTERS:
        assert f"{chapter.stem}.html" in page(site, "index.html").addresses


def test_pages_open_from_disk_without_other_hosts(site):
    """Every file that a page loads is beside it; only links may lead elsewhere."""
    for path in site.glob("*.html"):
        text = path.read_text()
        assert "<script" not in text
        loaded = re.findall(r'(?:<img[^>]*? src|<link[^>]*? href)="([^"]*)"', text)
        assert "style.css" in loaded
        assert all((site / name).is_file() for name in loaded), path.name


def test_anchors_of_a_page_are_unique(site):
    for path in site.glob("*.html"):
        found = page(site, path.name).identities
        assert len(set(found)) == len(found), path.name


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("name", ["index.html", "api-FisherNetworkClassifier.html"])
def test_pages_fit_into_narrow_and_wide_windows(name, site, tmp_path):
    """Only boxes of code, tables and pictures scroll sideways, never the page."""
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    for width, shown in zip((400, 1200), measured_widths(copy / name, 400, 1200), strict=True):
        assert width - 20 < shown["window"] <= width
        assert shown["page"] <= shown["window"]


def test_methods_have_their_parameters_and_examples_in_the_reference(site):
    found = page(site, "api-FisherNetworkClassifier.html")
    assert {"predict_proba", "score_samples", "plan", "report"} <= set(found.identities)
    assert "Candidates of each class for" in found.text
    assert ">>> " in found.text
    assert ":meth:" not in found.text


def test_code_that_names_something_public_is_linked(site):
    assert "api-batch_score.html" in page(site, "first-steps.html").addresses


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("missing.md", "there is no file missing.md"),
        ("README.md#nowhere", "index.html has no anchor nowhere"),
        ("#nowhere", "index.html has no anchor nowhere"),
        ("scripts/docs/tables.md#nowhere", "tables.html has no anchor nowhere"),
        ("deploy/README.md#nowhere", "deploy.html has no anchor nowhere"),
        ("fxdask/store/FORMAT.md#nowhere", "format.html has no anchor nowhere"),
        ("../outside.md", "there is no file ../outside.md"),
        ("ftp://example.org/file", "it leads to no page of this site"),
    ],
)
def test_a_dead_link_of_a_document_is_found(link, reason, site, builder, tmp_path):
    """The README with one more link, in a copy of the site."""
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    text = (ROOT / "README.md").read_text() + f"\n[one more]({link})\n"
    target = builder["site"].Site(ROOT)
    rendered = builder["markdown"].render(text, lambda address: target.resolve(address, "README.md"), {})
    (copy / "index.html").write_text(rendered.body)
    (found,) = builder["links"].dead_links(copy)
    assert found.startswith("index.html: ")
    assert found.endswith(reason)


def test_the_command_fails_on_a_dead_link(tmp_path):
    """A copy of the project's documents, of which one has a link to a missing chapter."""
    for path in [*DOCUMENTS, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "LICENSE"]:
        (tmp_path / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    shutil.copytree(BUILDER, tmp_path / "scripts" / "docs", dirs_exist_ok=True)
    shutil.copytree(ROOT / "scripts" / "examples", tmp_path / "scripts" / "examples")
    for name in ("deploy", "scripts/constraints.txt"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name, **({"dirs_exist_ok": True} if (ROOT / name).is_dir() else {}))
    with (tmp_path / "scripts" / "docs" / "tables.md").open("a") as file:
        file.write("\n[a chapter that was removed](removed.md)\n")
    path = os.pathsep.join([str(tmp_path / "scripts" / "docs"), str(ROOT)])
    command = [sys.executable, "-P", "-m", "site_builder", tmp_path / "out"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "tables.html: the link to 'removed.md' is dead: there is no file removed.md" in done.stderr
    assert done.stderr.endswith("1 dead links; mend them in the Markdown files\n")


def test_a_folder_with_other_files_is_refused(builder, tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="holds other files than a site of fxdask; choose another folder"):
        builder["site"].build(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_an_older_site_is_replaced(site, builder, tmp_path):
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    (copy / "removed.html").write_text("a page of an older version")
    builder["site"].build(copy)
    assert sorted(path.name for path in copy.iterdir()) == sorted(path.name for path in site.iterdir())


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [("How exact is it?", "how-exact-is-it"), ("`fit` and *score*", "fit-and-score"), ("A - b_c", "a---b_c")],
)
def test_anchors_are_those_of_github(heading, anchor, builder):
    rendered = builder["markdown"].render(f"# One\n\n## {heading}\n\n## {heading}\n", str, {})
    assert [found for found, _ in rendered.sections] == [anchor, f"{anchor}-1"]


def test_the_picture_of_the_readme_is_up_to_date(monkeypatch):
    """The script draws the committed file again: its scores are those of this version."""
    monkeypatch.syspath_prepend(BUILDER)
    import picture

    drawn = picture.as_file(picture.picture())
    committed = (BUILDER / "equal-means.svg").read_text()
    assert re.findall(r"<text[^>]*>(.*?)</text>", drawn) == re.findall(r"<text[^>]*>(.*?)</text>", committed)
    assert "prefers-color-scheme: dark" in committed
