"""The progress bar: shown, not shown, and after some seconds in an interactive session."""

import sys

import pytest

from fxdask import progress
from fxdask.progress import progress_bar


@pytest.fixture
def interactive(monkeypatch, capsys):
    """A session such as a notebook's, whose standard error is no terminal -> what it shows."""
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    return lambda: capsys.readouterr().err


def run(**options):
    with progress_bar("fitting", **options) as update:
        for done in range(1, 5):
            if update is not None:
                update(done, 4)
        return update


def test_programs_see_nothing_unless_they_ask(monkeypatch, capsys):
    monkeypatch.delattr(sys, "ps1", raising=False)
    assert run(shown=False) is None
    assert capsys.readouterr().err == ""


def test_a_notebook_shows_long_stages(interactive, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_OF_SILENCE", 0.0)
    run(shown=False, unit="samples", n_units=400)
    last = interactive().split("\r")[-1]
    assert last.startswith("fitting  100%  4/4  ")
    assert last.strip().endswith("samples/s")
    assert last.endswith("\n")


def test_a_notebook_does_not_show_short_stages(interactive):
    run(shown=False)
    assert interactive() == ""


def test_a_notebook_shows_what_is_asked_for(interactive):
    run(shown=True)
    assert "fitting  100%  4/4" in interactive()
