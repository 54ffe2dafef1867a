"""The builder of the site: chapters in Markdown and docstrings -> HTML pages, whose links are checked."""
